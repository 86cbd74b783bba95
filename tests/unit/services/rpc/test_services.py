"""Callers and responders as the factory describes them, with the limits of each use."""

from __future__ import annotations

import asyncio

import pytest

from penstock.services import channels
from penstock.services.channels import REQUEST_LIMITS, RequestLimits
from penstock.services.model import ServiceType
from penstock.services.node import ClusterNode
from penstock.services.rpc.errors import RequestTimeout, TooManyPending
from penstock.services.rpc.instances import InstanceCalls
from penstock.services.rpc.services import new_caller, new_responder
from penstock.services.rpc.settings import RequestSettings, ResponderSettings
from penstock.services.rpc.wire import Request
from penstock.settings.services import ServiceSettings
from penstock.storage.log.memory import MemoryLog
from tests.support.worlds.memory_log import with_memory_log
from tests.unit.services.test_queues import new_factory

CORE, RULE_ENGINE, JS = ServiceType.TB_CORE, ServiceType.TB_RULE_ENGINE, ServiceType.JS_EXECUTOR


def test_limits_of_the_known_uses() -> None:
    assert {name: (limits.max_pending, limits.timeout) for name, limits in REQUEST_LIMITS.items()} == {
        "js": (10_000, 10.0),
        "transport-api": (10_000, 10.0),
        "edqs": (10_000, 20.0),
        "sessions": (10_000, 60.0),
        "data-subscription": (10_000, 60.0),
    }
    # what has no limits of its own has these
    assert RequestSettings.of(RequestLimits()) == RequestSettings()
    assert ResponderSettings.of(RequestLimits()) == ResponderSettings()


def test_a_call_from_a_rule_engine_to_a_js_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REQUEST_LIMITS, "js", RequestLimits(max_pending=1, timeout=0.1))

    async def scenario(log: MemoryLog) -> None:
        asks = new_factory(log, RULE_ENGINE, service_id="re-1").requests("js")
        answers = new_factory(log, JS, service_id="js-1").responder("js")
        await log.admin.create(asks.request_topic, asks.request_partitions)
        caller, responder = new_caller(log, asks), new_responder(log, answers, lambda request: request.data[::-1])
        await caller.start()
        with pytest.raises(RequestTimeout):  # of the limits: nobody answers yet, and the call names none
            await caller.send(b"early")
        waiting = caller.send(b"abc", timeout=30)
        with pytest.raises(TooManyPending):
            caller.send(b"second")
        await responder.start()
        assert await waiting == b"cba"
        await caller.close()
        await responder.close()

    with_memory_log(scenario)


def test_calls_between_instances_have_the_limits_of_their_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(channels.REQUEST_LIMITS, "sessions", RequestLimits(max_pending=1))

    def answer(request: Request) -> bytes:
        return request.data

    async def scenario(log: MemoryLog) -> None:
        node = ClusterNode(log, ServiceSettings(), "a", asyncio.get_running_loop())
        calls = InstanceCalls(log, node.queues.calls("sessions"), answer)
        await calls.start()
        first = calls.ask("a", b"1", 30)
        with pytest.raises(TooManyPending):
            calls.ask("a", b"2", 30)
        assert await first == b"1"
        await calls.stop()

    with_memory_log(scenario)
