"""Groups that nobody uses any more: which of them are removed, and how to learn which group holds a queue back."""

import time

import pytest

from tests.support.clients.packets import V5, V311
from tests.support.worlds.application import until

QUOTA_EXCEEDED = 0x97
NUMBERS = [b"%d" % number for number in range(8)]


def groups_of(broker, queue):
    return [group["id"] for group in broker.api(f"queues/{queue}/groups")["groups"]]


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.queue(limits={"max_depth": 5})
def test_one_look_does_not_block_the_queue(publisher, open_queue, broker, queue, version):
    """A client without a session and without `consumer-group` looks at a queue that others work on."""
    worker = open_queue()
    worker.consume(f"$queue/{queue}", "workers")
    looker = open_queue(version, client_id="")
    looker.consume(f"$queue/{queue}")
    assert len(groups_of(broker, queue)) == 2
    looker.close()
    until(lambda: groups_of(broker, queue) == ["workers"])
    for number in NUMBERS:
        publisher.publish(f"$queue/{queue}", number)
        worker.take_and_ack(number)
    assert broker.counter(queue, "depth") == 0


@pytest.mark.any_log
def test_a_look_at_all_queues_leaves_nothing(publisher, open_queue, broker, queue):
    publisher.publish(f"$queue/{queue}", b"1")
    looker = open_queue(client_id="")
    looker.consume("$queue/#")
    until(lambda: groups_of(broker, queue))
    looker.close()
    until(lambda: groups_of(broker, queue) == [])
    assert broker.counter(queue, "depth") == 1


def test_what_a_lone_client_has_settled_stays_settled(publisher, open_queue, broker, queue):
    """One such client after the other: only what the first had not settled comes to the second."""
    publisher.publish(f"$queue/{queue}", *NUMBERS)
    client = open_queue(client_id="")
    client.consume(f"$queue/{queue}", prefetch=6)
    taken = client.take(*NUMBERS[:6])
    client.ack(taken[0], taken[1], taken[3], taken[5])
    client.close()
    until(lambda: groups_of(broker, queue) == [])
    assert broker.counter(queue, "depth") == 4
    client = open_queue(client_id="")
    client.consume(f"$queue/{queue}")
    assert {delivery.payload for delivery in client.take_any(4)} == {b"2", b"4", b"6", b"7"}
    client.nothing()


@pytest.mark.queue(limits={"max_depth": 5})
def test_a_client_with_an_id_of_its_own_may_come_back(publisher, open_queue, broker, queue):
    """Its group stays for a minute, unless it keeps publishers out: then one of them is refused, and it is gone."""
    worker, looker = open_queue(), open_queue(client_id="looker")
    worker.consume(f"$queue/{queue}", "workers")
    looker.consume(f"$queue/{queue}")
    looker.close()
    for number in NUMBERS[:5]:
        publisher.publish(f"$queue/{queue}", number)
        worker.take_and_ack(number)
    assert groups_of(broker, queue) == ["workers", "looker"]
    [refused] = publisher.publish(f"$queue/{queue}", b"x", reason=QUOTA_EXCEEDED)
    assert "held back by group looker" in refused.properties["reason_string"]
    publisher.publish(f"$queue/{queue}", b"x")
    assert groups_of(broker, queue) == ["workers"]


@pytest.mark.any_log
def test_an_id_that_looks_as_if_it_were_assigned(open_queue, broker, queue):
    """A client that chose its id may come back with it, however the id begins."""
    looker, other = open_queue(client_id="penstock-looker"), open_queue(client_id="")
    looker.consume(f"$queue/{queue}")
    other.consume(f"$queue/{queue}")
    looker.close()
    other.close()
    until(lambda: len(groups_of(broker, queue)) == 1)
    assert groups_of(broker, queue) == ["penstock-looker"]


@pytest.mark.any_log
def test_and_over_a_kill(publisher, open_queue, broker, queue):
    """The group of a client without a session is still there for a while: the client may come back."""
    publisher.publish(f"$queue/{queue}", *NUMBERS)
    client = open_queue(client_id="lone-killed")
    client.consume(f"$queue/{queue}", prefetch=3)
    client.ack(*client.take(*NUMBERS[:3]))
    broker.kill()
    broker.restart()
    client = open_queue(client_id="lone-killed")
    client.consume(f"$queue/{queue}")
    assert {delivery.payload for delivery in client.take_any(5)} == set(NUMBERS[3:])


