"""Messages of queues in an operator's hands: shown, added, moved to another queue, brought back from dead letters.

A message is appended where it goes before it is taken from where it was: what fails in between is there twice, never
gone.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import AsyncIterator, Callable, Mapping
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock._ext.record.envelope import Envelope, EnvelopeError, decode, encode, encode_properties
from penstock._ext.record.segment import Record, RecordPack
from penstock.core.errors import ConflictError, NotFoundError, UsageError
from penstock.core.logging import get_logger
from penstock.core.payloads import show_payload
from penstock.subscribers.queue.control import QueueControl, to_text
from penstock.subscribers.queue.names import (
    DLQ_PROPERTIES,
    DLQ_QUEUE,
    DLQ_TOPIC,
    ROOT,
    check_filter,
    is_dead_letters,
    key_of,
    matches,
    original_of,
    parse_publish,
    verb_of,
)

if TYPE_CHECKING:
    from penstock.subscribers.queue.queue import Queue

log = get_logger("penstock.queues")

MOST_SHOWN = 1_000
MOST_BYTES = 16 * 1024 * 1024
# Of one command, which then says that there are more: its answer must not take minutes.
MOST_MOVED = 10_000
READ_AT_ONCE = 500
ORIGIN = "penstock-admin"  # the client id of what an operator appends

LONGEST_TOPIC = 65_535
LONGEST_EXPIRY = 0xFFFFFFFF

_NEW_FIELDS = frozenset(
    ("key", "payload", "payload_base64", "content_type", "response_topic", "expiry", "user_properties")
)


class Stored(NamedTuple):
    """A message as it lies in a queue; without `publish` the record is none."""

    record: Record
    publish: Envelope | None


async def peek(
    control: QueueControl, name: str, *, start: int | None, group: str | None, count: int, most_bytes: int
) -> dict[str, Any]:
    """Messages from an offset on, or from the one a group is given next, without taking them. Negative: so many before
    the end."""
    queue = control.find(name)
    first = _first_open(queue) if group is None else control.find_group(name, group).cursor
    if start is not None:
        first = start if start >= 0 else queue.tail + start
    first = min(max(first, queue.head), queue.tail)
    entries: list[dict[str, Any]] = []
    is_cut = False
    async for batch in _read(queue, first, queue.tail):
        room = min(count, MOST_SHOWN) - len(entries)
        is_cut = len(batch) > room
        entries += [_describe(name, message, most_bytes) for message in batch[:room]]
        if is_cut:
            break
    return {"queue": name, "head": queue.head, "tail": queue.tail, "messages": entries, "truncated": is_cut}


async def append(control: QueueControl, name: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """One message of an operator, in this queue only, whatever else is bound to its topic."""
    queue = control.find(name)
    unknown = sorted(set(document) - _NEW_FIELDS)
    if unknown:
        known = ", ".join(sorted(_NEW_FIELDS))
        raise UsageError(f"{unknown[0][:100]!r} is nothing a message has", f"There are {known}.")
    topic = _topic(name, _text(document, "key"))
    payload = _payload(document)
    limits = queue.definition.limits
    if len(payload) > limits.max_message_size:
        raise UsageError(f"the payload has {len(payload)} bytes: limits.max_message_size is {limits.max_message_size}")
    _check_room(queue)
    now = int(control.clock() * 1000)
    expires_at = _expiry(now, limits.message_ttl, _seconds(document, "expiry"))
    properties = _properties(document)
    try:
        value = encode(topic, payload, 1, client_id=ORIGIN, received_at=now, expires_at=expires_at, props=properties)
    except ValueError as error:
        raise UsageError(f"this is no message that MQTT could have: {error}") from None
    pack = RecordPack()
    pack.append(value, key=topic.encode(), timestamp=now)
    offset = await queue.append(pack)
    log.info("a message was appended by an operator", queue=name, offset=offset)
    return {"queue": name, "offset": offset, "message_id": f"{name}:{offset}", "topic": topic}


async def move(
    control: QueueControl, source: str, target: str, *, count: int | None, topic_filter: str = ""
) -> dict[str, Any]:
    """The oldest messages of one queue to the end of another, as they are. No group of the source is given them any
    more, and those who have them now can no longer settle them."""
    taken_from, put_into = control.find_served(source), control.find(target)
    if taken_from is put_into:
        raise UsageError("a queue cannot be moved to itself")
    largest = put_into.definition.limits.max_message_size

    def place(message: Stored) -> tuple[Queue, bytes | None] | None:
        if message.publish is not None and len(message.publish.payload) > largest:
            return None
        return put_into, message.record.value

    result = await _transfer(taken_from, place, count, topic_filter)
    log.warning("messages were moved by an operator", source=source, target=target, messages=result["moved"])
    return {"source": source, "target": target, **result}


async def replay(control: QueueControl, name: str, *, count: int | None, topic_filter: str = "") -> dict[str, Any]:
    """Dead letters back to the queues they came from, as they were published, with a new time to live. Every group of
    those queues is given them. Those whose queue is gone stay."""
    dead = control.find_served(name)
    now = int(control.clock() * 1000)

    def place(message: Stored) -> tuple[Queue, bytes | None] | None:
        if message.publish is None:
            return None
        # A publisher may write these properties, too, where dlq.topic is an ordinary queue: only the broker's count.
        is_ours = message.publish.retain or is_dead_letters(name)
        pairs = dict(message.publish.user_properties) if is_ours else {}
        original = pairs.get(DLQ_QUEUE) or (original_of(name) if is_dead_letters(name) else "")
        try:
            queue = control.find(original)
        except NotFoundError:
            return None
        return queue, _revive(queue, message.publish, pairs.get(DLQ_TOPIC) or f"{ROOT}/{original}", now)

    result = await _transfer(dead, place, count, topic_filter)
    log.warning("dead letters were replayed by an operator", queue=name, messages=result["moved"])
    return {"source": name, **result}


Place = Callable[[Stored], "tuple[Queue, bytes | None] | None"]
"""Where a message goes, and the record it becomes there; None: it stays."""


async def _transfer(source: Queue, place: Place, count: int | None, topic_filter: str) -> dict[str, Any]:
    if topic_filter:
        try:
            check_filter(topic_filter)
        except ValueError as error:
            raise UsageError(str(error)) from None
    topic_filter = "" if topic_filter == "#" else topic_filter
    wanted = min(MOST_MOVED if count is None else count, MOST_MOVED)
    # What comes while this goes on is not touched: a queue whose messages come back to it would never end.
    end = source.tail
    moved = skipped = 0
    full: Queue | None = None
    async for batch in _read(source, _first_open(source), end):
        is_open = _open_test(source)
        packs: dict[str, tuple[Queue, RecordPack]] = {}
        taken: list[int] = []
        for message in batch:
            record = message.record
            if (
                moved + len(taken) == wanted
                or not is_open(record.offset)
                or not _is_wanted(source, message, topic_filter)
            ):
                continue
            placed = place(message)
            if placed is None:
                skipped += 1
                continue
            target, value = placed
            _, pack = packs.setdefault(target.definition.name, (target, RecordPack()))
            if pack.count >= _room_of(target):
                full = target
                break
            pack.append(value, key=record.key, headers=record.headers, timestamp=record.timestamp)
            taken.append(record.offset)
        for target, pack in packs.values():
            if pack.count:
                await target.append(pack)
        if taken:
            await source.remove(taken)
        moved += len(taken)
        if full is not None:
            _check_room(full)
        if moved == wanted:
            break
    return {
        "moved": moved,
        "skipped": skipped,
        "left": source.depth,
        "truncated": moved == MOST_MOVED,
    }


def _is_wanted(queue: Queue, message: Stored, topic_filter: str) -> bool:
    if not topic_filter:
        return True
    return message.publish is not None and matches(topic_filter, key_of(queue.definition.name, message.publish.topic))


def _first_open(queue: Queue) -> int:
    """What every group of a classic queue has settled is still in the log for a while, and nobody's any more."""
    return queue.head if queue.definition.type == "stream" else max(queue.head, queue.core.floor)


