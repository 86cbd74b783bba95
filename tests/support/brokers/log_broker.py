"""A broker with an embedded log that can be killed and started again, and what its log holds, read from outside."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock._ext.record.envelope import Envelope, decode
from penstock.storage.log.embedded import open_reader
from tests.support.brokers.broker import Broker, free_port

TOPIC = "tbmq.msg.all"
EMBEDDED = {"log.provider": "embedded", "ingest.log": "all", "sys.interval": 0}


@dataclass(frozen=True)
class Logged:
    """A record of the log of all messages."""

    partition: int
    offset: int
    key: bytes | None
    publish: Envelope


class LogBroker(Broker):
    def __init__(self, directory: Path, settings: Mapping[str, Any] | None = None) -> None:
        self.admin_port = free_port()
        self.data_dir = Path((settings or {}).get("server.data_dir", directory / "data"))
        self._from: dict[int, int] = {}
        super().__init__(directory, {**EMBEDDED, **(settings or {})})

    def _penstock_command(self) -> list[str]:
        return [word or f"127.0.0.1:{self.admin_port}" for word in super()._penstock_command()]

    def kill(self) -> None:
        """SIGKILL: it has no say in how it ends."""
        self.process.kill()
        self.process.wait()

    def restart(self, *, is_expected_to_fail: bool = False) -> None:
        self.process = self._start()
        if not is_expected_to_fail:
            self.wait_until_listening()

    def is_ready(self) -> tuple[bool, str]:
        """What /readyz answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/readyz", timeout=30) as answer:
                return True, answer.read().decode()
        except urllib.error.HTTPError as error:
            return False, error.read().decode()

    def mark(self) -> None:
        """`logged` gives what comes from now on."""
        reader = open_reader(self.data_dir, TOPIC)
        self._from = {partition: reader.watermarks(partition).end for partition in range(reader.partitions)}
        reader.close()

    def logged(self) -> list[Logged]:
        return list(read_log(self.data_dir, self._from))

    def logged_payloads(self) -> list[bytes]:
        return [record.publish.payload for record in self.logged()]


def read_log(data_dir: Path, start: Mapping[int, int]) -> Iterator[Logged]:
    """Everything in the log from these offsets on, partition by partition."""
    reader = open_reader(data_dir, TOPIC)
    for partition in range(reader.partitions):
        marks = reader.watermarks(partition)
        offset = max(marks.first, start.get(partition, 0))
        while offset < marks.end:
            pack = reader.read(partition, offset)
            assert pack.count, f"nothing at offset {offset} of partition {partition}, which ends at {marks.end}"
            for record in pack:
                yield Logged(partition, record.offset, record.key, decode(record.value or b""))
            offset = pack.next_offset
    reader.close()
