"""Packs of one partition in memory, in the order of their offsets."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from penstock._ext.segment import RecordPack

# Taken from the front are only marked until so many can be removed at once.
TRIM_AT = 256


class PackRun:
    def __init__(self, packs: Iterable[RecordPack] = ()) -> None:
        self._packs: list[RecordPack] = []
        self._bases: list[int] = []
        self._head = 0
        self.bytes = 0
        self.records = 0
        for pack in packs:
            self.add(pack)

    def __len__(self) -> int:
        return len(self._packs) - self._head

    def __iter__(self) -> Iterator[RecordPack]:
        return iter(self._packs[self._head :])

    @property
    def first_offset(self) -> int | None:
        """Where the first pack starts."""
        return self._bases[self._head] if len(self) else None

    @property
    def first_pack(self) -> RecordPack | None:
        return self._packs[self._head] if len(self) else None

    def add(self, pack: RecordPack) -> None:
        self._packs.append(pack)
        self._bases.append(pack.base_offset)
        self.bytes += pack.size
        self.records += pack.count

    def drop_first(self) -> None:
        pack = self._packs[self._head]
        self.bytes -= pack.size
        self.records -= pack.count
        self._head += 1
        if self._head >= TRIM_AT and 2 * self._head >= len(self._packs):
            del self._packs[: self._head], self._bases[: self._head]
            self._head = 0
        else:
            # a mark in its place, so that the memory of the records is free at once
            self._packs[self._head - 1] = _NOTHING

    def read(self, offset: int, max_records: int, max_bytes: int) -> list[RecordPack]:
        """Records at and after the offset: at least one if there is one, and no more than the limits allow."""
        found: list[RecordPack] = []
        index = max(self._head, bisect_right(self._bases, offset) - 1)
        while index < len(self._packs) and max_records > 0:
            pack = self._packs[index]
            index += 1
            if pack.next_offset <= offset:
                continue
            if found and max_bytes < pack.size:
                break
            if pack.base_offset < offset or pack.count > max_records:
                pack = pack.slice(offset, max_records)
            found.append(pack)
            max_records -= pack.count
            max_bytes -= pack.size
        return found


_NOTHING = RecordPack()
