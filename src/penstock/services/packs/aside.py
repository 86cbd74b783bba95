"""Records that cannot be decoded: set aside with the reason, so that they never hold up the records around them."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from penstock._ext.record.segment import Record, RecordPack
from penstock.core.logging import Throttled, get_logger
from penstock.storage.log.base import Log

log = get_logger("penstock.packs")
KEPT = 100


@dataclass(frozen=True, slots=True)
class SetAside:
    topic: str
    partition: int
    offset: int
    reason: str
    record: Record | None


DeadLetter = Callable[[SetAside], Awaitable[None]]


class Aside:
    """The newest of them for who looks; all of them to the dead-letter hook, if there is one."""

    def __init__(self, queue: str, dead_letter: DeadLetter | None = None, kept: int = KEPT) -> None:
        self.recent: deque[SetAside] = deque(maxlen=kept)
        self.count = 0
        self.failures = 0
        self._queue = queue
        self._dead_letter = dead_letter
        self._warnings = Throttled(log, interval=10.0)

    async def add(self, what: SetAside) -> None:
        self.count += 1
        self.recent.append(what)
        self._warn("a record was set aside", what, what.reason)
        if self._dead_letter is None:
            return
        try:
            await self._dead_letter(what)
        except Exception as error:
            # It is still in its own topic, at the offset the log line names.
            self.failures += 1
            self._warn("a record could not be written to the dead letters", what, str(error))

    def _warn(self, event: str, what: SetAside, reason: str) -> None:
        self._warnings.warning(
            event,
            queue=self._queue,
            topic=what.topic,
            partition=what.partition,
            offset=what.offset,
            reason=reason,
        )


def dead_letter_topic(log_provider: Log, topic: str) -> DeadLetter:
    """A hook that appends the record as it is, with headers that say where it was and why it is here."""

    async def append(what: SetAside) -> None:
        record = what.record
        place = f"{what.topic}/{what.partition}/{what.offset}"
        headers = [("deadLetterFrom", place.encode()), ("deadLetterReason", what.reason.encode(errors="replace"))]
        pack = RecordPack()
        if record is None:
            pack.append(b"", None, headers)
        else:
            pack.append(record.value or b"", record.key, [*record.headers, *headers], record.timestamp)
        await log_provider.producer.send(topic, 0, pack)

    return append
