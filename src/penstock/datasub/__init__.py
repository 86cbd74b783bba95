"""Data subscription: topics defined by queries (docs/data-subscription.md).

The names below are those of the client, imported when they are asked for: the broker has no use for them, and a client
none for the broker.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.datasub.client.admin import Admin, AsyncAdmin, connect
    from penstock.datasub.client.blocking import Consumer
    from penstock.datasub.client.consumer import AsyncConsumer
    from penstock.datasub.client.messages import Block, Message
    from penstock.datasub.client.partitions import (
        OFFSET_BEGINNING,
        OFFSET_END,
        OFFSET_INVALID,
        OFFSET_STORED,
        TopicPartition,
    )
    from penstock.datasub.errors import DataError

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
    "Admin": "client.admin",
    "AsyncAdmin": "client.admin",
    "connect": "client.admin",
    "Consumer": "client.blocking",
    "AsyncConsumer": "client.consumer",
    "Block": "client.messages",
    "Message": "client.messages",
    "DataError": "errors",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'client.partitions')}"), name)