def _open_test(queue: Queue) -> Callable[[int], bool]:
    """Whether some group has yet to settle an offset; everything is open in a stream, and where nobody consumes."""
    if queue.definition.type == "stream" or not queue.groups:
        return lambda offset: True
    states = [
        (group.cursor, {entry["offset"] for entry in group.pending_entries(group.pending)})
        for group in queue.groups.values()
    ]
    return lambda offset: any(offset >= cursor or offset in pending for cursor, pending in states)


def _room_of(queue: Queue) -> float:
    """Messages it takes before it is full."""
    depth = queue.definition.limits.max_depth
    is_bound = depth and queue.definition.type == "classic" and queue.definition.overflow == "reject"
    return max(depth - queue.depth, 0) if is_bound else math.inf


def _check_room(queue: Queue) -> None:
    depth = queue.definition.limits.max_depth
    if _room_of(queue) == 0:
        raise ConflictError(
            f"the queue {queue.definition.name!r} has reached limits.max_depth = {depth}",
            "What was moved before is there. `penstock queue update` raises the limit.",
        )


async def _read(queue: Queue, start: int, end: int) -> AsyncIterator[list[Stored]]:
    """The messages of [start, end) in batches."""
    while start < end:
        packs = await queue.read(start, min(READ_AT_ONCE, end - start))
        if not packs:
            return
        records = (record for pack in packs for record in pack if start <= record.offset < end)
        batch = [record for record in records if not queue.is_removed(record.offset)]
        if batch:
            yield [Stored(record, _decode(record)) for record in batch]
        start = max(start + 1, *(pack.next_offset for pack in packs))


