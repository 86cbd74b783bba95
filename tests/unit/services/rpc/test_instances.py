"""Calls between the instances of a service: two brokers on one log in memory."""

from __future__ import annotations

import asyncio

import pytest

from penstock.operate.collector import MetricsPage
from penstock.services.node import ClusterNode
from penstock.services.rpc.errors import RemoteError, RequestTimeout, TooManyPending
from penstock.services.rpc.instances import InstanceCalls
from penstock.services.rpc.responder import Handler
from penstock.services.rpc.settings import RequestSettings, ResponderSettings
from penstock.services.rpc.wire import Request
from penstock.storage.log.memory import MemoryLog
from tests.support.machine.waiting import until
from tests.support.worlds.service_settings import services

PROPERTIES = {"tbmq.client.session.responses": "retention.ms:60000"}
SETTINGS = services({"prefix": "p", "topic_properties": PROPERTIES})


def calls_of(log: MemoryLog, name: str, handler: Handler | None = None) -> InstanceCalls:
    node = ClusterNode(log, SETTINGS, name, asyncio.get_running_loop())

    async def answer(request: Request) -> bytes:
        if request.data == b"bad":
            raise ValueError("no")
        return f"{name} heard ".encode() + request.data

    return InstanceCalls(log, node.queues.calls("sessions"), handler or answer)


def test_each_instance_answers_what_it_is_asked() -> None:
    async def run() -> None:
        log = MemoryLog()
        await log.start()
        a, b = (calls_of(log, name) for name in ("a", "b"))
        for each in (a, b):
            await each.start()
            await each.start()
        assert await a.ask("b", b"hello", 10) == b"b heard hello"
        assert await b.ask("a", b"hello", 10) == b"a heard hello"
        with pytest.raises(RemoteError, match="HANDLER_FAILED"):
            await a.ask("b", b"bad", 10)
        await log.admin.create("p.tbmq.client.session.notifications.nobody")
        with pytest.raises(RequestTimeout):
            await a.ask("nobody", b"hello", 0.05)
        counters = a.counters("sessions")
        assert (counters["calls_completed_sessions"], counters["request_timeout_count_sessions"]) == (2, 1)
        assert (counters["pending_requests_count_sessions"], counters["calls_answered_sessions"]) == (0, 1)
        questions = log.topics["p.tbmq.client.session.notifications.a"].config.properties
        assert (questions["retention.ms"], questions["segment.bytes"]) == ("600000", "10485760")
        # the settings may say otherwise, for each base
        assert log.topics["p.tbmq.client.session.responses.a"].config.properties["retention.ms"] == "60000"
        for each in (a, b):
            await each.stop()
        await log.close()

    asyncio.run(run())


def test_what_was_not_read_yet_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is too busy to answer the others shows it."""
    monkeypatch.setattr("penstock.storage.log.lag_watch.LOOK_SECONDS", 0.01)
    one_at_a_time = ResponderSettings(max_pending_requests=1)
    monkeypatch.setattr("penstock.services.rpc.instances.ResponderSettings.of", lambda limits: one_at_a_time)

    async def run() -> None:
        log = MemoryLog()
        await log.start()
        release = asyncio.Event()

        async def wait(request: Request) -> bytes:
            await release.wait()
            return request.data

        a, b = (calls_of(log, name, wait) for name in ("a", "b"))
        for each in (a, b):
            await each.start()
        asked = [a.ask("b", b"hello", 60) for _ in range(4)]
        await until(lambda: b.counters("sessions")["calls_lag_sessions"] == 3)
        assert a.counters("sessions")["calls_lag_sessions"] == 0
        release.set()
        assert await asyncio.gather(*asked) == 4 * [b"hello"]
        await until(lambda: b.counters("sessions")["calls_lag_sessions"] == 0)
        for each in (a, b):
            await each.stop()
        await log.close()

    asyncio.run(run())


def test_what_calls_count_is_in_the_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused, late and slow calls, under the names that alerts and people ask for."""
    monkeypatch.setattr(RequestSettings, "of", lambda _limits: RequestSettings(max_pending_requests=2))

    async def run() -> None:
        log = MemoryLog()
        await log.start()
        release = asyncio.Event()

        async def wait(request: Request) -> bytes:
            await release.wait()
            return request.data

        a, b = (calls_of(log, name, wait) for name in ("a", "b"))

        def sample(name: str) -> str:
            lines = MetricsPage(lambda: a.counters("sessions"), "1").render().decode().splitlines()
            found = next(line for line in lines if line.startswith(f"penstock_{name}{{"))
            return found.split()[-1]

        for each in (a, b):
            await each.start()
        late, answered = a.ask("b", b"late", 0.05), a.ask("b", b"x" * 1_000, 60)
        with pytest.raises(TooManyPending):
            a.ask("b", b"one too many", 60)
        assert sample("pending_requests_count") == "2.0"
        assert float(sample("pending_requests_memory_bytes")) > 1_000
        with pytest.raises(RequestTimeout):
            await late
        release.set()
        assert len(await answered) == 1_000
        await until(lambda: sample("calls_ignored_total") == "1.0")
        assert sample("calls_rejected_total") == "1.0"
        assert sample("request_timeout_count_total") == "1.0"
        assert sample("pending_requests_count") == sample("pending_requests_memory_bytes") == "0.0"
        assert sample("response_lag_seconds_count") == "1.0"
        assert float(sample("response_lag_seconds_sum")) >= 0.05
        for each in (a, b):
            await each.stop()
        await log.close()

    asyncio.run(run())
