from collections.abc import Iterable, Sequence
from typing import Literal

_Data = bytes | bytearray | memoryview

TEXT_NAMES: tuple[str, ...]
NUMBER_NAMES: tuple[str, ...]
BIT_NAMES: tuple[str, ...]
STOPS: tuple[str, ...]

class Memory:
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Decoder:
    @property
    def rows(self) -> int: ...
    @property
    def bad(self) -> int: ...
    @property
    def is_full(self) -> bool: ...
    def __init__(
        self,
        ranges: Sequence[tuple[int, int]] = (),
        filters: Iterable[bytes] = (),
        max_rows: int = 20_000,
        max_bytes: int = 8_388_608,
        keep_bad: bool = True,
    ) -> None: ...
    def take(self) -> tuple[dict[str, Memory], int, dict[str, int]]: ...
    def add_batches(
        self, data: _Data, position: int = 0
    ) -> tuple[int, Literal["end", "full", "torn", "damaged"], int]: ...
    def add_value(self, value: bytes | None, partition: int, offset: int, time_ms: int) -> int: ...
    def add_array(
        self, offsets: object, data: object, valid: object | None, first: int, count: int, kept: bytearray
    ) -> None: ...

def match_filter(topic_filter: bytes, topic: bytes) -> bool: ...
