from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

PUBLISH: int
RECEIVE: int
SUBSCRIBE: int

Level: TypeAlias = bytes | Literal["+", "#"]
Rule: TypeAlias = tuple[bool, int, Sequence[Level]]

def filters_intersect(a: bytes, b: bytes) -> bool:
    """Whether some topic matches both filters (without $share)."""

def filter_covers(a: bytes, b: bytes) -> bool:
    """Whether every topic that matches b matches a (without $share)."""

class AclProgram:
    """Access rules in order: allow or deny, a mask of actions, the levels of a pattern. First match decides."""

    @property
    def rules(self) -> tuple[tuple[bool, int, tuple[Level, ...]], ...]: ...
    def __init__(self, rules: Iterable[Rule]) -> None: ...
    def may_publish(self, topic: bytes) -> bool: ...
    def may_receive(self, topic: bytes) -> bool: ...
    def may_subscribe(self, filter: bytes) -> bool: ...