def _decode(record: Record) -> Envelope | None:
    try:
        return None if record.value is None else decode(record.value)
    except EnvelopeError:
        return None


def _revive(queue: Queue, publish: Envelope, topic: str, now: int) -> bytes:
    """The message as it was before it died."""
    # What was added when it died stands behind its own.
    own = list(takewhile(lambda pair: not pair[0].startswith(DLQ_PROPERTIES), publish.user_properties))
    return encode(
        topic,
        publish.payload,
        publish.qos,
        client_id=publish.client_id,
        username=publish.username,
        received_at=publish.received_at,
        expires_at=_expiry(now, queue.definition.limits.message_ttl),
        props=encode_properties(
            payload_format=publish.payload_format,
            content_type=publish.content_type,
            response_topic=publish.response_topic,
            correlation_data=publish.correlation_data,
            user_properties=own or None,
        ),
    )


def _describe(queue: str, message: Stored, most_bytes: int) -> dict[str, Any]:
    record, publish = message
    entry: dict[str, Any] = {"offset": record.offset, "message_id": f"{queue}:{record.offset}"}
    if publish is None:
        return {**entry, "error": "this record is no message"}
    payload, encoding = show_payload(publish.payload[:most_bytes], is_cut=len(publish.payload) > most_bytes)
    properties = {
        name: getattr(publish, name)
        for name in ("payload_format", "content_type", "response_topic")
        if getattr(publish, name) is not None
    }
    if publish.correlation_data is not None:
        properties["correlation_data"] = show_payload(publish.correlation_data)[0]
    return {
        **entry,
        "topic": publish.topic,
        "key": key_of(queue, publish.topic),
        "payload": payload,
        "encoding": encoding,
        "size": len(publish.payload),
        "payload_truncated": len(publish.payload) > most_bytes,
        "qos": publish.qos,
        "client_id": publish.client_id,
        "username": publish.username,
        "published": to_text(publish.received_at / 1000),
        "expires": to_text(publish.expires_at / 1000),
        "properties": properties,
        "user_properties": [list(pair) for pair in publish.user_properties],
    }


def _topic(queue: str, key: str) -> str:
    topic = f"{ROOT}/{queue}/{key}" if key else f"{ROOT}/{queue}"
    try:
        if verb_of(parse_publish(topic)[1]) or any(letter in key for letter in "+#\0"):
            raise ValueError(f"{key[:100]!r} is no routing key: it has no wildcards and no control words")
        if len(topic.encode()) > LONGEST_TOPIC:
            raise ValueError(f"the topic is longer than {LONGEST_TOPIC} bytes")
    except ValueError as error:
        raise UsageError(str(error)) from None
    return topic


def _payload(document: Mapping[str, Any]) -> bytes:
    if "payload_base64" not in document:
        return _text(document, "payload").encode()
    if "payload" in document:
        raise UsageError("a message has one payload: send payload or payload_base64")
    try:
        return base64.b64decode(_text(document, "payload_base64"), validate=True)
    except binascii.Error:
        raise UsageError("payload_base64 is not base64") from None


def _properties(document: Mapping[str, Any]) -> bytes:
    pairs = document.get("user_properties", [])
    if not isinstance(pairs, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) for text in pair) for pair in pairs
    ):
        raise UsageError('user_properties is a list of pairs: [["name", "value"]]')
    try:
        return encode_properties(
            content_type=_text(document, "content_type") or None,
            response_topic=_text(document, "response_topic") or None,
            user_properties=[(name, value) for name, value in pairs] or None,
        )
    except (ValueError, OverflowError) as error:
        raise UsageError(f"the properties cannot be sent in MQTT: {error}") from None


def _text(document: Mapping[str, Any], name: str) -> str:
    text = document.get(name, "")
    try:
        if isinstance(text, str) and text.encode() is not None:
            return text
    except UnicodeEncodeError:
        pass
    raise UsageError(f"{name} is not a text")


def _seconds(document: Mapping[str, Any], name: str) -> float:
    number = document.get(name, 0)
    if isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number <= LONGEST_EXPIRY:
        return float(number)
    raise UsageError(f"{name} is a number of seconds from 0 to {LONGEST_EXPIRY}")


def _expiry(now: int, *lifetimes: float) -> int:
    """The end of the shortest of these times, 0 when none of them ends."""
    ending = [seconds for seconds in lifetimes if seconds]
    return now + int(min(ending) * 1000) if ending else 0
