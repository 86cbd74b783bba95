"""A pack as a state machine: what to submit, when a round is over, what is sent again, when it can be committed.

A round submits what is left of the pack. It is over when nothing is in flight and nothing more may be submitted, or
when its time is. Then the acknowledgement strategy decides for each message that failed or timed out: again, or given
up. Messages that were held back behind a failed one are never given up: they are in the next round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from penstock.services.packs.message import PackMessage, State
from penstock.services.packs.queues import PackQueue
from penstock.services.packs.strands import Strands
from penstock.settings.services import AckStrategy


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What a round came to. `failed` and `timed_out` are given up, those `to_retry_…` come again."""

    succeeded: tuple[PackMessage, ...] = ()
    failed: tuple[PackMessage, ...] = ()
    timed_out: tuple[PackMessage, ...] = ()
    to_retry_failed: tuple[PackMessage, ...] = ()
    to_retry_timed_out: tuple[PackMessage, ...] = ()
    to_cancel: tuple[PackMessage, ...] = ()
    """Still running; must be stopped before the next round."""
    is_done: bool = False
    """Nothing is left: commit."""
    pause: float = 0.0
    """Seconds before the next round."""

    @property
    def is_success(self) -> bool:
        return not (self.failed or self.timed_out or self.to_retry_failed or self.to_retry_timed_out)


@dataclass(slots=True)
class _Round:
    strands: Strands
    deadline: float
    touched: list[PackMessage] = field(default_factory=list)
    in_flight: int = 0


class Pack:
    """Driven from outside: `begin`, then `on_success` and `on_failure` as they come, then `end` when `is_round_over`
    or at the deadline, until the result says it is done. Each of the first three returns what to submit now."""

    def __init__(self, queue: PackQueue, messages: Sequence[PackMessage]) -> None:
        self._queue = queue
        self._ack = queue.ack
        self._messages = list(messages)
        self._left = list(messages)
        self._pause = min(queue.ack.pause, queue.ack.max_pause)
        self._has_given_up = False
        self._round: _Round | None = None

    def begin(self, now: float) -> list[PackMessage]:
        for message in self._left:
            message.state = State.WAITING
        self._round = _Round(Strands(self._queue.submit, self._left), now + self._queue.pack_seconds)
        return self._submit(self._round.strands.start())

    @property
    def deadline(self) -> float:
        return self._current.deadline

    @property
    def is_round_over(self) -> bool:
        """Nothing is in flight, so nothing more will come; true between two rounds as well."""
        return self._round is None or self._round.in_flight == 0

    @property
    def _current(self) -> _Round:
        if self._round is None:
            raise RuntimeError("the pack is between two rounds")
        return self._round

    def on_success(self, message: PackMessage) -> list[PackMessage]:
        if not self._land(message, State.SUCCEEDED):
            return []
        return self._submit(self._current.strands.settle(message))

    def on_failure(self, message: PackMessage, reason: str) -> list[PackMessage]:
        if not self._land(message, State.FAILED):
            return []
        message.reason = reason
        # One that will be given up must not hold back what waits behind it.
        return [] if self._will_retry(message) else self._submit(self._current.strands.settle(message))

    def end(self) -> RoundResult:
        """Decides. What is still in flight has timed out."""
        touched = self._current.touched
        self._round = None
        running = [message for message in touched if message.state is State.IN_FLIGHT]
        for message in running:
            message.state = State.TIMED_OUT
        bad = [message for message in touched if message.state in {State.FAILED, State.TIMED_OUT}]
        self._check_percentage(len(bad))
        retried = set(filter(self._will_retry, bad))
        if bad and retried and self._ack.strategy is AckStrategy.RETRY_ALL:
            again = {message for message in touched if self._may_go_again(message)}
        else:
            again = retried
        result = self._result(touched, retried, again, running)
        for message in bad:
            if message not in retried:
                message.state = State.SKIPPED
        done = {message for message in touched if message not in again}
        self._left = [message for message in self._left if message not in done]
        if result.pause:
            self._pause = min(2 * self._pause, self._ack.max_pause)
        return result

    def _result(
        self,
        touched: Iterable[PackMessage],
        retried: set[PackMessage],
        again: set[PackMessage],
        running: Sequence[PackMessage],
    ) -> RoundResult:
        def those(state: State, *, come_again: bool) -> tuple[PackMessage, ...]:
            return tuple(m for m in touched if m.state is state and (m in retried) is come_again)

        is_done = not again and all(message.state is not State.WAITING for message in self._left)
        keeps_running = self._ack.strategy is AckStrategy.SKIP_ALL_FAILURES
        return RoundResult(
            succeeded=tuple(message for message in touched if message.state is State.SUCCEEDED),
            failed=those(State.FAILED, come_again=False),
            timed_out=those(State.TIMED_OUT, come_again=False),
            to_retry_failed=those(State.FAILED, come_again=True),
            to_retry_timed_out=those(State.TIMED_OUT, come_again=True),
            to_cancel=() if keeps_running else tuple(running),
            is_done=is_done,
            pause=self._pause if again else 0.0,
        )

    def _submit(self, messages: Iterable[PackMessage]) -> list[PackMessage]:
        current = self._current
        released = list(messages)
        for message in released:
            message.state = State.IN_FLIGHT
            message.attempts += 1
            current.in_flight += 1
            current.touched.append(message)
        return released

    def _land(self, message: PackMessage, state: State) -> bool:
        """False for what comes late: after its round, or a second time."""
        if self._round is None or message.state is not State.IN_FLIGHT:
            return False
        message.state = state
        self._round.in_flight -= 1
        return True

    def _check_percentage(self, bad: int) -> None:
        limit = self._ack.failure_percentage
        if limit > 0 and bad * 100 > limit * len(self._messages):
            self._has_given_up = True

    def _may_go_again(self, message: PackMessage) -> bool:
        return not self._has_given_up and (self._ack.retries == 0 or message.attempts <= self._ack.retries)

    def _will_retry(self, message: PackMessage) -> bool:
        strategy = self._ack.strategy
        wanted = strategy.retries_failed if message.state is State.FAILED else strategy.retries_timed_out
        return wanted and self._may_go_again(message)
