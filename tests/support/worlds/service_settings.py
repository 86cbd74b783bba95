"""Sections of the settings as tests write them: nested tables, dotted keys, or both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.settings.cluster import ClusterSettings
from penstock.settings.services import ServiceSettings


def services(document: Mapping[str, Any] | None = None, /, **keys: Any) -> ServiceSettings:
    return msgspec.convert(_nested({**(document or {}), **keys}), ServiceSettings)


def cluster(document: Mapping[str, Any] | None = None, /, **keys: Any) -> ClusterSettings:
    return msgspec.convert(_nested({**(document or {}), **keys}), ClusterSettings)


def _nested(document: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in document.items():
        *path, last = name.split(".")
        table = tree
        for part in path:
            table = table.setdefault(part, {})
        table[last] = value
    return tree
