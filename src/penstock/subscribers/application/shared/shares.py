"""A shared subscription of APPLICATION clients and its members."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock._ext.application.lane import Lane
from penstock._ext.hub.connection import Session
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
