"""The options of the data source: Kafka's names where Kafka's connector has one for the same thing."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Literal

from penstock_spark import schema, topic_filter
from penstock_spark.errors import OptionError

ALL_MESSAGES = "tbmq.msg.all"
EARLIEST, LATEST = -2, -1
KNOWN = (
    "path",
    "kafka.bootstrap.servers",
    "topics",
    "topicPattern",
    "topicFilter",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "logPartitions",
    "partitionsPerTask",
    "maxBytesPerTask",
    "maxRowsPerBatch",
    "columns",
    "badRecords",
    "failOnDataLoss",
    "decoder",
)
ALIASES = {"datadir": "path", "subscribe": "topics", "subscribepattern": "topicPattern"}


@dataclass(frozen=True)
class Bound:
    """Where reading starts or ends: a place for everything, or an offset for each partition of each topic."""

    offset: int = EARLIEST
    time_ms: int | None = None
    offsets: Mapping[str, Mapping[str, int]] | None = None

    def of(self, topic: str, partition: int) -> int:
        """An offset, EARLIEST or LATEST."""
        if self.offsets is None:
            return self.offset
        try:
            return self.offsets[topic][str(partition)]
        except KeyError:
            return self.offset


@dataclass(frozen=True)
class SourceOptions:
    path: str | None = None
    bootstrap: str | None = None
    client: Mapping[str, str] = field(default_factory=dict)
    topics: tuple[str, ...] = (ALL_MESSAGES,)
    topic_pattern: str | None = None
    filters: tuple[str, ...] = ()
    start: Bound = Bound(EARLIEST)
    end: Bound = Bound(LATEST)
    partitions: frozenset[int] | None = None
    partitions_per_task: int = 0
    bytes_per_task: int = 67_108_864
    rows_per_batch: int = 20_000
    columns: tuple[str, ...] = ()
    bad_records: Literal["keep", "drop", "fail"] = "keep"
    fail_on_data_loss: bool = True
    decoder: Literal["auto", "compiled", "python"] = "auto"

    def wants_topic(self, name: str) -> bool:
        if self.topic_pattern is not None:
            return re.fullmatch(self.topic_pattern, name) is not None
        return name in self.topics

    def wants_partition(self, number: int) -> bool:
        return self.partitions is None or number in self.partitions


def parse(given: Mapping[str, str]) -> SourceOptions:
    """Raises OptionError for a name that is not known and a value that makes no sense."""
    canonical = {name.lower(): name for name in KNOWN} | ALIASES
    values: dict[str, str] = {}
    client: dict[str, str] = {}
    for name, value in given.items():
        known = canonical.get(name.lower())
        if known is not None:
            values[known] = value
        elif name.lower().startswith("kafka."):
            client[name[len("kafka.") :].lower()] = value
        else:
            near = get_close_matches(name.lower(), canonical, n=1)
            hint = f"Did you mean {canonical[near[0]]}?" if near else f"There are {', '.join(KNOWN)}"
            raise OptionError(f"{name} is not an option of the penstock source", hint)
    path, bootstrap = values.get("path"), values.get("kafka.bootstrap.servers")
    if (path is None) == (bootstrap is None):
        raise OptionError(
            "say where the log is", "option path: the broker's data directory, or option kafka.bootstrap.servers"
        )
    columns = _words(values.get("columns", ""))
    schema.select(columns)
    found = SourceOptions(
        path=path,
        bootstrap=bootstrap,
        client=client,
        topics=_words(values.get("topics", ALL_MESSAGES)),
        topic_pattern=_pattern(values.get("topicPattern")),
        filters=parse_filters(values.get("topicFilter", "")),
        start=_bound(values, "starting", EARLIEST),
        end=_bound(values, "ending", LATEST),
        partitions=parse_partitions(values.get("logPartitions")),
        partitions_per_task=_number(values, "partitionsPerTask", 0),
        bytes_per_task=_number(values, "maxBytesPerTask", 67_108_864),
        rows_per_batch=_number(values, "maxRowsPerBatch", 20_000),
        columns=columns,
        bad_records=_choice(values, "badRecords", "keep", "drop", "fail"),  # type: ignore[arg-type] # checked there
        fail_on_data_loss=_choice(values, "failOnDataLoss", "true", "false") == "true",
        decoder=_choice(values, "decoder", "auto", "compiled", "python"),  # type: ignore[arg-type] # as above
    )
    _check_named("startingOffsets", found.start, found)
    _check_named("endingOffsets", found.end, found)
    return found


def _check_named(name: str, bound: Bound, options: SourceOptions) -> None:
    """Offsets of a topic that is not read would have no effect, and its own would be read as a whole."""
    strange = sorted(topic for topic in bound.offsets or {} if not options.wants_topic(topic))
    if strange:
        there = ", ".join(options.topics)
        read = f"those that match {options.topic_pattern!r}" if options.topic_pattern is not None else there
        raise OptionError(
            f"{name} has offsets of {', '.join(strange)}, which is not read",
            f"Topics that are read: {read}; the option topics names others",
        )


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _pattern(text: str | None) -> str | None:
    try:
        re.compile(text or "")
    except re.error as error:
        raise OptionError(f"topicPattern {text!r} is not a regular expression: {error}") from None
    return text


def parse_filters(text: str) -> tuple[str, ...]:
    """One filter, or a JSON list of them (a comma may be part of a topic)."""
    if not text:
        return ()
    found = [text]
    if text.startswith("["):
        try:
            found = json.loads(text)
        except ValueError as error:
            raise OptionError(f"topicFilter {text!r} is not a list in JSON: {error}") from None
    return tuple(topic_filter.check(str(one)) for one in found)


def parse_partitions(text: str | None) -> frozenset[int] | None:
    """`0,3,8-11`"""
    if not text:
        return None
    found: set[int] = set()
    for word in _words(text):
        numbers = re.fullmatch(r"(\d+)(?:-(\d+))?", word)
        if numbers is None:
            raise OptionError(f"logPartitions {text!r} is not a list of partitions", "Write 0,3,8-11")
        found |= set(range(int(numbers[1]), int(numbers[2] or numbers[1]) + 1))
    return frozenset(found)


def _number(values: Mapping[str, str], name: str, default: int) -> int:
    text = values.get(name, str(default))
    if not text.isdecimal() or (default and int(text) == 0):
        raise OptionError(f"{name} {text!r} is not a number above 0")
    return int(text)


def _choice(values: Mapping[str, str], name: str, *choices: str) -> str:
    found = values.get(name, choices[0]).lower()
    if found not in choices:
        raise OptionError(f"{name} {values[name]!r} is not one of {', '.join(choices)}")
    return found


def parse_time(text: str, name: str) -> int:
    """Milliseconds since the epoch, or a date and time; without a zone it is UTC, as everything here."""
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(
            f"{name} {text!r} is not a time", "Write milliseconds since the epoch or 2026-11-16T12:30:00Z"
        ) from None
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


def _bound(values: Mapping[str, str], prefix: str, default: int) -> Bound:
    time, offsets = values.get(f"{prefix}Timestamp"), values.get(f"{prefix}Offsets")
    if time is not None and offsets is not None:
        raise OptionError(f"{prefix}Timestamp and {prefix}Offsets contradict each other")
    if time is not None:
        return Bound(default, parse_time(time, f"{prefix}Timestamp"))
    return parse_offsets(offsets, f"{prefix}Offsets", default)


def parse_offsets(text: str | None, name: str, default: int) -> Bound:
    """earliest, latest, or JSON {"topic": {"0": 23, "1": -2}} with -2 for the earliest and -1 for the latest."""
    if text is None:
        return Bound(default)
    if text.lower() in ("earliest", "latest"):
        return Bound(EARLIEST if text.lower() == "earliest" else LATEST)
    try:
        found = json.loads(text)
        offsets = {
            str(topic): {str(int(number)): int(offset) for number, offset in partitions.items()}
            for topic, partitions in found.items()
        }
    except (ValueError, AttributeError, TypeError):
        raise OptionError(
            f"{name} {text!r} is not understood", 'Write earliest, latest or {"topic": {"0": 23, "1": -2}}'
        ) from None
    return Bound(default, offsets=offsets)
