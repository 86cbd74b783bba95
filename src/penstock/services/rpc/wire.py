"""Requests and answers as records; the headers are those of services/messages.py, and two more in an error answer.

errorCode     UTF-8, a word of ErrorCode        errorMessage   UTF-8, for people
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from penstock._ext.record.segment import RecordPack
from penstock._ext.services.calls import Call, CallWriter

Request = Call
"""What a handler gets: data, key, request_id, response_topic, expire_ts, headers."""
ERROR_CODE = "errorCode"
ERROR_MESSAGE = "errorMessage"
LONGEST_MESSAGE = 1_000
LENGTHS = 10
"""Bytes of the two lengths before a header's name and value, however large."""


def room_for_data(writer: CallWriter, largest_record: int, max_message_bytes: int) -> int:
    """How large a request or an answer may be without a key and headers of its own, so that the log takes it: what it
    refuses would take all others of its pack with it."""
    if largest_record == 0:
        return max_message_bytes
    empty = RecordPack()
    writer.put(empty, b"", bytes(16), 0)
    return min(max_message_bytes, max(0, largest_record - empty.size))


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
