"""The types of SQL topics. The numbers are those of blocks and compiled plans: they never change."""

from __future__ import annotations

from enum import IntEnum


class SqlType(IntEnum):
    NULL = 0
    BOOLEAN = 1
    BIGINT = 2
    DOUBLE = 3
    VARCHAR = 4
    TIMESTAMP = 5  # nanoseconds since the epoch, UTC
    BLOB = 6
    JSON = (
        7  # a JSON value as its text; numbers, strings and truth values convert to the other side's type by themselves
    )
    # user properties in their order: a list of (name, value); only projected, never computed with
    PROPERTIES = 8
