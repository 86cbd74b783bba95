"""What writing and reading a stored record costs. `pytest bench/micro`."""

from __future__ import annotations

import time

import pytest

from penstock._ext.record import envelope
from penstock._ext.record.segment import RecordPack
from penstock_schema import decode as plain
from penstock_schema.publish_pb2 import Publish

COUNT = 1_000_000
LIMIT_NS = 80
SMALL = envelope.encode(
    "sensors/room/42/temperature", b"x" * 64, 1, client_id="client-0001", received_at=1_760_000_000_000
)
WITH_PROPERTIES = envelope.encode(
    "sensors/room/42/temperature",
    b"x" * 64,
    1,
    client_id="client-0001",
    username="user",
    received_at=1_760_000_000_000,
    props=b"\x01\x01\x03\x00\x0atext/plain" + b"\x26\x00\x03key\x00\x05value" * 3,
)


@pytest.mark.parametrize("job", [envelope.bench_put, envelope.bench_get], ids=["write", "read"])
@pytest.mark.parametrize("record", [SMALL, WITH_PROPERTIES], ids=["plain", "properties"])
def test_nanoseconds_per_record(job, record: bytes, record_property) -> None:
    """64 bytes of payload; without properties at most 80 ns either way."""
    best = float("inf")
    for _ in range(5):
        start = time.process_time()
        job(record, COUNT)
        best = min(best, (time.process_time() - start) / COUNT * 1e9)
    print(f"\n{best:.1f} ns per record")
    record_property("nanoseconds", best)
    if record is SMALL:
        assert best <= LIMIT_NS


def test_columns_of_a_pack(benchmark) -> None:
    pack = RecordPack()
    pack.extend([SMALL] * 1_000)
    benchmark(envelope.decode_pack, pack)


@pytest.mark.parametrize(
    "decode", [envelope.decode, Publish.FromString, plain.decode], ids=["compiled", "google", "plain python"]
)
def test_one_record_into_an_object(benchmark, decode) -> None:
    benchmark(decode, WITH_PROPERTIES)
