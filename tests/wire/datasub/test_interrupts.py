"""Ctrl-C in a program with a `Consumer`, and what else ends a call before it is done: nothing is lost by it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from penstock_client import Consumer, DataError
from tests.support.worlds.datasub import DataWorld, read, until_assigned, wait_for

LEAST_ROWS = 200
LEAST_INTERRUPTIONS = 30


def is_within(frame: FrameType | None, function: Callable[..., Any]) -> bool:
    while frame is not None:
        if frame.f_code is function.__code__:
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def interrupted(function: Callable[..., Any], longest: float, *, times: int = 1_000_000) -> Iterator[list[int]]:
    """Ctrl-C again and again, at any moment within the function; gives how often it came."""
    seen: list[int] = []
    is_over = threading.Event()
    chance = random.Random(9)

    def on_signal(number: int, frame: FrameType | None) -> None:
        if len(seen) < times and is_within(frame, function):
            seen.append(number)
            raise KeyboardInterrupt

    def interrupt() -> None:
        while not is_over.wait(chance.uniform(0.0, longest)):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    before = signal.signal(signal.SIGINT, on_signal)
    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        thread.join()
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_in_poll_loses_nothing(world: DataWorld) -> None:
    """Whenever it comes: the next poll goes on, every row comes once and in its order."""
    world.create_topic()
    consumer = world.consumer()
    until_assigned([consumer], [4])
    got: list[int] = []
    published = 0
    deadline = time.monotonic() + 60
    with interrupted(Consumer.poll, 0.003) as seen:
        while len(got) < published or published < LEAST_ROWS or len(seen) < LEAST_INTERRUPTIONS:
            assert time.monotonic() < deadline, f"{len(got)} of {published} rows after {len(seen)} interruptions"
            if len(got) == published:
                world.publish({"n": published}, {"n": published + 1})
                published += 2
            try:
                message = consumer.poll(0.05)
            except KeyboardInterrupt:
                continue
            got += [] if message is None else [row["n"] for row in message]
    assert got == list(range(published))
    consumer.commit()
    world.publish({"n": published})
    assert read(consumer, 1) == [published]
    consumer.close()
    wait_for(lambda: not world.show("CONSUMERS"), what="it has left")


def poll_until_interrupted(consumer: Consumer) -> None:
    with interrupted(Consumer.poll, 0.05, times=1):
        consumer.poll(30.0)


def test_ctrl_c_in_poll_and_out_of_the_block(world: DataWorld) -> None:
    """The usual way: the consumer leaves its group, and the next one goes on behind what was worked on."""
    world.create_topic()
    world.publish({"n": 1})
    with world.consumer(enable_auto_commit=True) as consumer:
        assert read(consumer, 1) == [1]
        with pytest.raises(KeyboardInterrupt):
            poll_until_interrupted(consumer)
    wait_for(lambda: not world.show("CONSUMERS"), what="it has left")
    world.publish({"n": 2})
    assert read(world.consumer(), 1) == [2]


def test_ctrl_c_in_close(world: DataWorld) -> None:
    """It does not wait for the broker any longer, and nothing of the consumer stays behind."""
    world.create_topic()
    before = set(threading.enumerate())
    consumer = Consumer(world.config(enable_auto_commit=True))
    consumer.subscribe([world.topic])
    until_assigned([consumer], [4])
    mine = set(threading.enumerate()) - before
    assert {thread.name for thread in mine} == {"penstock-consumer"}
    connections = world.broker.counter("datasub_connections")
    with interrupted(Consumer.close, 0.0005, times=1), contextlib.suppress(KeyboardInterrupt):
        consumer.close()
    consumer.close()
    with pytest.raises(DataError, match="closed"):
        consumer.poll(0)
    assert not any(thread.is_alive() for thread in mine)
    wait_for(lambda: world.broker.counter("datasub_connections") < connections, what="the end of its connection")


@pytest.mark.parametrize("when", ["before the engine is asked", "after it was"])
def test_ctrl_c_at_the_edges_of_close(world: DataWorld, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    world.create_topic()
    before = set(threading.enumerate())
    consumer = Consumer(world.config())
    consumer.subscribe([world.topic])
    until_assigned([consumer], [4])
    mine = set(threading.enumerate()) - before
    connections = world.broker.counter("datasub_connections")

    def interrupt(work: Any) -> None:
        if asyncio.iscoroutine(work):
            work.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(consumer._thread, "call" if when.startswith("before") else "stop", interrupt)
    with pytest.raises(KeyboardInterrupt):
        consumer.close()
    monkeypatch.undo()
    consumer.close()
    assert not any(one.is_alive() for one in mine)
    wait_for(lambda: world.broker.counter("datasub_connections") < connections, what="the end of its connection")


def test_a_subscription_that_fails_leaves_the_one_before(world: DataWorld) -> None:
    """The consumer stays in its group, and is heard there."""
    world.create_topic()
    consumer = world.consumer(heartbeat_interval_ms=1_000)
    until_assigned([consumer], [4])
    with pytest.raises(DataError, match="nowhere"):
        consumer.subscribe(["nowhere"])
    assert consumer.subscription() == [world.topic]
    before = world.show("CONSUMERS")[0]["consumer_id"]
    world.publish({"n": 1})
    assert read(consumer, 1) == [1]
    # It is heard: the offset it has come to is told with a heartbeat.
    wait_for(lambda: consumer.poll(0.05) or any(row["rows"] for row in world.show("SUBSCRIPTIONS")), what="a heartbeat")
    assert world.show("CONSUMERS")[0]["consumer_id"] == before
