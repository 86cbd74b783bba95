"""The parts of a share, and who of its members gets which partition: evenly, and as few as possible change hands."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from penstock._ext.hub.connection import Lane, Session
from penstock.storage.log.pack_reader import PackReader


def may_receive(session: Session, topic: bytes) -> bool:
    return session.acl is None or session.acl.may_receive(topic)


@dataclass(frozen=True, slots=True)
class Member:
    session: Session
    options: int
    identifier: int


@dataclass(slots=True, eq=False)
class Share:
    """One share name on one filter."""

    share_filter: bytes
    group: str
    topic: str
    reader: PackReader[Lane]
    members: dict[str, Member] = field(default_factory=dict)
    sessions: list[Session] = field(default_factory=list)  # of the members
    partitions: set[int] = field(default_factory=set)
    starts: dict[int, int] = field(default_factory=dict)
    lanes: dict[int, Lane] = field(default_factory=dict)


def share_out(partitions: Collection[int], members: Collection[str], owners: Mapping[int, str]) -> dict[int, str]:
    """The owner of each partition, none without members. The numbers of partitions differ by one at the most."""
    if not members:
        return {}
    names = sorted(members)
    least, extra = divmod(len(partitions), len(names))
    kept: dict[str, list[int]] = {name: [] for name in names}
    free: list[int] = []
    for partition in sorted(partitions):
        owner = owners.get(partition)
        if owner in kept:
            kept[owner].append(partition)
        else:
            free.append(partition)
    # Who has most keeps one of those that do not divide evenly.
    room: dict[str, int] = {}
    for rank, name in enumerate(sorted(names, key=lambda name: (-len(kept[name]), name))):
        room[name] = least + (1 if rank < extra else 0)
    for name in names:
        while len(kept[name]) > room[name]:
            free.append(kept[name].pop())
    free.sort(reverse=True)
    for name in names:
        while len(kept[name]) < room[name]:
            kept[name].append(free.pop())
    return {partition: name for name, own in kept.items() for partition in own}
