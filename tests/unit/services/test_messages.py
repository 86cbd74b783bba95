"""Messages and their records: keys kept, headers as documented, bad records told apart."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from penstock._ext.record.segment import RecordPack
from penstock.services import messages
from penstock.services.messages import (
    QueueMessage,
    UndecodableMessage,
    decode_message,
    encode_message,
    stamped,
)

REQUEST = UUID("00010203-0405-0607-0809-0a0b0c0d0e0f")


def through_a_record(message: QueueMessage, **options: object) -> QueueMessage:
    pack = RecordPack()
    now_ms = 1_700_000_000_123
    encode_message(stamped(message, producer_id="core-1", now_ms=now_ms, **options), pack, now_ms)
    (record,) = pack
    assert record.timestamp == 1_700_000_000_123
    return decode_message(record)


@pytest.mark.parametrize(
    ("key", "in_record"),
    [
        (REQUEST, b"00010203-0405-0607-0809-0a0b0c0d0e0f"),
        ("00010203-0405-0607-0809-0a0b0c0d0e0f/and-longer", b"00010203-0405-0607-0809-0a0b0c0d0e0f/and-longer"),
        ("A0010203-0405-0607-0809-0a0b0c0d0e0f", b"A0010203-0405-0607-0809-0a0b0c0d0e0f"),
        ("short", b"short"),
        ("", b""),
        (b"\xff\x00", b"\xff\x00"),
    ],
)
def test_keys_are_kept_as_they_are(key: messages.Key, in_record: bytes) -> None:
    assert messages.encode_key(key) == in_record
    assert through_a_record(QueueMessage(key, b"data")).key == key


def test_headers_have_their_exact_bytes() -> None:
    headers = messages.request_headers(REQUEST, "js_eval.responses.re-1", 1_700_000_060_000)
    assert headers == {
        "requestId": bytes(range(16)),
        "responseTopic": b"js_eval.responses.re-1",
        "expireTs": (1_700_000_060_000).to_bytes(8, "big"),
    }
    read = through_a_record(QueueMessage(uuid4(), b"data", headers))
    assert read.request_id == REQUEST
    assert read.response_topic == "js_eval.responses.re-1"
    assert read.expire_ts == 1_700_000_060_000
    assert (read.producer_id, read.ts) == ("core-1", 1_700_000_000_123)
    assert set(read.headers) == {"requestId", "responseTopic", "expireTs", "producerId", "ts"}


def test_debug_adds_thread_and_stack() -> None:
    read = through_a_record(QueueMessage(uuid4(), b"data"), debug=True)
    assert read.headers["threadName"] == b"MainThread"
    assert b"through_a_record" in read.headers["stackTrace"]


def test_headers_of_the_message_stay() -> None:
    assert through_a_record(QueueMessage(uuid4(), b"", {"ts": bytes(8), "own": b""})).headers == {
        "producerId": b"core-1",
        "ts": bytes(8),
        "own": b"",
    }


def test_absent_headers_are_none() -> None:
    message = QueueMessage(uuid4(), b"")
    assert [message.request_id, message.response_topic, message.expire_ts, message.ts, message.producer_id] == [
        None
    ] * 5


@pytest.mark.parametrize(("name", "value"), [("requestId", b"123"), ("expireTs", b""), ("responseTopic", b"\xff")])
def test_bad_header_is_told(name: str, value: bytes) -> None:
    message = QueueMessage(uuid4(), b"", {name: value})
    attribute = {"requestId": "request_id", "expireTs": "expire_ts", "responseTopic": "response_topic"}[name]
    with pytest.raises(UndecodableMessage, match=name):
        getattr(message, attribute)


@pytest.mark.parametrize(("key", "value", "what"), [(None, b"x", "no key"), (b"k", None, "no value")])
def test_record_that_is_no_message(key: bytes | None, value: bytes | None, what: str) -> None:
    pack = RecordPack()
    pack.append(value, key)
    (record,) = pack
    with pytest.raises(UndecodableMessage, match=what) as caught:
        decode_message(record)
    assert caught.value.record == record
