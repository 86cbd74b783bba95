"""Statements: `connect(...)` gives an `Admin` whose execute() runs one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

from penstock_client.config import read_connection
from penstock_client.link import Link
from penstock_client.loop_thread import LoopThread
from penstock_client.wire import Execute, Table

_SECONDS = 60.0


class Result:
    """What a statement answers: the rows of SHOW, or a sentence about what was done."""

    def __init__(self, table: Table) -> None:
        self.columns = table.columns
        self.rows = [tuple(row) for row in table.rows]
        self.text = table.text

    def to_pylist(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return (
            f"<Result: {len(self.rows)} rows of {', '.join(self.columns)}>"
            if self.columns
            else f"<Result: {self.text}>"
        )


class AsyncAdmin:
    """For programs with an event loop."""

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        self._link = Link(read_connection(config or {}))

    async def execute(self, sql: str) -> Result:
        """Runs one statement. Raises SqlError with the position of what is wrong, NotAllowed, NotFound and others."""
        if not self._link.is_up:
            await self._link.connect()
        return Result(await self._link.request("execute", Execute(sql), timeout=_SECONDS, is_repeatable=False))

    async def close(self) -> None:
        await self._link.close()

    async def __aenter__(self) -> AsyncAdmin:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Admin:
    """Every method may be called from any thread; a child process makes its own."""

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        read_connection(config or {})  # before there is a thread
        self._thread = LoopThread("penstock-admin")
        self._inner = self._thread.run(lambda: AsyncAdmin(config))
        self._is_closed = False

    def execute(self, sql: str) -> Result:
        """Runs one statement. Raises SqlError with the position of what is wrong, NotAllowed, NotFound and others."""
        return self._thread.call(self._inner.execute(sql))

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._thread.call(self._inner.close())
            self._thread.stop()

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect(server: str = "", *, user: str = "", password: str = "", **more: Any) -> Admin:
    """An Admin: connect("127.0.0.1:6030", user="alice", password="secret"); other keys with underscores for dots, as
    tls_ca_file="ca.pem"."""
    given: dict[str, Any] = {"server": server, "user": user, "password": password}
    config = {key: value for key, value in given.items() if value}
    return Admin(config | {key.replace("_", "."): value for key, value in more.items()})
