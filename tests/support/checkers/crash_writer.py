"""A process that appends to the embedded log and prints what was acknowledged, until it is killed.

    python -m tests.support.checkers.crash_writer <directory> <topics> <partitions> <segment bytes> <fsync>

A line `topic partition base count` is written for each acknowledgement, with one system call, after it came.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path

import uvloop

from penstock.storage.log.base import Appended, LogError, TopicPartition
from tests.support.worlds.embedded import numbered, opened


async def main(directory: Path, topics: int, partitions: int, segment_bytes: str, fsync: str) -> None:
    chance = random.Random()
    async with opened(directory, fsync=fsync, fsync_interval_ms=20, maintenance_interval=0.05) as log:
        for number in range(topics):
            await log.admin.create(f"t{number}", partitions, {"segment.bytes": segment_bytes})
        # what a record holds is its offset, so a writer must know where the last one came to
        ends = {
            (f"t{number}", partition): log.watermarks(TopicPartition(f"t{number}", partition)).end
            for number in range(topics)
            for partition in range(partitions)
        }
        window = asyncio.Semaphore(64)

        def on_done(result: Appended | LogError) -> None:
            assert isinstance(result, Appended), result
            line = f"{result.topic} {result.partition} {result.base_offset} {result.count}\n"
            os.write(1, line.encode())
            window.release()

        os.write(1, b"ready\n")
        while True:
            await window.acquire()
            place = chance.choice(list(ends))
            count = chance.randrange(1, 40)
            log.producer.append(*place, numbered(ends[place], count, chance.randrange(200)), on_done)
            ends[place] += count


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]))
