"""What the entries of an ACL file have in common: known keys, lists of texts, and whom an entry is about."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from penstock.core.errors import AccessFileError


def check_keys(entry: dict[str, Any], keys: Sequence[str], where: str) -> None:
    for key in entry:
        if key not in keys:
            near = get_close_matches(key, keys, n=1)
            known = f"did you mean {near[0]}?" if near else f"there are {', '.join(keys)}"
            raise AccessFileError(f"{where}: {key} is unknown: {known}")


def read_texts(entry: dict[str, Any], key: str, where: str) -> list[str] | None:
    texts = entry.get(key)
    if texts is None:
        return None
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise AccessFileError(f'{where}: {key} = {texts!r} is not allowed: use a list of texts, as in ["a", "b"]')
    return texts


def read_anonymous(entry: dict[str, Any], named: Sequence[str], where: str) -> bool | None:
    """True: only clients without a user name, False: only with one. `named` are the keys that name users."""
    anonymous = entry.get("anonymous")
    if anonymous is not None and not isinstance(anonymous, bool):
        raise AccessFileError(f"{where}: anonymous = {anonymous!r} is not allowed: use true or false")
    for key in named:
        if anonymous and entry.get(key) is not None:
            raise AccessFileError(
                f"{where}: a client without a user name is none of {key}: leave out anonymous or {key}"
            )
    return anonymous
