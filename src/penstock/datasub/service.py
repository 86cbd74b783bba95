"""Data subscription for front-ends: statements, and the requests of consumers."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.datasub import wire
from penstock.datasub.catalogue import QueryTopic
from penstock.datasub.ports import Coordinator, Fetcher, Identity, Source


class DataService:
    """Made by app.py; `hello` is the listener's own matter."""

    def __init__(self, coordinator: Coordinator, source: Source, fetcher: Fetcher) -> None: ...

    async def start(self) -> None: ...
    async def stop(self) -> None: ...

    def access_changed(self) -> None:
        """The ACL file was read again: consumers that may no longer subscribe are told."""

    async def execute(self, sql: str, who: Identity) -> wire.Table:
        """One statement. Raises DataError."""
        raise NotImplementedError

    async def handle(self, who: Identity, method: str, params: msgspec.Struct) -> Any:
        """`params` is the structure of wire.METHODS; so is the answer. Raises DataError."""
        raise NotImplementedError

    def topic(self, name: str) -> QueryTopic | None:
        """From memory."""
        raise NotImplementedError
