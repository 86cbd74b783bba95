"""Who reads which partition of a topic: balanced, with the fewest moves, and a function of its input alone.

4 partitions   a: 0 1 2 3          one consumer has everything
b comes        a: 0 1   b: 2 3     two move, because they must
c comes        a: 0 1   b: 2  c: 3
a goes         b: 2 0   c: 3 1     only what a had moves
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice


def assign(
    partitions: Iterable[int], consumers: Iterable[str], current: Mapping[str, Iterable[int]]
) -> dict[str, tuple[int, ...]]:
    """The partitions of each consumer, sorted. `current` is who has what now; consumers that are gone, and partitions
    that are, may be in it."""
    names = sorted(set(consumers))
    if not names:
        return {}
    pool = sorted(set(partitions))
    lo, extra = divmod(len(pool), len(names))
    result = _keep(names, pool, current, lo, extra)
    taken = {partition for held in result.values() for partition in held}
    rest = iter([partition for partition in pool if partition not in taken])
    for name in names:
        result[name] += islice(rest, max(0, lo - len(result[name])))
    for name in names:
        if len(result[name]) == lo:
            result[name] += islice(rest, 1)
    return {name: tuple(sorted(held)) for name, held in result.items()}


def _keep(
    names: list[str], pool: list[int], current: Mapping[str, Iterable[int]], lo: int, extra: int
) -> dict[str, list[int]]:
    """What each of them has and may keep: of those with more than `lo`, the first `extra` one more than that."""
    free = set(pool)
    kept: dict[str, list[int]] = {}
    for name in names:
        held = sorted(free.intersection(current.get(name, ())))
        free.difference_update(held)
        if len(held) > lo:
            room = lo + 1 if extra else lo
            extra -= room > lo
            held = held[:room]
        kept[name] = held
    return kept
