"""A bounded waiting line in which addresses, and the user names of an address, take turns.

A flood of wrong passwords fills its own place only: clients from another address, or with another user name, are served
in their turn. When the line is full, the place that holds the most gives up its youngest entry; between places of the
same size chance decides, so that a client that tries again gets through.
"""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairLine(Generic[T]):
    def __init__(self, longest: int, chance: random.Random | None = None) -> None:
        self._longest = longest
        self._chance = chance or random.Random()
        # Address, then user name, then the order of arrival. The first of each is served next and goes to the end.
        self._addresses: OrderedDict[str, OrderedDict[str, deque[T]]] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def put(self, address: str, username: str, item: T) -> T | None:
        """Add an item; return the one that has to leave for it, which may be the item itself."""
        left = None
        if self._size >= self._longest:
            largest = max(self._sizes, key=self._sizes.__getitem__)
            if self._must_yield(address, username, largest):
                return item
            left = self._drop_youngest(largest)
        users = self._addresses.setdefault(address, OrderedDict())
        users.setdefault(username, deque()).append(item)
        self._sizes[address] = self._sizes.get(address, 0) + 1
        self._size += 1
        return left

    def _must_yield(self, address: str, username: str, largest: str) -> bool:
        mine, most = self._sizes.get(address, 0), self._sizes[largest]
        if mine + 1 < most:
            return False
        if address != largest:
            return mine + 1 > most or self._chance.random() < 0.5
        users = self._addresses[address]
        of_name, most_of_name = len(users.get(username, ())), max(map(len, users.values()))
        if of_name + 1 < most_of_name:
            return False
        return of_name >= most_of_name or self._chance.random() < 0.5

    def _drop_youngest(self, address: str) -> T:
        users = self._addresses[address]
        username = max(users, key=lambda name: len(users[name]))
        item = users[username].pop()
        self._forget_empty(address, username)
        return item

    def take(self) -> T | None:
        """Remove and return the next item, None if the line is empty."""
        if not self._size:
            return None
        address, users = next(iter(self._addresses.items()))
        username, items = next(iter(users.items()))
        item = items.popleft()
        self._addresses.move_to_end(address)
        users.move_to_end(username)
        self._forget_empty(address, username)
        return item

    def _forget_empty(self, address: str, username: str) -> None:
        self._size -= 1
        self._sizes[address] -= 1
        users = self._addresses[address]
        if not users[username]:
            del users[username]
        if not users:
            del self._addresses[address], self._sizes[address]
