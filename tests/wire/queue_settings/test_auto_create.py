"""What becomes of a queue that nobody has defined when a client uses it: `durable_queues.auto_create`. Each test has a
broker of its own, most of them on both logs."""

import pytest

from tests.support.clients.packets import V5, V311, PacketType, Will
from tests.support.worlds.application import until
from tests.support.worlds.queues import QueueClient, running_queue_broker

TOPIC_NAME_INVALID = 0x90
TOPIC_FILTER_INVALID = 0x8F
QUOTA_EXCEEDED = 0x97
ORDERS = [{"name": "orders"}]
OFF = {"durable_queues.auto_create": "off"}


@pytest.fixture(params=["embedded", "kafka"])
def provider(request):
    return request.param


def test_the_first_thing_everybody_tries(provider, tmp_path, connect):
    """A broker without `[[queues]]`: publish, then consume, with MQTT 5 and with MQTT 3."""
    with running_queue_broker(tmp_path, provider) as broker:
        client = QueueClient(connect(V5, broker=broker))
        client.publish("$queue/orders/1", b"two chairs")
        client.consume("$queue/orders", "workers")
        delivery = client.next(b"two chairs")
        assert (delivery.queue, delivery.topic) == ("orders", "$queue/orders/1")
        client.ack(delivery)
        older = connect(V311, broker=broker)
        older.publish("$queue/repairs/1", b"a lamp", qos=1)
        assert older.subscribe("$queue/repairs", qos=1) == [1]
        assert older.expect(PacketType.PUBLISH).payload == b"a lamp"
        assert broker.counter("mqtt", "tail") == 0
        client.close()
        older.close()


@pytest.mark.parametrize("first", ["publish", "subscribe"])
def test_a_queue_made_by_its_first_use_survives_a_kill(provider, tmp_path, connect, first):
    """Its definition is stored before the first PUBACK or SUBACK."""
    with running_queue_broker(tmp_path, provider) as broker:
        client = QueueClient(connect(V5, broker=broker))
        if first == "subscribe":
            client.consume("$queue/orders", "workers")
        client.publish("$queue/orders/1", b"1")
        broker.kill()
        broker.restart()
        shown = broker.queue("orders")
        assert (shown["durable"], shown["origin"], shown["depth"]) == (True, "auto", 1)
        client = QueueClient(connect(V5, broker=broker))
        client.consume("$queue/orders", "workers")
        client.ack(client.next(b"1"))
        client.close()


def test_many_queues_are_made_in_one_write(tmp_path, connect):
    """Publishes to 100 new names under way at once: every one that is acknowledged is there after a kill."""
    with running_queue_broker(tmp_path) as broker:
        raw = connect(V5, broker=broker)
        ids = [raw.send_publish(f"$queue/q{number}/k", b"%d" % number, qos=1) for number in range(100)]
        for packet_id in ids:
            raw.expect(PacketType.PUBACK, packet_id=packet_id, reason=0)
        broker.kill()
        broker.restart()
        assert [broker.counter(f"q{number}", "depth") for number in range(100)] == [1] * 100


def test_the_reserved_queue_takes_what_no_other_queue_does(provider, tmp_path, connect):
    with running_queue_broker(tmp_path, provider, OFF) as broker:
        assert broker.queue("orders") is None  # waits for the admin address, which opens after the listeners
        broker.command("queue", "create", "orders")
        client = QueueClient(connect(V5, broker=broker))
        client.publish("$queue/orders/1", b"for orders")
        client.publish("$queue/other/1", b"for nobody")
        client.publish("$queue/mqtt/own", b"own")
        assert broker.queue("other") is None
        client.consume("$queue/mqtt", "workers")
        spare, own = client.take_and_ack(b"for nobody", b"own")
        assert (spare.topic, own.topic) == ("$queue/mqtt/$queue/other/1", "$queue/mqtt/own")
        client.nothing()
        client.close()


