"""Topic matching as the specification words it, slow and obvious: what the compiled tree is compared with."""

from __future__ import annotations

from collections.abc import Sequence


def pattern_matches(pattern: Sequence[bytes | str], topic: bytes) -> bool:
    """Whether a topic name matches levels where the str "+" and "#" are the wildcards and bytes are literal."""
    levels = topic.split(b"/")
    # [MQTT-4.7.2-1] [MQTT3-4.7.2-1]
    if topic.startswith(b"$") and isinstance(pattern[0], str):
        return False
    for depth, wanted in enumerate(pattern):
        if wanted == "#":
            return True
        if depth == len(levels) or (isinstance(wanted, bytes) and wanted != levels[depth]):
            return False
    return len(levels) == len(pattern) or (len(levels) == len(pattern) - 1 and pattern[-1] == "#")


def parse_filter(topic_filter: bytes) -> list[bytes | str]:
    return [level.decode() if level in (b"+", b"#") else level for level in topic_filter.split(b"/")]


def filter_matches(topic_filter: bytes, topic: bytes) -> bool:
    return pattern_matches(parse_filter(topic_filter), topic)


def split_share(topic_filter: bytes) -> tuple[bytes | None, bytes]:
    """The group, or None, and the filter without it."""
    if topic_filter.startswith(b"$share/"):
        _, group, rest = topic_filter.split(b"/", 2)
        return group, rest
    return None, topic_filter
