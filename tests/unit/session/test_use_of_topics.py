"""Whether any broker uses what is to be removed: what the records of sessions say counts beside what brokers answer."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from penstock.persistence.housekeeper import CLIENT, SHARE, Task, Undecided, Use
from penstock.persistence.session_records import FORM, SessionRecord
from penstock.session.take_over import NOT_KNOWN, TakeOver

TASK = Task(CLIENT, "a", "tbmq.msg.app.a")
SHARED = Task(SHARE, "$share/group/t", "tbmq.msg.app.shared.t")


def stored(node: str, client_type: str = "application") -> bytes:
    return msgspec.msgpack.encode(SessionRecord(FORM, "a", None, client_type, 5, 300, 1, 1, None, node))


def use_of(task: Task, record: bytes | None, *, answer: int = Use.NONE, owners: tuple[str, ...] = ()) -> Use:
    """As seen by the broker `me`, with one other, `other`, alive."""

    async def ask(*_: object) -> bytes:
        return msgspec.msgpack.encode(int(answer))

    async def caught_up() -> None:
        pass

    def serves(_: str, client_type: str, expiry: int) -> bool:
        return client_type == "application" and expiry > 0

    broker: Any = SimpleNamespace(
        is_open=True,
        _claims={},
        _node="me",
        _others=lambda: ["other"],
        _sessions=SimpleNamespace(counts=Counter(owners)),
        _calls=SimpleNamespace(ask=ask),
        _caught_up=caught_up,
        _tail=SimpleNamespace(get=lambda _table, _key: record),
        _applications=SimpleNamespace(delivery=SimpleNamespace(serves=serves)),
    )
    return asyncio.run(TakeOver.use_of(broker, task))


@pytest.mark.parametrize("record", [None, stored("me", "device"), stored("dead", "device")])
def test_nobody_has_a_topic_for_it(record: bytes | None) -> None:
    assert use_of(TASK, record) is Use.NONE


def test_a_session_of_a_dead_broker_will_be_taken_up() -> None:
    assert use_of(TASK, stored("dead")) is Use.ALL


@pytest.mark.parametrize("node", ["me", "other"])
def test_a_session_that_its_broker_does_not_know_any_more_is_on_its_way_out_of_the_records(node: str) -> None:
    """Neither removed nor forgotten: a task that took it for in use would leave the topic behind."""
    with pytest.raises(Undecided):
        use_of(TASK, stored(node))


def test_no_share_is_removed_while_nobody_has_the_sessions_of_a_dead_broker() -> None:
    """One of them may have joined it just before the end, and nobody was told."""
    with pytest.raises(Undecided):
        use_of(SHARED, None, owners=("me", "other", "dead"))
    assert use_of(SHARED, None, owners=("me", "other", "")) is Use.NONE


def test_a_share_whose_session_moves_is_asked_for_again() -> None:
    """The broker that it left does not know what became of it."""

    async def moving(_: Task) -> Use:
        raise Undecided("on its way")

    broker: Any = SimpleNamespace(_applications=SimpleNamespace(delivery=SimpleNamespace(use_of=moving)))
    assert asyncio.run(TakeOver._tell_use(broker, SHARED)) == NOT_KNOWN
    with pytest.raises(Undecided):
        use_of(SHARED, None, answer=NOT_KNOWN)
