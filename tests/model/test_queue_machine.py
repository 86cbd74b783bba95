"""A classic queue against a model of it: publish, claim, ack, nack, reject, time-out, leaving, a kill of the broker.

The broker is a real process with clocks that the test moves, so half an hour passes at once. Times are far apart from
each other (a nack waits 100 to 400 s, a consumer has 1000 s, the steps are 450 and 1100 s), so that the seconds the
test itself takes change nothing. After each step everything that can be delivered must have been, and nothing else;
which consumer gets what is the broker's choice.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, Phase, note
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.support.brokers.broker import IS_MOSQUITTO
from tests.support.clients.packets import PacketType
from tests.support.clients.raw_client import NothingCame
from tests.support.machine.shifted_clock import ShiftedClock
from tests.support.worlds.application import until
from tests.support.worlds.queues import Delivery, QueueBroker, QueueClient, open_queue_client, running_queue_broker

VISIBILITY, BACK_OFFS, MAX_DELIVERIES = 1000.0, (100.0, 200.0, 400.0), 4
GROUP = "workers"
QUEUES = [
    {
        "name": f"m{number}",
        "visibility_timeout": "1000s",
        "limits": {"message_ttl": 0},
        "retry": {
            "max_retries": MAX_DELIVERIES - 1,
            "initial_backoff": "100s",
            "max_backoff": "400s",
            "multiplier": 2.0,
        },
    }
    for number in range(60)
]
NUMBERS = itertools.count()
VERB = st.sampled_from(["ack", "ack", "nack", "nack", "nack", "reject"])
CLAIMED, WAITING, READY, DEAD, DONE = "claimed", "waiting", "ready", "dead", "done"


@dataclass
class Entry:
    """A message that was delivered at least once."""

    offset: int
    state: str = READY
    deliveries: int = 0
    nacks: int = 0
    due: float = 0.0
    slot: int = -1


@dataclass
class Model:
    """What the group has to be."""

    published: int = 0
    cursor: int = 0
    now: float = 0.0
    entries: dict[int, Entry] = field(default_factory=dict)

    @property
    def ready(self) -> set[int]:
        """What may be delivered, of all messages."""
        again = {offset for offset, entry in self.entries.items() if entry.state == READY}
        return again | set(range(self.cursor, self.published))

    def of(self, *states: str) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.state in states]

    @property
    def pending(self) -> list[Entry]:
        return self.of(CLAIMED, WAITING, READY)

    @property
    def committed(self) -> int:
        return min((entry.offset for entry in self.pending), default=self.cursor)

    def claim(self, offset: int, slot: int) -> int:
        """Given to a consumer; which delivery it is."""
        if offset >= self.cursor:
            assert offset == self.cursor, f"{offset} was given out before {self.cursor}"
            self.cursor += 1
            self.entries[offset] = Entry(offset)
        entry = self.entries[offset]
        assert entry.state == READY, f"{offset} was delivered though it is {entry}"
        entry.state, entry.slot, entry.due = CLAIMED, slot, self.now + VISIBILITY
        entry.deliveries += 1
        return entry.deliveries

    def give_back(self, entry: Entry) -> None:
        """Its consumer lost it."""
        entry.state = DEAD if entry.deliveries >= MAX_DELIVERIES else READY

    def nack(self, entry: Entry) -> None:
        entry.nacks += 1
        if entry.deliveries >= MAX_DELIVERIES:
            entry.state = DEAD
            return
        entry.state = WAITING
        entry.due = self.now + BACK_OFFS[min(entry.nacks, len(BACK_OFFS)) - 1]

    def elapse(self, seconds: float) -> None:
        self.now += seconds
        for entry in self.of(CLAIMED, WAITING):
            if entry.due <= self.now:
                if entry.state == CLAIMED:
                    self.give_back(entry)
                else:
                    entry.state = READY

    def release(self, slot: int | None = None) -> None:
        for entry in self.of(CLAIMED):
            if slot is None or entry.slot == slot:
                self.give_back(entry)


@dataclass
class Consumer:
    client: QueueClient
    prefetch: int
    latest: dict[int, Delivery] = field(default_factory=dict)  # the last delivery of each offset


class QueueMachine(RuleBasedStateMachine):
    broker: QueueBroker
    clock: ShiftedClock
    day = 0.0  # by how much the clock was set since the broker was started

    def __init__(self) -> None:
        super().__init__()
        self.queue = QUEUES[next(NUMBERS) % len(QUEUES)]["name"]
        self.model = Model()
        self.kills = 0
        self.names = itertools.count()
        self.consumers: dict[int, Consumer] = {}
        self.publisher = self._open()
        self._set_day(-self.day)

    def _set_day(self, seconds: float) -> None:
        self.clock.set_day(seconds)
        type(self).day += seconds

    def _open(self) -> QueueClient:
        return open_queue_client(self.broker, f"{self.queue}-{next(self.names)}", keep_alive=0)

    # Steps. Which of them there are depends on what the test did, never on which consumer the broker chose: the same
    # choices have to make the same steps again.

    @initialize(prefetches=st.lists(st.integers(1, 4), min_size=1, max_size=2), count=st.integers(3, 8))
    def begin(self, prefetches: list[int], count: int) -> None:
        for prefetch in prefetches:
            self.join(prefetch)
        self.publish(count)

    @precondition(lambda self: self.model.published < 40)
    @rule(count=st.integers(1, 5))
    def publish(self, count: int) -> None:
        for _ in range(count):
            self.publisher.publish(f"$queue/{self.queue}", b"%d" % self.model.published)
            self.model.published += 1
        self.settle_down()

    @precondition(lambda self: len(self.consumers) < 3)
    @rule(prefetch=st.integers(1, 4))
    def join(self, prefetch: int) -> None:
        slot = min({0, 1, 2} - self.consumers.keys())
        self.consumers[slot] = Consumer(self._open(), prefetch)
        self.consumers[slot].client.consume(f"$queue/{self.queue}", GROUP, prefetch=prefetch)
        self.settle_down()

    @precondition(lambda self: self.consumers)
    @rule(which=st.integers(0, 2), how=st.sampled_from(["close", "disconnect", "unsubscribe"]))
    def leave(self, which: int, how: str) -> None:
        slot = sorted(self.consumers)[which % len(self.consumers)]
        consumer = self.consumers.pop(slot)
        if how == "unsubscribe":
            assert consumer.client.raw.unsubscribe(f"$queue/{self.queue}") == [0]
            consumer.client.close()
        else:
            getattr(consumer.client.raw, how)()
        self.model.release(slot)
        self.settle_down()

    @precondition(lambda self: self.consumers)
    @rule(choices=st.lists(st.tuples(st.integers(0, 100), VERB), min_size=1, max_size=4))
    def settle(self, choices: list[tuple[int, str]]) -> None:
        for which, verb in choices:
            if held := self.model.of(CLAIMED):
                self._settle(held[which % len(held)], verb)

    def _settle(self, entry: Entry, verb: str) -> None:
        consumer = self.consumers[entry.slot]
        note(f"{verb} {entry}")
        consumer.client.settle(consumer.latest[entry.offset], verb)
        if verb == "nack":
            self.model.nack(entry)
        else:
            entry.state = DONE if verb == "ack" else DEAD
        self.settle_down()

    @precondition(lambda self: self.consumers)
    @rule(which=st.integers(0, 100), slot=st.integers(0, 2), verb=st.sampled_from(["ack", "nack", "reject"]))
    def settle_what_is_not_its_own(self, which: int, slot: int, verb: str) -> None:
        if not self.model.entries:
            return
        entry = list(self.model.entries.values())[which % len(self.model.entries)]
        if slot not in self.consumers or (entry.state == CLAIMED and entry.slot == slot):
            return
        pairs = [("message-id", f"{self.queue}:{entry.offset}"), ("group-id", GROUP)]
        self.consumers[slot].client.command(f"$queue/{self.queue}/${verb}", pairs, refused=True)
        self.settle_down()

    @rule(seconds=st.sampled_from([450.0, 450.0, 1100.0]))
    def elapse(self, seconds: float) -> None:
        self.clock.elapse(seconds)
        self.model.elapse(seconds)
        self.publisher.raw.ping()
        self.settle_down()

    @precondition(lambda self: abs(self.day) < 10_000)
    @rule(seconds=st.sampled_from([3_000.0, -3_000.0]))
    def set_the_clock(self, seconds: float) -> None:
        self._set_day(seconds)

    @precondition(lambda self: self.kills < 1)
    @rule()
    def kill(self) -> None:
        """With the clock that it began with: else a nacked message may be earlier or later after the restart."""
        self.kills += 1
        self._set_day(-self.day)
        self.broker.kill()
        for client in (self.publisher, *(consumer.client for consumer in self.consumers.values())):
            client.close()
        self.consumers.clear()
        self.model.release()
        self.broker.restart()
        self.publisher = self._open()

    # Judgement

    def settle_down(self) -> None:
        """Takes exactly the deliveries that there have to be now."""
        room = {slot: self._room(slot) for slot in self.consumers}
        expected = min(len(self.model.ready), sum(room.values()))
        came = [self._take(room) for _ in range(expected)]
        # Messages go out in their order, whoever of the consumers is looked at first.
        for slot, delivery in sorted(came, key=lambda pair: pair[1].offset):
            note(f"consumer {slot} got {delivery.offset} ({delivery.count})")
            assert delivery.payload == b"%d" % delivery.offset
            assert delivery.count == self.model.claim(delivery.offset, slot)
            self.consumers[slot].latest[delivery.offset] = delivery
        for slot, consumer in self.consumers.items():
            consumer.client.raw.ping()
            with contextlib.suppress(NothingCame):
                packet = consumer.client.raw.receive(0.0)
                raise AssertionError(f"consumer {slot} got {packet} though it has no room or nothing is ready")

    def _room(self, slot: int) -> int:
        held = sum(entry.slot == slot for entry in self.model.of(CLAIMED))
        return self.consumers[slot].prefetch - held

    def _take(self, room: dict[int, int]) -> tuple[int, Delivery]:
        """The next delivery to one of those that have room."""
        deadline = time.monotonic() + 60
        for slot in itertools.cycle([slot for slot, places in room.items() if places]):
            try:
                packet = self.consumers[slot].client.raw.receive(0.005)
            except NothingCame:
                assert time.monotonic() < deadline, f"{sorted(self.model.ready)} are not delivered, room {room}"
                continue
            assert packet.type == PacketType.PUBLISH, packet
            self.consumers[slot].client.raw.ack(packet)
            room[slot] -= 1
            return slot, Delivery(packet, time.monotonic())
        raise AssertionError("nobody has room")

    @invariant()
    def progress_is_told(self) -> None:
        if self.consumers or self.model.entries:
            wanted = (self.model.cursor, self.model.committed, len(self.model.pending))
            until(lambda: self.broker.progress(self.queue, GROUP) == wanted, 60, f"progress {wanted}")

    def teardown(self) -> None:
        """Dead letters are those that had to die; the rest is all there."""
        try:
            dead = {b"%d" % entry.offset for entry in self.model.of(DEAD)}
            if dead:
                undertaker = self._open()
                undertaker.consume(f"$queue/$dlq/{self.queue}", "undertakers")
                assert {undertaker.next().payload for _ in dead} == dead
                undertaker.nothing(0.02)
                undertaker.close()
        finally:
            for client in (self.publisher, *(consumer.client for consumer in self.consumers.values())):
                client.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[QueueBroker, ShiftedClock]]:
    clock = ShiftedClock(tmp_path_factory.mktemp("clock"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in clock.environment.items():
            patch.setenv(name, value)
        settings = {"limits.max_keep_alive": 0}  # half an hour passes at once here
        with running_queue_broker(tmp_path_factory.mktemp("queues"), settings=settings, queues=QUEUES) as broker:
            yield broker, clock


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(IS_MOSQUITTO, reason="mosquitto has no durable queues")
def test_queue_machine(running: tuple[QueueBroker, ShiftedClock], request: pytest.FixtureRequest) -> None:
    broker, clock = running
    request.node.broker_logs = [(broker, 0)]

    class Machine(QueueMachine):
        pass

    Machine.broker, Machine.clock = broker, clock
    run_state_machine_as_test(
        Machine,
        settings=hypothesis_settings(
            max_examples=12,
            stateful_step_count=50,
            deadline=None,
            phases=(Phase.explicit, Phase.generate),  # each attempt at a smaller example would take seconds
            suppress_health_check=list(HealthCheck),
        ),
    )
