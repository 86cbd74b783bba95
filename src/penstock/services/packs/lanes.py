"""Submit strategies: the messages of a round in lanes of groups.

The messages of a group are in flight together. The next group of the same lane follows when every message of this one
is settled; lanes know nothing of each other.

    BURST                       one lane, one group
    BATCH                       one lane, groups of the batch size
    SEQUENTIAL                  one lane, groups of one
    SEQUENTIAL_BY_ORIGINATOR    a lane per originator, groups of one
    SEQUENTIAL_BY_TENANT        a lane per tenant, groups of one
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence

from penstock.services.packs.message import PackMessage
from penstock.settings.services import SubmitSettings, SubmitStrategy


class Lane:
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


class Lanes:
    def __init__(self, settings: SubmitSettings, messages: Sequence[PackMessage]) -> None:
        self._lane_of: dict[PackMessage, Lane] = {}
        self._lanes = [Lane(groups) for groups in _arrange(settings, messages) if groups]
        for lane in self._lanes:
            for group in lane.groups:
                self._lane_of.update(dict.fromkeys(group, lane))

    def start(self) -> list[PackMessage]:
        """The first group of each lane."""
        return [message for lane in self._lanes for message in lane.advance()]

    def settle(self, message: PackMessage) -> Sequence[PackMessage]:
        """The message has succeeded or is given up: what may follow it. One that will be sent again is not settled, so
        that nothing of its lane overtakes it."""
        lane = self._lane_of[message]
        lane.unsettled -= 1
        return lane.advance()


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
    lanes: dict[Hashable, list[list[PackMessage]]] = {}
    for message, key in zip(messages, keys, strict=True):
        # A message that belongs to nobody waits for nobody: the object itself is its key.
        lanes.setdefault(message if key is None else key, []).append([message])
    return list(lanes.values())
