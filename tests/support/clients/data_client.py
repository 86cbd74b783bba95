"""Speaks the protocol of the data listener, frame by frame, as blocking calls: for tests of the broker's side."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from penstock._ext.query.block import Block


class DataFailure(Exception):
    def __init__(self, failure: dict[str, Any]) -> None:
        super().__init__(f"{failure['code']}: {failure['message']}")
        self.code: str = failure["code"]
        self.failure = failure


class DataClient:
    def __init__(self, port: int, *, hello: bool = True, timeout: float = 30.0) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        self._number = 0
        self._answers: dict[int, list[Any]] = {}
        self.state: dict[str, Any] = {}
        self.group = ""
        if hello:
            self.ask("hello", {"protocol": 1})

    def send(self, method: str, parameters: dict[str, Any]) -> int:
        self._number += 1
        body = msgspec.msgpack.encode([self._number, method, parameters])
        self.socket.sendall(len(body).to_bytes(4, "big") + body)
        return self._number

    def receive(self) -> list[Any]:
        answer: list[Any] = msgspec.msgpack.decode(self._read(int.from_bytes(self._read(4), "big")))
        return answer

    def wait_for(self, number: int) -> Any:
        while number not in self._answers:
            answer = self.receive()
            self._answers[answer[0]] = answer
        _, failure, result = self._answers.pop(number)
        if failure is not None:
            raise DataFailure(failure)
        return result

    def ask(self, method: str, parameters: dict[str, Any]) -> Any:
        return self.wait_for(self.send(method, parameters))

    def execute(self, sql: str) -> dict[str, Any]:
        table: dict[str, Any] = self.ask("execute", {"sql": sql})
        return table

    def join(self, group: str, topics: list[str], reset: str = "earliest") -> None:
        """Returns when it has its partitions."""
        self.group = group
        self.state = self.ask("subscribe", {"group": group, "topics": topics, "auto_offset_reset": reset})
        deadline = time.monotonic() + 30
        while self.state["state"] != "ready":
            assert time.monotonic() < deadline, "the group has never become ready"
            time.sleep(0.05)
            self.state = self.ask("ask", self.me) or self.state

    @property
    def me(self) -> dict[str, Any]:
        return {"consumer": self.state["consumer"], "group": self.group, "epoch": self.state["epoch"]}

    @property
    def starts(self) -> dict[tuple[str, int], int]:
        return {(one["topic"], one["partition"]): one["offset"] for one in self.state["partitions"]}

    def send_fetch(self, topic: str, partition: int, offset: int, **options: Any) -> int:
        request = {"topic": topic, "partition": partition, "offset": offset, "max_wait_ms": 0, **options}
        return self.send("fetch", {**self.me, **request})

    def fetch(self, topic: str, partition: int, offset: int, **options: Any) -> dict[str, Any]:
        """With `rows` made of its blocks."""
        fetched: dict[str, Any] = self.wait_for(self.send_fetch(topic, partition, offset, **options))
        fetched["rows"] = rows_of(fetched)
        return fetched

    def commit(self, *offsets: tuple[str, int, int]) -> None:
        self.ask("commit", {**self.me, "offsets": offsets})

    def read_all(self, topic: str) -> list[dict[str, Any]]:
        """Rows of all its partitions from where they begin to where they end now."""
        return [row for _, fetched in self.read_parts(topic) for row in fetched["rows"]]

    def read_parts(self, topic: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """Partition and what was fetched, while there is something."""
        for (name, partition), start in self.starts.items():
            position = start
            while name == topic and position < self.watermarks(topic, partition)[1]:
                fetched = self.fetch(topic, partition, position)
                position = fetched["next_offset"]
                if fetched["rows"]:
                    yield partition, fetched

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        begin, end = self.ask("watermarks", {"group": self.group, "partitions": [[topic, partition]]})[0]
        return begin, end

    def is_closed(self) -> bool:
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.socket.close()

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise ConnectionError("the broker has closed the connection")
            data += part
        return bytes(data)


def rows_of(fetched: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for block in fetched.get("blocks", ()) for row in Block.decode(block).to_pylist()]
