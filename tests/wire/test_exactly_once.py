"""QoS 2 towards the broker: a message is taken once, also when a kill comes before its packet id is stored."""

import shutil

import pytest

from tests.support.brokers.log_broker import LogBroker
from tests.support.clients.packets import V5, V311, PacketType, pack_publish
from tests.support.clients.raw_client import RawClient

KEEP = {V5: {"properties": {"session_expiry_interval": 3600}}, V311: {}}


@pytest.fixture
def broker(tmp_path):
    running = LogBroker(tmp_path)
    running.wait_until_listening()
    yield running
    running.kill()


def publish(client: RawClient, payload: bytes, packet_id: int, *, dup: bool = False, topic: str = "once") -> None:
    client.send_raw(pack_publish(client.version, topic, payload, qos=2, packet_id=packet_id, dup=dup))
    client.await_packet(PacketType.PUBREC, packet_id)


def release(client: RawClient, packet_id: int) -> None:
    client.send_ack(PacketType.PUBREL, packet_id)
    client.await_packet(PacketType.PUBCOMP, packet_id)


@pytest.mark.parametrize("version", [V5, V311])
def test_a_message_whose_packet_id_was_not_stored_is_not_taken_twice(broker, connect, version, tmp_path):
    """The store as it was a moment before, the logs as they are now: so a kill in between leaves them. A message for a
    durable queue is in the queue's own log."""
    queue = {"topic": "$queue/mqtt/a"}
    store, before = broker.data_dir / "clients", tmp_path / "before"
    client = connect(version, "sender", broker=broker, clean_start=False, **KEEP[version])
    publish(client, b"done", 1)
    release(client, 1)
    publish(client, b"known", 2)
    publish(client, b"queued", 3, **queue)
    client.close()
    broker.kill()
    shutil.copytree(store, before)
    broker.restart()
    client = connect(version, "sender", broker=broker, clean_start=False, **KEEP[version])
    release(client, 2)
    publish(client, b"late", 7)
    publish(client, b"queued late", 9, **queue)
    publish(client, b"late again", 8)
    client.close()
    broker.kill()
    shutil.rmtree(store)
    shutil.copytree(before, store)
    broker.restart()
    client = connect(version, "sender", broker=broker, clean_start=False, **KEEP[version])
    publish(client, b"known", 2, dup=True)  # the store has it
    publish(client, b"late", 7, dup=True)  # only the log has it
    publish(client, b"late again", 8, dup=True)
    publish(client, b"queued", 3, dup=True, **queue)
    publish(client, b"queued late", 9, dup=True, **queue)
    for packet_id in (2, 3, 7, 8, 9):
        release(client, packet_id)
    assert sorted(broker.logged_payloads()) == [b"done", b"known", b"late", b"late again"]
    # an id that was released, before or after, is free for another message
    for packet_id in (1, 7):
        publish(client, b"new %d" % packet_id, packet_id)
        release(client, packet_id)
    assert sorted(broker.logged_payloads())[-2:] == [b"new 1", b"new 7"]
    publish(client, b"new 9", 9, **queue)
    reader = connect(V5, "reader", broker=broker)
    reader.subscribe("$queue/mqtt", qos=1)
    reader.expect_payloads([b"queued", b"queued late", b"new 9"])
    reader.expect_nothing(0.1)


def test_nothing_that_was_released_is_held_after_a_kill(broker, connect):
    """The end of the log is looked at after every start: what it has of released ids is not received any more."""
    client = connect(V5, "sender", broker=broker, clean_start=False, **KEEP[V5])
    for number in range(200):
        publish(client, b"%d" % number, number + 1)
        release(client, number + 1)
    client.close()
    for _ in range(2):
        broker.kill()
        broker.restart()
    client = connect(V5, "sender", broker=broker, clean_start=False, **KEEP[V5])
    for number in range(200):
        publish(client, b"again %d" % number, number + 1)
        release(client, number + 1)
    assert len(broker.logged_payloads()) == 400


def test_ids_of_an_earlier_session_are_not_held_by_the_next(broker, connect):
    """The end of the log has messages of both: what came before the session began was not its own."""
    client = connect(V5, "sender", broker=broker, clean_start=False, **KEEP[V5])
    for packet_id in (1, 2, 3):
        publish(client, b"old %d" % packet_id, packet_id)
        release(client, packet_id)
    client.disconnect()
    connect(V5, "sender", broker=broker, clean_start=True, **KEEP[V5]).close()
    broker.kill()
    broker.restart()
    client = connect(V5, "sender", broker=broker, clean_start=False, **KEEP[V5])
    for packet_id in (1, 2, 3):
        publish(client, b"new %d" % packet_id, packet_id)
        release(client, packet_id)
    assert sorted(broker.logged_payloads())[:3] == [b"new 1", b"new 2", b"new 3"]
