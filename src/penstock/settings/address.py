"""Addresses of listeners: taken apart, and asked whether they are open to the network."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

WEB_TRANSPORTS = ("ws", "wss")
TLS_TRANSPORTS = ("tls", "wss")
TRANSPORTS = ("tcp", "tls", "ws", "wss", "unix")


class Address(NamedTuple):
    """Where a TCP listener listens; an empty host means every interface."""

    host: str
    port: int

    def __str__(self) -> str:
        host = self.host or "*"
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


def parse_address(text: str) -> Address:
    """`host:port`, `[ipv6]:port` or `*:port`; raises ValueError that says what is wrong with it."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise ValueError("it does not end in :port with a port from 0 to 65535")
    if host.startswith("["):
        if not host.endswith("]"):
            raise ValueError("the IPv6 address is not closed with ]")
        host = host[1:-1]
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise ValueError(f"{host} is not an IPv6 address") from None
    elif ":" in host:
        raise ValueError("an IPv6 address is written in brackets, as in [::1]:1883")
    elif any(character.isspace() or character == "/" for character in host):
        raise ValueError("a host name has no spaces or slashes")
    elif not is_host_name(host):
        raise ValueError("the parts of a host name have 1 to 63 characters")
    return Address("" if host == "*" else host, int(port))


def is_host_name(host: str) -> bool:
    """Whether it can be looked up: for what is none, getaddrinfo raises UnicodeError instead of an OSError."""
    try:
        parts = (host if host.isascii() else host.encode("idna").decode("ascii")).removesuffix(".").split(".")
    except UnicodeError:
        return False
    return not host or all(0 < len(part) < 64 for part in parts)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host; a name other than localhost could be anything, so it is not."""
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
