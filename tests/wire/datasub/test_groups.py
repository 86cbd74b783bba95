"""Consumer groups as TDengine has them: partitions shared out, members that come, go and die."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from penstock_client import Consumer, DataError, TopicPartition
from penstock_client.config import ConsumerConfig
from tests.support.worlds.datasub import (
    DataBroker,
    DataWorld,
    next_message,
    read,
    read_error,
    running_data_broker,
    until_assigned,
    wait_for,
)
from tests.wire.datasub.conftest import BROKERS


def partitions_of(consumers: list[Consumer]) -> list[tuple[str, int]]:
    return sorted(each.key for consumer in consumers for each in consumer.assignment())


def read_all(consumers: list[Consumer], wanted: set[int], seconds: float = 60.0) -> dict[int, list[int]]:
    """What each consumer got, until all of it was got."""
    got: dict[int, list[int]] = {number: [] for number in range(len(consumers))}
    deadline = time.monotonic() + seconds
    while {each for numbers in got.values() for each in numbers} < wanted:
        assert time.monotonic() < deadline, f"{got} is not all of {sorted(wanted)}"
        for number, consumer in enumerate(consumers):
            message = consumer.poll(0.02)
            if message is not None:
                assert message.error() is None, message.error()
                got[number] += [row["n"] for row in message]
    return got


@pytest.mark.both_logs
def test_partitions_are_shared_out(world: DataWorld) -> None:
    """[seed] 4 partitions: two consumers 2+2, three 1+1+2, five 1+1+1+1+0; and back again, each message once."""
    world.create_topic()
    consumers = [world.consumer() for _ in range(2)]
    until_assigned(consumers, [2, 2])
    consumers.append(world.consumer())
    until_assigned(consumers, [1, 1, 2])
    assert partitions_of(consumers) == [(world.topic, number) for number in range(4)]
    wanted = world.spread(range(24))
    got = read_all(consumers, wanted)
    assert sorted(each for numbers in got.values() for each in numbers) == sorted(wanted), "each message once"
    assert all(got.values()), "every consumer has something to do"
    for consumer in consumers:
        consumer.commit()
    consumers += [world.consumer() for _ in range(2)]
    until_assigned(consumers, [1, 1, 1, 1, 0])
    assert partitions_of(consumers) == [(world.topic, number) for number in range(4)]
    wanted = world.spread(range(100, 124))
    got = read_all(consumers, wanted)
    assert sorted(each for numbers in got.values() for each in numbers) == sorted(wanted), "each message once"
    assert sum(1 for numbers in got.values() if not numbers) == 1, "the fifth is idle"
    for consumer in consumers[1:]:
        consumer.commit()
        consumer.close()
    until_assigned(consumers[:1], [4])


@pytest.mark.both_logs
def test_groups_are_independent(world: DataWorld) -> None:
    """[seed] Consumers of different groups do not share progress even if they consume the same topic."""
    world.create_topic()
    wanted = world.spread(range(8))
    first, second = world.consumer(), world.consumer(group_id=f"{world.group}-b")
    assert sorted(read(first, 8)) == sorted(wanted)
    first.commit()
    assert sorted(read(second, 8)) == sorted(wanted)
    places = second.assignment()
    assert {each.offset for each in second.committed(places)} == {-1001}
    assert first.committed(places) == places


def test_several_topics(world: DataWorld) -> None:
    """[seed] A consumer may subscribe to several topics; a changed list is a rebalance."""
    world.create_topic('SELECT payload.n AS n FROM "{space}/#" WHERE payload.n < 10')
    other = f"{world.topic}-high"
    world.execute(f'CREATE TOPIC "{other}" AS SELECT payload.n AS n FROM "{{space}}/#" WHERE payload.n >= 10')
    consumer = world.consumer(world.topic, other)
    until_assigned([consumer], [8])
    world.spread([1, 2, 11, 12])
    got: dict[str, set[int]] = {world.topic: set(), other: set()}
    while sum(map(len, got.values())) < 4:
        message = next_message(consumer)
        got[message.topic()] |= {row["n"] for row in message}
    assert got == {world.topic: {1, 2}, other: {11, 12}}
    consumer.commit()
    consumer.subscribe([other])
    until_assigned([consumer], [4])
    world.spread([3, 13])
    assert read(consumer, 1) == [13]


def test_a_consumer_that_is_killed(
    open_world: Callable[[DataBroker], DataWorld], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """[seed] No heartbeat for session.timeout.ms, here the default of 12 s: the partitions go to the others,
    who get what was not committed. On both logs at once, as there is much to wait for."""
    with contextlib.ExitStack() as stack:
        scenes = []
        keys = {"session_timeout_ms": ConsumerConfig().session_timeout_ms}
        for provider in ("embedded", "kafka"):
            start = partial(running_data_broker, tmp_path_factory.mktemp("datasub"), provider)
            world = open_world(BROKERS.get(provider, start))
            world.create_topic()
            process = world.consumer_process(**keys)
            survivor = world.consumer(**keys)
            until_assigned([survivor], [2])
            scenes.append((world, process, survivor))
        killed_at = time.monotonic()
        for world, process, _ in scenes:
            wanted = world.spread(range(24))
            _await_line(process, "got")
            process.kill()
            process.wait()
        taken: dict[str, float] = {}
        got: dict[str, set[int]] = {"embedded": set(), "kafka": set()}
        while len(taken) < 2:
            assert time.monotonic() < killed_at + 120, f"{taken} after two minutes"
            for world, _, survivor in scenes:
                provider = world.broker.provider
                message = survivor.poll(0.05)
                if message is not None:
                    assert message.error() is None, message.error()
                    got[provider] |= {row["n"] for row in message}
                if provider not in taken and len(survivor.assignment()) == 4 and got[provider] == wanted:
                    taken[provider] = time.monotonic() - killed_at
        # How early depends on when it was heard last; how late on the machine.
        assert min(taken.values()) > 7, taken
        stack.close()


@pytest.mark.parametrize("pause", [0.0, 0.85])
def test_a_short_limit_between_polls_is_kept_by_polling(world: DataWorld, pause: float) -> None:
    """The broker hears of polls by heartbeats, which are more frequent than the limit."""
    world.create_topic()
    consumer = world.consumer(
        max_poll_interval_ms=1_500, subscribe={"on_lost": lambda *_: lost.append(time.monotonic())}
    )
    lost: list[float] = []
    until = time.monotonic() + 6
    while time.monotonic() < until:
        message = consumer.poll(0.1)
        assert message is None or message.error() is None, message.error()
        time.sleep(pause)
    assert lost == []


@pytest.mark.both_logs
def test_a_consumer_that_is_killed_among_its_commits(world: DataWorld) -> None:
    """[issue] kill -9 of a consumer: nothing committed is lost, nothing uncommitted skipped."""
    world.create_topic()
    process = world.consumer_process(
        enable_auto_commit=True, auto_commit_interval_ms=0, min_poll_rows=1, heartbeat_interval_ms=1_000
    )
    _await_line(process, "assigned")
    lines: list[str] = []
    assert process.stdout is not None
    reader = threading.Thread(target=lines.extend, args=(process.stdout,), daemon=True)
    reader.start()
    wanted: set[int] = set()
    while len(lines) < 60 or not any(each["offset"] for each in world.show("SUBSCRIPTIONS")):
        assert len(wanted) < 5_000, f"{len(lines)} rows of {len(wanted)}"
        wanted |= world.spread(range(len(wanted), len(wanted) + 24))
    process.kill()
    process.wait()
    reader.join(30)
    printed = {int(line.split()[1]) for line in lines if line.startswith("got") and line.endswith("\n")}
    with world.consumer() as other:
        until_assigned([other], [4], 60)  # after the session timeout
        starts = {each.key: each.offset for each in other.committed()}
        assert any(offset > 0 for offset in starts.values()), "it had committed"
        got: set[int] = set()
        firsts: dict[tuple[str, int], int] = {}
        deadline = time.monotonic() + 60
        while printed | got < wanted:
            assert time.monotonic() < deadline, f"{sorted(wanted - printed - got)} were skipped"
            message = other.poll(1.0)
            if message is not None:
                assert message.error() is None, message.error()
                firsts.setdefault((message.topic(), message.partition()), message.start_offset())
                got |= {row["n"] for row in message}
        assert all(first >= starts[key] for key, first in firsts.items()), (firsts, starts)


def _await_line(process: subprocess.Popen[str], beginning: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(beginning):
            return
    raise AssertionError(f"the consumer ended without a line {beginning}…")


def test_callbacks(world: DataWorld) -> None:
    world.create_topic()
    seen: list[tuple[str, int]] = []

    def note(what: str) -> Callable[[Consumer, list[TopicPartition]], None]:
        return lambda _, partitions: seen.append((what, len(partitions)))

    callbacks = {"on_assign": note("assign"), "on_revoke": note("revoke"), "on_lost": note("lost")}
    first = world.consumer(subscribe=callbacks)
    wait_for(lambda: first.poll(0.05) or seen, what="the first assignment")
    assert seen == [("assign", 4)]
    second = world.consumer()
    until_assigned([first, second], [2, 2])
    wait_for(lambda: first.poll(0.05) or len(seen) > 1, what="the revocation")
    assert seen == [("assign", 4), ("revoke", 2)]
    second.close()
    wait_for(lambda: first.poll(0.05) or len(seen) > 2, what="the second assignment")
    assert seen == [("assign", 4), ("revoke", 2), ("assign", 2)]


def test_a_commit_of_a_former_owner_is_refused(world: DataWorld) -> None:
    """[reference] Stale commits are fenced: who lost a partition cannot move its group."""
    world.create_topic()
    world.spread(range(12))
    first = world.consumer()
    read(first, 12)
    mine = first.assignment()
    second = world.consumer()
    until_assigned([first, second], [2, 2])
    gone = [each for each in mine if each in second.assignment()]
    with pytest.raises(DataError) as refused:
        first.commit(offsets=gone)
    assert refused.value.code == "stale-epoch"
    assert {each.offset for each in second.committed(gone)} == {-1001}
    first.commit()
    assert first.committed(first.assignment()) == first.assignment()


def test_no_poll_for_too_long(world: DataWorld) -> None:
    """[seed] Consumers that do not pull data for a certain period are removed; polling again joins again."""
    world.create_topic()
    lost: list[int] = []
    sleeper = world.consumer(
        max_poll_interval_ms=1_500, subscribe={"on_lost": lambda _, partitions: lost.append(len(partitions))}
    )
    until_assigned([sleeper], [4])
    other = world.consumer()
    until_assigned([sleeper, other], [2, 2])
    until_assigned([sleeper, other], [0, 4])
    assert read_error(sleeper).code == "poll-too-late"
    assert lost == [2]
    wait_for(lambda: sleeper.poll(0.05) or len(sleeper.assignment()) == 2, what="its partitions again")


def test_subscribing_resets_the_counts(world: DataWorld) -> None:
    """[reference] A consumer once was declared dead at re-subscribe, as its silence was counted from before."""
    world.create_topic()
    consumer = world.consumer()
    until_assigned([consumer], [4])
    for _ in range(3):
        consumer.unsubscribe()
        consumer.subscribe([world.topic])
        until_assigned([consumer], [4])
    world.spread([1])
    assert read(consumer, 1) == [1]


def test_dropping_a_group(world: DataWorld) -> None:
    """[reference] DROP CONSUMER GROUP … FORCE always works; without it not while there are members."""
    world.create_topic()
    world.spread(range(4))
    consumer = world.consumer()
    read(consumer, 4)
    consumer.commit()
    with pytest.raises(DataError) as refused:
        world.execute(f"DROP CONSUMER GROUP {world.group} ON {{topic}}")
    assert "FORCE" in str(refused.value)
    world.execute(f"DROP CONSUMER GROUP FORCE {world.group} ON {{topic}}")
    assert read_error(consumer).code == "refused"
    consumer.close()
    assert len(read(world.consumer(), 4)) == 4, "its progress is forgotten"
    world.execute("DROP CONSUMER GROUP IF EXISTS nobody ON {topic}")
    with pytest.raises(DataError) as missing:
        world.execute("DROP CONSUMER GROUP nobody ON {topic}")
    assert missing.value.code == "not-found"
