"""Can one packet of one client keep the loop from everybody else?"""

import time

import pytest

from tests.support.clients.packets import V5, V311, PacketType, pack_subscribe

LONGEST_WAIT = 3.0  # seconds, on a machine shared with the rest of the suite
# As many filters as the largest packet holds are 200,000; a part of them tells enough, and cheaply if it is well.
FILTERS = 40_000


class Bystander:
    """A well-behaved client that measures how long the broker lets it wait."""

    def __init__(self, broker) -> None:
        self._client = broker.client(V311)
        self._client.timeout = 60.0
        self._client.connect("bystander")

    def longest_wait(self, seconds: float) -> float:
        worst, end = 0.0, time.monotonic() + seconds
        while time.monotonic() < end:
            start = time.monotonic()
            self._client.ping()
            worst = max(worst, time.monotonic() - start)
            time.sleep(0.01)
        self._client.close()
        return worst


def test_filters_beyond_the_quota(start_broker, connect):
    """Refused one by one, each at the cost of a look-up."""
    broker = start_broker()
    client = connect(V5, broker=broker)
    client.timeout = 60.0
    client.subscribe(*(f"own/{number}" for number in range(1_000)))
    bystander = Bystander(broker)
    client.send_raw(pack_subscribe(V5, 2, [(f"{number:x}", 0) for number in range(FILTERS)]))
    assert bystander.longest_wait(0.5) < LONGEST_WAIT
    reasons = client.await_packet(PacketType.SUBACK, 2).reasons
    assert reasons == [0x97] * FILTERS


@pytest.mark.parametrize("retained", [20_000])
def test_the_same_filter_many_times(start_broker, connect, retained):
    """[MQTT-3.8.4-5]: as if they had come one after the other, but the retained messages need no collecting again."""
    broker = start_broker()
    publisher = connect(V5, broker=broker)
    for number in range(retained):
        publisher.send_publish(f"r/{number}", b"x", retain=True)
    publisher.ping()
    client = connect(V5, broker=broker)
    bystander = Bystander(broker)
    client.send_raw(pack_subscribe(V5, 1, [("r/#", 0)] * FILTERS))
    assert bystander.longest_wait(0.5) < LONGEST_WAIT


def test_many_filters_that_look_at_every_retained_message(start_broker, connect):
    """Each looks at all of them and finds none; in one packet, and in many."""
    broker = start_broker()
    publisher = connect(V5, broker=broker, keep_alive=0)
    for number in range(20_000):
        publisher.send_publish(f"r/{number % 100}/{number}", b"x", retain=True)
    publisher.ping()
    client = connect(V5, broker=broker, keep_alive=0)
    bystander = Bystander(broker)
    start = time.monotonic()
    client.send_raw(pack_subscribe(V5, 1, [(f"+/+/+/{number}", 0) for number in range(500)]))
    client.send_raw(b"".join(pack_subscribe(V5, 2, [(f"+/+/+/{number}/x", 0)]) for number in range(300)))
    client.send_raw(pack_subscribe(V5, 3, [("r/7/#", 0)]))
    longest = bystander.longest_wait(2.0)
    client.await_packet(PacketType.SUBACK, 3)
    took = time.monotonic() - start
    assert longest < max(took / 4, 0.1)
    found = client.receive_all(at_least=500)
    assert sum(packet.type == PacketType.PUBLISH for packet in found) == 200
