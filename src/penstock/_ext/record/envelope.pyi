from collections.abc import Iterable
from typing import Any, NamedTuple

from penstock._ext.record.segment import RecordPack

FIRST_VERSION: int
VERSION: int

class EnvelopeError(ValueError):
    position: int
    def __init__(self, reason: str, position: int) -> None: ...

class Envelope(NamedTuple):
    schema_version: int
    topic: str
    payload: bytes
    qos: int
    retain: bool
    client_id: str
    username: str | None
    received_at: int
    expires_at: int
    payload_format: int | None
    content_type: str | None
    response_topic: str | None
    correlation_data: bytes | None
    user_properties: list[tuple[str, str]]
    props: bytes

def encode(
    topic: str | bytes,
    payload: str | bytes,
    qos: int = 0,
    retain: bool = False,
    client_id: str | bytes = "",
    username: str | bytes | None = None,
    received_at: int = 0,
    expires_at: int = 0,
    props: bytes = b"",
) -> bytes: ...
def encode_properties(
    *,
    payload_format: int | None = None,
    content_type: str | None = None,
    response_topic: str | None = None,
    correlation_data: bytes | None = None,
    user_properties: Iterable[tuple[str, str]] | None = None,
) -> bytes: ...
def encode_delivery(qos: int, retain: bool, identifier: int = 0) -> bytes: ...
def decode(data: bytes) -> Envelope: ...
def decode_pack(pack: RecordPack) -> tuple[dict[str, list[Any]], list[tuple[int, str]]]: ...
def bench_put(record: bytes, count: int) -> int: ...
def bench_get(record: bytes, count: int) -> int: ...
