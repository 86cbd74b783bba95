"""What a query asks of the messages, found in Spark's own plan of it.

Spark tells a Python data source the filters of a query only from 4.1 on, and its columns not at all. Here the plan that
Spark has made of the query is looked at before anything is read, and what it says of times, topics, partitions and
columns becomes options of the source. The options never leave out a row that the query wants; the query itself is
applied to what they leave.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from penstock_spark import schema
from penstock_spark.errors import OptionError
from penstock_spark.topic_filter import check

TIMES = ("received_at", "log_time")
# The log finds places by its own times, which are up to 100 ms off the receive time on Kafka.
SLACK_BEFORE_MS = 1_000
# The end of a stretch of time is its last record only if the broker's clock never went back by more than this.
SLACK_AFTER_MS = 300_000
_TURNED = {
    "GreaterThan": "LessThan",
    "GreaterThanOrEqual": "LessThanOrEqual",
    "LessThan": "GreaterThan",
    "LessThanOrEqual": "GreaterThanOrEqual",
}
_EQUAL = ("EqualTo", "EqualNullSafe")


@dataclass(frozen=True)
class Wanted:
    """Limits of what a query can use; None = no limit. Times are microseconds, the second one is the last wanted."""

    filters: frozenset[str] | None = None
    first: int | None = None
    last: int | None = None
    partitions: frozenset[int] | None = None

    def both(self, other: Wanted) -> Wanted:
        """Of conditions that must all hold."""
        firsts = [time for time in (self.first, other.first) if time is not None]
        lasts = [time for time in (self.last, other.last) if time is not None]
        partitions = self.partitions if other.partitions is None else other.partitions
        if self.partitions is not None and other.partitions is not None:
            partitions = self.partitions & other.partitions
        return Wanted(
            # one of two sets of filters is enough to be right
            self.filters if self.filters is not None else other.filters,
            max(firsts, default=None),
            min(lasts, default=None),
            partitions,
        )

    def either(self, other: Wanted) -> Wanted:
        """Of conditions of which one must hold."""
        return Wanted(
            self.filters | other.filters if self.filters is not None and other.filters is not None else None,
            min(self.first, other.first) if self.first is not None and other.first is not None else None,
            max(self.last, other.last) if self.last is not None and other.last is not None else None,
            self.partitions | other.partitions
            if self.partitions is not None and other.partitions is not None
            else None,
        )

    def options(self, *, is_stream: bool = False) -> dict[str, str]:
        """As options of the source."""
        found: dict[str, str] = {}
        if self.filters:
            found["topicFilter"] = json.dumps(sorted(self.filters))
        if self.first is not None:
            found["startingTimestamp"] = str(self.first // 1000 - SLACK_BEFORE_MS)
        if self.last is not None and not is_stream:
            found["endingTimestamp"] = str(self.last // 1000 + SLACK_AFTER_MS)
        if self.partitions:
            found["logPartitions"] = ",".join(map(str, sorted(self.partitions)))
        return found


@dataclass(frozen=True)
class Use:
    """What a query does with the messages."""

    wanted: Wanted
    columns: frozenset[str]


def use_of(spark: SparkSession, query: Callable[[DataFrame], DataFrame]) -> Use | None:
    """What the query takes of the messages, wherever it reads them; None when it does not read them at all."""
    # a frame of no rows that Spark does not know to be empty: nothing has to be opened to make a plan
    messages = spark.createDataFrame(spark.sparkContext.emptyRDD(), schema.MESSAGES)
    plan = query(messages)._jdf.queryExecution().optimizedPlan()
    found = [use for root in (plan, *_each(plan.subqueriesAll())) for use in _uses(root, [])]
    if not found:
        return None
    wanted = reduce(Wanted.either, (use.wanted for use in found))
    return Use(wanted, frozenset().union(*(use.columns for use in found)))


def _each(sequence: Any) -> Iterator[Any]:
    for number in range(sequence.size()):
        yield sequence.apply(number)


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _names(attributes: Any) -> frozenset[str]:
    return frozenset(str(attribute.name()) for attribute in _each(attributes.toSeq()))


def _uses(node: Any, above: list[Any]) -> Iterator[Use]:
    if _kind(node) == "LogicalRDD":
        if _names(node.outputSet()) >= set(schema.NAMES):
            yield _use(above)
        return
    for child in _each(node.children()):
        yield from _uses(child, [*above, node])


def _use(above: list[Any]) -> Use:
    """From the nodes above the messages: filters right above them, and columns up to the first choice of columns."""
    wanted, columns = Wanted(), frozenset[str]()
    is_direct = True
    for node in reversed(above):
        kind = _kind(node)
        columns |= _names(node.references())
        if kind == "Filter" and is_direct:
            wanted = wanted.both(_limits(node.condition()))
        if kind in ("Project", "Aggregate"):
            return Use(wanted, columns & set(schema.NAMES))
        is_direct = is_direct and kind in ("Filter", "SubqueryAlias")
    return Use(wanted, frozenset(schema.NAMES))


def _limits(condition: Any) -> Wanted:
    kind = _kind(condition)
    if kind == "And":
        return _limits(condition.left()).both(_limits(condition.right()))
    if kind == "Or":
        return _limits(condition.left()).either(_limits(condition.right()))
    if kind in ("In", "InSet"):
        return _in(condition)
    sides = list(_each(condition.children()))
    if len(sides) != 2:
        return Wanted()
    kinds = [_kind(side) for side in sides]
    if kinds == ["Literal", "AttributeReference"]:
        sides, kind = sides[::-1], _TURNED.get(kind, kind if kind in _EQUAL else "")
    elif kinds != ["AttributeReference", "Literal"]:
        return Wanted()
    return _compare(str(sides[0].name()), kind, sides[1].value())


def _in(condition: Any) -> Wanted:
    column = condition.children().apply(0)
    if _kind(column) != "AttributeReference":
        return Wanted()
    if _kind(condition) == "InSet":
        values = list(_each(condition.hset().toSeq()))
    else:
        literals = list(_each(condition.list()))
        if any(_kind(one) != "Literal" for one in literals):
            return Wanted()
        values = [one.value() for one in literals]
    name = str(column.name())
    return reduce(Wanted.either, (_compare(name, "EqualTo", value) for value in values)) if values else Wanted()


def _compare(name: str, kind: str, value: Any) -> Wanted:
    """The column against the value, on its right."""
    if value is None:
        return Wanted()
    if name == "topic" and kind in (*_EQUAL, "StartsWith"):
        text = str(value.toString())
        return _topic(text) if kind != "StartsWith" else _prefix(text)
    if name == "log_partition" and kind in _EQUAL:
        return Wanted(partitions=frozenset([int(value)]))
    if name in TIMES:
        first = kind in (*_EQUAL, "GreaterThan", "GreaterThanOrEqual")
        last = kind in (*_EQUAL, "LessThan", "LessThanOrEqual")
        return Wanted(first=int(value) if first else None, last=int(value) if last else None)
    return Wanted()


def _topic(text: str) -> Wanted:
    try:
        is_plain = not set("+#") & set(check(text))
    except OptionError:
        is_plain = False
    return Wanted(filters=frozenset([text])) if is_plain else Wanted()


def _prefix(text: str) -> Wanted:
    """`plant/d%` is in `plant/#`; a prefix within the first level says nothing to a topic filter."""
    levels = text.rpartition("/")[0]
    return Wanted(filters=frozenset([f"{levels}/#"])) if levels and _topic(levels).filters else Wanted()
