"""Half-sent requests at the admin address keep neither health checks nor MQTT clients out."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.brokers.broker import Listener
from tests.support.clients.packets import V5
from tests.support.machine.ports import free_port

HALF = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture
def held() -> Iterator[list[socket.socket]]:
    sockets: list[socket.socket] = []
    yield sockets
    for each in sockets:
        each.close()


def hold(held: list[socket.socket], port: int, count: int, sent: bytes = HALF) -> None:
    for _ in range(count):
        held.append(socket.create_connection(("127.0.0.1", port), 10))
        with contextlib.suppress(OSError):
            held[-1].sendall(sent)


def ask(port: int, path: str = "/healthz") -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        return answer.status


def count_open(held: list[socket.socket]) -> int:
    found = 0
    for each in held:
        each.setblocking(False)
        try:
            while each.recv(65_536):
                pass  # an answer, perhaps of a refusal
        except BlockingIOError:
            found += 1
        except OSError:
            pass
    return found


def test_half_sent_requests_do_not_block_the_address(start_file_broker, held):
    port = free_port()
    broker = start_file_broker({"admin": {"address": f"127.0.0.1:{port}"}})
    hold(held, port, 200)
    assert [ask(port, path) for path in ("/healthz", "/readyz", "/metrics")] == [200, 200, 200]
    assert count_open(held) <= 64
    # each of them has a time limit
    deadline = time.monotonic() + 60
    while count_open(held):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert broker.events("connection limit reached, closing the admin connection that has waited longest")
    broker.assert_healthy()


def test_half_sent_body(start_file_broker, held):
    """Its head is complete, and it counts as waiting all the same."""
    port = free_port()
    start_file_broker({"admin": {"address": f"127.0.0.1:{port}"}})
    hold(held, port, 100, b"POST /api/v1/queues HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
    assert ask(port) == 200
    assert count_open(held) <= 64


def test_descriptors_are_left_for_mqtt(start_file_broker, connect, held):
    """With few descriptors neither the admin address nor the MQTT listener takes all of them."""
    port = free_port()
    broker = start_file_broker({"admin": {"address": f"127.0.0.1:{port}"}})
    resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE, (256, 256))
    hold(held, port, 300)
    connect(V5, broker=broker).ping()
    assert ask(port) == 200


@contextlib.contextmanager
def few_descriptors(monkeypatch) -> Iterator[None]:
    """A broker that is started here may open 256 files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setenv("PENSTOCK_TEST_FORK", "no")
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_mqtt_connections_leave_descriptors_for_the_log(start_file_broker, connect, held, monkeypatch):
    port = free_port()
    with few_descriptors(monkeypatch):
        broker = start_file_broker({"admin": {"address": f"127.0.0.1:{port}"}})
    first = connect(V5, broker=broker)
    hold(held, broker.port, 300, b"")
    assert ask(port) == 200
    first.publish("still/logged", b"x", qos=1)
    event = broker.await_event("connection refused")
    assert event["cause"] == "descriptors"
    assert "ulimit -n" in event["advice"]
    for each in held:
        each.close()
    connect(V5, broker=broker).ping()


@pytest.mark.parametrize("kind", ["data", "ws", "tls", "proxy"])
def test_handshakes_and_consumers_leave_descriptors(*, start_file_broker, connect, held, monkeypatch, authority, kind):
    """limits.max_connections counts neither handshakes nor connections to the data listener."""
    port = free_port()
    identity = authority.issue("localhost")
    certificate = {"certificate": str(identity.certificate), "key": str(identity.key)}
    listener = Listener("tcp", {"proxy_protocol": True}) if kind == "proxy" else Listener("tcp")
    if kind in ("ws", "tls"):
        listener = Listener(kind, certificate if kind == "tls" else {})
    with few_descriptors(monkeypatch):
        broker = start_file_broker({"admin": {"address": f"127.0.0.1:{port}"}}, [listener])
    first = connect(V5, broker=broker)
    attacked = broker.find_data_port() if kind == "data" else listener.host_and_port[1]
    hold(held, attacked, 300, b"GET / HTTP/1.1\r\n" if kind == "ws" else b"")
    event = broker.await_event("connection refused")
    assert "too few descriptors are left" in event["reason"]
    assert "ulimit -n" in event["reason"]
    assert ask(port) == 200
    first.publish("still/logged", b"x", qos=1)
    broker.assert_healthy()


@pytest.mark.parametrize("kind", ["tcp", "tls", "proxy"])
def test_a_burst_leaves_descriptors(*, start_file_broker, connect, held, monkeypatch, authority, kind):
    """Connections that wait together to be accepted do not take the descriptors of requests that wait with them."""
    port = free_port()
    identity = authority.issue("localhost")
    options = {
        "tcp": {},
        "tls": {"certificate": str(identity.certificate), "key": str(identity.key)},
        "proxy": {"proxy_protocol": True},
    }
    listener = Listener("tls" if kind == "tls" else "tcp", options[kind])
    with few_descriptors(monkeypatch):
        broker = start_file_broker({"admin": {"address": f"127.0.0.1:{port}"}}, [listener])
    first = connect(V5, broker=broker)
    with ThreadPoolExecutor(4) as askers:
        os.kill(broker.process.pid, signal.SIGSTOP)
        try:
            hold(held, listener.host_and_port[1], 400, b"")
            answers = [askers.submit(ask, port) for _ in range(4)]
            time.sleep(0.5)  # until their requests wait, too
        finally:
            os.kill(broker.process.pid, signal.SIGCONT)
        assert [answer.result() for answer in answers] == [200] * 4
    first.publish("still/logged", b"x", qos=1)
