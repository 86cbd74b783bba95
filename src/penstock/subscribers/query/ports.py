"""What the parts of data subscription ask of each other.

front-ends ─▶ DataService (service.py) ─┬─▶ Catalogue, Privileges
                                        ├─▶ Coordinator (groups/): who may read which partition, and how far it is
                                        ├─▶ Fetcher (fetching.py): rows
                                        └─▶ Source (source.py): where the log begins and ends
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec

from penstock.access import base as access
from penstock.access.base import Grant, Subject
from penstock.core.signal import Signal
from penstock_client import wire

if TYPE_CHECKING:
    from penstock.subscribers.query.catalogue import QueryTopic


class Identity(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who asks. `user` is None for those without a user name."""

    user: str | None = None
    client_id: str = ""
    address: str = ""  # of the other end of the connection, as shown by SHOW CONSUMERS
    is_operator: bool = False  # came with the token of the administration: may do everything
    surface: str = "data"  # data, mqtt or admin
    # As in the identity that access control knows.
    source: str = ""
    groups: tuple[str, ...] = ()
    grants: tuple[Grant, ...] | None = None
    attributes: dict[str, str | int | float] = {}

    @classmethod
    def of(cls, subject: Subject, surface: str) -> Identity:
        known = subject.identity
        return cls(
            known.user,
            subject.client_id,
            subject.address,
            surface=surface,
            source=known.source,
            groups=known.groups,
            grants=known.grants,
            attributes=known.attributes,
        )

    @property
    def subject(self) -> Subject:
        """Whom the rules are about."""
        known = access.Identity(self.user, self.source, self.groups, self.grants, attributes=self.attributes)
        return Subject(known, self.client_id, self.address)


class Source(Protocol):
    """The log that every query topic reads: `tbmq.msg.all`. All of it raises Unavailable."""

    async def partitions(self) -> list[int]:
        """Those that are there, in order; more may come."""
        ...

    async def watermarks(self, partition: int) -> tuple[int, int]:
        """Begin (the first offset that is there) and end (the next that will be written)."""
        ...

    async def offsets_at(self, places: Collection[tuple[int, int]]) -> dict[tuple[int, int], int]:
        """Of each partition and time in ms, the first offset whose record is as late as that or later; the end if there
        is none."""
        ...

    def last_seen(self, partition: int) -> tuple[int, int] | None:
        """Begin and end as they were heard last, for the views: without asking anybody, None if never."""
        ...


class Fetcher(Protocol):
    async def fetch(self, request: wire.Fetch, topic: QueryTopic) -> wire.Fetched:
        """Rows; parked if there are none yet. That the consumer owns the partition was checked, and is checked again
        before the answer leaves. Raises OutOfRange and Unavailable."""
        ...

    def wake(self, group: str, consumer: str) -> None:
        """What the consumer owns has changed: its fetches that are parked are answered with what they have."""
        ...


class Coordinator(Protocol):
    """Consumer groups. Everything raises DataError: NotAMember, StaleEpoch, NotFound, NotAllowed, Unavailable,
    BadRequest. `on_changed` hears of each consumer, by its group and id, whose partitions are others than before."""

    @property
    def on_changed(self) -> Signal[[str, str]]: ...

    async def start(self) -> None: ...
    async def stop(self) -> None: ...

    async def subscribe(self, who: Identity, request: wire.Subscribe) -> wire.Assignment:
        """Joins, or changes the topics; both silences are forgotten. A new consumer's topics must all be there and
        allowed; of one that was known those that are not are `refused`."""
        ...

    async def ask(self, who: Identity, request: wire.Ask) -> wire.Assignment | None: ...
    async def heartbeat(self, who: Identity, request: wire.Heartbeat) -> wire.Assignment | None: ...

    async def commit(self, who: Identity, request: wire.Commit) -> None:
        """Durable when it returns; all or none."""
        ...

    async def committed(self, request: wire.Positions) -> list[int | None]: ...
    async def leave(self, who: Identity, request: wire.Leave) -> None: ...

    async def check_fetch(self, who: Identity, request: wire.Fetch) -> None:
        """Returns if the consumer owns the partition in that epoch."""
        ...

    async def consumers(self) -> list[list[object]]:
        """Rows of SHOW CONSUMERS."""
        ...

    async def subscriptions(self) -> list[list[object]]:
        """Rows of SHOW SUBSCRIPTIONS."""
        ...

    async def groups_of(self, topic: str) -> list[str]:
        """Names of the groups with members that read the topic."""
        ...

    async def drop_group(self, group: str, topic: str, *, is_forced: bool) -> None:
        """Forgets how far the group is in the topic. Raises BadRequest if it has members there, unless forced: then
        they lose the topic, and hear why."""
        ...

    def topic_dropped(self, topic: str) -> None: ...
    def topic_reloaded(self, topic: str) -> None: ...
    def access_changed(self, topic: str | None = None) -> None:
        """Members that may not read any more are told so, of one topic or of all."""
        ...


class Progress(Protocol):
    """For retention and metrics; from memory."""

    def needed(self) -> Mapping[int, int]:
        """Of each partition the lowest position of all groups that are alive: what is before it nobody wants."""
        ...

    def positions(self) -> Mapping[tuple[str, str], Mapping[int, int]]:
        """By group and topic: where its next consumer would go on, of each partition that has such a place."""
        ...