@pytest.mark.any_log
def test_an_unsubscribe_ends_the_group(publisher, open_queue, broker, queue):
    client = open_queue(client_id="")
    client.consume(f"$queue/{queue}")
    client.consume(f"$queue/{queue}", prefetch=3)  # once more, with another property: the same group
    assert len(groups_of(broker, queue)) == 1
    client.raw.unsubscribe(f"$queue/{queue}")
    until(lambda: groups_of(broker, queue) == [])


@pytest.mark.any_log
@pytest.mark.parametrize("version", [V311, V5])
def test_the_group_of_a_session_stays_with_the_session(publisher, open_queue, broker, queue, version):
    keeps = {"clean_start": False} if version == V311 else {"properties": {"session_expiry_interval": 3600}}
    client = open_queue(version, client_id=f"lasting-{version}", **keeps)
    client.consume(f"$queue/{queue}")
    client.close()
    publisher.publish(f"$queue/{queue}", b"1")
    time.sleep(0.3)
    assert len(groups_of(broker, queue)) == 1
    client = open_queue(version, client_id=f"lasting-{version}", clean_start=True)  # ends the session
    until(lambda: groups_of(broker, queue) == [])


@pytest.mark.any_log
def test_a_named_group_stays(publisher, open_queue, broker, queue):
    """Over a restart, too: what it has not read is kept for it."""
    client = open_queue()
    client.consume(f"$queue/{queue}", "workers")
    client.close()
    publisher.publish(f"$queue/{queue}", b"1")
    broker.kill()
    broker.restart()
    time.sleep(0.5)
    assert groups_of(broker, queue) == ["workers"]


@pytest.mark.any_log
@pytest.mark.queue(named_group_expires_after="1s")
def test_a_named_group_expires_where_that_is_asked_for(open_queue, broker, queue):
    client, other = open_queue(), open_queue()
    client.consume(f"$queue/{queue}", "workers")
    other.consume(f"$queue/{queue}", "others")
    time.sleep(1.5)
    client.close()
    assert len(groups_of(broker, queue)) == 2
    until(lambda: groups_of(broker, queue) == ["others"])


@pytest.mark.any_log
@pytest.mark.queue(group_expires_after="1s")
def test_the_group_of_an_absent_session_expires(publisher, open_queue, broker, queue):
    """Its client is a consumer again when it is back, in a new group."""
    lasting = {"properties": {"session_expiry_interval": 3600}}
    client = open_queue(client_id="absent", **lasting)
    client.consume(f"$queue/{queue}")
    client.close()
    until(lambda: groups_of(broker, queue) == [])
    publisher.publish(f"$queue/{queue}", b"1")
    client = open_queue(client_id="absent", clean_start=False, **lasting)
    assert client.next().payload == b"1"


@pytest.mark.any_log
@pytest.mark.queue(limits={"max_depth": 3})
def test_who_holds_the_queue_back_is_told(publisher, open_queue, broker, queue):
    """In the answer to publishers, by `list`, `show`, the metrics and doctor."""
    slow, quick = open_queue(), open_queue()
    slow.consume(f"$queue/{queue}", "audit")
    quick.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", *NUMBERS[:3])
    quick.take_and_ack(*NUMBERS[:3])
    [refused] = publisher.publish(f"$queue/{queue}", b"x", reason=QUOTA_EXCEEDED)
    assert "held back" not in refused.properties["reason_string"], "its consumer is there"
    assert broker.queue(queue)["held_back_by"] is None
    slow.close()
    until(lambda: broker.queue(queue)["held_back_by"] == "audit")
    assert broker.queue(queue)["held_back_since"].startswith("20")
    time.sleep(1.1)  # the words are kept for a second
    [refused] = publisher.publish(f"$queue/{queue}", b"x", reason=QUOTA_EXCEEDED)
    assert "limits.max_depth" in refused.properties["reason_string"]
    assert "held back by group audit, no consumer since 20" in refused.properties["reason_string"]
    ids = [publisher.raw.send_publish(f"$queue/{queue}", b"x", qos=1) for _ in range(3)]
    for packet_id in ids:
        answer = publisher.raw.await_packet(4, packet_id)
        assert "held back by group audit" in answer.properties["reason_string"]
    shown = broker.command("queue", "show", queue)
    assert "held back by group audit, no consumer since 20" in shown
    listed = broker.command("queue", "list", queue)
    assert "held back by" in listed
    assert "audit" in listed
    told = broker.command("doctor", fails=None)
    assert f"the queue {queue} is held back by group audit, no consumer since 20" in " ".join(told.split())
    metrics = broker.metrics()
    assert f'penstock_queue_held_back{{queue="{queue}"}} 1' in metrics
    assert "penstock_queues_held_back 0" not in metrics
