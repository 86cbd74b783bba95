"""Does the ledger of the workers of a queue see refusals without a reason, and only those?"""

import pytest

from tests.support.checkers.queue_checker import Ledger
from tests.support.clients.packets import Packet, PacketType
from tests.support.worlds.queues import Delivery


def delivery(number, offset=5):
    pairs = [("offset", str(offset)), ("x-delivery-count", str(number))]
    packet = Packet(PacketType.PUBLISH, b"", 1, payload=b"x", qos=1, properties={"user_property": pairs})
    return Delivery(packet, 0.0)


@pytest.fixture
def ledger():
    found = Ledger()
    for number in (1, 2):
        found.delivered(delivery(number))
    return found


def test_a_refusal_because_somebody_got_it_later(ledger):
    ledger.answered("ack", delivery(1), 0x80)
    assert ledger.unfounded() == []


def test_a_refusal_though_nobody_got_it_later(ledger):
    ledger.answered("ack", delivery(2), 0x80)
    assert len(ledger.unfounded()) == 1


@pytest.mark.parametrize("verb", ["ack", "reject"])
def test_a_refusal_because_an_earlier_delivery_has_settled_it(ledger, verb):
    """Of a worker that has both, on a machine so busy that the visibility timeout has passed."""
    ledger.answered(verb, delivery(1), 0)
    ledger.answered("ack", delivery(2), 0x80)
    assert ledger.unfounded() == []


def test_a_refusal_behind_a_nack_of_an_earlier_delivery(ledger):
    """That gives it to somebody again, who has not got it."""
    ledger.answered("nack", delivery(1), 0)
    ledger.answered("ack", delivery(2), 0x80)
    assert len(ledger.unfounded()) == 1
