"""The hot half of the codec is used from C only; these drive it for tests, the fuzzer and the micro-benchmarks."""

from typing import TypeAlias, TypedDict

Buffer: TypeAlias = bytes | bytearray | memoryview

class ParsedPublish(TypedDict):
    topic: bytes
    payload: bytes
    props: bytes
    props_copied: bool
    expiry: int | None
    packet_id: int
    alias: int
    qos: int
    retain: bool
    dup: bool

def debug_parse_publish(
    flags: int, body: Buffer, version: int, max_user_properties: int = 64
) -> ParsedPublish | int: ...
def debug_parse_ack(packet_type: int, flags: int, body: Buffer, version: int) -> tuple[int, int] | int: ...
def debug_check_topic_name(topic: Buffer, max_levels: int = 0) -> int: ...
def debug_check_topic_filter(topic: Buffer, max_levels: int = 0) -> int: ...
def bench_parse_publish(flags: int, body: bytes, version: int, count: int) -> int: ...
def bench_parse_ack(packet_type: int, flags: int, body: bytes, version: int, count: int) -> int: ...
def bench_check_topic_name(topic: bytes, count: int) -> int: ...
