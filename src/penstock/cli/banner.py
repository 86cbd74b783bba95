"""What `penstock serve` says first: where it listens, where its data is, what to try next."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import which

from penstock.settings import AccessSettings, ListenerSettings
from penstock.settings.address import parse_address
from penstock.settings.checks import is_anonymous_allowed

_DEFAULT_PORT = 1883


def render_banner(
    listeners: Sequence[ListenerSettings],
    data_dir: str,
    admin: str,
    consumers: str = "",
    access: AccessSettings = AccessSettings(),  # noqa: B008 - settings do not change
) -> str:
    """A few lines for a person; `listeners` have the ports they really got."""
    lines = ["Penstock is running."]
    lines += [f"  listening  {_describe(listener)}" for listener in listeners]
    if consumers:
        lines.append(f"  consumers  {consumers} (query topics)")
    lines.append(f"  data       {Path(data_dir).resolve()}")
    if admin:
        lines.append(f"  metrics    http://{admin}/metrics")
    flags = _client_flags(listeners, access)
    if flags is not None:
        program = _program()
        lines += [
            "Try it from two other terminals:",
            f"  {program} sub{flags} -t 'demo/#' -v",
            f"  {program} pub{flags} -t demo/hello -m hi",
        ]
    return "\n".join(lines) + "\n"


def _program() -> str:
    """How this command is called here: by its name if the shell finds it, else by its path."""
    if which("penstock"):
        return "penstock"
    installed = Path(sys.executable).with_name("penstock")
    if not installed.exists():
        return f"{sys.executable} -m penstock"
    short = os.path.relpath(installed)
    return str(installed) if short.startswith("..") else short


def _describe(listener: ListenerSettings) -> str:
    schemes = {"tcp": "mqtt", "tls": "mqtts", "ws": "ws", "wss": "wss", "unix": "unix"}
    path = listener.path if listener.transport in ("ws", "wss") else ""
    return f"{schemes[listener.transport]}://{listener.address}{path}"


def _client_flags(listeners: Sequence[ListenerSettings], access: AccessSettings) -> str | None:
    """Flags for the listener that is easiest to reach from this machine; None when all of them need certificates."""
    open_first = sorted(listeners, key=lambda listener: not is_anonymous_allowed(listener, access))
    for transport in ("tcp", "ws", "unix"):
        for listener in open_first:
            if listener.transport != transport:
                continue
            login = "" if is_anonymous_allowed(listener, access) else " -u NAME -P PASSWORD"
            if transport == "unix":
                return f" --unix {listener.address}{login}"
            host, port = parse_address(listener.address)
            flags = "" if host in ("", "0.0.0.0", "::", "127.0.0.1", "::1", "localhost") else f" -h {host}"
            if transport == "ws":
                return f"{flags} --ws -p {port}{login}"
            return f"{flags} -p {port}{login}" if port != _DEFAULT_PORT else flags + login
    return None
