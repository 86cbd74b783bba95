"""Query topics for plain MQTT clients: `$share/<group>/<topic>`, `sub-offset`, and a commit that PUBACK drives."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from penstock_client import DataError
from tests.support.clients.packets import V5, V311, Packet, PacketType
from tests.support.clients.raw_client import RawClient
from tests.support.worlds.datasub import DataWorld, wait_for

IMPLEMENTATION_SPECIFIC = 0x83


@pytest.fixture
def connect(world: DataWorld) -> Callable[..., RawClient]:
    clients: list[RawClient] = []

    def connect_one(version: int = V5, client_id: str = "", **options: Any) -> RawClient:
        client = world.broker.client(version)
        clients.append(client)
        client.connect(client_id or f"mqtt{len(clients)}-{world.space}", **options)
        return client

    yield connect_one
    for client in clients:
        client.close()


def subscribe(client: RawClient, world: DataWorld, offset: str | None = "earliest", qos: int = 1) -> list[int]:
    properties = None if offset is None else {"user_property": [("sub-offset", offset)]}
    return client.subscribe(f"$share/{world.group}/{world.topic}", qos=qos, properties=properties)


def take_rows(client: RawClient, count: int, *, ack: bool = True) -> tuple[list[int], list[Packet]]:
    """So many rows, and the messages they came in."""
    numbers: list[int] = []
    packets = []
    while len(numbers) < count:
        packet = client.expect(PacketType.PUBLISH, 30.0)
        packets.append(packet)
        numbers += [row["n"] for row in json.loads(packet.payload or b"")["rows"]]
        if ack:
            client.ack(packet)
    return numbers, packets


def committed(world: DataWorld) -> int:
    return sum(row["offset"] for row in world.show("SUBSCRIPTIONS") if str(row["offset"]).isdigit())


def lag(world: DataWorld) -> int:
    return sum(row["lag"] for row in world.show("SUBSCRIPTIONS"))


@pytest.mark.both_logs
def test_rows_as_json_and_where_they_are_from(world: DataWorld, connect: Callable[..., RawClient]) -> None:
    world.create_topic('SELECT payload.n AS n FROM "{space}/#" WHERE payload.n > 0')
    world.publish({"n": 1}, {"n": 2}, {"n": 0}, topic="a")
    client = connect()
    assert subscribe(client, world) == [1]
    numbers, packets = take_rows(client, 2)
    assert numbers == [1, 2]
    message = json.loads(packets[0].payload or b"")
    assert (message["topic"], message["db"]) == (world.topic, f"{world.space}/#")
    assert packets[0].topic == world.topic
    assert packets[0].properties["content_type"] == "application/json"
    pairs = dict(packets[0].properties["user_property"])
    assert pairs["partition"] == str(message["vid"])
    assert int(pairs["first-offset"]) <= int(pairs["last-offset"])
    world.publish({"n": 3})
    assert take_rows(client, 1)[0] == [3]
    # what the query does not let through is not waited for
    wait_for(lambda: lag(world) == 0)


def test_what_is_not_acknowledged_is_not_committed(world: DataWorld, connect: Callable[..., RawClient]) -> None:
    """The commit follows the lowest position that is not acknowledged, and the next member goes on there."""
    world.create_topic()
    client = connect()
    subscribe(client, world)
    packets = []
    for number in range(3):
        world.publish({"n": number})
        packets += take_rows(client, 1, ack=False)[1]
    client.ack(packets[1])
    client.ack(packets[2])
    client.ping()
    client.close()
    again = connect()
    subscribe(again, world, "latest")
    assert take_rows(again, 3)[0] == [0, 1, 2]
    wait_for(lambda: lag(world) == 0)
    again.disconnect()
    last = connect()
    subscribe(last, world)
    world.publish({"n": 3})
    assert take_rows(last, 1)[0] == [3]


def test_two_clients_share_the_partitions_with_a_consumer(world: DataWorld, connect: Callable[..., RawClient]) -> None:
    """One group, whatever its members speak."""
    world.create_topic()
    clients = [connect(), connect(V311)]
    consumer = world.consumer()
    for client in clients:
        client.subscribe(f"$share/{world.group}/{world.topic}", qos=1)
    wait_for(lambda: sorted(len(row["topics"]) > 0 for row in world.show("CONSUMERS")) == [True] * 3)
    wait_for(
        lambda: len(consumer.assignment()) in (1, 2) and {row["status"] for row in world.show("CONSUMERS")} == {"ready"}
    )
    world.spread(range(40))
    seen: set[int] = set()

    def gather() -> bool:
        if (message := consumer.poll(0.05)) is not None and message.error() is None:
            seen.update(row["n"] for row in message.to_pylist())
        for client in clients:
            for packet in client.take_rest(0.05):
                assert packet.type == PacketType.PUBLISH
                client.ack(packet)
                seen.update(row["n"] for row in json.loads(packet.payload or b"")["rows"])
        return seen == set(range(40))

    wait_for(gather)


def test_a_persistent_session_goes_on(world: DataWorld, connect: Callable[..., RawClient]) -> None:
    """Its subscription is part of the session: nothing has to be said again, also after a kill."""
    world.create_topic()
    keep = {"properties": {"session_expiry_interval": 3600}}
    client_id = f"keeper-{world.space}"
    client = connect(V5, client_id, **keep)
    subscribe(client, world)
    world.publish({"n": 1})
    assert take_rows(client, 1)[0] == [1]
    wait_for(lambda: lag(world) == 0)
    client.close()
    world.publish({"n": 2})
    client = connect(V5, client_id, clean_start=False, **keep)
    assert take_rows(client, 1)[0] == [2]
    wait_for(lambda: lag(world) == 0)
    world.forget_publishers()
    world.broker.kill()
    world.broker.restart()
    client = connect(V5, client_id, clean_start=False, **keep)
    world.publish({"n": 3})
    numbers: list[int] = []
    while 3 not in numbers:
        numbers += take_rows(client, 1)[0]
    assert client.unsubscribe(f"$share/{world.group}/{world.topic}") == [0]
    world.publish({"n": 4})
    client.expect_nothing()


def test_a_client_that_was_away_does_not_get_what_another_has_done(
    world: DataWorld, connect: Callable[..., RawClient]
) -> None:
    """Its partitions went to another and came back before its session timed out: the group does not go backwards."""
    world.create_topic()
    client_id = f"away-{world.space}"
    keep = {"properties": {"session_expiry_interval": 3600}}
    client = connect(V5, client_id, **keep)
    subscribe(client, world)
    wait_for(lambda: {row["status"] for row in world.show("CONSUMERS")} == {"ready"})
    world.spread(range(24))
    take_rows(client, 24)
    wait_for(lambda: lag(world) == 0)
    client.close()
    with world.consumer() as other:
        wait_for(lambda: len(other.assignment()) >= 2)
        world.spread(range(100, 124))
        done: set[int] = set()
        while not done or (message := other.poll(1.0)) is not None:
            message = other.poll(30.0) if not done else message
            assert message is not None
            done |= {row["n"] for row in message}
        other.commit()
    # All of them are the client's again; or nobody's, if this took longer than its session lasts.
    wait_for(lambda: len({row["consumer_id"] for row in world.show("SUBSCRIPTIONS")}) == 1, 60)
    client = connect(V5, client_id, clean_start=False, **keep)
    world.spread(range(200, 224))
    got: list[int] = []
    while not set(range(200, 224)) <= set(got):
        got += take_rows(client, 1)[0]
    assert not done & set(got), "another has done it, and said so"
    assert set(got) | done == {*range(100, 124), *range(200, 224)}


@pytest.mark.parametrize(("offset", "wanted"), [("latest", [9]), (None, [9]), ("2", [2, 9])])
def test_where_it_begins(
    world: DataWorld, connect: Callable[..., RawClient], offset: str | None, wanted: list[int]
) -> None:
    world.create_topic()
    world.publish({"n": 1}, {"n": 2})
    if offset == "2":
        offset = next(str(row["offset"]) for row in _rows(world) if row["n"] == 2)
    client = connect()
    assert subscribe(client, world, offset) == [1]
    wait_for(lambda: {row["status"] for row in world.show("CONSUMERS")} == {"ready"})
    world.publish({"n": 9})
    assert take_rows(client, len(wanted))[0] == wanted


def _rows(world: DataWorld) -> list[dict[str, Any]]:
    consumer = world.consumer(group_id=f"{world.group}-looker")
    found: list[dict[str, Any]] = []
    while len(found) < 2:
        message = consumer.poll(60.0)
        assert message is not None
        found += message.to_pylist()
    consumer.close()
    return found


@pytest.mark.parametrize(("offset", "words"), [("soon", "sub-offset is"), ("-1", "sub-offset is"), ("none", "nothing")])
def test_a_wrong_offset_is_refused_with_words(
    world: DataWorld, connect: Callable[..., RawClient], offset: str, words: str
) -> None:
    world.create_topic()
    client = connect()
    properties = {"user_property": [("sub-offset", offset)]}
    packet_id = client.send_subscribe((f"$share/{world.group}/{world.topic}", 1), properties=properties)
    answer = client.await_packet(PacketType.SUBACK, packet_id)
    assert answer.reasons == [IMPLEMENTATION_SPECIFIC]
    assert words in answer.properties["reason_string"]


def test_at_most_once_the_sending_is_the_commit(world: DataWorld, connect: Callable[..., RawClient]) -> None:
    """[reference] QoS 0 commits at send."""
    world.create_topic()
    client = connect()
    assert subscribe(client, world, qos=0) == [0]
    world.publish({"n": 1}, {"n": 2})
    assert take_rows(client, 2, ack=False)[0] == [1, 2]
    wait_for(lambda: lag(world) == 0)
    client.disconnect()
    again = connect()
    subscribe(again, world)
    world.publish({"n": 3})
    assert take_rows(again, 1)[0] == [3]


def test_other_names_are_ordinary_topics(world: DataWorld, connect: Callable[..., RawClient]) -> None:
    """The catalogue wins under $share/ and nowhere else."""
    world.create_topic()
    shared, plain = connect(), connect()
    assert shared.subscribe(f"$share/{world.group}/{world.space}/ordinary", qos=1) == [1]
    assert shared.subscribe(f"$share/{world.group}/{world.topic}taken", qos=1) == [1]
    with pytest.raises(DataError, match="choose another name"):
        world.execute('CREATE TOPIC {topic}taken AS SELECT topic FROM "{space}/#"')
    assert plain.subscribe(world.topic, qos=1) == [1]
    connect().publish(world.topic, b"an ordinary message", qos=1)
    plain.expect_publish(world.topic, b"an ordinary message", qos=1, ack=True)
    world.publish(b"x", topic="ordinary")
    shared.expect_publish(f"{world.space}/ordinary", b"x", qos=1, ack=True)


def test_large_blocks_are_cut_to_what_the_client_takes(world: DataWorld, connect: Callable[..., RawClient]) -> None:
    world.create_topic('SELECT payload.n AS n, payload.text AS text FROM "{space}/#"')
    world.publish(
        *({"n": number, "text": "x" * 200} for number in range(20)), {"n": 20, "text": "x" * 5_000}, {"n": 21}
    )
    client = connect(properties={"maximum_packet_size": 1_500})
    subscribe(client, world)
    assert take_rows(client, 21)[0] == [*range(20), 21]
    wait_for(lambda: lag(world) == 0)


def test_rows_of_one_message_are_parted_for_a_small_client(world: DataWorld, connect: Callable[..., RawClient]) -> None:
    """The message is done when its last row is: what was not acknowledged comes again with all its rows."""
    world.create_topic('SELECT r.n::BIGINT AS n, r.s AS s FROM "{space}/#", UNNEST(payload) AS r')
    world.publish([{"n": number, "s": "x" * 200} for number in range(16)])
    client = connect(properties={"maximum_packet_size": 1_500})
    assert subscribe(client, world) == [1]
    numbers, packets = take_rows(client, 16, ack=False)
    assert numbers == list(range(16))
    assert len(packets) > 2
    client.ack(packets[0])
    client.close()
    other = connect()
    subscribe(other, world)
    assert take_rows(other, 16)[0] == list(range(16))
    wait_for(lambda: lag(world) == 0)
