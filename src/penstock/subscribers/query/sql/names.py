"""Which names and MQTT filters may be used."""

from __future__ import annotations

MAX_NAME = 192  # bytes, as group ids of TDengine
MAX_FILTER = 65_535


class BadName(ValueError):
    """The text says what is wrong and what to do."""


def _check(name: str, kind: str) -> None:
    if not name:
        raise BadName(f"a {kind} needs a name: it is empty")
    if len(name.encode()) > MAX_NAME:
        raise BadName(f"the name of a {kind} has at most {MAX_NAME} bytes: choose a shorter one")
    if any(ord(letter) < 0x20 or ord(letter) == 0x7F for letter in name):
        raise BadName(f"the name of a {kind} has no control characters: remove them")


def check_topic(name: str) -> None:
    """A query topic is subscribed to as `$share/<group>/<name>`, so it must not read as a filter there."""
    _check(name, "topic")
    for sign in "+#$":
        if sign in name:
            raise BadName(
                f"the name of a topic must not contain {sign!r}, which MQTT filters give a meaning: choose another name"
            )


def check_group(name: str) -> None:
    _check(name, "consumer group")
    for sign in ":/+#":
        if sign in name:
            raise BadName(f"the name of a consumer group must not contain {sign!r}: choose another name")


def check_table(name: str) -> None:
    _check(name, "table")
    for sign in "/+#$":
        if sign in name:
            raise BadName(f"the name of a table must not contain {sign!r} (it is no MQTT filter): choose another name")


def check_column(name: str) -> None:
    _check(name, "column")


def check_user(name: str) -> None:
    _check(name, "user")


def check_filter(topic_filter: str) -> None:
    """An ordinary MQTT filter. A `$` name is not a source: its messages are not in the log."""
    if not topic_filter:
        raise BadName("the MQTT filter is empty: write # for everything")
    if len(topic_filter.encode()) > MAX_FILTER or "\0" in topic_filter:
        raise BadName("that is not MQTT filter: it is too long or has a NUL in it")
    if topic_filter.startswith("$"):
        raise BadName("topics that begin with $ are not kept in the log: name an ordinary MQTT filter")
    levels = topic_filter.split("/")
    for number, level in enumerate(levels):
        if "#" in level and (level != "#" or number != len(levels) - 1):
            raise BadName(f"{topic_filter!r} is no MQTT filter: # stands alone in the last level")
        if "+" in level and level != "+":
            raise BadName(f"{topic_filter!r} is no MQTT filter: + stands alone in its level")
