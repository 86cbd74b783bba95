"""Addresses of queues in MQTT, and the names of their logs.

    $queue/<queue>[/<routing key or filter>]        a queue
    $queue/$dlq/<queue>[/<routing key or filter>]   its dead letters: a queue called `$dlq/<queue>`
    $queue/+/<filter>                               subscriptions only: every queue that is no dead-letter queue

    log of a queue          [prefix.]tbmq.queue.<queue>
    log of dead letters     [prefix.]tbmq.queue.dlq.<queue>

<queue> in the name of a log is the queue's name when it is of letters, digits, `_` and `-`, else its SHA-256 in
hexadecimal. Kafka takes `a.b` and `a_b` for one name in its metrics and refuses the second of them, so a name with a
dot is hashed; so is one that something else could have as well: 64 hexadecimal digits, a name that begins with `dlq_`,
and `state`, `definitions` and `members`, where those of all queues are kept. So is one that would be too long.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

from penstock_schema.topic_filter import matches_levels

ROOT = "$queue"
LOG_PREFIX = "tbmq.queue."
DLQ_PREFIX = "$dlq"
EVERY = "+"
VERBS = frozenset(("$ack", "$nack", "$reject", "$commit", "$extend"))
LONGEST_NAME = 255
LONGEST_LOG = 249  # what Kafka takes

# User properties of a dead letter.
DLQ_QUEUE = "_dlq_original_queue"
DLQ_TOPIC = "_dlq_original_topic"
DLQ_GROUP = "_dlq_group"
DLQ_DELIVERIES = "_dlq_delivery_count"
DLQ_MOVED_AT = "_dlq_moved_at"
DLQ_ID = "_dlq_original_id"
DLQ_REASON = "_dlq_reason"
DLQ_PROPERTIES = "_dlq_"  # how all of them begin

_DLQ = f"{DLQ_PREFIX}/"
_DLQ_LOG = "dlq."
_RESERVED = frozenset(("state", "definitions", "members", "dlq"))
_PLAIN = re.compile(r"[a-zA-Z0-9_-]+")
_LIKE_A_HASH = re.compile(r"[0-9a-fA-F]{64}")


class Address(NamedTuple):
    """What a subscription consumes. An empty filter is all keys; the queue is `+` (or `$dlq/+`) for all of them."""

    queue: str
    filter: str

    @property
    def spans_queues(self) -> bool:
        return self.queue in (EVERY, _DLQ + EVERY)


def topic_of(queue: str, prefix: str = "") -> str:
    """The log of a queue. `prefix` is that of all topics of this broker or cluster (`services.prefix`)."""
    before = f"{prefix}.{LOG_PREFIX}" if prefix else LOG_PREFIX
    if is_dead_letters(queue):
        before, queue = before + _DLQ_LOG, queue[len(_DLQ) :]
    is_ambiguous = queue in _RESERVED or queue.startswith("dlq_") or _LIKE_A_HASH.fullmatch(queue)
    if is_ambiguous or not _PLAIN.fullmatch(queue) or len(queue) > LONGEST_LOG - len(before):
        queue = hashlib.sha256(queue.encode()).hexdigest()
    return before + queue


def is_dead_letters(queue: str) -> bool:
    return queue.startswith(_DLQ)


def dead_letters_of(queue: str) -> str:
    """The queue of the dead letters of this one, unless its definition names another."""
    return _DLQ + queue


def original_of(dead_letters: str) -> str:
    return dead_letters.removeprefix(_DLQ)


def default_binding(queue: str) -> str:
    """What every queue gets, whatever its definition says."""
    return f"{ROOT}/{queue}/#"


def check_name(queue: str) -> None:
    """Raises ValueError when no queue can be called this."""
    name = original_of(queue)
    if not name or "/" in name:
        raise ValueError(f"{queue!r} is no name of a queue: use one topic level, such as orders")
    if name.startswith("$"):
        raise ValueError(f"{queue!r} is no name of a queue: names that begin with $ are the broker's own")
    if any(letter in name for letter in "+#\0"):
        raise ValueError(f"{queue!r} is no name of a queue: it cannot have +, # or a null character")
    if len(name.encode()) > LONGEST_NAME:
        raise ValueError(f"{queue[:40]!r}… is no name of a queue: it is longer than {LONGEST_NAME} bytes")


def check_filter(topic_filter: str) -> None:
    """Raises ValueError when this is no MQTT topic filter."""
    if not topic_filter or "\0" in topic_filter:
        raise ValueError(f"{topic_filter!r} is no topic filter: it is empty or has a null character")
    levels = topic_filter.split("/")
    for place, level in enumerate(levels, 1):
        if "#" in level and (level != "#" or place != len(levels)):
            raise ValueError(f"{topic_filter!r} is no topic filter: # stands alone in the last level, as in a/#")
        if "+" in level and level != "+":
            raise ValueError(f"{topic_filter!r} is no topic filter: + stands alone in its level, as in a/+/b")


def parse_subscription(topic_filter: str) -> Address:
    """The queue and filter of `$queue/<queue>[/<filter>]`; raises ValueError that says what to write instead."""
    check_filter(topic_filter)
    queue, key = _split(topic_filter)
    if key == "" and queue.endswith("#"):  # `$queue/#`: all keys of all queues
        queue = f"{queue[:-1]}{EVERY}"
    if not Address(queue, key).spans_queues:
        check_name(queue)
    if not VERBS.isdisjoint(key.split("/")):
        raise ValueError(f"{topic_filter!r} cannot be subscribed to: {', '.join(sorted(VERBS))} are for publishing")
    return Address(queue, "" if key == "#" else key)


def parse_publish(topic: str) -> tuple[str, str]:
    """The queue and routing key of a topic; a key may end in one of VERBS, and no other level of it begins with $."""
    queue, key = _split(topic)
    check_name(queue)
    *before, last = key.split("/")
    if any(level.startswith("$") for level in before) or (last.startswith("$") and last not in VERBS):
        raise ValueError(f"{topic!r} is no topic of a queue: {', '.join(sorted(VERBS))} stand in the last level only")
    return queue, key


def key_of(queue: str, topic: str) -> str:
    """The routing key a message has in a queue: what follows the queue's address, or all of another topic."""
    address = f"{ROOT}/{queue}"
    if topic == address:
        return ""
    return topic.removeprefix(f"{address}/")


