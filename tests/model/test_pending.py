"""The pending list of a consumer group against a dictionary, with a store that survives crashes beside it."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock._ext.queue.pending import (
    CLAIMED,
    DEAD,
    MAX_DELIVERIES,
    NOT_PENDING,
    NOT_YOURS,
    READY,
    SETTLED,
    WAITING,
    PendingList,
)

LIMIT = 700
CONSUMERS = st.integers(1, 4)
ANYBODY = st.integers(0, 4)
PICK = st.integers(0, 2**32)
ALL = 10**6


@dataclass
class Entry:
    state: int
    consumer: int
    deliveries: int
    due: int
    reason: int = 0


class PendingModel(RuleBasedStateMachine):
    @initialize(cursor=st.sampled_from([0, 250, 2**40 - 3]), keep_claims=st.booleans())
    def begin(self, cursor: int, keep_claims: bool) -> None:
        self.keep_claims = keep_claims
        self.now = 1_790_000_000_000
        self.pending = PendingList(limit=LIMIT, cursor=cursor)
        self.entries: dict[int, Entry] = {}
        self.cursor = cursor
        self.head: bytes | None = None
        self.windows: dict[int, bytes] = {}
        self.first_cursor = cursor
        self.remember()

    def remember(self) -> None:
        self.stored_entries = {offset: replace(entry) for offset, entry in self.entries.items()}
        self.stored_cursor = self.cursor

    def pick(self, number: int) -> int:
        """The offset of an entry in most cases, of none in the others."""
        offsets = sorted(self.entries)
        place = number % (len(offsets) + 1)
        return offsets[place] if place < len(offsets) else self.cursor + number % 3

    def refusal(self, offset: int, consumer: int) -> int:
        entry = self.entries.get(offset)
        if entry is None:
            return NOT_PENDING
        if consumer == 0 or (entry.state == CLAIMED and entry.consumer in (0, consumer)):
            return SETTLED
        return NOT_YOURS

    def committed(self) -> int:
        return min(self.entries, default=self.cursor)

    @rule(
        count=st.integers(1, 300),
        gap=st.sampled_from([0, 0, 0, 1, 100, 256]),
        consumer=CONSUMERS,
        timeout=st.integers(0, 50),
    )
    def claim(self, count: int, gap: int, consumer: int, timeout: int) -> None:
        for _ in range(count):
            if len(self.entries) >= LIMIT:
                assert self.pending.is_full
                return
            offset = self.cursor + gap
            self.pending.claim(offset, consumer, self.now + timeout)
            self.entries[offset] = Entry(CLAIMED, consumer, 1, self.now + timeout)
            self.cursor = offset + 1

    @rule(ahead=st.integers(-5, 600))
    def skip(self, ahead: int) -> None:
        self.pending.skip_to(self.cursor + ahead)
        self.cursor = max(self.cursor, self.cursor + ahead)

    @rule(picks=st.lists(PICK, min_size=1, max_size=20), consumer=ANYBODY)
    def settle(self, picks: list[int], consumer: int) -> None:
        for number in picks:
            offset = self.pick(number)
            expected = self.refusal(offset, consumer)
            assert self.pending.settle(offset, consumer) == expected
            if expected == SETTLED:
                del self.entries[offset]

    @rule(picks=st.lists(PICK, min_size=1, max_size=20))
    def settle_what_somebody_has(self, picks: list[int]) -> None:
        for number in picks:
            offset = self.pick(number)
            if offset in self.entries and self.entries[offset].state == CLAIMED:
                assert self.pending.settle(offset, self.entries[offset].consumer) == SETTLED
                del self.entries[offset]

    @rule(keep=st.integers(0, 3))
    def settle_nearly_all(self, keep: int) -> None:
        for offset in sorted(self.entries)[keep:]:
            assert self.pending.settle(offset, 0) == SETTLED
            del self.entries[offset]

    @rule(number=PICK, consumer=ANYBODY, delay=st.integers(0, 100))
    def nack(self, number: int, consumer: int, delay: int) -> None:
        offset = self.pick(number)
        expected = self.refusal(offset, consumer)
        if expected == SETTLED:
            entry = self.entries[offset]
            entry.state, entry.due, entry.reason = WAITING, self.now + delay, 0
            assert self.pending.nack(offset, consumer, self.now + delay) == (SETTLED, entry.deliveries)
        else:
            assert self.pending.nack(offset, consumer, self.now + delay) == (expected, 0)

    @rule(number=PICK, consumer=ANYBODY, reason=st.integers(1, 2))
    def bury(self, number: int, consumer: int, reason: int) -> None:
        offset = self.pick(number)
        expected = self.refusal(offset, consumer)
        assert self.pending.bury(offset, consumer, reason) == expected
        if expected == SETTLED:
            self.entries[offset] = Entry(DEAD, 0, self.entries[offset].deliveries, 0, reason)

    @rule(consumer=ANYBODY)
    def release(self, consumer: int) -> None:
        released = 0
        for entry in self.entries.values():
            if consumer and entry.consumer == consumer:
                entry.consumer = 0
                if entry.state == CLAIMED:
                    entry.state, entry.due = READY, 0
                    released += 1
        assert self.pending.release(consumer) == released

    @rule(step=st.integers(0, 60), most=st.sampled_from([0, 1, 7, ALL]), max_deliveries=st.sampled_from([0, 2, 3]))
    def time_passes(self, step: int, most: int, max_deliveries: int) -> None:
        self.now += step
        due = sorted(
            (entry.due, offset)
            for offset, entry in self.entries.items()
            if entry.state in (CLAIMED, WAITING) and entry.due <= self.now
        )
        expected = []
        for _, offset in due[:most]:
            entry = self.entries[offset]
            had = entry.consumer if entry.state == CLAIMED else 0
            is_dead = max_deliveries and entry.deliveries >= max_deliveries
            entry.state, entry.reason = (DEAD, MAX_DELIVERIES) if is_dead else (READY, 0)
            entry.consumer = entry.due = 0
            expected.append((offset, entry.deliveries, entry.state, had))
        assert self.pending.take_due(self.now, most, max_deliveries) == expected

    @rule(most=st.integers(0, 30), consumer=CONSUMERS, timeout=st.integers(0, 50))
    def redeliver(self, most: int, consumer: int, timeout: int) -> None:
        offsets = self.pending.ready(most)
        assert offsets == sorted(offset for offset, entry in self.entries.items() if entry.state == READY)[:most]
        for offset in offsets:
            entry = self.entries[offset]
            entry.state, entry.consumer, entry.due = CLAIMED, consumer, self.now + timeout
            entry.deliveries += 1
            assert self.pending.claim_again(offset, consumer, entry.due) == entry.deliveries

    @rule(number=PICK)
    def redeliver_what_is_not_ready(self, number: int) -> None:
        offset = self.pick(number)
        if offset not in self.entries or self.entries[offset].state != READY:
            assert self.pending.claim_again(offset, 1, self.now) == 0

    @rule(most=st.integers(0, 30))
    def bury_the_dead(self, most: int) -> None:
        dead = self.pending.dead(most)
        offsets = sorted(offset for offset, entry in self.entries.items() if entry.state == DEAD)[:most]
        assert dead == [(offset, self.entries[offset].reason, self.entries[offset].deliveries) for offset in offsets]
        for offset in offsets:
            assert self.pending.settle(offset, 0) == SETTLED
            del self.entries[offset]

    @rule(back=st.integers(0, 400))
    def seek(self, back: int) -> None:
        self.cursor = max(0, self.cursor - back)
        self.entries.clear()
        self.pending.reset(self.cursor)

    @rule()
    def store(self) -> None:
        head, windows = self.pending.take_changes()
        assert [number for number, _ in windows] == sorted({number for number, _ in windows})
        self.head = head or self.head
        for number, value in windows:
            if value is None:
                self.windows.pop(number, None)
            else:
                self.windows[number] = value
        assert set(self.windows) == {offset >> 8 for offset in self.entries}
        self.remember()

    @rule(is_stored=st.booleans(), order=st.randoms(use_true_random=False))
    def crash(self, is_stored: bool, order: random.Random) -> None:
        """What was stored comes back, and nothing else: the whole state if the last change was stored."""
        if is_stored:
            self.store()
        self.entries = {offset: replace(entry) for offset, entry in self.stored_entries.items()}
        self.cursor = self.stored_cursor
        for entry in self.entries.values():
            entry.consumer = 0
            if entry.state == CLAIMED and not self.keep_claims:
                entry.state, entry.due = READY, 0
        self.pending = PendingList(limit=LIMIT, cursor=self.first_cursor)
        parts = list(self.windows.items())
        order.shuffle(parts)
        for number, value in parts:
            self.pending.load_window(number, value, keep_claims=self.keep_claims)
        if self.head is not None:
            self.pending.load_head(self.head)
        self.remember()

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "pending"):
            return
        expected = [
            (offset, entry.state, entry.consumer, entry.deliveries, entry.due, entry.reason)
            for offset, entry in sorted(self.entries.items())
        ]
        assert self.pending.entries(ALL) == expected
        assert len(self.pending) == self.pending.count == len(expected)
        assert (self.pending.cursor, self.pending.committed) == (self.cursor, self.committed())
        assert self.pending.is_full == (len(expected) >= LIMIT)
        due = [entry.due for entry in self.entries.values() if entry.state in (CLAIMED, WAITING)]
        assert self.pending.next_due == min(due, default=-1)
        assert self.pending.ready_count == sum(entry.state == READY for entry in self.entries.values())
        assert self.pending.dead_count == sum(entry.state == DEAD for entry in self.entries.values())


TestPending = PendingModel.TestCase
TestPending.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
