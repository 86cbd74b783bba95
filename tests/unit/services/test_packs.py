"""Packs with strategies: the defects of the compatible original that ours must not have, and the default queues."""

from __future__ import annotations

import pytest

from penstock.services.packs.message import PackMessage, State
from penstock.services.packs.pack import Pack
from penstock.services.packs.queues import PackQueue
from penstock.services.processing import pack_queues
from penstock.settings.services import AckSettings, AckStrategy, ServiceSettings, SubmitSettings, SubmitStrategy


def pack_of(submit: SubmitStrategy, ack: AckSettings, keys: str, batch_size: int = 2) -> tuple[Pack, list[PackMessage]]:
    messages = [PackMessage(i, originator=None if key == "-" else key) for i, key in enumerate(keys)]
    return Pack(PackQueue("q", "q", submit=SubmitSettings(submit, batch_size), ack=ack), messages), messages


def values(messages: list[PackMessage] | tuple[PackMessage, ...]) -> list[int]:
    return [message.value for message in messages]


SKIP = AckSettings(AckStrategy.SKIP_ALL_FAILURES)


def test_a_failure_that_is_skipped_releases_the_next() -> None:
    """In the original the rest of that key is never submitted, times out and is skipped unprocessed."""
    pack, messages = pack_of(SubmitStrategy.SEQUENTIAL_BY_ORIGINATOR, SKIP, "aabb")
    assert values(pack.begin(0)) == [0, 2]
    assert values(pack.on_failure(messages[0], "no")) == [1]
    assert values(pack.on_success(messages[2])) == [3]
    pack.on_success(messages[1])
    pack.on_success(messages[3])
    result = pack.end()
    assert result.is_done
    assert values(result.failed) == [0]
    assert messages[0].state is State.SKIPPED
    assert messages[0].reason == "no"


def test_a_batch_goes_on_after_a_failure_that_is_skipped() -> None:
    pack, messages = pack_of(SubmitStrategy.BATCH, SKIP, "aaaa")
    assert values(pack.begin(0)) == [0, 1]
    assert pack.on_failure(messages[0], "no") == []
    assert values(pack.on_success(messages[1])) == [2, 3]


def test_a_message_without_an_originator_is_its_own_key() -> None:
    """In the original it is never submitted and always times out."""
    pack, _ = pack_of(SubmitStrategy.SEQUENTIAL_BY_ORIGINATOR, SKIP, "-a-a")
    assert values(pack.begin(0)) == [0, 1, 2]


def test_what_waits_behind_a_timeout_is_in_the_next_round() -> None:
    pack, messages = pack_of(SubmitStrategy.SEQUENTIAL, SKIP, "aaa")
    assert values(pack.begin(10.0)) == [0]
    assert pack.deadline == 12.0
    first = pack.end()
    assert values(first.timed_out) == [0]
    assert first.to_cancel == (), "late successes still count with SKIP_ALL_FAILURES"
    assert not first.is_done
    assert first.pause == 0, "nothing is sent again, so nothing is waited for"
    assert values(pack.begin(12.0)) == [1]
    assert values(pack.on_success(messages[1])) == [2]
    pack.on_success(messages[2])
    assert pack.end().is_done


def test_what_still_runs_is_cancelled() -> None:
    ack = AckSettings(AckStrategy.SKIP_ALL_FAILURES_AND_TIMED_OUT)
    pack, messages = pack_of(SubmitStrategy.BURST, ack, "ab")
    pack.begin(0)
    pack.on_success(messages[1])
    result = pack.end()
    assert values(result.to_cancel) == [0]
    assert result.is_done


def test_late_and_second_answers_change_nothing() -> None:
    ack = AckSettings(AckStrategy.RETRY_TIMED_OUT, retries=1, pause=0)
    pack, messages = pack_of(SubmitStrategy.BURST, ack, "ab")
    pack.begin(0)
    pack.on_success(messages[1])
    pack.on_failure(messages[1], "again")
    assert messages[1].state is State.SUCCEEDED
    result = pack.end()
    assert values(result.to_retry_timed_out) == [0]
    pack.on_success(messages[0])
    assert values(pack.begin(5)) == [0], "an answer between the rounds belongs to the cancelled attempt"


def test_pause_doubles_to_its_maximum_and_retries_end() -> None:
    ack = AckSettings(AckStrategy.RETRY_FAILED, retries=4, pause=1, max_pause=3)
    pack, messages = pack_of(SubmitStrategy.BURST, ack, "a")
    pauses = []
    for _ in range(5):
        pack.begin(0)
        pack.on_failure(messages[0], "no")
        pauses.append((result := pack.end()).pause)
    assert pauses == [1, 2, 3, 3, 0]
    assert result.is_done
    assert values(result.failed) == [0]
    assert messages[0].attempts == 5


def test_the_message_behind_has_its_own_retries() -> None:
    ack = AckSettings(AckStrategy.RETRY_FAILED, retries=1, pause=0)
    pack, messages = pack_of(SubmitStrategy.SEQUENTIAL, ack, "aa")
    history = []
    while True:
        released = pack.begin(0)
        while released:
            history += values(released)
            released = pack.on_failure(released[0], "no")
        if pack.end().is_done:
            break
    assert history == [0, 0, 1, 1]
    assert [message.attempts for message in messages] == [2, 2]


def test_an_empty_pack_is_done() -> None:
    for strategy in SubmitStrategy:
        pack, _ = pack_of(strategy, SKIP, "")
        assert pack.begin(0) == []
        assert pack.is_round_over
        assert pack.end().is_done


def test_default_queues() -> None:
    queues = [queue for key, queue in pack_queues(ServiceSettings()).items() if key.service_type == "TB_RULE_ENGINE"]
    *queues, fields = queues
    assert (fields.topic, fields.partitions, fields.pack_seconds) == ("tb_cf_event", 10, 60.0)
    main, high, sequential = queues
    assert [queue.name for queue in queues] == ["Main", "HighPriority", "SequentialByOriginator"]
    assert [queue.topic for queue in queues] == [
        "tb_rule_engine.main",
        "tb_rule_engine.hp",
        "tb_rule_engine.sq",
    ]
    for queue in queues:
        assert (queue.partitions, queue.pack_seconds) == (10, 2.0)
        assert queue.ack.failure_percentage == 0
    assert main.submit.strategy is high.submit.strategy is SubmitStrategy.BURST
    assert sequential.submit.strategy is SubmitStrategy.SEQUENTIAL_BY_ORIGINATOR
    assert (main.ack.strategy, main.ack.retries, main.ack.pause) == (AckStrategy.SKIP_ALL_FAILURES, 3, 3.0)
    assert (high.ack.strategy, high.ack.retries, high.ack.pause) == (AckStrategy.RETRY_FAILED_AND_TIMED_OUT, 0, 5.0)
    assert (sequential.ack.strategy, sequential.ack.retries) == (AckStrategy.RETRY_FAILED_AND_TIMED_OUT, 3)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: AckSettings(failure_percentage=101), "percentage"),
        (lambda: AckSettings(retries=-1), "negative"),
        (lambda: SubmitSettings(batch_size=0), "1 or more"),
    ],
)
def test_settings_that_make_no_sense(make, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        make()
