"""Names of topics and consumer groups: one function for each kind, so that two places never build one differently.

topic           [prefix.]base[.isolated.<tenant>][.<partition>]
notifications   [prefix.]base.notifications.<service id>
edge events     [prefix.]tb_edge_event.notifications.<tenant>.<edge>
responses       [prefix.]base.responses.<service id>
group           [prefix.]<service type>_<queue>[-isolated-<tenant>]-consumer[-<partition>]
node group      [prefix.]<service type>-notifications-node-<service id>, [prefix.]<base>-responses-node-<service id>
"""

from __future__ import annotations

import re
from uuid import UUID

LONGEST = 249
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def checked(name: str) -> str:
    """The name, if every provider takes it: letters, digits, dot, underscore and hyphen, at most 249 of them."""
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise ValueError(f"{name!r} cannot be a name: use letters, digits, dots, underscores and hyphens")
    if len(name) > LONGEST:
        raise ValueError(f"the name {name[:40]}… has {len(name)} characters: use at most {LONGEST}")
    return name


def _checked_part(what: str, part: str) -> str:
    if not _NAME.fullmatch(part) or part.startswith(".") or part.endswith(".") or ".." in part:
        raise ValueError(f"{part!r} cannot be {what}: use letters, digits, underscores, hyphens and dots between them")
    return part


def _checked_partition(partition: int) -> int:
    if partition < 0:
        raise ValueError(f"partition {partition}: use 0 or more")
    return partition


def _prefixed(prefix: str, name: str) -> str:
    return checked(f"{_checked_part('a prefix', prefix)}.{name}" if prefix else name)


def topic_name(base: str, *, prefix: str = "", tenant: UUID | None = None, partition: int | None = None) -> str:
    """A queue's topic; one partition of it is a topic of its own."""
    name = _checked_part("a topic", base)
    if tenant is not None:
        name += f".isolated.{tenant}"
    if partition is not None:
        name += f".{_checked_partition(partition)}"
    return _prefixed(prefix, name)


def notifications_topic(base: str, service_id: str, *, prefix: str = "") -> str:
    """For messages that only this instance can handle; it is the only consumer."""
    return _prefixed(
        prefix, f"{_checked_part('a topic', base)}.notifications.{_checked_part('a service id', service_id)}"
    )


def edge_events_topic(base: str, tenant: UUID, edge: UUID, *, prefix: str = "") -> str:
    """What happened for one edge of a tenant; whoever has its connection is the only consumer."""
    return _prefixed(prefix, f"{_checked_part('a topic', base)}.notifications.{tenant}.{edge}")


def responses_topic(base: str, service_id: str, *, prefix: str = "") -> str:
    """Where the answers to this instance's requests come. The base is without `.requests`."""
    return _prefixed(prefix, f"{_checked_part('a topic', base)}.responses.{_checked_part('a service id', service_id)}")


def group_name(
    service_type: str, queue: str, *, prefix: str = "", tenant: UUID | None = None, partition: int | None = None
) -> str:
    """The group that consumes a queue, or one partition of it. In small letters: `tb_rule_engine_main-consumer`."""
    name = f"{service_type}_{_checked_part('a queue', queue)}".lower()
    if tenant is not None:
        name += f"-isolated-{tenant}"
    name += "-consumer"
    if partition is not None:
        name += f"-{_checked_partition(partition)}"
    return _prefixed(prefix, name)


def notifications_group(service_type: str, service_id: str, *, prefix: str = "") -> str:
    """`tb-core-notifications-node-core-1`: the one consumer of a notifications topic."""
    kind = service_type.lower().replace("_", "-")
    return _prefixed(prefix, f"{kind}-notifications-node-{_checked_part('a service id', service_id)}")


def responses_group(base: str, service_id: str, *, prefix: str = "") -> str:
    """Never shared with the notifications of the same instance: two topics, two groups."""
    return _prefixed(
        prefix, f"{_checked_part('a topic', base)}-responses-node-{_checked_part('a service id', service_id)}"
    )
