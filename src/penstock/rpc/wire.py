"""Requests and answers as records; the headers are those of partition/messages.py, and two more in an error answer.

errorCode     UTF-8, a word of ErrorCode        errorMessage   UTF-8, for people
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from penstock._ext.segment import Record
from penstock.partition.messages import EXPIRE_TS, REQUEST_ID, RESPONSE_TOPIC

ERROR_CODE = "errorCode"
ERROR_MESSAGE = "errorMessage"
LONGEST_MESSAGE = 1_000

Headers = list[tuple[str, bytes]]


class BadRequest(Exception):
    """A record that is no request. `request_id` and `response_topic` are there if it can be answered all the same."""

    def __init__(self, reason: str, request_id: bytes | None, response_topic: str | None) -> None:
        super().__init__(reason)
        self.request_id = request_id
        self.response_topic = response_topic


class Request(NamedTuple):
    """What a handler gets."""

    data: bytes
    request_id: bytes
    response_topic: str
    expire_ts: int
    key: bytes | None
    headers: Headers


def new_ids() -> Iterator[bytes]:
    """Random UUIDs (version 4) as their 16 bytes, made by the hundred."""
    version = bytes(byte & 0x0F | 0x40 for byte in range(256))
    variant = bytes(byte & 0x3F | 0x80 for byte in range(256))
    while True:
        block = bytearray(os.urandom(16 * 256))
        block[6::16] = block[6::16].translate(version)
        block[8::16] = block[8::16].translate(variant)
        for start in range(0, len(block), 16):
            yield bytes(block[start : start + 16])


def uuid_text(request_id: bytes) -> bytes:
    """The key of a record: the UUID as text."""
    text = request_id.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}".encode()


def parse_request(record: Record) -> Request:
    """Raises BadRequest for this record alone."""
    request_id = topic = expire = None
    for name, value in record.headers:
        if name == REQUEST_ID:
            request_id = value
        elif name == RESPONSE_TOPIC:
            topic = value
        elif name == EXPIRE_TS:
            expire = value
    if request_id is not None and len(request_id) != 16:
        raise BadRequest(f"the header {REQUEST_ID} has {len(request_id)} bytes instead of 16", None, None)
    try:
        response_topic = None if topic is None else topic.decode()
    except UnicodeDecodeError:
        raise BadRequest(f"the header {RESPONSE_TOPIC} is not UTF-8", request_id, None) from None
    if request_id is None or not response_topic:
        missing = REQUEST_ID if request_id is None else RESPONSE_TOPIC
        raise BadRequest(f"the header {missing} is missing", request_id, response_topic or None)
    if expire is None or len(expire) != 8:
        raise BadRequest(f"the header {EXPIRE_TS} is missing or not 8 bytes", request_id, response_topic)
    if record.value is None:
        raise BadRequest("a request without a body", request_id, response_topic)
    expire_ts = int.from_bytes(expire, "big", signed=True)
    return Request(record.value, request_id, response_topic, expire_ts, record.key, record.headers)
