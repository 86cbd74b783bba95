"""What a record costs in a pack: writing, walking, merging, checksums. Run with `pytest bench/micro`."""

from __future__ import annotations

from penstock._ext.record.segment import RecordPack, crc32c, read_batches, scan_batches

VALUE = b"x" * 100
COUNT = 500
ALL = 1 << 30


def make_pack(base: int = 0, count: int = COUNT) -> RecordPack:
    pack = RecordPack()
    pack.bench_put(VALUE, count)
    pack.place(base)
    return pack


def rate(benchmark, records: int) -> float:
    """Millions of records per second in the best round."""
    millions = records / benchmark.stats.stats.min / 1e6
    benchmark.extra_info["million_records_per_second"] = round(millions, 2)
    return float(millions)


def test_put(benchmark) -> None:
    assert benchmark(make_pack).count == COUNT
    assert rate(benchmark, COUNT) > 2


def test_walk(benchmark) -> None:
    """Into C structures, as the dispatcher does."""
    pack = make_pack()
    assert benchmark(pack.bench_walk) == COUNT * len(VALUE)
    assert rate(benchmark, COUNT) > 2


def test_read_batches_of_500(benchmark) -> None:
    """From the bytes of a file: header, checksum, copy, walk."""
    data = b"".join(make_pack(number * COUNT).encode(0) for number in range(20))

    def read() -> int:
        position, offset, total = 0, 0, 0
        while position < len(data):
            pack = RecordPack()
            position, _ = read_batches(pack, data, position, 0, offset, COUNT, ALL)
            offset = pack.next_offset
            total += pack.bench_walk()
        return total

    assert benchmark(read) == 20 * COUNT * len(VALUE)
    assert rate(benchmark, 20 * COUNT) > 2


def test_merge_batches_of_one(benchmark) -> None:
    """The worst case: each record was committed alone."""
    data = b"".join(make_pack(number, 1).encode(0) for number in range(5_000))

    def read() -> int:
        pack = RecordPack()
        read_batches(pack, data, 0, 0, 0, ALL, ALL)
        return pack.bench_walk()

    assert benchmark(read) == 5_000 * len(VALUE)
    rate(benchmark, 5_000)


def test_skip_the_batches_of_others(benchmark) -> None:
    """Sixteen partitions share a file."""
    data = b"".join(make_pack(number // 16, 1).encode(number % 16) for number in range(4_096))

    def read() -> int:
        pack = RecordPack()
        read_batches(pack, data, 0, 3, 0, ALL, ALL)
        return len(pack)

    assert benchmark(read) == 256


def test_scan_for_recovery(benchmark) -> None:
    data = b"".join(make_pack(number * COUNT).encode(0) for number in range(100))
    assert len(benchmark(scan_batches, data, 0, True)[0]) == 100
    benchmark.extra_info["bytes"] = len(data)


def test_crc32c(benchmark) -> None:
    data = bytes(1_048_576)
    benchmark(crc32c, data)
    benchmark.extra_info["gigabytes_per_second"] = round(len(data) / benchmark.stats.stats.min / 1e9, 2)