def test_ephemeral(provider, tmp_path, connect):
    with running_queue_broker(tmp_path, provider, {"durable_queues.auto_create": "ephemeral"}, ORDERS) as broker:
        client = QueueClient(connect(V5, broker=broker))
        client.publish("$queue/elsewhere/1", b"1")
        assert broker.queue("elsewhere")["durable"] is False
        client.close()
        broker.kill()
        broker.restart()
        assert broker.queue("elsewhere") is None


def test_off(tmp_path, connect):
    """Without the reserved queue nothing takes it: the client is told which setting says so."""
    with running_queue_broker(tmp_path, settings=OFF, queues=ORDERS) as broker:
        client = QueueClient(connect(V5, broker=broker))
        client.publish("$queue/orders/1", b"1")
        [refused] = client.publish("$queue/ordres/1", b"1", reason=TOPIC_NAME_INVALID)
        assert "auto_create" in refused.properties["reason_string"]
        assert client.try_consume("$queue/ordres", "workers") == [TOPIC_FILTER_INVALID]
        assert broker.queue("ordres") is None
        older = connect(V311, broker=broker)
        older.send_publish("$queue/ordres/1", b"1", qos=1)
        older.expect_closed()
        client.close()


def test_there_is_a_bound(tmp_path, connect):
    """Dead letters and queues of the settings do not count, and a queue that is deleted makes room."""
    settings = {"durable_queues.max_auto_queues": 3}
    with running_queue_broker(tmp_path, settings=settings, queues=ORDERS) as broker:
        client = QueueClient(connect(V5, broker=broker))
        client.publish("$queue/orders/1", b"1")
        for name in ("a", "b", "c"):
            client.publish(f"$queue/{name}/1", b"1")
        [refused] = client.publish("$queue/d/1", b"1", reason=QUOTA_EXCEEDED)
        assert "max_auto_queues" in refused.properties["reason_string"]
        assert client.try_consume("$queue/d", "workers") == [QUOTA_EXCEEDED]
        client.consume("$queue/a", "workers")
        client.reject(client.next(b"1"))
        broker.api("queues/b", "DELETE")
        client.publish("$queue/d/1", b"1")
        client.publish("$queue/e/1", b"1", reason=QUOTA_EXCEEDED)
        client.close()
        broker.kill()
        broker.restart()
        client = QueueClient(connect(V5, broker=broker))
        client.publish("$queue/e/1", b"1", reason=QUOTA_EXCEEDED)
        client.close()


def test_what_was_refused_is_tried_again_after_a_reload(tmp_path, connect):
    """The broker remembers per connection which topics no queue takes."""
    with running_queue_broker(tmp_path, settings=OFF, queues=ORDERS) as broker:
        client = QueueClient(connect(V5, broker=broker))
        client.publish("$queue/other/1", b"1", reason=TOPIC_NAME_INVALID)
        broker.reload([*ORDERS, {"name": "other"}])
        until(lambda: broker.queue("other"), 60.0, "the new queue")  # made after the reload is logged
        client.publish("$queue/other/1", b"1")
        client.close()


def test_a_will_makes_a_queue_too(tmp_path, connect):
    with running_queue_broker(tmp_path) as broker:
        client = QueueClient(connect(V5, broker=broker))
        dying = connect(V5, broker=broker, will=Will("$queue/wills/1", b"last", 1))
        dying.close()
        client.consume("$queue/wills", "workers")
        client.ack(client.next(b"last"))
        client.close()


def test_an_ephemeral_queue_goes_in_time(tmp_path, connect):
    """`expires_after` counts, not the interval in which all queues are looked at."""
    settings = {"durable_queues.retention_interval": "1h"}
    with running_queue_broker(tmp_path, settings=settings, queues=ORDERS) as broker:
        for name in ("unused", "used"):
            broker.api("queues", "POST", {"name": name, "durable": False, "expires_after": "1s"})
        client = QueueClient(connect(V5, broker=broker))
        client.consume("$queue/used", "workers")
        until(lambda: broker.queue("unused") is None, 20, "the unused queue gone")
        assert broker.queue("used") is not None
        client.close()
        until(lambda: broker.queue("used") is None, 20, "the queue gone after its consumer")
