"""A table proposed from messages that are there: the members of their payloads with types, and tags."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from penstock.subscribers.query.sql.constants import GREATEST, LEAST, text_to_time
from penstock.subscribers.query.sql.names import BadName, check_column
from penstock.subscribers.query.sql.tables import (
    ColumnDefinition,
    FromJson,
    FromLevel,
    FromProperty,
    TableDefinition,
)
from penstock_client.errors import NotFound
from penstock_client.types import SqlType

MAX_DEPTH = 3  # members of members of members are columns, what lies deeper is JSON
MAX_COLUMNS = 256

# topic, payload, user properties
Sample = tuple[str, bytes, Iterable[tuple[str, str]]]


def infer_table(name: str, topic_filter: str, samples: Iterable[Sample]) -> TableDefinition:
    """Messages whose payload is no JSON object tell only about their topic. Raises NotFound if no payload is one."""
    members: dict[tuple[str, ...], SqlType] = {}
    properties: dict[str, None] = {}
    depths: set[int] = set()
    for topic, payload, pairs in samples:
        depths.add(topic.count("/") + 1)
        properties.update(dict.fromkeys(key for key, _ in pairs))
        try:
            value = msgspec.json.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(value, dict):
            _look(value, (), members)
    if not members:
        raise NotFound(
            f"no message of {topic_filter!r} with a JSON object as payload was found: wait for some, or declare the "
            "columns with CREATE TABLE"
        )
    taken: set[str] = set()
    columns = [
        ColumnDefinition(_free("_".join(path), taken), _final(kind), FromJson(path)) for path, kind in members.items()
    ]
    columns += [
        ColumnDefinition(_free(f"level_{number}", taken), SqlType.VARCHAR, FromLevel(number), is_tag=True)
        for number in _varying_levels(topic_filter, depths)
    ]
    columns += [
        ColumnDefinition(_free(key, taken), SqlType.VARCHAR, FromProperty(key), is_tag=True)
        for key in properties
        if _is_name(key)
    ]
    return TableDefinition(name, topic_filter, tuple(columns[:MAX_COLUMNS]))


def _look(value: dict[str, Any], path: tuple[str, ...], members: dict[tuple[str, ...], SqlType]) -> None:
    for key, member in value.items():
        here = (*path, key)
        if not _is_name("_".join(here)) or (here not in members and len(members) >= MAX_COLUMNS):
            continue
        if isinstance(member, dict) and member and len(here) < MAX_DEPTH and here not in members:
            _look(member, here, members)
        else:
            kind = _kind(member)
            members[here] = _wider(members[here], kind) if here in members else kind


def _kind(value: Any) -> SqlType:
    if value is None:
        return SqlType.NULL
    if isinstance(value, bool):
        return SqlType.BOOLEAN
    if isinstance(value, int):
        return SqlType.BIGINT if LEAST <= value <= GREATEST else SqlType.DOUBLE
    if isinstance(value, float):
        return SqlType.DOUBLE
    if isinstance(value, str):
        return SqlType.TIMESTAMP if _is_time(value) else SqlType.VARCHAR
    return SqlType.JSON


def _wider(known: SqlType, new: SqlType) -> SqlType:
    if SqlType.NULL in (known, new) or known == new:
        return max(known, new)
    both = {known, new}
    if both == {SqlType.BIGINT, SqlType.DOUBLE}:
        return SqlType.DOUBLE
    if both == {SqlType.TIMESTAMP, SqlType.VARCHAR}:
        return SqlType.VARCHAR
    return SqlType.JSON


def _final(kind: SqlType) -> SqlType:
    return SqlType.JSON if kind == SqlType.NULL else kind


def _is_time(text: str) -> bool:
    """A whole date with a time: a bare date or a short number could be anything."""
    if len(text) < 16:
        return False
    try:
        text_to_time(text)
    except ValueError:
        return False
    return True


def _varying_levels(topic_filter: str, depths: set[int]) -> list[int]:
    levels = topic_filter.split("/")
    varying = [number for number, level in enumerate(levels, start=1) if level == "+"]
    if levels[-1] == "#" and len(depths) == 1:
        varying += range(len(levels), depths.pop() + 1)
    return varying


def _is_name(name: str) -> bool:
    try:
        check_column(name)
    except BadName:
        return False
    return True


def _free(name: str, taken: set[str]) -> str:
    """Columns are told apart without capitals."""
    candidate, number = name, 2
    while candidate.casefold() in taken:
        candidate, number = f"{name}_{number}", number + 1
    taken.add(candidate.casefold())
    return candidate
