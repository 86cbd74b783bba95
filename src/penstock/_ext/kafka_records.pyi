from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, Message

from penstock._ext.segment import RecordPack

def find_odd(pack: RecordPack, oldest: int, newest: int, largest: int) -> int: ...
def messages_of(pack: RecordPack) -> list[dict[str, Any]]: ...
def packs_of(
    messages: list[Message], only_topic: str | None = None, only_partition: int = -1, largest: int = 0xFFFFFFFF
) -> tuple[list[tuple[str, int, RecordPack]], list[Message]]: ...

class Delivery:
    topic: str
    partition: int
    pack: RecordPack
    on_done: Callable[[Any], None] | None
    error: KafkaError | Exception | None
    failed: int
    base_offset: int
    is_complete: bool
    is_dense: bool
    def __init__(
        self,
        topic: str,
        partition: int,
        pack: RecordPack,
        on_done: Callable[[Any], None] | None,
        finished: list[Delivery],
    ) -> None: ...
    def report(self, error: KafkaError | None, message: Message) -> None: ...
    def fail(self, error: object, count: int) -> None: ...
