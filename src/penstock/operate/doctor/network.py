"""The addresses of the settings: free, in use and by whom, and what of them the network can see."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from penstock.operate.doctor.finding import Finding, ok, problem, warning
from penstock.settings import ListenerSettings, Settings
from penstock.settings.address import WEB_TRANSPORTS, Address, is_loopback, parse_address
from penstock.settings.checks import data_listener, is_anonymous_allowed, is_local, is_plugin

LISTENING = "0A"  # the state in /proc/net/tcp
CLEAR = ("tcp", "ws")
ANSWER_SECONDS = 2.0


def check_network(settings: Settings, pid: int | None) -> Iterator[Finding]:
    """`pid` is the broker that runs on the data directory of the settings."""
    for listener in all_listeners(settings):
        area = f"listener {listener.name}"
        if listener.transport == "unix":
            yield from _check_socket_file(area, Path(listener.address), pid)
        else:
            yield from _check_port(area, listener.address, pid)
        if _has_address(listener):
            yield from _check_exposure(area, listener, settings)
    if settings.admin.address:
        yield from _check_port("admin", settings.admin.address, pid)
        if _can_be_reached(settings.admin.address):
            yield warning(
                "admin",
                f"{settings.admin.address} can be reached from the network, without TLS: metrics for everybody, "
                "commands for who overhears the token",
                "bind it to 127.0.0.1, or let only your tools reach it",
            )


def _has_address(listener: ListenerSettings) -> bool:
    """Settings that were not checked, because they are wrong, may hold what is none."""
    try:
        return listener.transport == "unix" or bool(parse_address(listener.address))
    except ValueError:
        return False


def _can_be_reached(address: str) -> bool:
    try:
        return not is_loopback(parse_address(address).host)
    except ValueError:
        return False


def all_listeners(settings: Settings) -> list[ListenerSettings]:
    """Those of MQTT, and that of the consumers of SQL topics where there are such topics."""
    has_data = settings.data_subscription.enabled and settings.ingest.log != "none"
    return [*settings.listeners, *([data_listener(settings.data_subscription)] if has_data else [])]


def _check_exposure(area: str, listener: ListenerSettings, settings: Settings) -> Iterator[Finding]:
    is_open = is_anonymous_allowed(listener, settings.access)
    if is_open and listener.transport in WEB_TRANSPORTS and not listener.allowed_origins:
        yield warning(
            area,
            "any web page that a browser here opens may connect, without a password",
            'set allowed_origins of the listener, or access.anonymous = "deny"',
        )
    if is_local(listener):
        return
    if is_open:
        yield warning(
            area, "everybody who can reach it may connect", 'set access.password_file and access.anonymous = "deny"'
        )
    if listener.transport in CLEAR and settings.access.password_file and not listener.proxy_protocol:
        yield warning(
            area,
            f"passwords and messages cross the network in the clear ({listener.transport})",
            "use tls or wss, or let a proxy do it that alone can reach this listener",
        )
    if not settings.access.acl_file and not any(map(is_plugin, settings.access.authorisers)):
        yield warning(area, "every client may read and write every topic", "set access.acl_file")


def _check_port(area: str, text: str, pid: int | None) -> Iterator[Finding]:
    try:
        address = parse_address(text)
    except ValueError as error:
        yield problem(area, f"{text}: {error}", "write host:port")
        return
    failure = _try_bind(address)
    if failure is None:
        yield ok(area, f"{address} is free")
    elif failure.errno == errno.EADDRINUSE:
        holder = find_holder(address.port)
        if pid is not None and holder is not None and holder[0] == pid:
            yield ok(area, f"{address} is in use by the broker that runs here (pid {pid})")
            return
        who = f"{holder[1]} (pid {holder[0]})" if holder else "a process of another user, or in another container"
        yield problem(area, f"{address} is in use by {who}", "stop it, or choose another address")
    elif failure.errno == errno.EACCES:
        yield problem(
            area,
            f"this user may not listen on {address}",
            "ports below 1024 need AmbientCapabilities=CAP_NET_BIND_SERVICE in the unit; or choose a higher one",
        )
    else:
        yield problem(area, f"{address}: {failure.strerror}", "is it an address of this machine?")


def _try_bind(address: Address) -> OSError | None:
    try:
        found = socket.getaddrinfo(address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, place in found[:1]:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(place)
                probe.listen(1)  # with SO_REUSEADDR only this tells that another one listens
    except OSError as error:
        return error
    return None


def _check_socket_file(area: str, path: Path, pid: int | None) -> Iterator[Finding]:
    if os.path.exists(path):  # Path.exists raises when a directory above may not be entered
        with socket.socket(socket.AF_UNIX) as probe:
            is_answered = False
            probe.settimeout(ANSWER_SECONDS)  # one who does not accept any more would keep it waiting for ever
            try:
                probe.connect(str(path))
                is_answered = True
            except (TimeoutError, BlockingIOError):
                yield problem(area, f"who listens at {path} does not accept connections", "stop it; does it hang?")
                return
            except OSError:
                pass  # what somebody left there is removed at the start
        if is_answered and pid is None:
            yield problem(area, f"somebody answers at {path}", "stop it, or choose another path")
            return
    if not os.access(path.parent, os.W_OK | os.X_OK):
        yield problem(area, f"{path.parent} cannot be written by this user", "make it, or choose another directory")
    else:
        yield ok(area, f"{path} can be used")


def find_holder(port: int) -> tuple[int, str] | None:
    """Process id and name of who listens on the port, where this user may see it."""
    wanted = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    if not wanted:
        return None
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            for descriptor in os.scandir(process / "fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(descriptor.path) in wanted:
                        return int(process.name), (process / "comm").read_text("utf-8", "replace").strip()
    return None


def _listening_inodes(port: int) -> set[str]:
    found = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{name}").read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    found.add(fields[9])
    return found
