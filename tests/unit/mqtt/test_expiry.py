"""When does a connection end whose identity expires?"""

from typing import Any

from penstock.access.base import Identity
from penstock.mqtt.expiry import EXPIRED, Expiries
from tests.support.machine.manual_clock import ManualClock


class Client:
    """The part of a connection that is needed here."""

    def __init__(self) -> None:
        self.ended: list[tuple[int, str]] = []

    def disconnect(self, reason: int, words: str) -> None:
        self.ended.append((reason, words))


def make() -> tuple[ManualClock, Expiries, Any]:
    clock = ManualClock()
    return clock, Expiries(clock, clock=lambda: 1_000.0 + clock.now), Client()


def test_it_ends_in_time() -> None:
    clock, expiries, client = make()
    expiries.watch(client, Identity("ada", expires_at=1_010.0))
    clock.advance(9)
    assert client.ended == []
    clock.advance(2)
    assert client.ended == [(0xA0, EXPIRED)]


def test_a_client_that_authenticates_again_stays() -> None:
    clock, expiries, client = make()
    expiries.watch(client, Identity("ada", expires_at=1_010.0))
    clock.advance(9)
    expiries.watch(client, Identity("ada", expires_at=1_020.0))
    clock.advance(9)
    assert client.ended == []
    expiries.watch(client, Identity("ada"))
    clock.advance(100)
    assert client.ended == []


def test_nothing_is_kept_of_a_closed_connection() -> None:
    clock, expiries, client = make()
    expiries.watch(client, Identity("ada", expires_at=1_010.0))
    expiries.forget(client)
    assert not expiries._timers
    clock.advance(100)
    assert client.ended == []
