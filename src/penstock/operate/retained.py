"""Looking at retained messages and deleting them, for the admin API."""

from __future__ import annotations

import asyncio
import builtins
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from penstock._ext.hub.connection import Hub
from penstock._ext.wire.packets import decode_publish_properties
from penstock.core.errors import NotFoundError, UsageError
from penstock.core.logging import get_logger
from penstock.core.payloads import show_payload

log = get_logger("penstock.sessions")

MOST_LISTED = 10_000
MOST_PAYLOAD = 16 * 1024 * 1024
PREVIEW = 64
DESCRIBED_AT_ONCE = 200
SYSTEM_FILTER = b"$SYS/#"


class _Retained(NamedTuple):
    payload: bytes
    qos: int
    props: bytes
    expires_at: int


class RetainedControl:
    """The retained messages of this broker. `clock` is the time of day, in seconds."""

    def __init__(self, hub: Hub, clock: Callable[[], float] = time.time) -> None:
        self._hub = hub
        self._clock = clock

    async def list(self, topic_filter: str, limit: int) -> dict[str, Any]:
        """At most `limit` of the messages a subscription to the filter would get, with the beginning of each, and
        whether there may be more. `system` of the `total` are `$SYS`."""
        check_filter(topic_filter)
        topics = self._hub.retained.topics(topic_filter.encode(), limit + 1)
        entries: builtins.list[dict[str, Any]] = []
        for index, topic in enumerate(topics[:limit]):
            if index and index % DESCRIBED_AT_ONCE == 0:
                await asyncio.sleep(0)
            message = self._get(topic)
            if message is not None:
                entries.append(self._describe(topic, message, PREVIEW))
        # The broker's own are no retained messages to who asks what clients have left.
        system = len(self._hub.retained.topics(SYSTEM_FILTER, MOST_LISTED))
        return {
            "messages": entries,
            "total": self._hub.retained.count,
            "system": system,
            "truncated": len(topics) > limit,
        }

    async def get(self, topic: str, most: int) -> dict[str, Any]:
        """With the first `most` bytes of the payload, and the properties."""
        message = self._find(topic)
        return {**self._describe(topic.encode(), message, most), "properties": _describe_properties(message.props)}

    async def delete(self, topic: str) -> dict[str, Any]:
        """As a client does it, with an empty retained message, which subscribers see. The entry as it was."""
        entry = self._describe(topic.encode(), self._find(topic), PREVIEW)
        self._hub.publish(topic, b"", retain=True)
        log.info("a retained message was deleted by an operator", topic=topic)
        return entry

    def _find(self, topic: str) -> _Retained:
        message = self._get(topic.encode())
        if message is None:
            hint = "`penstock retained list` shows what there is."
            if "#" in topic or "+" in topic:
                hint = f"This is a filter: `penstock retained list '{topic}'` shows what matches it."
            raise NotFoundError(f"nothing is retained for the topic {topic!r}", hint)
        return message

    def _get(self, topic: bytes) -> _Retained | None:
        found = self._hub.retained.get(topic)
        if found is None:
            return None
        message = _Retained(*found)
        # What has expired stays in the tree until the next sweep, but nobody gets it any more.
        return None if message.expires_at and message.expires_at <= self._clock() * 1000 else message

    def _describe(self, topic: bytes, message: _Retained, most: int) -> dict[str, Any]:
        is_cut = len(message.payload) > most
        payload, encoding = show_payload(message.payload[:most], is_cut=is_cut)
        expires_at = message.expires_at
        return {
            "topic": topic.decode(errors="replace"),
            "qos": message.qos,
            "size": len(message.payload),
            "payload": payload,
            "payload_encoding": encoding,
            "payload_truncated": is_cut,
            "expires": _to_text(expires_at) if expires_at else None,
        }


def check_filter(topic_filter: str) -> None:
    """Raises UsageError when no subscription could have it."""
    levels = topic_filter.split("/")
    is_bad = not topic_filter or "\0" in topic_filter or "#" in "/".join(levels[:-1])
    if is_bad or any(len(level) > 1 and ("#" in level or "+" in level) for level in levels):
        raise UsageError(
            f"{topic_filter!r} is not a topic filter",
            "+ stands for one level and # for all that follow; each is alone in its level, and # in the last.",
        )


def _describe_properties(props: bytes) -> dict[str, Any]:
    properties = decode_publish_properties(props)
    return {name: show_payload(value)[0] if isinstance(value, bytes) else value for name, value in properties.items()}


def _to_text(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")
