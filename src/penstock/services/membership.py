"""The members of a cluster and what they hold, as the heartbeats say: a pure function of the records in their order.

Every member reads the same records in the same order, so all agree who holds a claim: of those who claim it, the one
who did so first and has neither given it up, nor left, nor been expelled since. Nothing is decided by a reader's clock
but whether a silent member is still listed and when somebody writes the record that expels it.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from penstock.services.model import ServiceInfo


class Door(msgspec.Struct, frozen=True):
    """Where other members reach a member, and what proves that they are members: it is written nowhere else."""

    address: str
    secret: str


class Heartbeat(msgspec.Struct, frozen=True):
    info: ServiceInfo
    incarnation: str
    """A new one each time a process starts: tells a restart, and two processes with one id."""
    claims: tuple[str, ...] = ()
    """What it holds or waits for: names of partitions."""
    door: Door | None = None


@dataclass(slots=True)
class Member:
    heartbeat: Heartbeat
    heard_at: float
    is_alive: bool = True


class MemberTable:
    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._members: dict[str, Member] = {}
        self._claimants: dict[str, list[str]] = {}

    def put(self, service_id: str, heartbeat: Heartbeat, now: float, age: float = 0.0) -> None:
        """A heartbeat. `age`: of one that was written before the reader began; a stale one keeps its claims, but its
        member is not listed until it is heard again."""
        before = self._members.get(service_id)
        if before is not None and before.heartbeat.incarnation != heartbeat.incarnation:
            self.remove(service_id)
            before = None
        old = set(before.heartbeat.claims) if before is not None else set()
        for name in old - set(heartbeat.claims):
            self._drop(name, service_id)
        for name in heartbeat.claims:
            if name not in old:
                self._claimants.setdefault(name, []).append(service_id)
        self._members[service_id] = Member(heartbeat, now, age <= self._timeout)

    def remove(self, service_id: str) -> None:
        member = self._members.pop(service_id, None)
        for name in member.heartbeat.claims if member is not None else ():
            self._drop(name, service_id)

    def _drop(self, name: str, service_id: str) -> None:
        claimants = self._claimants[name]
        claimants.remove(service_id)
        if not claimants:
            del self._claimants[name]

    def silent(self, now: float) -> list[str]:
        """Members not heard for the timeout. They are not listed any more, and should be expelled."""
        found = [name for name, member in self._members.items() if now - member.heard_at > self._timeout]
        for name in found:
            self._members[name].is_alive = False
        return found

    def give_time(self, now: float) -> None:
        """Everybody gets a whole timeout again: it was the reader who heard nothing."""
        for member in self._members.values():
            member.heard_at = now

    def get(self, service_id: str) -> Member | None:
        return self._members.get(service_id)

    def alive(self) -> list[ServiceInfo]:
        infos = (member.heartbeat.info for member in self._members.values() if member.is_alive)
        return sorted(infos, key=lambda info: info.service_id)

    def holder(self, name: str) -> str | None:
        claimants = self._claimants.get(name)
        return claimants[0] if claimants else None
