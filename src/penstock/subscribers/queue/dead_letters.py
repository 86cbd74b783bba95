"""The record a message becomes when nobody could process it."""

from __future__ import annotations

from penstock._ext.queue.pending import MAX_DELIVERIES, REJECTED
from penstock._ext.record.envelope import Envelope, encode, encode_properties
from penstock._ext.record.segment import Record
from penstock.subscribers.queue.names import (
    DLQ_DELIVERIES,
    DLQ_GROUP,
    DLQ_ID,
    DLQ_MOVED_AT,
    DLQ_PROPERTIES,
    DLQ_QUEUE,
    DLQ_REASON,
    DLQ_TOPIC,
    key_of,
)

CLIENT_REASON = "reason"
LONGEST_TOPIC = 65_535
REASONS = {REJECTED: "rejected", MAX_DELIVERIES: "max-deliveries"}


def dead_letter(
    record: Record,
    message: Envelope,
    *,
    queue: str,
    group: str,
    address: str,
    deliveries: int,
    reason: int,
    client_reason: str | None,
    now_ms: int,
) -> tuple[bytes, bytes]:
    """(key, value) of the dead letter of a record's message, published below `address` with its own routing key. What
    it was told of its first life is in its user properties; it does not expire any more."""
    key = key_of(queue, message.topic)
    topic = f"{address}/{key}" if key else address
    if len(topic.encode()) > LONGEST_TOPIC:
        topic = address  # the whole one is in DLQ_TOPIC
    pairs = [pair for pair in message.user_properties if not pair[0].startswith(DLQ_PROPERTIES)]
    pairs += [
        (DLQ_QUEUE, queue),
        (DLQ_TOPIC, message.topic),
        (DLQ_GROUP, group),
        (DLQ_DELIVERIES, str(deliveries)),
        (DLQ_MOVED_AT, str(now_ms)),
        (DLQ_ID, f"{queue}:{record.offset}"),
        (DLQ_REASON, REASONS[reason]),
    ]
    if client_reason:
        pairs.append((CLIENT_REASON, client_reason))
    value = encode(
        topic,
        message.payload,
        message.qos,
        True,  # retained is what no message of a publisher is here: these properties are the broker's own
        client_id=message.client_id,
        username=message.username,
        received_at=message.received_at,
        props=encode_properties(
            payload_format=message.payload_format,
            content_type=message.content_type,
            response_topic=message.response_topic,
            correlation_data=message.correlation_data,
            user_properties=pairs,
        ),
    )
    return topic.encode(), value
