"""Assign partitions to the members of a group: evenly, with few moves, and as a function of the input alone.

4 partitions   a: 0 1 2 3          one member has everything
b joins        a: 0 1   b: 2 3     two move, because they must
c joins        a: 0 1   b: 2  c: 3
a leaves       b: 0 2   c: 1 3     only the partitions of a move
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

M = TypeVar("M", int, str)
P = TypeVar("P", bound="int | tuple[str, int]")


def assign(
    partitions: Iterable[P],
    members: Iterable[M],
    held: Mapping[M, Collection[P]],
    may_have: Callable[[M, P], bool] = lambda *_: True,
) -> dict[M, list[P]]:
    """Return the partitions of each member, sorted.

    `held` is the present assignment; members and partitions that are gone may be in it. The sizes of two members never
    differ by more than one, unless the larger has nothing that the other may have. Where every member may have every
    partition, no other even assignment needs fewer moves.
    """
    pool = sorted(set(partitions))
    free = set(pool)
    shares: dict[M, set[P]] = {}
    for member in sorted(set(members)):
        shares[member] = {partition for partition in held.get(member, ()) if partition in free}
        shares[member] = {partition for partition in shares[member] if may_have(member, partition)}
        free -= shares[member]
    for partition in pool:
        if partition in free:
            able = [member for member in shares if may_have(member, partition)]
            if able:
                shares[min(able, key=lambda member: len(shares[member]))].add(partition)
    while _move_one(shares, may_have):
        pass
    return {member: sorted(share) for member, share in shares.items()}


def _move_one(shares: Mapping[M, set[P]], may_have: Callable[[M, P], bool]) -> bool:
    """Move a partition from the largest share to the smallest where that makes them more even."""
    by_size = sorted(shares, key=lambda member: (len(shares[member]), member))
    for taker in by_size:
        for giver in reversed(by_size):
            if len(shares[giver]) - len(shares[taker]) < 2:
                break
            movable = [partition for partition in shares[giver] if may_have(taker, partition)]
            if movable:
                shares[giver].remove(max(movable))
                shares[taker].add(max(movable))
                return True
    return False
