"""A byte stream to the broker: TCP, TLS, unix socket or WebSocket, all with the same few methods."""

from __future__ import annotations

import asyncio
import errno
import ssl
from dataclasses import dataclass

from penstock.core.errors import PenstockError
from penstock_client.mqtt.websocket import WebSocketReader, build_frame, open_websocket

_CONNECT_TIMEOUT = 30.0
_CLOSE_TIMEOUT = 5.0
_READ_SIZE = 65_536


@dataclass(frozen=True)
class Target:
    """Where the broker is and how to get there."""

    host: str = "localhost"
    port: int = 1883
    unix: str = ""
    websocket_path: str = ""
    tls: ssl.SSLContext | None = None


class Stream:
    """The connection that the client reads from and writes to."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, websocket: WebSocketReader | None
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._websocket = websocket

    async def read(self) -> bytes:
        """Some bytes; b"" at the end."""
        try:
            if self._websocket is not None:
                return await self._websocket.read()
            return await self._reader.read(_READ_SIZE)
        except (ConnectionError, ssl.SSLError):
            return b""

    def write(self, data: bytes) -> None:
        self._writer.write(data if self._websocket is None else build_frame(data))

    async def drain(self) -> None:
        """Waits while the socket takes no more; a lost connection is reported by `read`."""
        try:
            await self._writer.drain()
        except (ConnectionError, ssl.SSLError):
            return

    def abort(self) -> None:
        """Hang up at once; `read` then gives b""."""
        self._writer.transport.abort()

    async def close(self) -> None:
        """Hang up when everything is written, or soon."""
        self._writer.close()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await self._writer.wait_closed()
        except (TimeoutError, ConnectionError, ssl.SSLError):
            self.abort()


async def open_stream(target: Target) -> Stream:
    """Connect; raises PenstockError that says why it did not work."""
    where = target.unix or f"{target.host}:{target.port}"
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT):
            if target.unix:
                reader, writer = await asyncio.open_unix_connection(target.unix)
            else:
                reader, writer = await asyncio.open_connection(target.host, target.port, ssl=target.tls)
            websocket = None
            if target.websocket_path:
                websocket = await open_websocket(reader, writer, where, target.websocket_path)
    except TimeoutError:
        raise PenstockError(f"cannot connect to {where}: no answer in {_CONNECT_TIMEOUT:.0f} seconds") from None
    except ssl.SSLCertVerificationError as error:
        raise PenstockError(
            f"cannot connect to {where}: its certificate is not trusted: {error.verify_message}",
            "name its authority with --cafile, or use --insecure when only the host name differs",
        ) from None
    except ssl.SSLError as error:
        raise PenstockError(f"cannot connect to {where}: no TLS there: {error.reason or error}") from None
    except OSError as error:
        raise PenstockError(f"cannot connect to {where}: {_reason(error)}", _hint(error)) from None
    except UnicodeError:
        raise PenstockError(f"cannot connect to {where}: {target.host!r} is not a host name") from None
    return Stream(reader, writer, websocket)


def _reason(error: OSError) -> str:
    return "connection refused" if _is_refused(error) else error.strerror or str(error)


def _hint(error: OSError) -> str:
    return "is the broker running? start one with `penstock serve`" if _is_refused(error) else ""


def _is_refused(error: OSError) -> bool:
    # A name with several addresses, all of which refuse, is reported as one error that quotes the others.
    return isinstance(error, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in str(error)
