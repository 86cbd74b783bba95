"""One address the broker listens on: tcp, tls, ws, wss or a unix socket, each with or without the PROXY protocol."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
import stat
from collections.abc import Callable
from typing import Any

from penstock.core import exit_codes
from penstock.core.errors import PenstockError
from penstock.listen import proxy_protocol
from penstock.listen.accepting import AcceptLoop
from penstock.listen.admission import FEW_DESCRIPTORS, NO_DESCRIPTORS, last_descriptor
from penstock.listen.tls import TlsContext, explain_handshake
from penstock.listen.websocket import Handshakes, WebSocketHandshake, parse_origins
from penstock.settings.address import TLS_TRANSPORTS, WEB_TRANSPORTS, Address, parse_address
from penstock.settings.model import ListenerSettings

BACKLOG = 4096
# Connections of a listener that are between accept and MQTT at once: more than any honest storm needs in ten seconds.
MAX_HANDSHAKES = 4096
UNIX_MODE = 0o600
EX_OSERR = 71


class ListenerError(PenstockError):
    """A listener cannot listen; the message says where, the hint what to do."""

    exit_code = exit_codes.CONFIGURATION


def _ignore(*_: str) -> None: ...


def _peer_of(connection: socket.socket) -> str:
    """Return the host and port of the client; empty if it is gone."""
    try:
        host, port = connection.getpeername()[:2]
    except (OSError, ValueError):
        return ""
    return f"{host}:{port}"


# [MQTT-4.2.0-1] [MQTT3-7.1.1-1]
class Listener:
    """Makes a connection object, by `factory()`, for each connection and gives it its transport.

    tcp, tls, unix   the connection is the protocol of the transport: connection_made(transport)
    ws, wss          after the handshake: transport.set_protocol(connection), start_websocket(transport, leftover)
    PROXY protocol   `connection.peer` is set to the source's "host:port" before either
    """

    def __init__(
        self,
        settings: ListenerSettings,
        factory: Callable[[], Any],
        *,
        handshake_seconds: float = 10.0,
        on_refused: Callable[..., None] = _ignore,
        max_handshakes: int = MAX_HANDSHAKES,
    ) -> None:
        self.settings = settings
        self._factory = factory
        self._handshake_seconds = handshake_seconds
        self._on_refused = on_refused
        self._max_handshakes = max_handshakes
        origins = parse_origins(settings.allowed_origins)
        self._last_descriptor = last_descriptor()
        self._handshakes = Handshakes(
            settings.path, handshake_seconds, max_handshakes, on_refused, origins=origins, has_room=self._has_room
        )
        self._tls: TlsContext | None = None
        self._servers: list[asyncio.AbstractServer] = []
        self._accept_loops: list[AcceptLoop] = []
        self._unix_identity: tuple[int, int] | None = None
        self._address = settings.address

    @property
    def address(self) -> str:
        """Where it really listens: `host:port` with the port it got, or the path of the unix socket."""
        return self._address

    async def start(self) -> None:
        """Listens; raises ListenerError or TlsError and leaves nothing open if it cannot."""
        if self.settings.transport in TLS_TRANSPORTS:
            self._tls = TlsContext(self.settings)
        sockets = self._bind_unix() if self.settings.transport == "unix" else await self._bind_tcp()
        needs_accept_loop = self.settings.proxy_protocol or self._tls is not None
        for listening in sockets:
            if needs_accept_loop:
                accept_loop = AcceptLoop(
                    listening, self._serve, self._max_handshakes, self._on_refused, has_room=self._has_room
                )
                accept_loop.start()
                self._accept_loops.append(accept_loop)
            else:
                self._servers.append(await self._create_server(listening))

    def reload_certificates(self) -> None:
        """New connections get the certificates that are in the files now; raises TlsError and keeps the old ones."""
        if self._tls is not None:
            self._tls.reload()

    def stop_accepting(self) -> None:
        """No new connections; those that are here stay."""
        for server in self._servers:
            server.close()
        for accept_loop in self._accept_loops:
            accept_loop.stop()
        self._remove_unix()

    async def close(self) -> None:
        """Also ends the handshakes under way. Connections that speak MQTT belong to the broker, which closes them."""
        self.stop_accepting()
        self._handshakes.abort_all()
        for accept_loop in self._accept_loops:
            await accept_loop.close()

    async def _create_server(self, listening: socket.socket) -> asyncio.AbstractServer:
        loop = asyncio.get_running_loop()
        # Nothing of ours runs between the event loop and the connection where nothing has to.
        factory = self._make_handshake if self.settings.transport in WEB_TRANSPORTS else self._factory
        if listening.family == socket.AF_UNIX:
            return await loop.create_unix_server(factory, sock=listening, backlog=BACKLOG)
        return await loop.create_server(factory, sock=listening, backlog=BACKLOG)

    def _make_handshake(self, peer: str | None = None) -> WebSocketHandshake:
        return WebSocketHandshake(self._factory, self._handshakes, peer)

    def _make_protocol(self, peer: str | None) -> Any:
        if self.settings.transport in WEB_TRANSPORTS:
            return self._make_handshake(peer)
        connection = self._factory()
        if peer is not None:
            connection.peer = peer
        return connection

    def _has_room(self, connection: socket.socket | None) -> bool:
        """Return whether a handshake leaves descriptors for everything else; one that does not is reported."""
        if connection is None or connection.fileno() < self._last_descriptor:
            return True
        self._on_refused(NO_DESCRIPTORS, _peer_of(connection), FEW_DESCRIPTORS, self.settings.name)
        return False

    async def _serve(self, connection: socket.socket) -> None:
        """From an accepted socket to a connection that speaks MQTT or WebSocket."""
        peer = None
        try:
            if self.settings.proxy_protocol:
                async with asyncio.timeout(self._handshake_seconds):
                    source = await proxy_protocol.read_header(connection)
                peer = None if source is None else str(source)
        except (proxy_protocol.ProxyProtocolError, OSError) as error:
            connection.close()
            self._on_refused("proxy_timeout" if isinstance(error, TimeoutError) else "proxy_header")
            return
        except asyncio.CancelledError:
            connection.close()
            raise
        tls = None if self._tls is None else self._tls.current
        source_address = peer or _peer_of(connection)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._make_protocol(peer),
                connection,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else self._handshake_seconds,
            )
        except (ssl.SSLError, OSError) as error:
            if tls is None:
                self._on_refused("reset")
            else:
                self._on_refused("tls_handshake", source_address, explain_handshake(error), self.settings.name)

    async def _bind_tcp(self) -> list[socket.socket]:
        try:
            address = parse_address(self.settings.address)
        except ValueError as error:
            raise ListenerError(
                f"listener {self.settings.name}: address {self.settings.address!r}: {error}",
                "Write it as host:port, for example 127.0.0.1:1883 or [::1]:1883.",
            ) from None
        port = address.port
        sockets: list[socket.socket] = []
        try:
            for family, where in await self._resolve(address):
                listening = socket.socket(family, socket.SOCK_STREAM)
                sockets.append(listening)
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listening.bind((where[0], port, *where[2:]))
                listening.listen(BACKLOG)
                port = listening.getsockname()[1]  # port 0: all addresses of a name get the port of the first
        except OSError as error:
            for listening in sockets:
                listening.close()
            raise self._explain(error) from error
        self._address = str(Address(sockets[0].getsockname()[0], port))
        return sockets

    async def _resolve(self, address: Address) -> list[tuple[int, tuple[Any, ...]]]:
        if not address.host and not socket.has_dualstack_ipv6():
            return [(socket.AF_INET, ("0.0.0.0", address.port))]
        found = await asyncio.get_running_loop().getaddrinfo(
            address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        return list(dict.fromkeys((family, where) for family, _, _, _, where in found))

    def _bind_unix(self) -> list[socket.socket]:
        path = self.settings.address
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _remove_stale_socket(path)
            listening.bind(path)
            # Before listen(): nobody can have come in while the mode was another.
            os.chmod(path, UNIX_MODE)
            listening.listen(BACKLOG)
        except OSError as error:
            listening.close()
            raise self._explain(error) from error
        status = os.stat(path)
        self._unix_identity = (status.st_dev, status.st_ino)
        return [listening]

    def _remove_unix(self) -> None:
        """Removes the socket file, unless somebody else has put another in its place."""
        if self._unix_identity is None:
            return
        with contextlib.suppress(OSError):
            status = os.stat(self.settings.address)
            if (status.st_dev, status.st_ino) == self._unix_identity:
                os.unlink(self.settings.address)
        self._unix_identity = None

    def _explain(self, error: OSError) -> ListenerError:
        where = f"listener {self.settings.name} cannot listen on {self.settings.address}"
        if isinstance(error, socket.gaierror):
            return ListenerError(f"{where}: {error.strerror}", "Use an address of this machine, or a name it resolves.")
        if error.errno == errno.EADDRINUSE:
            hint = "Stop the other process (`ss -ltnp` shows it; another broker?), or set another address."
            return ListenerError(f"{where}: the address is in use", hint, exit_code=EX_OSERR)
        if error.errno in (errno.EACCES, errno.EPERM):
            hint = "Ports below 1024 need CAP_NET_BIND_SERVICE, a socket file a directory that may be written to."
            return ListenerError(f"{where}: not permitted", hint)
        if error.errno == errno.EADDRNOTAVAIL:
            return ListenerError(f"{where}: no such address here", "`ip address` lists the addresses of this machine.")
        return ListenerError(f"{where}: {error.strerror or error}", exit_code=EX_OSERR)


def _remove_stale_socket(path: str) -> None:
    """Removes the socket file of a process that is gone; raises OSError if it is alive, or the file no socket."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise FileExistsError(errno.EEXIST, "a file of that name is there that is no socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
