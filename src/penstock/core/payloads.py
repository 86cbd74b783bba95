"""Payloads shown to people: bytes that may be text."""

from __future__ import annotations

import codecs

TEXT_CONTROLS = dict.fromkeys(map(ord, "\t\n\r"))


def show_payload(payload: bytes, *, is_cut: bool = False) -> tuple[str, str]:
    """As text where it is text, else in hexadecimal; and which of them it is. One that was cut may end in the middle of
    a character."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(payload, not is_cut)
    except UnicodeDecodeError:
        return payload.hex(), "hex"
    return (text, "text") if text.translate(TEXT_CONTROLS).isprintable() else (payload.hex(), "hex")
