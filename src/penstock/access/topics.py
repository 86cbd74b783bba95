"""Topic filters of rules, with %c and %u for the client id and the user name, and %% for a percent sign."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

PLACEHOLDER = re.compile(r"%([cu%])")
Levels: TypeAlias = tuple[str, ...]


def parse_topic(topic: str) -> Levels:
    """Return the levels of the filter; raises ValueError."""
    levels = tuple(topic.split("/"))
    if not topic or "\0" in topic or len(topic.encode()) > 65_535:
        raise ValueError(f"topic {topic!r} is not allowed: a filter has 1 to 65,535 bytes and no NUL")
    for number, level in enumerate(levels, 1):
        if level == "#" and number != len(levels):
            raise ValueError(f"topic {topic!r} is not allowed: # is only allowed as the last level")
        if level not in ("+", "#") and ("+" in level or "#" in level):
            raise ValueError(f"topic {topic!r} is not allowed: + and # stand alone in their level")
    return levels


def uses_user(levels: Levels) -> bool:
    return any(found[1] == "u" for level in levels for found in PLACEHOLDER.finditer(level))


def fill_level(level: str, client_id: str, username: str) -> Literal["+", "#"] | bytes:
    if level == "+":
        return "+"
    if level == "#":
        return "#"
    words = {"c": client_id, "u": username, "%": "%"}
    # bytes is a literal for AclProgram, which lets one with + # or / match nothing.
    return PLACEHOLDER.sub(lambda found: words[found[1]], level).encode()
