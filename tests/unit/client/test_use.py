"""A consumer that is used wrongly says so; nothing of it waits for a broker that is not there."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock_client import Admin, AsyncConsumer, Consumer, DataError, TopicPartition
from penstock_client.errors import OutOfRange
from penstock_client.messages import make_error_message
from tests.support.brokers.broker import free_port


def consumer(**keys: object) -> Consumer:
    own = {"group.id": "g", "server": f"127.0.0.1:{free_port()}", "subscribe.timeout.ms": 50}
    return Consumer(own | {key.replace("_", "."): value for key, value in keys.items()})


def code_of(error: pytest.ExceptionInfo[DataError]) -> str:
    return error.value.code


def test_nobody_is_there() -> None:
    with consumer() as one, pytest.raises(DataError) as refused:
        one.subscribe(["t"])
    assert code_of(refused) == "unavailable"
    with Admin({"server": f"127.0.0.1:{free_port()}"}) as admin, pytest.raises(DataError) as refused:
        admin.execute("SHOW TOPICS")
    assert code_of(refused) == "unavailable"


@contextmanager
def web_server() -> Iterator[str]:
    """The address of a server that does not speak the protocol; it answers one connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.recv(1000)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join(60)


def test_somebody_else_is_there() -> None:
    """A server that does not speak the protocol is told from a broker that is away."""
    with web_server() as address, Admin({"server": address}) as admin, pytest.raises(DataError, match="protocol"):
        admin.execute("SHOW TOPICS")


def test_a_subscription_does_not_wait_for_somebody_else() -> None:
    """Trying again would not help, however long the consumer may wait."""
    with (
        web_server() as address,
        consumer(server=address, subscribe_timeout_ms=0) as one,
        pytest.raises(DataError) as refused,
    ):
        one.subscribe(["t"])
    assert code_of(refused) == "bad-peer"


def test_a_connection_that_is_closed_without_an_answer() -> None:
    """As an MQTT listener does. It may as well be a proxy whose broker restarts, so it is retried; the text helps."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with Admin({"server": address}) as admin, pytest.raises(DataError, match="not its MQTT port") as refused:
            admin.execute("SHOW TOPICS")
        assert code_of(refused) == "unavailable"
        thread.join(60)


def test_a_consumer_that_is_closed_while_it_subscribes() -> None:
    one = consumer(subscribe_timeout_ms=0, reconnect_backoff_max_ms=50)
    failures: list[DataError] = []

    def subscribe() -> None:
        try:
            one.subscribe(["t"])
        except DataError as error:
            failures.append(error)

    thread = threading.Thread(target=subscribe, daemon=True)
    thread.start()
    time.sleep(0.3)
    assert thread.is_alive(), "it waits for a broker"
    one.close()
    thread.join(60)
    assert not thread.is_alive()


def test_before_subscribing() -> None:
    with consumer() as one:
        with pytest.raises(DataError, match="subscribe"):
            one.poll(0)
        assert one.assignment() == []
        assert one.commit() == []
        with pytest.raises(DataError):
            one.seek(TopicPartition("t", 0, 1))
        with pytest.raises(DataError, match="a list"):
            one.subscribe("t")
        with pytest.raises(DataError):
            one.subscribe([])


def test_after_closing() -> None:
    one = consumer()
    one.close()
    one.close()
    with pytest.raises(DataError, match="closed"):
        one.poll(0)
    with pytest.raises(DataError, match="closed"):
        one.commit()


def test_what_cannot_be_committed() -> None:
    error = make_error_message("t", 0, OutOfRange("gone"))
    with consumer() as one:
        with pytest.raises(DataError, match="error"):
            one.commit(error)
        with pytest.raises(DataError, match="cannot be stored"):
            one.commit(offsets=[TopicPartition("t", 0, -2)])
        with pytest.raises(DataError, match="not both"):
            one.commit(error, [TopicPartition("t", 0, 1)])
        with pytest.raises(DataError):
            one.store_offsets()


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_a_fork_needs_its_own() -> None:
    one = consumer()
    child = os.fork()
    if child == 0:
        try:
            one.assignment()
        except DataError as error:
            os._exit(0 if "fork" in str(error) else 2)
        finally:
            os._exit(1)
    deadline = time.monotonic() + 30
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        assert time.monotonic() < deadline, "the child hangs"
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(ended[1]) == 0
    one.close()


def test_a_subscription_that_is_cancelled() -> None:
    """Nothing is left behind that would keep the loop from ending."""

    async def run() -> None:
        one = AsyncConsumer({"group.id": "g", "server": f"127.0.0.1:{free_port()}", "connect.timeout.ms": 60_000})
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await one.subscribe(["t"])
        await one.close()

    asyncio.run(run())


def test_partitions_are_equal_by_name() -> None:
    assert TopicPartition("t", 1, 5) == TopicPartition("t", 1, 9)
    assert len({TopicPartition("t", 1, 5), TopicPartition("t", 1), TopicPartition("t", 2)}) == 2
