"""MQTT topic filters where Spark is at work: as a check in Python and as a condition on a column."""

from __future__ import annotations

import re

from pyspark.sql import Column
from pyspark.sql import functions as F

from penstock_schema.topic_filter import is_valid
from penstock_schema.topic_filter import matches as topic_matches
from penstock_spark.errors import OptionError


def check(text: str) -> str:
    """The filter itself; OptionError if it is none. [MQTT-4.7.1-1] [MQTT-4.7.1-2]"""
    if not is_valid(text):
        raise OptionError(
            f"topicFilter {text!r} is not a topic filter", "+ and # stand alone in a level, # is the last"
        )
    return text


def to_regex(text: str) -> str:
    """A regular expression of Java for the whole of a topic that the filter matches."""
    levels = check(text).split("/")
    # a wildcard at the start does not match $-topics [MQTT-4.7.2-1]
    start = r"(?!\$)" if levels[0] in ("+", "#") else ""
    parts = ["[^/]*" if level == "+" else _quote(level) for level in levels if level != "#"]
    if levels[-1] != "#":
        return f"^{start}{'/'.join(parts)}\\z"
    # "sport/#" matches "sport" as well
    return f"^{start}{'/'.join(parts)}(?:/[\\s\\S]*)?\\z" if parts else f"^{start}[\\s\\S]*\\z"


def _quote(level: str) -> str:
    return re.sub(r"([^A-Za-z0-9_ ])", lambda found: f"\\x{{{ord(found[1]):x}}}", level)


class Matcher:
    """Any of the filters; none of them at all matches everything."""

    def __init__(self, filters: tuple[str, ...]) -> None:
        self._filters = [check(one) for one in filters]

    def __call__(self, topic: str) -> bool:
        return not self._filters or any(topic_matches(one, topic) for one in self._filters)


def matches(topic: Column, text: str) -> Column:
    """A condition: the MQTT topic in the column matches the filter."""
    return F.regexp_like(topic, F.lit(to_regex(text)))
