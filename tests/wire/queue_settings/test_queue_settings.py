"""What the settings as a whole say of queues, on both logs: each test has a broker of its own. Reference, sections 1, 6
and 12."""

import time

import pytest

from tests.support.clients.packets import V5
from tests.support.worlds.queues import QueueBroker, QueueClient, running_queue_broker


@pytest.fixture(params=["embedded", "kafka"])
def provider(request):
    return request.param


def test_nothing_configured(provider, tmp_path, connect):
    """Row "nothing configured": a reserved queue `mqtt` bound to `$queue/#`, for what no other queue takes; with
    `auto_create = "durable"` every other name gets a queue of its own, see test_auto_create.py."""
    with running_queue_broker(tmp_path, provider) as broker:
        client = QueueClient(connect(V5, broker=broker))
        client.publish("$queue/anything/key", b"landed")
        client.publish("$queue/mqtt/own", b"own")
        client.consume("$queue/mqtt", "workers")
        [own] = client.take_and_ack(b"own")
        assert (own.queue, own.message_id, own.topic) == ("mqtt", "mqtt:0", "$queue/mqtt/own")
        assert broker.counter("anything", "depth") == 1
        client.close()


def test_the_reserved_queue_stops_nobody_when_it_is_full(provider, tmp_path, connect):
    """The queues that are read go on without it."""
    with running_queue_broker(tmp_path, provider, {"durable_queues.auto_create": "off"}) as broker:
        broker.command("queue", "update", "mqtt", "-o", "limits.max_depth=3")
        broker.command("queue", "create", "orders")
        client = QueueClient(connect(V5, broker=broker))
        client.publish("$queue/unknown/1", b"1", b"2", b"3")
        client.publish("$queue/unknown/1", b"4", reason=0x97)
        for number in range(10):
            client.publish(f"$queue/orders/{number}", b"%d" % number)
        client.consume("$queue/orders", "workers")
        client.take_and_ack(*(b"%d" % number for number in range(10)))
        assert broker.counter("mqtt", "depth") == 3
        client.close()


def test_configured_queues_have_no_mqtt_beside_them(provider, tmp_path, connect):
    """Row "nothing configured": only if there are no `queues`."""
    with running_queue_broker(tmp_path, provider, queues=[{"name": "orders"}]) as broker:
        client = connect(V5, broker=broker)
        client.publish("$queue/elsewhere/key", b"", qos=1)
        assert broker.queue("orders") is not None
        assert broker.queue("mqtt") is None
        client.close()


@pytest.mark.parametrize(
    "table",
    [
        {"name": "q", "topics": ["$queue/a/#/b"]},
        {"name": "q", "topics": ["$queue/a+/b"]},
        {"name": "q", "type": "fifo"},
        {"name": "a/b"},
        {"name": "q", "visibilty_timeout": "1s"},
    ],
    ids=["misplaced-hash", "misplaced-plus", "type", "name", "typing-error"],
)
def test_bad_definitions_are_refused(tmp_path, table):
    """Rows "fan-out" (misplaced `#` in a pattern refused) and "types"; section 14, bad patterns refused."""
    broker = QueueBroker(tmp_path, queues=[table])
    assert broker.process.wait(60) != 0
    assert "queue" in broker.log()
    assert "Traceback" not in broker.log()


def test_edits_apply_at_a_reload(provider, tmp_path, connect):
    """Row "configuration edited later": limits, retry, retention, dlq and new queues apply."""
    first = {"name": "orders", "limits": {"max_depth": 1}}
    with running_queue_broker(tmp_path, provider, queues=[first]) as broker:
        client = QueueClient(connect(V5, broker=broker))
        client.publish("$queue/orders", b"1")
        client.publish("$queue/orders", b"2", reason=0x97)
        broker.reload([{"name": "orders", "limits": {"max_depth": 2}}, {"name": "added", "type": "stream"}])
        deadline = time.monotonic() + 30  # definitions are stored, one after the other, before they apply
        while broker.queue("added") is None and time.monotonic() < deadline:
            time.sleep(0.05)
        client.publish("$queue/orders", b"2")
        client.publish("$queue/orders", b"3", reason=0x97)
        assert broker.queue("added") is not None
        client.close()
        assert broker.terminate() == 0  # and they still apply after a restart
        broker.restart()
        client = QueueClient(connect(V5, broker=broker))
        client.publish("$queue/orders", b"3", reason=0x97)
        client.consume("$queue/orders", "workers")
        client.take_and_ack(b"1", b"2")
        client.close()


def test_a_change_of_type_is_refused(provider, tmp_path, connect):
    """Row "configuration edited later": a change of type is refused with a message; the queue stays as it was."""
    with running_queue_broker(tmp_path, provider, queues=[{"name": "orders"}]) as broker:
        client = QueueClient(connect(V5, broker=broker))
        client.publish("$queue/orders", b"1")
        logged = broker.reload([{"name": "orders", "type": "stream"}])
        assert "orders" in logged
        assert "type" in logged
        client.consume("$queue/orders", "workers")
        delivery = client.next(b"1")
        assert "x-stream-offset" not in delivery.properties
        client.ack(delivery)
        client.close()


def test_rules_of_access_hold(provider, tmp_path, connect):
    """Row "what enters a queue": `$queue/…` is a topic; who may not publish or subscribe there does not."""
    rules = '[[rules]]\neffect = "deny"\ntopics = ["$queue/secret/#"]\n'
    rules += '[[rules]]\neffect = "allow"\ntopics = ["#", "$queue/#"]\n'
    with running_queue_broker(tmp_path, provider, queues=[{"name": "secret"}, {"name": "open"}], rules=rules) as broker:
        client = QueueClient(connect(V5, broker=broker))
        client.publish("$queue/secret/a", b"1", reason=0x87)
        client.publish("$queue/open/a", b"1")
        assert client.try_consume("$queue/secret", "workers") == [0x87]
        assert client.try_consume("$queue/secret/#", "workers") == [0x87]
        client.consume("$queue/open", "workers")
        client.take_and_ack(b"1")
        assert broker.counter("secret", "tail") == 0
        client.close()


@pytest.mark.parametrize(("interval", "committed"), [("0s", 5), ("1h", 0)], ids=["each-batch", "never"])
def test_the_interval_of_the_auto_commit(provider, tmp_path, connect, interval, committed):
    """Section 6, constant "auto-commit of streams": `durable_queues.auto_commit_interval`, 0 = each batch."""
    payloads = [b"%d" % number for number in range(5)]
    settings = {"durable_queues.auto_commit_interval": interval}
    with running_queue_broker(
        tmp_path, provider, settings=settings, queues=[{"name": "events", "type": "stream"}]
    ) as broker:
        reader = QueueClient(connect(V5, broker=broker))
        reader.consume("$queue/events", "readers")
        reader.publish("$queue/events", *payloads)
        reader.take(*payloads)
        if committed:
            broker.await_progress("events", "readers", committed=committed)
        else:
            time.sleep(0.2)
            assert broker.progress("events", "readers") == (5, 0, 0)
        reader.close()
