"""The flags of the commands that talk to a broker's data listener."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.core.errors import UsageError

# The settings know this name too: it is none of theirs.
ENVIRONMENT = "PENSTOCK_DATA_SERVER"

Server = Annotated[
    str,
    typer.Option(
        "--server",
        metavar="HOST:PORT",
        envvar=ENVIRONMENT,
        help="Data listener of the broker (data_subscription.address); several with commas are tried in turn.",
    ),
]
User = Annotated[str, typer.Option("-u", "--user", help="User name.")]
Password = Annotated[
    str, typer.Option("-P", "--password", help="Password; other users of this machine can see it, better --pw-file.")
]
PasswordFile = Annotated[
    Path | None, typer.Option("--pw-file", metavar="FILE", help="File whose first line is the password.")
]
CaFile = Annotated[
    str, typer.Option("--cafile", metavar="FILE", help="PEM file with trusted authorities; enables TLS.")
]
Cert = Annotated[str, typer.Option("--cert", metavar="FILE", help="PEM file with the client's certificate.")]
Key = Annotated[str, typer.Option("--key", metavar="FILE", help="PEM file with the client's key.")]
SystemCertificates = Annotated[bool, typer.Option("--tls", help="Use TLS with the system's authorities.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="Do not check the host name in the broker's certificate.")]
DEFAULT_SERVER = "127.0.0.1:6030"
# A person waits, and would rather read that nobody listens there.
_CONNECT_MS = 3_000


@dataclass(frozen=True)
class DataConnection:
    """Field names are those of the commands' parameters."""

    server: str
    user: str
    password: str
    password_file: Path | None
    cafile: str
    cert: str
    key: str
    tls: bool
    insecure: bool

    def config(self) -> dict[str, Any]:
        """As keys of a consumer."""
        given: Mapping[str, Any] = {
            "server": self.server,
            "user": self.user,
            "password": self._password(),
            "tls.ca.file": self.cafile,
            "tls.cert.file": self.cert,
            "tls.key.file": self.key,
            "tls": self.tls,
        }
        config: dict[str, Any] = {key: value for key, value in given.items() if value}
        config["connect.timeout.ms"] = _CONNECT_MS
        if self.insecure:
            config["tls.check.hostname"] = False
        return config

    def _password(self) -> str:
        if self.password_file is None:
            return self.password
        if self.password:
            raise UsageError("-P and --pw-file cannot be used together")
        try:
            lines = self.password_file.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise UsageError(f"--pw-file {self.password_file}: {error.strerror}") from None
        return lines[0] if lines else ""
