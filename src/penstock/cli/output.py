"""How `sub` prints a message: plain, -v, or a -F format with the letters of mosquitto_sub."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from penstock.core.errors import UsageError
from penstock_client.mqtt.packets import Message

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "a": b"\a", "e": b"\x1b", "v": b"\v", "\\": b"\\"}


def _text(name: str) -> Callable[[Message], bytes]:
    def read(message: Message) -> bytes:
        value = message.properties.get(name, "")
        return value if isinstance(value, bytes) else str(value).encode()

    return read


def _user_properties(message: Message) -> bytes:
    return " ".join(f"{name}:{value}" for name, value in message.properties.get("user_properties", ())).encode()


def _identifiers(message: Message) -> bytes:
    return " ".join(str(number) for number in message.properties.get("subscription_identifiers", ())).encode()


def _json(message: Message) -> bytes:
    described: dict[str, Any] = {
        "tst": datetime.now().astimezone().isoformat(timespec="microseconds"),
        "topic": message.topic,
        "qos": message.qos,
        "retain": int(message.retain),
        "payloadlen": len(message.payload),
        "payload": message.payload.decode("utf-8", "backslashreplace"),
    }
    if message.qos:
        described["mid"] = message.packet_id
    if message.properties:
        described["properties"] = {
            name: value.hex() if isinstance(value, bytes) else value for name, value in message.properties.items()
        }
    return json.dumps(described, ensure_ascii=False).encode("utf-8", "backslashreplace")


FIELDS: dict[str, Callable[[Message], bytes]] = {
    "%": lambda message: b"%",
    "t": lambda message: message.topic.encode(),
    "p": lambda message: message.payload,
    "x": lambda message: message.payload.hex().encode(),
    "X": lambda message: message.payload.hex().upper().encode(),
    "q": lambda message: str(message.qos).encode(),
    "r": lambda message: str(int(message.retain)).encode(),
    "l": lambda message: str(len(message.payload)).encode(),
    "m": lambda message: str(message.packet_id).encode(),
    "I": lambda message: datetime.now().astimezone().strftime("%Y-%m-%dT%H:%M:%S%z").encode(),
    "U": lambda message: f"{time.time():.9f}".encode(),
    "j": _json,
    "C": _text("content_type"),
    "D": _text("correlation_data"),
    "E": _text("message_expiry"),
    "F": _text("payload_format"),
    "P": _user_properties,
    "R": _text("response_topic"),
    "S": _identifiers,
}


def compile_format(text: str) -> Callable[[Message], bytes]:
    """A function that prints one message; raises UsageError when the format has an unknown letter."""
    parts: list[bytes | Callable[[Message], bytes]] = []
    characters = iter(text)
    for character in characters:
        if character == "%":
            letter = next(characters, "")
            if letter not in FIELDS:
                raise UsageError(
                    f"-F {text!r}: %{letter} is unknown: there are {' '.join('%' + name for name in FIELDS)}"
                )
            parts.append(FIELDS[letter])
        elif character == "\\":
            letter = next(characters, "\\")
            parts.append(_ESCAPES.get(letter, f"\\{letter}".encode()))
        else:
            parts.append(character.encode("utf-8", "surrogateescape"))
    return lambda message: b"".join(part if isinstance(part, bytes) else part(message) for part in parts)


def make_printer(format: str | None, *, verbose: bool, no_newline: bool) -> Callable[[Message], bytes]:
    """What to write for a message, with its line end."""
    render = compile_format(format if format is not None else "%t %p" if verbose else "%p")
    end = b"" if no_newline else b"\n"
    return lambda message: render(message) + end
