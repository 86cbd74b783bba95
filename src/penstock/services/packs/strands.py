"""Submit strategies: the messages of a round in strands of groups.

The messages of a group are in flight together. The next group of the same strand follows when every message of this one
is settled; strands know nothing of each other.

    BURST                       one strand, one group
    BATCH                       one strand, groups of the batch size
    SEQUENTIAL                  one strand, groups of one
    SEQUENTIAL_BY_ORIGINATOR    a strand per originator, groups of one
    SEQUENTIAL_BY_TENANT        a strand per tenant, groups of one
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence

from penstock.services.packs.message import PackMessage
from penstock.settings.services import SubmitSettings, SubmitStrategy


class Strand:
    """The groups that wait, and how many messages of the current one are not settled."""

    __slots__ = ("groups", "unsettled")

    def __init__(self, groups: Sequence[Sequence[PackMessage]]) -> None:
        self.groups = deque(groups)
        self.unsettled = 0

    def advance(self) -> Sequence[PackMessage]:
        if self.unsettled or not self.groups:
            return ()
        group = self.groups.popleft()
        self.unsettled = len(group)
        return group


class Strands:
    def __init__(self, settings: SubmitSettings, messages: Sequence[PackMessage]) -> None:
        self._strand_of: dict[PackMessage, Strand] = {}
        self._strands = [Strand(groups) for groups in _arrange(settings, messages) if groups]
        for strand in self._strands:
            for group in strand.groups:
                self._strand_of.update(dict.fromkeys(group, strand))

    def start(self) -> list[PackMessage]:
        """The first group of each strand."""
        return [message for strand in self._strands for message in strand.advance()]

    def settle(self, message: PackMessage) -> Sequence[PackMessage]:
        """The message has succeeded or is given up: what may follow it. One that will be sent again is not settled, so
        that nothing of its strand overtakes it."""
        strand = self._strand_of[message]
        strand.unsettled -= 1
        return strand.advance()


def _arrange(settings: SubmitSettings, messages: Sequence[PackMessage]) -> list[list[list[PackMessage]]]:
    match settings.strategy:
        case SubmitStrategy.BURST:
            return [[list(messages)]] if messages else []
        case SubmitStrategy.BATCH:
            size = settings.batch_size
            return [[list(messages[start : start + size]) for start in range(0, len(messages), size)]]
        case SubmitStrategy.SEQUENTIAL:
            return [[[message] for message in messages]]
        case SubmitStrategy.SEQUENTIAL_BY_ORIGINATOR:
            return _by_key(messages, [message.originator for message in messages])
        case SubmitStrategy.SEQUENTIAL_BY_TENANT:
            return _by_key(messages, [message.tenant for message in messages])


def _by_key(messages: Sequence[PackMessage], keys: Sequence[Hashable | None]) -> list[list[list[PackMessage]]]:
    strands: dict[Hashable, list[list[PackMessage]]] = {}
    for message, key in zip(messages, keys, strict=True):
        # A message without an originator waits for no other: the object itself is its key.
        strands.setdefault(message if key is None else key, []).append([message])
    return list(strands.values())
