"""The way to the broker: one connection at a time, made again when it is lost."""

from __future__ import annotations

import asyncio
import random
import ssl
from typing import Any

import msgspec

from penstock_client.config import ConnectionConfig
from penstock_client.connection import BadPeer, BrokerConnection, ConnectionLost, NoAnswer, open_connection
from penstock_client.errors import DataError, Unavailable
from penstock_client.wire import Hello


class Link:
    """Requests wait for a connection as long as they may. Everything but a statement can be asked twice, so what got
    no answer is asked again."""

    def __init__(self, config: ConnectionConfig) -> None:
        self._config = config
        self._addresses = config.addresses()
        self._tls = config.tls_context()
        self._connection: BrokerConnection | None = None
        self._connecting: asyncio.Task[BrokerConnection] | None = None
        self._failures = 0
        self._failure: DataError | None = None
        self._not_before = 0.0
        self._turn = 0

    @property
    def is_up(self) -> bool:
        return self._connection is not None and self._connection.is_open

    async def request(
        self, method: str, parameters: msgspec.Struct, *, timeout: float | None = None, is_repeatable: bool = True
    ) -> Any:
        """Raises Unavailable when there was no answer in time."""
        try:
            async with asyncio.timeout(timeout):
                while True:
                    connection = await self._connected(is_repeatable)
                    try:
                        return await connection.request(method, parameters)
                    except ConnectionLost:
                        if not is_repeatable:
                            raise
        except TimeoutError:
            raise NoAnswer(f"no answer from {self._shown()} within {timeout:g} s") from None

    def reset(self) -> None:
        """The other end is silent: what waits is asked again over a new connection."""
        if self._connection is not None:
            self._connection.close()

    async def close(self) -> None:
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()
            await asyncio.wait([connecting])
        if self._connection is not None:
            self._connection.close()

    async def connect(self) -> None:
        """Connect now, even during the back-off, so that a wrong address or password raises at once."""
        self._not_before = 0.0
        await self._connected(False)

    @property
    def pause(self) -> float:
        """Seconds to wait before the next attempt."""
        left = self._not_before - asyncio.get_running_loop().time()
        return max(left, self._config.reconnect_backoff_ms / 1000)

    async def _connected(self, is_patient: bool) -> BrokerConnection:
        """The patient wait until there is a connection, others see why there is none. However many ask, the broker is
        tried no more often than the back-off allows."""
        while True:
            if self._connection is not None and self._connection.is_open:
                return self._connection
            wait = self._not_before - asyncio.get_running_loop().time()
            if wait > 0 and self._failure is not None:
                if not (is_patient and self._failure.is_retryable):
                    raise self._failure
                await asyncio.sleep(wait)
            if self._connecting is None or self._connecting.done():
                self._connecting = asyncio.ensure_future(self._open())
                self._connecting.add_done_callback(_look_at)
            try:
                return await asyncio.shield(self._connecting)
            except DataError as error:
                if not (is_patient and error.is_retryable):
                    raise

    async def _open(self) -> BrokerConnection:
        config = self._config
        address = self._addresses[self._turn % len(self._addresses)]
        hello = Hello(user=config.user, password=config.password, client_id=config.client_id)
        try:
            async with asyncio.timeout(config.connect_timeout_ms / 1000):
                self._connection = await open_connection(address, self._tls, hello, self._lost)
        except DataError as error:
            raise self._failed(error) from None
        except OSError as error:  # TimeoutError is one
            kind = BadPeer if _is_permanent(error) else Unavailable
            raise self._failed(kind(f"cannot connect to {address[0]}:{address[1]}: {_why(error)}")) from None
        self._failures = 0
        return self._connection

    def _failed(self, error: DataError) -> DataError:
        self._not_before = asyncio.get_running_loop().time() + self._pause()
        self._failures += 1
        self._turn += 1
        self._failure = error
        return error

    def _lost(self, connection: BrokerConnection) -> None:
        if self._connection is connection:
            self._connection = None

    def _pause(self) -> float:
        """Longer each time, and not the same for all consumers of a broker that comes back."""
        config = self._config
        longest = min(config.reconnect_backoff_ms << min(self._failures, 16), config.reconnect_backoff_max_ms)
        return longest * random.uniform(0.5, 1.0) / 1000

    def _shown(self) -> str:
        return ", ".join(f"{host}:{port}" for host, port in self._addresses)


def _is_permanent(error: OSError) -> bool:
    """Return whether a retry cannot help: the certificate is not accepted, or the port does not speak TLS. A TLS
    connection that ends early may belong to a broker that is restarting."""
    return isinstance(error, ssl.SSLCertVerificationError) or (
        isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER"
    )


def _why(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused; does the broker run, and is this its data_subscription.address?"
    return str(error)


def _look_at(task: asyncio.Task[BrokerConnection]) -> None:
    """Nobody may be waiting any more; its failure is not worth a word then."""
    if not task.cancelled():
        task.exception()
