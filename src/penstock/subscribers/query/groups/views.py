"""SHOW CONSUMERS and SHOW SUBSCRIPTIONS, from memory. The columns are those of TDengine, and lag."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from penstock.subscribers.query.groups.group import Group, Member
from penstock.subscribers.query.groups.offsets import OffsetBook
from penstock.subscribers.query.ports import Source

CONSUMERS = [
    "consumer_id",
    "consumer_group",
    "client_id",
    "user",
    "fqdn",
    "status",
    "topics",
    "end_point",
    "up_time",
    "subscribe_time",
    "rebalance_time",
    "parameters",
    "poll_time",
]
SUBSCRIPTIONS = [
    "topic_name",
    "consumer_group",
    "vgroup_id",
    "consumer_id",
    "user",
    "fqdn",
    "offset",
    "rows",
    "lag",
]


def time_text(ms: int) -> str | None:
    """None for a time that has not been yet."""
    if not ms:
        return None
    return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def host_of(address: str) -> str:
    host, separator, _ = address.rpartition(":")
    return host.strip("[]") if separator else address


def consumer_rows(groups: Iterable[Group]) -> list[list[object]]:
    return [_consumer_row(group, member) for group in groups for _, member in sorted(group.members.items())]


def _consumer_row(group: Group, member: Member) -> list[object]:
    parameters = {
        "auto.offset.reset": member.terms.reset,
        "session.timeout.ms": f"{member.terms.session_timeout * 1_000:.0f}",
        "max.poll.interval.ms": f"{member.terms.max_poll_interval * 1_000:.0f}",
        **member.terms.parameters,
    }
    return [
        member.id,
        group.name,
        member.client_id,
        member.who.user,
        host_of(member.who.address),
        member.state,
        ",".join(member.topics),
        member.who.address,
        time_text(member.joined_ms),
        time_text(member.subscribed_ms),
        time_text(member.rebalanced_ms),
        ",".join(f"{name}:{value}" for name, value in parameters.items()),
        time_text(member.polled_ms),
    ]


def subscription_rows(
    group: Group, topic: str, partitions: Iterable[int], book: OffsetBook, source: Source
) -> list[list[object]]:
    """A row for each partition, whether somebody reads it or not."""
    owners = dict(group.owners(topic))
    offsets = book.of(group.name, topic)
    rows: list[list[object]] = []
    for partition in sorted({*partitions, *owners}):
        member = owners.get(partition)
        offset, count = offsets.next_of(partition), None
        if member is not None:
            offset = member.positions.get((topic, partition), offset)
            count = member.rows.get((topic, partition))
        seen = source.last_seen(partition)
        lag = None if seen is None or offset is None else max(0, seen[1] - max(offset, seen[0]))
        who = (None, None, None) if member is None else (member.id, member.who.user, host_of(member.who.address))
        rows.append([topic, group.name, partition, *who, offset, count, lag])
    return rows
