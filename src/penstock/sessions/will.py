"""A message that the broker publishes when a client goes without leaving."""

from __future__ import annotations

import msgspec


class Will(msgspec.Struct, eq=False):
    """`props` are the properties of the message as records have them; `delay` is in seconds after the connection ended,
    `expiry` in seconds after the will was published."""

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    props: bytes = b""
    delay: int = 0
    expiry: int | None = None
