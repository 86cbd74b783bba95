"""Ownership in the cluster: a state machine over the records of one log partition.

Every node reads the ledger and applies its records in log order, so all nodes agree on every decision without talking
to each other. A decision that depends on what its writer had read carries that as a condition (`Fence.seen`, `epoch`);
a record whose condition does not hold at its place in the log has no effect, for every reader alike.

    Beat      a node lives; its lease runs from the moment it wrote the beat that it reads back
    Fence     a node's lease has run out, as seen from its last beat: all it holds is free
    Leave     a node stops in good order and holds nothing any more
    Claim     a node wants a key: it gets it now if the key is free, else when the holder lets go
    Release   the holder lets go of a key; the positions cover what it has made durable for it
    Settled   what was owed to the key from earlier holders is durable
    Ended     the key is gone
    Marks     where in the message log records of a fenced life stop to count, and how far it had dispatched

A key's `owed` says from where its messages may be missing. It moves only after the messages are durable, so any
number of holders may die one after the other: the next one starts where the first of them stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

Positions = dict[int, int]


class Life(NamedTuple):
    """One run of a node's process."""

    node: str
    number: int


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    life: Life


class Fence(msgspec.Struct, frozen=True, tag="fence"):
    life: Life
    seen: int  # offset of the last beat of this life that the writer had read, -1 = none


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    life: Life


class Claim(msgspec.Struct, frozen=True, tag="claim"):
    key: str
    life: Life


class Release(msgspec.Struct, frozen=True, tag="release"):
    key: str
    epoch: int
    life: Life
    positions: Positions


class Settled(msgspec.Struct, frozen=True, tag="settled"):
    key: str
    epoch: int
    life: Life


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    key: str
    epoch: int
    life: Life


class Marks(msgspec.Struct, frozen=True, tag="marks"):
    life: Life
    marks: Positions  # records of this life after these offsets are void
    positions: Positions  # how far it had dispatched: everything before is durable


LedgerRecord = Beat | Fence | Leave | Claim | Release | Settled | Ended | Marks


class Entry(msgspec.Struct):
    """A key: who holds it, who comes next, and from where messages are owed to it."""

    epoch: int
    holder: Life | None
    claimant: Life | None = None
    owed: Positions | Life | None = None  # a Life: from where that life had dispatched to; None: nothing


class Member(msgspec.Struct):
    """A node as the ledger knows it."""

    life: Life
    beat: int  # offset of its last beat


class Ledger:
    """What the records so far say."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.members: dict[str, Member] = {}
        self.fenced: dict[Life, Marks | None] = {}
        self.position = 0

    def apply(self, offset: int, record: LedgerRecord) -> list[str]:
        """Apply the next record; return the keys whose holder changed."""
        self.position = offset + 1
        if isinstance(record, Beat):
            self._apply_beat(offset, record.life)
            return []
        if isinstance(record, Claim):
            return self._apply_claim(record)
        if isinstance(record, Fence):
            member = self.members.get(record.life.node)
            if member is None or member.life != record.life or member.beat > record.seen:
                return []  # it has gone already, or it lives: a beat came that the writer had not seen
            return self._remove(member)
        if isinstance(record, Leave):
            member = self.members.get(record.life.node)
            return [] if member is None or member.life != record.life else self._remove(member)
        if isinstance(record, Marks):
            if record.life in self.fenced and self.fenced[record.life] is None:
                self.fenced[record.life] = record
            return []
        entry = self.entries.get(record.key)
        if entry is None or entry.epoch != record.epoch or entry.holder != record.life:
            return []  # written by a holder that has lost the key
        if isinstance(record, Settled):
            entry.owed = None
        elif isinstance(record, Release):
            if entry.owed is None:
                entry.owed = record.positions
            return self._free(record.key, entry)
        else:
            del self.entries[record.key]
            return [record.key]
        return []

    def _apply_beat(self, offset: int, life: Life) -> None:
        member = self.members.get(life.node)
        if life in self.fenced:
            return
        if member is None:
            self.members[life.node] = Member(life, offset)
        elif member.life == life:
            member.beat = offset
        # Else another process has the node's name and has not been fenced: this one has to wait.

    def _apply_claim(self, record: Claim) -> list[str]:
        if not self.is_member(record.life):
            return []
        entry = self.entries.get(record.key)
        if entry is None:
            self.entries[record.key] = Entry(1, record.life)
            return [record.key]
        if entry.holder is None:
            entry.epoch += 1
            entry.holder = record.life
            return [record.key]
        entry.claimant = None if entry.holder == record.life else record.life
        return []

    def _remove(self, member: Member) -> list[str]:
        """Free everything that a node held; the order of the keys is the same at every reader."""
        life = member.life
        del self.members[life.node]
        self.fenced[life] = None
        changed = []
        for key, entry in self.entries.items():
            if entry.claimant == life:
                entry.claimant = None
            if entry.holder == life:
                if entry.owed is None:
                    entry.owed = life
                changed += self._free(key, entry)
        return changed

    @staticmethod
    def _free(key: str, entry: Entry) -> list[str]:
        entry.holder = None
        if entry.claimant is not None:
            entry.epoch += 1
            entry.holder, entry.claimant = entry.claimant, None
        return [key]

    # ---- questions ----

    def is_member(self, life: Life) -> bool:
        member = self.members.get(life.node)
        return member is not None and member.life == life

    def holds(self, life: Life, key: str) -> bool:
        entry = self.entries.get(key)
        return entry is not None and entry.holder == life

    def epoch_of(self, key: str) -> int:
        entry = self.entries.get(key)
        return 0 if entry is None else entry.epoch

    def owed_from(self, key: str) -> Positions | None:
        """Return from where messages may be missing; None if nothing is owed. Raises LookupError while it is unknown
        how far a fenced life had dispatched."""
        owed = self.entries[key].owed
        if not isinstance(owed, Life):
            return owed
        marks = self.fenced[owed]
        if marks is None:
            raise LookupError(owed)
        return marks.positions

    def is_void(self, life: Life, partition: int, offset: int) -> bool:
        """Whether a record of the message log was written by a fenced life after its mark."""
        marks = self.fenced.get(life)
        return marks is not None and offset > marks.marks.get(partition, offset)

    def unmarked(self) -> Iterator[Life]:
        """Fenced lives whose marks are missing."""
        return (life for life, marks in self.fenced.items() if marks is None)

    def free_keys(self) -> list[str]:
        return [key for key, entry in self.entries.items() if entry.holder is None]
