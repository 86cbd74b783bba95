"""A running broker, asked over its admin address: how it is found, what is sent, and what its refusals mean."""

from __future__ import annotations

import http.client
import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from penstock.core.errors import ConflictError, NotFoundError, PenstockError, UsageError
from penstock.operate.http.token import ADDRESS_FILE, TOKEN_FILE
from penstock.settings import Settings
from penstock.settings.address import is_host_name, is_loopback, parse_address

API = "/api/v1"
CONNECT_SECONDS = 5.0
# A command may wait for the log, and the log for its disk or for Kafka.
ANSWER_SECONDS = 60.0
LARGEST_ANSWER = 256 * 1024 * 1024
ADMIN_HINT = "Name the broker's admin address with --url: the setting admin.address, not the port of MQTT."


class AdminClient:
    """One broker. Everything it cannot or will not do is a PenstockError that says so."""

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        is_place = bool(parts.hostname) and is_host_name(parts.hostname or "") and port != -1
        if parts.scheme not in ("http", "https") or not is_place or parts.query or parts.fragment:
            raise UsageError(f"--url {url!r} is not the address of a broker: write http://host:port")
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        self._host, self._port, self._path = parts.hostname or "", port, parts.path.rstrip("/")
        self._is_tls = parts.scheme == "https"
        self._token = token
        if not self._is_tls and not is_loopback(self._host):
            print(f"penstock: warning: the token goes to {self.url} unencrypted", file=sys.stderr)

    def get(self, path: str, seconds: float = ANSWER_SECONDS) -> Any:
        return self._ask("GET", path, seconds=seconds)

    def post(self, path: str, body: object) -> Any:
        return self._ask("POST", path, json.dumps(body).encode())

    def patch(self, path: str, body: object) -> Any:
        return self._ask("PATCH", path, json.dumps(body).encode())

    def delete(self, path: str) -> Any:
        return self._ask("DELETE", path)

    def _ask(self, method: str, path: str, body: bytes | None = None, seconds: float = ANSWER_SECONDS) -> Any:
        make = http.client.HTTPSConnection if self._is_tls else http.client.HTTPConnection
        connection = make(self._host, self._port, timeout=CONNECT_SECONDS)
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            connection.connect()
            connection.sock.settimeout(seconds)
            connection.request(method, f"{self._path}{API}{path}", body, headers)
            response = connection.getresponse()
            text = response.read(LARGEST_ANSWER + 1)
        except TimeoutError:
            raise PenstockError(f"the broker at {self.url} does not answer in {seconds:g} s", ADMIN_HINT) from None
        except ConnectionRefusedError:
            raise PenstockError(
                f"no broker answers at {self.url}",
                "Is it running? Name its data directory with --data-dir, or its admin address with --url.",
            ) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise PenstockError(f"cannot talk to the broker at {self.url}: {reason}", ADMIN_HINT) from None
        finally:
            connection.close()
        return self._understand(response.status, text)

    def _understand(self, status: int, text: bytes) -> Any:
        try:
            if len(text) > LARGEST_ANSWER:
                raise ValueError
            document = json.loads(text)
        except ValueError:
            document = None
        if status == http.HTTPStatus.OK and document is not None:
            return document
        if not isinstance(document, dict) or not isinstance(document.get("error"), str):
            raise PenstockError(
                f"{self.url} does not answer as a Penstock broker does (HTTP {status})",
                ADMIN_HINT,
            )
        message, hint = document["error"], str(document.get("hint", ""))
        if status == http.HTTPStatus.UNAUTHORIZED:
            raise PenstockError(
                f"the broker at {self.url} refuses the command: {message}",
                "Name the data directory of this broker with --data-dir, or give its setting admin.token with --token.",
            )
        kinds: dict[int, type[PenstockError]] = {404: NotFoundError, 409: ConflictError, 400: UsageError}
        raise kinds.get(status, PenstockError)(message, hint)


def admin_of(settings: Settings, url: str | None = None, token: str | None = None) -> AdminClient:
    directory = Path(settings.server.data_dir)
    if url is None:
        address = _read(directory / ADDRESS_FILE) or settings.admin.address
        if not address:
            raise PenstockError(
                "admin.address is empty: this broker takes no commands", "Set it to a host:port, as in 127.0.0.1:9883."
            )
        url = _reachable(address)
    token = token or settings.admin.token or _read(directory / TOKEN_FILE)
    if not token:
        raise PenstockError(
            f"there is no token for the broker at {url}: no {TOKEN_FILE} in {directory.resolve()}",
            "Is it running? Name its data directory with --data-dir, or give its setting admin.token with --token.",
        )
    return AdminClient(url, token)


def escape(name: str) -> str:
    """A client id or topic as a part of a path or query."""
    try:
        return quote(name, safe="")
    except UnicodeEncodeError:
        raise UsageError(f"{name!r} is not UTF-8, as all names in MQTT are") from None


def _read(path: Path) -> str:
    """Nothing when there is no such file."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise PenstockError(
            f"cannot read {path}: {reason}", "Run the command as the broker's user, or give --url and --token."
        ) from None


def _reachable(address: str) -> str:
    """A broker that listens on every interface is reached on this machine."""
    try:
        host, port = parse_address(address)
    except ValueError as error:
        raise PenstockError(f"admin.address {address!r}: {error}") from None
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
