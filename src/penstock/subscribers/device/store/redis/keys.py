"""The keys of a queue, as TBMQ has them: `{client}_messages`, `{client}_messages_<packet id>`, and so on.

The name of the queue stands in braces, so that all keys of a queue are in one slot of a cluster.
"""

from __future__ import annotations

import binascii
from typing import NamedTuple

from penstock.subscribers.device.store.base import Queue, is_group

MOST_REMEMBERED = 20_000
SLOT_MASK = 16_383


class QueueKeys(NamedTuple):
    """Scripts get `add`, or the first of them; the keys of messages are made from `messages` in the scripts."""

    slot: int
    packed: bytes  # how many keys `add` has and the keys, as they stand in a command
    words: bytes  # the keys of `add` alone
    messages: bytes
    add: tuple[bytes, ...]  # messages, last packet id, state, marks; of a group also its sources
    group: tuple[bytes, ...]  # messages; of a group also its sources and its claims
    all: tuple[bytes, ...]


class KeyMaker:
    """Remembers the keys of the queues it was asked for last."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._remembered: dict[Queue, QueueKeys] = {}

    def __call__(self, queue: Queue) -> QueueKeys:
        keys = self._remembered.get(queue)
        if keys is None:
            if len(self._remembered) >= MOST_REMEMBERED:
                self._remembered.clear()
            keys = self._remembered[queue] = self._make(queue)
        return keys

    def _make(self, queue: Queue) -> QueueKeys:
        tag = queue.encode()
        start = b"%b{%b}" % (self._prefix.encode(), tag)
        messages = start + b"_messages"
        add: tuple[bytes, ...] = (messages, start + b"_last_packet_id", start + b"_state", start + b"_marks")
        group: tuple[bytes, ...] = (messages,)
        everything = (*add, start + b"_marks_old")
        if is_group(queue):
            group = (messages, start + b"_sources", start + b"_claims")
            everything += group[1:]
            add = (*add, group[1])
        # The CRC of Redis Cluster is the XMODEM one.
        slot = binascii.crc_hqx(tag, 0) & SLOT_MASK
        words = b"".join(map(pack_word, add))
        return QueueKeys(slot, pack_word(b"%d" % len(add)) + words, words, messages, add, group, everything)


def pack_word(word: bytes) -> bytes:
    """A word of a command as Redis reads it."""
    return b"$%d\r\n%b\r\n" % (len(word), word)