def matches(topic_filter: str, key: str) -> bool:
    """Return whether a routing key matches; an empty filter matches all keys."""
    return not topic_filter or matches_levels(topic_filter, key)


def verb_of(key: str) -> str:
    """`$ack`, `$nack`, `$reject`, `$commit` or `$extend` when a routing key ends with it, else nothing."""
    last = key.rpartition("/")[2]
    return last if last in VERBS else ""


def group_id(group: str, filter: str) -> str:
    """How a queue tells its groups apart: by name and filter, `group` or `group@filter`."""
    # A client id is the default name of a group and may have an @ itself.
    plain = group.replace("%", "%25").replace("@", "%40")
    return f"{plain}@{filter}" if filter else plain


def parse_group_id(identity: str) -> tuple[str, str]:
    """The name and filter `group_id` was made of."""
    plain, _, topic_filter = identity.partition("@")
    return plain.replace("%40", "@").replace("%25", "%"), topic_filter


def _split(address: str) -> tuple[str, str]:
    root, slash, rest = address.partition("/")
    if root != ROOT or not slash or not rest:
        raise ValueError(f"{address!r} is no address of a queue: use {ROOT}/<queue>[/<routing key>]")
    name, slash, key = rest.partition("/")
    if name == DLQ_PREFIX:
        if not key or key.startswith("/"):
            raise ValueError(f"{address!r} names no queue: use {ROOT}/{DLQ_PREFIX}/<queue>[/<routing key>]")
        name, _, key = key.partition("/")
        return _DLQ + name, key
    return name, key
