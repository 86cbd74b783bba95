"""Clients of a Penstock broker: consumers of query topics (docs/data-subscription.md).

Names are imported when they are first used, so that a program pays only for what it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock_client.admin import Admin, AsyncAdmin, connect
    from penstock_client.blocking import Consumer
    from penstock_client.consumer import AsyncConsumer
    from penstock_client.errors import DataError
    from penstock_client.messages import Block, Message
    from penstock_client.partitions import (
        OFFSET_BEGINNING,
        OFFSET_END,
        OFFSET_INVALID,
        OFFSET_STORED,
        TopicPartition,
    )

__all__ = [
    "OFFSET_BEGINNING",
    "OFFSET_END",
    "OFFSET_INVALID",
    "OFFSET_STORED",
    "Admin",
    "AsyncAdmin",
    "AsyncConsumer",
    "Block",
    "Consumer",
    "DataError",
    "Message",
    "TopicPartition",
    "connect",
]

_HOMES = {
    "Admin": "admin",
    "AsyncAdmin": "admin",
    "connect": "admin",
    "Consumer": "blocking",
    "AsyncConsumer": "consumer",
    "Block": "messages",
    "Message": "messages",
    "DataError": "errors",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'partitions')}"), name)
