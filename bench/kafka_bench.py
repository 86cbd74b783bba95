"""The Kafka provider against a bare confluent-kafka loop: records per CPU-second of this process, same run, same bytes.

    python bench/kafka_bench.py [--records 600000] [--size 100] [--rounds 6] [--save]

Starts a broker of its own unless --servers names one. The sides take turns; the figure is the median of the ratios of
turns that followed each other, beside the best turn of each side. Both have the settings that Penstock is shipped with;
only librdkafka's statistics, which Penstock asks for every five seconds, the bare loops do without.

Producing, "bare" calls produce_batch with a delivery callback that counts, as anybody must who answers for what was
written, and "no reports" the same without one: it learns neither that a record is durable nor that it is lost. There
is a target beside both. Reading, "bare" calls consume() and takes value and offset of each message, and "whole records"
everything that a record has, as Penstock does.

--batch-size is librdkafka's batch.size for both sides; with the small default it waits busily for a slow broker, and
what it burns there drowns the difference.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import confluent_kafka
import msgspec
import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.parts import save_part
from penstock._ext.record.segment import RecordPack
from penstock.storage.log.base import LogError, TopicPartition
from penstock.storage.log.kafka import KafkaLog, KafkaSettings
from penstock.storage.log.kafka.settings import consumer_config, producer_config
from penstock_bench.targets import Figure, at_least
from tests.support.servers.kafka_cluster import KafkaCluster

WINDOW = 50_000
BATCH = 500
POLL = 2_000
NO_STATISTICS = {"statistics.interval.ms": 0}


class Bench:
    def __init__(self, servers: str, records: int, size: int, batch_size: int = 0) -> None:
        self.settings = KafkaSettings(bootstrap_servers=servers)
        if batch_size:
            self.settings = msgspec.structs.replace(self.settings, batch_size=batch_size)
        self.records = records
        self.values = [number.to_bytes(8, "big") + bytes(size - 8) for number in range(BATCH)]
        self.topic = f"bench-{uuid.uuid4().hex[:8]}"

    async def open(self) -> None:
        self.log = KafkaLog(self.settings)
        await self.log.start()
        await self.log.admin.create(self.topic, 1)
        self.producer = confluent_kafka.Producer({**producer_config(self.settings), **NO_STATISTICS})

    async def produce_ours(self) -> None:
        under_way = failed = 0
        room = asyncio.Event()

        def on_done(result: object) -> None:
            nonlocal under_way, failed
            under_way -= BATCH
            failed += isinstance(result, LogError)
            room.set()

        for _ in range(self.records // BATCH):
            pack = RecordPack()
            pack.extend(self.values)
            under_way += BATCH
            self.log.producer.append(self.topic, 0, pack, on_done)
            while under_way >= WINDOW:
                room.clear()
                await room.wait()
        while under_way:
            room.clear()
            await room.wait()
        assert failed == 0

    async def produce_bare(self) -> None:
        reported = 0

        def on_delivery(error: object, message: object) -> None:
            nonlocal reported
            assert error is None
            reported += 1

        self._produce({"on_delivery": on_delivery})
        assert reported == self.records

    async def produce_blind(self) -> None:
        self._produce({})

    def _produce(self, options: dict[str, object]) -> None:
        for _ in range(self.records // BATCH):
            messages = [{"value": value} for value in self.values]
            self.producer.produce_batch(self.topic, messages, partition=0, **options)
            self.producer.poll(0)
            while len(self.producer) >= WINDOW:
                self.producer.poll(0.001)
        self.producer.flush()

    async def consume_ours(self) -> None:
        consumer = self.log.consumer("")
        consumer.assign([TopicPartition(self.topic, 0)])
        count = total = 0
        while count < self.records:
            for fetched in await consumer.poll(POLL, 10.0):
                count += fetched.pack.count
                total += fetched.pack.size
        assert total > self.records * 8
        await consumer.close()

    async def consume_bare(self) -> None:
        count = total = 0
        consumer = self._new_consumer()
        while count < self.records:
            for message in consumer.consume(POLL, 0.01):
                assert message.error() is None
                total += len(message.value()) + (message.offset() & 0)
                count += 1
        assert total > self.records * 8
        consumer.close()

    async def consume_whole(self) -> None:
        count = total = 0
        consumer = self._new_consumer()
        while count < self.records:
            for message in consumer.consume(POLL, 0.01):
                assert message.error() is None
                total += len(message.value()) + (message.offset() & 0)
                _ = message.topic(), message.partition(), message.key(), message.headers(), message.timestamp()
                count += 1
        assert total > self.records * 8
        consumer.close()

    def _new_consumer(self) -> confluent_kafka.Consumer:
        config = consumer_config(self.settings, str(uuid.uuid4()), None, "earliest")
        consumer = confluent_kafka.Consumer({**config, **NO_STATISTICS})
        consumer.assign([confluent_kafka.TopicPartition(self.topic, 0, confluent_kafka.OFFSET_BEGINNING)])
        return consumer


async def measure(work: Callable[[], Awaitable[None]], records: int) -> float:
    """Records per CPU-second of the whole process, librdkafka's threads included."""
    gc.collect()
    started = time.process_time()
    await work()
    return records / (time.process_time() - started)


