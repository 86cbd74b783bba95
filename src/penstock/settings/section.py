"""What every table of the settings is made of."""

from __future__ import annotations

from typing import Literal

from msgspec import Meta, Struct


def about(text: str, *, unit: Literal["", "bytes", "seconds"] = "", live: bool = False, secret: bool = False) -> Meta:
    """Description of a setting, the unit a person may write it in, whether it can change while the broker runs, and
    whether nobody is to see its value."""
    return Meta(description=text, extra={"unit": unit, "live": live, "secret": secret})


class Section(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A table of the settings file."""
