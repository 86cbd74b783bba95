"""The base of every section of the settings."""

from __future__ import annotations

from typing import Literal

from msgspec import Meta, Struct


def about(
    text: str,
    *,
    unit: Literal["", "bytes", "seconds"] = "",
    live: bool = False,
    secret: bool = False,
    allowed: str = "",
) -> Meta:
    """Description of a setting, the unit a person may write it in, whether it can change while the broker runs, whether
    its value is hidden, and the allowed values in words where the type does not state them."""
    return Meta(description=text, extra={"unit": unit, "live": live, "secret": secret, "allowed": allowed})


class Section(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A table of the settings file."""
