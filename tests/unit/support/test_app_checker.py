"""Does the checker of APPLICATIONs see every fault it is there for?"""

from types import SimpleNamespace

import pytest

from tests.support.checkers.app_checker import Subscriber, check_delivered
from tests.support.clients.packets import V5, Packet, PacketType


def payload(number, name="p0"):
    return f"{name} {number} ....".encode()


def publish(number, packet_id, *, dup=False, qos=1, name="p0"):
    return Packet(PacketType.PUBLISH, b"", packet_id, payload=payload(number, name), qos=qos, dup=dup)


def publisher(acknowledged=3, sent=5):
    numbers = {payload(number) for number in range(acknowledged)}
    return SimpleNamespace(name="p0", acknowledged=numbers, refused=[], sent=sent, order_errors=[])


class Silent:
    """Takes acknowledgements."""

    def send_ack(self, *_):
        pass


@pytest.fixture
def subscriber():
    return Subscriber(None, "app", V5, 1, ("#",))


def receive(subscriber, *packets, acknowledges=False):
    for packet in packets:
        subscriber._on_publish(packet)
        subscriber._held.append(packet)
        if acknowledges:
            subscriber._acknowledge(Silent(), 1)


def test_a_good_run(subscriber):
    receive(subscriber, publish(0, 1), publish(1, 2, dup=True), publish(2, 3))
    receive(subscriber, publish(1, 2, dup=True), acknowledges=True)
    check_delivered(subscriber, [publisher()])
    assert subscriber.repeated == 1


@pytest.mark.parametrize(
    ("packets", "fault"),
    [
        ([publish(0, 1), publish(1, 2)], "did not come"),
        ([publish(0, 1), publish(2, 2), publish(1, 3)], "another order"),
        ([publish(0, 1), publish(1, 2), publish(2, 3), publish(4, 4)], "a gap"),
        ([publish(0, 1), publish(1, 2), publish(2, 3), publish(2, 3)], "without DUP"),
        ([publish(0, 1), publish(1, 2), publish(2, 3), publish(2, 4, dup=True)], "instead of 3"),
        ([publish(0, 1), publish(1, 1), publish(2, 2)], "was given to"),
        ([publish(0, 1), publish(1, 2), publish(2, 3), publish(0, 4, name="p9")], "of nobody"),
    ],
)
def test_faults(subscriber, packets, fault):
    receive(subscriber, *packets)
    with pytest.raises(AssertionError, match=fault):
        check_delivered(subscriber, [publisher()])


def test_qos_2_after_its_pubrel(subscriber):
    receive(subscriber, publish(0, 1, qos=2), publish(0, 1, qos=2, dup=True))
    assert not subscriber.errors
    subscriber._on_pubrel(Silent(), 1)
    receive(subscriber, publish(0, 1, qos=2, dup=True))
    assert "after its PUBREL" in subscriber.errors[0]


def test_an_id_may_be_used_again_when_it_is_done(subscriber):
    receive(subscriber, publish(0, 1), publish(1, 1), publish(2, 1), acknowledges=True)
    check_delivered(subscriber, [publisher()])


def test_what_was_refused_may_be_missing(subscriber):
    """It was not promised; it may have been written all the same."""
    receive(subscriber, publish(0, 1), publish(2, 2))
    one = publisher(acknowledged=0)
    with pytest.raises(AssertionError, match="a gap"):
        check_delivered(subscriber, [one])
    one.refused = [payload(1)]
    check_delivered(subscriber, [one])
