"""Flags that set settings, shared by `serve`, `check-config` and `log`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.option_groups import with_options
from penstock.core.errors import UsageError
from penstock.settings import Loaded, load_settings

Config = Annotated[
    Path | None,
    typer.Option(
        "-c", "--config", help="Settings file; default: PENSTOCK_CONFIG, ./penstock.toml, /etc/penstock/penstock.toml."
    ),
]
Listen = Annotated[
    list[str] | None,
    typer.Option(
        "--listen",
        metavar="ADDRESS",
        help="host:port, tls://host:port, ws://host:port/path, wss://host:port/path or unix:/path; repeatable, "
        "replaces the listeners of the file. TLS also needs --set listeners.0.certificate=FILE and listeners.0.key.",
    ),
]
Port = Annotated[int | None, typer.Option("-p", "--port", min=0, max=65535, help="Short for --listen 127.0.0.1:PORT.")]
DataDir = Annotated[str | None, typer.Option("--data-dir", help="Directory for all persistent data.")]
LogLevel = Annotated[str | None, typer.Option("--log-level", help="debug, info, warning or error.")]
LogFormat = Annotated[str | None, typer.Option("--log-format", help="auto, text or json.")]
Admin = Annotated[
    str | None, typer.Option("--admin", metavar="ADDRESS", help="host:port of metrics and health; empty = off.")
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any setting, as in limits.max_packet_size=2MiB; repeatable."),
]


def load_from_flags(
    config: Config = None,
    *,
    listen: Listen = None,
    port: Port = None,
    data_dir: DataDir = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    admin: Admin = None,
    assignments: Set = None,
    check: bool = True,
) -> Loaded:
    """The settings with these flags on top; raises SettingsError or UsageError. `check` as for load_settings."""
    overrides: dict[str, str] = {}
    flags: dict[str, str] = {}
    for assignment in assignments or []:
        key, equals, value = assignment.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set {assignment!r}: write KEY=VALUE, as in limits.max_packet_size=2MiB")
        overrides[key.strip()] = value
    addresses = [*(listen or []), *([f"127.0.0.1:{port}"] if port is not None else [])]
    named = {
        ("listeners", "--listen" if listen else "--port"): ",".join(addresses) or None,
        ("server.data_dir", "--data-dir"): data_dir,
        ("logging.level", "--log-level"): log_level,
        ("logging.format", "--log-format"): log_format,
        ("admin.address", "--admin"): admin,
    }
    for (key, flag), given in named.items():
        if given is not None:
            overrides[key] = given
            flags[key] = flag
    return load_settings(config, None, overrides, flags=flags, check=check)


Load = Callable[[], Loaded]
with_all_flags = with_options("load", load_from_flags, without=("check",))
"""Decorates a command with a parameter `load: Load`."""
