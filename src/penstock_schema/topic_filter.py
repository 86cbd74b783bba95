"""MQTT topic filters in plain Python: the one matcher of everything that is not compiled.

The broker's hot path has the same rule in C (ext/include/topic_filter.h); a test compares the two.
"""

from __future__ import annotations


def is_valid(text: str) -> bool:
    """Return whether a text is a topic filter [MQTT-4.7.1-1] [MQTT-4.7.1-2]."""
    levels = text.split("/")
    is_wrong = any(("#" in level or "+" in level) and len(level) > 1 for level in levels) or "#" in levels[:-1]
    return bool(text) and not is_wrong and "\0" not in text


def matches(topic_filter: str, topic: str) -> bool:
    """Return whether the filter matches the topic; a wildcard at the start matches no $-topic [MQTT-4.7.2-1]."""
    return not (topic.startswith("$") and topic_filter.startswith(("+", "#"))) and matches_levels(topic_filter, topic)


def matches_levels(topic_filter: str, name: str) -> bool:
    """Compare level by level, without the rule about $-topics: `a/#` matches `a`, and `+` an empty level."""
    wanted, levels = topic_filter.split("/"), name.split("/")
    for place, level in enumerate(wanted):
        if level == "#":
            return True
        if place == len(levels) or level not in ("+", levels[place]):
            return False
    return len(wanted) == len(levels)


def split_share(topic_filter: bytes) -> tuple[bytes | None, bytes]:
    """Return the group and the filter of `$share/<group>/<filter>`; (None, filter) for any other one. A shared filter
    without a group or without a filter gives an empty one."""
    if not topic_filter.startswith(b"$share/"):
        return None, topic_filter
    group, _, rest = topic_filter[7:].partition(b"/")
    return group, rest
