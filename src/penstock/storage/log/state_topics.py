"""Compacted topics that somebody reads from their beginning at every start, and that are written all the time."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.core.logging import get_logger
from penstock.storage.log.base import Log, LogError

log = get_logger("penstock.logs")

# Kafka compacts no segment that is still written to, and goes on with one for a week or a GiB unless it is told
# otherwise: whoever starts would read every record of that time.
STATE_PROPERTIES = {
    "cleanup.policy": "compact",
    "segment.ms": "600000",
    "segment.bytes": "10485760",
    "min.cleanable.dirty.ratio": "0.1",
}


async def make_state_topic(log_provider: Log, topic: str, properties: Mapping[str, str] = STATE_PROPERTIES) -> None:
    """Makes it, of one partition, if it is not there. One of an earlier version gets the properties that
    it does not state itself; what somebody has set stays. Raises LogError when there is none."""
    admin = log_provider.admin
    await admin.create(topic, 1, properties)
    try:
        stated = (await admin.describe(topic)).properties
        missing = {name: value for name, value in properties.items() if name not in stated}
        if missing:
            await admin.alter(topic, {**stated, **missing})
            log.info("topic changed", topic=topic, properties=missing)
    except LogError as error:
        # It works without them, more slowly with each start.
        log.warning(
            "the properties of a topic cannot be changed", topic=topic, wanted=dict(properties), error=str(error)
        )
