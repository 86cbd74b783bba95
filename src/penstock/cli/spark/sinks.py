"""Where `penstock spark run replay` sends messages to: an MQTT broker, Kafka, or the log of a stopped broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import unquote, urlsplit

from penstock._ext.match.partition import partition_of
from penstock._ext.record.segment import RecordPack
from penstock.cli.log.access import load_log_settings, open_log
from penstock.cli.spark.options import Chosen, part
from penstock.core.errors import UsageError
from penstock.settings import Settings
from penstock_client.mqtt.publisher import Address, MqttPublisher
from penstock_schema.decode import Publish
from penstock_schema.encode import encode

FORMS = "mqtt://[USER:PASSWORD@]HOST:PORT, mqtts://…, kafka://HOST:PORT/TOPIC or log:TOPIC"
PACK = 1_000


class LogSink:
    """Appends to a topic of the log of the settings, which no broker may have open."""

    def __init__(self, settings: Settings, topic: str) -> None:
        self._topic = topic
        self.refused = 0  # it takes all or fails
        self._hash = settings.ingest.hash_function
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._waiting: list[Publish] = []
        try:
            self._log, self._partitions = self._runner.run(self._open(settings))
        except BaseException:
            self._runner.close()
            raise

    async def _open(self, settings: Settings) -> tuple[Any, int]:
        log = await self._stack.enter_async_context(open_log(settings, to_write=True))
        return log, (await log.admin.describe(self._topic)).partitions

    def send(self, record: Publish) -> None:
        self._waiting.append(record)
        if len(self._waiting) >= PACK:
            self.flush()

    def flush(self) -> None:
        packs: dict[int, RecordPack] = {}
        for record in self._waiting:
            key = record.topic.encode()
            pack = packs.setdefault(partition_of(key, self._partitions, self._hash), RecordPack())
            pack.append(encode(record), key, timestamp=record.received_at)
        self._waiting = []
        if packs:
            self._runner.run(self._append(packs))

    async def _append(self, packs: dict[int, RecordPack]) -> None:
        await asyncio.gather(*(self._log.producer.send(self._topic, number, pack) for number, pack in packs.items()))

    def close(self) -> None:
        try:
            self._runner.run(self._stack.aclose())
        finally:
            self._runner.close()


def make_sink(target: str, chosen: Chosen) -> Callable[[], Any]:
    """How to open the target; UsageError when it is none."""
    if target.startswith("log:") and len(target) > len("log:"):
        settings = load_log_settings(chosen.config, chosen.data_dir, chosen.assignments)
        return lambda: LogSink(settings, target.removeprefix("log:"))
    try:
        parts = urlsplit(target)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host and parts.scheme in ("mqtt", "mqtts"):
        is_tls = parts.scheme == "mqtts"
        address = Address(
            host=host,
            port=port or (8883 if is_tls else 1883),
            username=unquote(parts.username) if parts.username else None,
            password=unquote(parts.password) if parts.password else None,
            tls=is_tls,
        )
        return lambda: MqttPublisher(address)
    if host and parts.scheme == "kafka" and parts.path.strip("/"):
        kafka = part("kafka")
        return lambda: kafka.KafkaSink(parts.netloc, parts.path.strip("/"))
    raise UsageError(f"{target!r} is not a target", f"Write {FORMS}.")