Rates = dict[str, list[float]]
FIGURES = (
    Figure("produced", "produce", "records / CPU-s"),
    Figure("times the bare loop that hears of each record, median of turns", "produce_ratio", "times", at_least(0.9)),
    Figure("times the bare loop without delivery reports", "blind_ratio", "times", at_least(0.9)),
    Figure("consumed", "consume", "records / CPU-s"),
    Figure(
        "times the bare loop that takes value and offset",
        "consume_ratio",
        "times",
        at_least(0.9),
    ),
    Figure("times the bare loop that takes whole records", "whole_ratio", "times"),
)


def ratio(rates: Rates, side: str) -> float:
    return statistics.median(ours / theirs for ours, theirs in zip(rates["penstock"], rates[side], strict=True))


async def compare(name: str, sides: dict[str, Callable[[], Awaitable[None]]], records: int, rounds: int) -> Rates:
    rates: dict[str, list[float]] = {side: [] for side in sides}
    for side in sides.values():
        await side()
    for turn in range(rounds):
        order = list(sides.items())
        for side, work in order if turn % 2 == 0 else reversed(order):
            rates[side].append(await measure(work, records))
    for side, values in rates.items():
        print(f"{name:8} {side:13} {statistics.median(values):>10,.0f} records per CPU-second, best {max(values):,.0f}")
        if side != "penstock":
            ratios = sorted(ours / theirs for ours, theirs in zip(rates["penstock"], values, strict=True))
            best = max(rates["penstock"]) / max(values)
            spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}, best against best {best:.2f}"
            print(f"{'':22} penstock reaches {statistics.median(ratios):.2f}x of it ({spread})", flush=True)
    return rates


async def run(servers: str, records: int, size: int, rounds: int, batch_size: int) -> dict[str, dict[str, float]]:
    bench = Bench(servers, records, size, batch_size)
    await bench.open()
    writers = {"penstock": bench.produce_ours, "bare": bench.produce_bare, "no reports": bench.produce_blind}
    produced = await compare("produce", writers, records, rounds)
    readers = {"penstock": bench.consume_ours, "bare": bench.consume_bare, "whole records": bench.consume_whole}
    consumed = await compare("consume", readers, records, rounds)
    await bench.log.admin.delete(bench.topic)
    await bench.log.close()
    return compared(produced, consumed)


def compared(produced: Rates, consumed: Rates) -> dict[str, dict[str, float]]:
    """What is kept: all loops that Penstock took turns with, not only the one that the target names."""
    return {
        "bare": {"produce": statistics.median(produced["bare"]), "consume": statistics.median(consumed["bare"])},
        "bare, no reports": {"produce": statistics.median(produced["no reports"])},
        "bare, whole records": {"consume": statistics.median(consumed["whole records"])},
        "penstock": {
            "produce": statistics.median(produced["penstock"]),
            "consume": statistics.median(consumed["penstock"]),
            "produce_ratio": ratio(produced, "bare"),
            "blind_ratio": ratio(produced, "no reports"),
            "consume_ratio": ratio(consumed, "bare"),
            "whole_ratio": ratio(consumed, "whole records"),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--servers", default="")
    parser.add_argument("--records", type=int, default=600_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=0)
    parser.add_argument("--save", action="store_true", help="write a dated result to bench/results/kafka")
    options = parser.parse_args()
    cluster = None if options.servers else KafkaCluster(1).start()
    try:
        servers = options.servers or (cluster.bootstrap if cluster else "")
        values = uvloop.run(run(servers, options.records, options.size, options.rounds, options.batch_size))
        if options.save:
            save_part("kafka", "kafka", FIGURES, values, records=options.records, rounds=options.rounds)
    finally:
        if cluster is not None:
            cluster.stop()


if __name__ == "__main__":
    main()
