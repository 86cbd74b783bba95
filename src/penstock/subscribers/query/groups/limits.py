"""What consumers may ask for, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass

from penstock_client import wire
from penstock_client.errors import BadRequest

LONGEST_GROUP = 192
LONGEST_CLIENT = 255
LONGEST_CONSUMER = 300
LONGEST_PARAMETER = 1_024
MOST_PARAMETERS = 64
SESSION_MS = range(6_000, 1_800_001)
SHORTEST_POLL_MS = 1_000
RESETS = ("earliest", "latest", "none")
LARGEST_OFFSET = (1 << 63) - 1
DAY = 86_400


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Times in seconds. `rebalance_delay`: consumers that come together are shared out together; never more than the
    two seconds after which a needed rebalance must have begun."""

    rebalance_delay: float = 0.1
    max_groups: int = 10_000
    max_members: int = 1_000
    max_consumers: int = 10_000
    max_topics: int = 1_000
    offsets_retention: float = 7 * DAY


def check_group(group: str) -> None:
    if not group:
        raise BadRequest("group.id is missing")
    if len(group) > LONGEST_GROUP:
        raise BadRequest(f"group.id has {len(group)} characters: use at most {LONGEST_GROUP}")
    if ":" in group:
        raise BadRequest(f"group.id {group!r} is not allowed: leave out the colon")
    if not group.isprintable():
        raise BadRequest(f"group.id {group!r} is not allowed: leave out what cannot be printed")


def check_subscribe(request: wire.Subscribe, limits: GroupSettings) -> None:
    """Raises BadRequest."""
    check_group(request.group)
    if len(request.client_id) > LONGEST_CLIENT:
        raise BadRequest(f"client.id has {len(request.client_id)} characters: use at most {LONGEST_CLIENT}")
    if len(request.consumer) > LONGEST_CONSUMER:
        raise BadRequest("this is no id of a consumer")
    if len(request.topics) > limits.max_topics:
        raise BadRequest(f"{len(request.topics)} topics: a consumer may subscribe to {limits.max_topics}")
    if request.session_timeout_ms not in SESSION_MS:
        raise BadRequest(f"session.timeout.ms = {request.session_timeout_ms}: use {SESSION_MS[0]} to {SESSION_MS[-1]}")
    if request.max_poll_interval_ms < SHORTEST_POLL_MS:
        raise BadRequest(f"max.poll.interval.ms = {request.max_poll_interval_ms}: use {SHORTEST_POLL_MS} or more")
    if request.auto_offset_reset not in RESETS:
        raise BadRequest(f"auto.offset.reset = {request.auto_offset_reset!r}: use {', '.join(RESETS)}")
    texts = [text for pair in request.parameters.items() for text in pair]
    if len(request.parameters) > MOST_PARAMETERS or any(len(text) > LONGEST_PARAMETER for text in texts):
        raise BadRequest("these are too many parameters, or too long ones")


def check_commit(request: wire.Commit) -> None:
    for topic, partition, offset in request.offsets:
        if not 0 <= offset <= LARGEST_OFFSET:
            raise BadRequest(f"offset {offset} of partition {partition} of {topic} cannot be committed")
