"""Does a shared subscription that its client does not acknowledge hold up the rest of that client?"""

import pytest

from tests.support.clients.packets import V5, PacketType
from tests.support.clients.raw_client import NothingCame

COUNT = 3_000


def publishes(client, seconds):
    """What comes until nothing does for so long; nothing is acknowledged."""
    found = []
    try:
        while True:
            packet = client.receive(seconds)
            if packet.type == PacketType.PUBLISH:
                found.append(packet)
    except NothingCame:
        return found


def fill(publisher, topic):
    for first in range(0, COUNT, 100):
        ids = [publisher.send_publish(topic, b"%d" % number, qos=1) for number in range(first, first + 100)]
        for packet_id in ids:
            publisher.await_packet(PacketType.PUBACK, packet_id)


@pytest.mark.parametrize("silent", ["share", "own"])
@pytest.mark.parametrize("receive_maximum", [None, 9])
def test_one_consumer_of_a_client_is_not_acknowledged(open_app, publisher, new_name, silent, receive_maximum):
    """Seed: each shared subscription has a consumer of its own, isolated from the main one and from the others."""
    bounds = {} if receive_maximum is None else {"receive_maximum": receive_maximum}
    base = new_name("isolated")
    topics = {name: f"{base}/{name}" for name in ("own", "share", "other")}
    client = open_app(V5, **bounds)
    client.subscribe(topics["own"], qos=1)
    for name in ("share", "other"):
        assert client.subscribe(f"$share/group/{topics[name]}", qos=1) == [1]
    fill(publisher, topics[silent])
    held = []
    while not held:
        held = publishes(client, 1.0)
    assert len(held) < (receive_maximum or 1_000)
    assert {packet.topic for packet in held} == {topics[silent]}
    others = [name for name in topics.values() if name != topics[silent]]
    for topic in others:
        publisher.publish(topic, b"x", qos=1)
    found = [client.expect(PacketType.PUBLISH, 30).topic for _ in others]
    assert sorted(found) == sorted(others)
    assert len(held) + len(found) <= (receive_maximum or 1_000)
