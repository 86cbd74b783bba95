"""Host names that are allowed in requests to the admin address.

A web page can make its own host name resolve to 127.0.0.1 and let the browser send requests to it (DNS rebinding). The
page would read metrics and health. Such a request has the page's name in its Host header. Addresses and names without a
dot cannot belong to a page from the internet, so they are always allowed.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

MISDIRECTED = 421


class HostGuard:
    """Answer only requests that name the broker: by address, by a name without a dot, or by one of `names`."""

    def __init__(self, app: ASGIApp, names: Iterable[str]) -> None:
        self._app = app
        self._names = frozenset(name.lower() for name in (*names, socket.gethostname(), socket.getfqdn()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._is_ours([value for name, value in scope["headers"] if name == b"host"]):
            await self._app(scope, receive, send)
            return
        content = {
            "error": "the Host header of the request does not name this broker",
            "hint": "Use the address in the URL, or add the name to the setting admin.hosts.",
        }
        await JSONResponse(content, status_code=MISDIRECTED)(scope, receive, send)

    def _is_ours(self, given: list[bytes]) -> bool:
        if not given:
            return True  # HTTP/1.0, which no browser speaks
        if len(given) > 1:
            return False
        host = given[0].decode("latin-1").lower()
        host = host[1 : host.find("]")] if host.startswith("[") else host.rpartition(":")[0] or host
        if "." not in host.rstrip(".") and ":" not in host:
            return True
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return host.rstrip(".") in self._names
        return True
