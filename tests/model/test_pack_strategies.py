"""Packs against a naive oracle: random outcomes, random order of completion, every combination of strategies.

Each message has a script: what happens to its first, second … attempt (the last entry for ever). The oracle decides
each message alone, without lanes or rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.services.packs.message import PackMessage, State
from penstock.services.packs.pack import Pack
from penstock.services.packs.queues import PackQueue
from penstock.settings.services import AckSettings, AckStrategy, SubmitSettings, SubmitStrategy

MANY_ROUNDS = 2_000
OUTCOMES = st.sampled_from("SFT")  # success, failure, timeout


@dataclass
class Trace:
    """What an observer sees: when each message was submitted and settled, in one numbering."""

    attempts: list[list[str]]
    pauses: list[float] = field(default_factory=list)
    in_flight: set[int] = field(default_factory=set)
    settled: set[int] = field(default_factory=set)
    rounds: int = 0
    results: list = field(default_factory=list)
    overtaken: list[tuple[int, int]] = field(default_factory=list)
    most_in_flight: int = 0
    most_per_key: int = 0


def lane_key(queue: PackQueue, message: PackMessage) -> object:
    match queue.submit.strategy:
        case SubmitStrategy.SEQUENTIAL_BY_ORIGINATOR:
            return message if message.originator is None else message.originator
        case SubmitStrategy.SEQUENTIAL_BY_TENANT:
            return message if message.tenant is None else message.tenant
        case _:
            return None


def outcome(script: str, attempt: int) -> str:
    return script[min(attempt, len(script)) - 1]


def play(queue: PackQueue, messages: list[PackMessage], scripts: list[str], data: st.DataObject) -> Trace:
    """Runs the pack to its end; completes what is in flight in a random order."""
    trace = Trace([[] for _ in messages])
    number = {message: index for index, message in enumerate(messages)}
    pack = Pack(queue, messages)
    now = 0.0

    def submit(released: list[PackMessage]) -> None:
        for message in released:
            index = number[message]
            key = lane_key(queue, message)
            for earlier in range(index):
                if lane_key(queue, messages[earlier]) == key and earlier not in trace.settled:
                    trace.overtaken.append((earlier, index))
            trace.in_flight.add(index)
            trace.attempts[index].append(outcome(scripts[index], message.attempts))
        trace.most_in_flight = max(trace.most_in_flight, len(trace.in_flight))
        keys = [lane_key(queue, messages[index]) for index in trace.in_flight]
        trace.most_per_key = max([trace.most_per_key, *(keys.count(key) for key in set(keys))])

    while True:
        trace.rounds += 1
        assert trace.rounds < MANY_ROUNDS
        submit(pack.begin(now))
        while not pack.is_round_over:
            able = sorted(index for index in trace.in_flight if trace.attempts[index][-1] != "T")
            if not able:
                now = pack.deadline
                break
            index = data.draw(st.sampled_from(able), label="completes")
            trace.in_flight.discard(index)
            if trace.attempts[index][-1] == "S":
                trace.settled.add(index)
                submit(pack.on_success(messages[index]))
            else:
                # what is given up is settled too; the oracle below checks that it was right to give it up
                if not is_sent_again(queue.ack, "F", messages[index].attempts):
                    trace.settled.add(index)
                submit(pack.on_failure(messages[index], "scripted"))
        result = pack.end()
        trace.results.append(result)
        for message in (*result.failed, *result.timed_out):
            trace.settled.add(number[message])
        trace.in_flight.clear()
        if result.is_done:
            return trace
        if result.pause:
            trace.pauses.append(result.pause)
        now += result.pause


def is_sent_again(ack: AckSettings, what: str, attempts: int) -> bool:
    wanted = ack.strategy.retries_failed if what == "F" else ack.strategy.retries_timed_out
    return wanted and (ack.retries == 0 or attempts <= ack.retries)


def naive_attempts(ack: AckSettings, script: str) -> list[str]:
    """What happens to one message, looked at alone (not RETRY_ALL, where the others matter)."""
    history: list[str] = []
    while True:
        history.append(outcome(script, len(history) + 1))
        if history[-1] == "S" or not is_sent_again(ack, history[-1], len(history)):
            return history


@st.composite
def cases(draw: st.DrawFn) -> tuple[PackQueue, list[PackMessage], list[str]]:
    ack = AckSettings(
        draw(st.sampled_from(AckStrategy)),
        retries=draw(st.integers(0, 3)),
        pause=draw(st.sampled_from([0.0, 1.0, 5.0])),
        max_pause=draw(st.sampled_from([0.0, 5.0, 12.0])),
    )
    submit = SubmitSettings(draw(st.sampled_from(SubmitStrategy)), batch_size=draw(st.integers(1, 4)))
    queue = PackQueue("test", "test", submit=submit, ack=ack)
    keys = st.one_of(st.none(), st.sampled_from("abc"))
    count = draw(st.integers(0, 9))
    messages = [PackMessage(i, originator=draw(keys), tenant=draw(keys)) for i in range(count)]
    scripts = ["".join(draw(st.lists(OUTCOMES, min_size=1, max_size=4))) for _ in range(count)]
    if ack.retries == 0:
        scripts = [script + "S" for script in scripts]  # for ever needs an end
    return queue, messages, scripts


@settings(max_examples=400, deadline=None)
@given(case=cases(), data=st.data())
def test_against_the_oracle(case: tuple[PackQueue, list[PackMessage], list[str]], data: st.DataObject) -> None:
    queue, messages, scripts = case
    trace = play(queue, messages, scripts, data)
    ack, strategy = queue.ack, queue.submit.strategy

    assert all(trace.attempts), "every message is submitted, whatever happened to those before it"
    assert all(message.state in {State.SUCCEEDED, State.SKIPPED} for message in messages), "nothing is left"
    if ack.retries:
        assert all(len(history) <= 1 + ack.retries for history in trace.attempts)
    if ack.strategy is not AckStrategy.RETRY_ALL:
        assert trace.attempts == [naive_attempts(ack, script) for script in scripts]
        succeeded = [message.value for message in messages if message.state is State.SUCCEEDED]
        assert succeeded == [i for i, script in enumerate(scripts) if naive_attempts(ack, script)[-1] == "S"]
    elif strategy is SubmitStrategy.BURST and messages:
        assert {len(history) for history in trace.attempts} == {trace.rounds}, "all of them again in each round"
        assert trace.rounds == naive_rounds(ack, scripts)

    expected, pause = [], min(ack.pause, ack.max_pause)
    for _ in trace.pauses:
        expected.append(pause)
        pause = min(2 * pause, ack.max_pause)
    assert trace.pauses == expected
    check_order(queue, trace)
    check_results(messages, trace)


def naive_rounds(ack: AckSettings, scripts: list[str]) -> int:
    rounds = 1
    while any(outcome(script, rounds) != "S" for script in scripts) and (ack.retries == 0 or rounds <= ack.retries):
        rounds += 1
    return rounds


def check_order(queue: PackQueue, trace: Trace) -> None:
    strategy = queue.submit.strategy
    if strategy is SubmitStrategy.BATCH:
        assert trace.most_in_flight <= queue.submit.batch_size
    elif strategy is not SubmitStrategy.BURST:
        assert trace.most_per_key <= 1
        assert not trace.overtaken, "a message went before an earlier one of its key was settled"


def check_results(messages: list[PackMessage], trace: Trace) -> None:
    """Each attempt is in exactly one result, under the right name."""
    reported = dict.fromkeys(messages, 0)
    for result in trace.results:
        lists = (
            result.succeeded,
            result.failed,
            result.timed_out,
            result.to_retry_failed,
            result.to_retry_timed_out,
        )
        for message in (message for one in lists for message in one):
            reported[message] += 1
    assert list(reported.values()) == [len(history) for history in trace.attempts]
    assert [result.is_done for result in trace.results] == [False] * (trace.rounds - 1) + [True]


@settings(max_examples=60, deadline=None)
@given(
    limit=st.integers(1, 100),
    bad=st.integers(0, 20),
    good=st.integers(0, 20),
    strategy=st.sampled_from([SubmitStrategy.BURST, SubmitStrategy.SEQUENTIAL]),
    data=st.data(),
)
def test_failure_percentage_is_a_percentage(
    limit: int, bad: int, good: int, strategy: SubmitStrategy, data: st.DataObject
) -> None:
    """The compatible original compares it with a fraction, so that no value from 1 on ever fires."""
    ack = AckSettings(AckStrategy.RETRY_FAILED, retries=2, failure_percentage=limit, pause=0)
    queue = PackQueue("test", "test", submit=SubmitSettings(strategy), ack=ack)
    scripts = data.draw(st.permutations(["F"] * bad + ["S"] * good))
    messages = [PackMessage(i) for i in range(len(scripts))]
    trace = play(queue, messages, scripts, data)
    assert all(trace.attempts)
    if strategy is SubmitStrategy.BURST:
        is_over = bad * 100 > limit * (bad + good)
        assert all(len(h) == (1 if is_over else 3) for h, s in zip(trace.attempts, scripts, strict=True) if s == "F")
