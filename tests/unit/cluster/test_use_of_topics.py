"""Whether any broker uses what is to be removed: what the records of sessions say counts beside what brokers answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from penstock.cluster import hand_over as hand_over_module
from penstock.cluster import owners as owners_module
from penstock.cluster import questions as questions_module
from penstock.cluster.claims import NOT_KNOWN, Answer, Ask, Claim, Claims
from penstock.cluster.hand_over import HandOver
from penstock.cluster.neighbours import MOST_QUESTIONS, Neighbours
from penstock.cluster.owners import Owners
from penstock.cluster.questions import Questions
from penstock.cluster.take_over import TakeOver
from penstock.services.housekeeper import CLIENT, SHARE, Task, Undecided, Use
from penstock.services.rpc.errors import RequestTimeout, TooManyPending
from penstock.sessions.ownership import Ownership
from penstock.sessions.records import FORM, SessionRecord
from penstock.storage.log.base import LogError
from penstock.storage.log.memory import MemoryLog

TASK = Task(CLIENT, "a", "tbmq.msg.app.a")
SHARED = Task(SHARE, "$share/group/t", "tbmq.msg.app.shared.t")


def stored(node: str, client_type: str = "application") -> bytes:
    return msgspec.msgpack.encode(SessionRecord(FORM, "a", None, client_type, 5, 300, 1, 1, None, node))


AskNode = Callable[..., Any]
PARTS = ("registry", "owners", "moves", "adoption", "wills", "hand_over", "departures")


class Serving:
    """Stands for the names of APPLICATION clients."""

    def serves(self, _: str, client_type: str, expiry: int) -> bool:
        return client_type == "application" and expiry > 0


def questions(ask: AskNode, silent: tuple[str, ...] = ()) -> Any:
    """The node `me` asks one other, `other`, which is alive, through `ask`."""
    made: Any = object.__new__(Questions)
    made._calls = SimpleNamespace(ask=ask)
    made._others = lambda: ["other"]
    made._heard_at = lambda _: 0.0
    made._silent = dict.fromkeys(silent, 1.0)
    return made


def neighbours(ask: AskNode, *, silent: tuple[str, ...] = (), owners: Any = None) -> Neighbours:
    made = Neighbours(
        "me",
        "",
        names=cast(Any, Serving()),
        owners=owners or SimpleNamespace(nodes_with_sessions=set),
        questions=questions(ask, silent),
        claims=Claims(),
        shares=cast(Any, None),
    )
    made.open()
    return made


def take_over(ask: AskNode) -> Any:
    return TakeOver("me", "", questions=questions(ask), claims=Claims(), **dict.fromkeys(PARTS, cast(Any, None)))


def hand_over(delivery: Any) -> Any:
    return HandOver(
        "me",
        registry=cast(Any, SimpleNamespace(get=lambda _: None)),
        keeper=cast(Any, None),
        moves=cast(Any, None),
        delivery=delivery,
        ownership=Ownership("deny", admits_anonymous=True),
        claims=Claims(),
        writes=cast(Any, None),
    )


def use_of(task: Task, record: bytes | None, *, answer: int = Use.NONE, owners: tuple[str, ...] = ()) -> Use:
    """As seen by the node `me`, with one other, `other`, alive."""

    async def ask(*_: object) -> bytes:
        return msgspec.msgpack.encode(int(answer))

    async def caught_up() -> None:
        pass

    async def run() -> Use:
        known = SimpleNamespace(
            nodes_with_sessions=lambda: set(owners),
            catch_up_together=caught_up,
            read=lambda _table, _key: record,
        )
        return await neighbours(ask, owners=known).use_of(task)

    return asyncio.run(run())


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


def test_a_broker_that_does_not_answer_is_not_waited_for_again_and_again() -> None:
    """Each of the sessions that end would hold up the clients that come for as long as it asks."""

    def ask(*_: object) -> None:
        raise AssertionError("it was asked")

    async def run() -> None:
        broker = neighbours(ask, silent=("other",))
        with pytest.raises(Undecided, match="other may use it"):
            await broker.use_of(TASK)

    asyncio.run(run())


def test_sessions_that_end_all_at_once_leave_room_for_the_questions_of_others() -> None:
    async def run() -> None:
        asked, most = 0, 0

        async def ask(*_: object) -> bytes:
            nonlocal asked, most
            asked += 1
            most = max(most, asked)
            await asyncio.sleep(0.001)
            asked -= 1
            return msgspec.msgpack.encode(int(Use.ALL))

        broker = neighbours(ask)
        await asyncio.gather(*(broker.use_of(TASK) for _ in range(5 * MOST_QUESTIONS)))
        assert most == MOST_QUESTIONS

    asyncio.run(run())


def test_a_claim_for_which_there_is_no_room_waits_and_says_nothing_of_the_other_broker() -> None:
    async def run() -> None:
        refused = 3

        def ask(*_: object) -> Any:
            nonlocal refused
            if refused:
                refused -= 1
                raise TooManyPending("10000 requests wait")
            done = asyncio.get_running_loop().create_future()
            done.set_result(msgspec.msgpack.encode(Answer(had=True)))
            return done

        broker = take_over(ask)
        assert (await broker._ask("other", Claim("a", 1))).had
        refused = 1_000_000
        with pytest.raises(LogError, match="too many questions"):  # the client is refused, and comes again
            await broker._ask("other", Claim("a", 1))
        assert not broker._questions.is_silent("other")

    asyncio.run(run())


def test_who_is_about_to_share_takes_nobody_for_dead() -> None:
    """Whoever is told waits for a topic that it deletes; its clients are not to be taken from it for that."""

    async def run() -> None:
        async def ask(*_: object) -> bytes:
            raise RequestTimeout("no answer")

        broker = neighbours(ask)
        await broker.before_joining(["tbmq.msg.app.shared.t"])
        assert not broker._questions.is_silent("other")

    asyncio.run(run())


def test_a_claim_is_answered_in_time_though_a_topic_takes_long_to_delete(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that lets the other one wait for its whole time is taken for dead, with all its clients."""
    monkeypatch.setattr(hand_over_module, "ASK_SECONDS", 1.0)
    monkeypatch.setattr(questions_module, "ASK_SECONDS", 1.0)

    async def run() -> None:
        is_deleted = asyncio.Event()

        async def called_off(_: str) -> None:
            await is_deleted.wait()

        asked = hand_over(SimpleNamespace(called_off=called_off))

        async def ask(name: str, data: bytes, seconds: float) -> bytes:
            """As the template does."""
            async with asyncio.timeout(seconds):
                expires = int((time.time() + seconds) * 1_000)
                answer: bytes = await asked.answer(SimpleNamespace(data=data, expire_ts=expires))
            if msgspec.msgpack.decode(answer, type=Answer).is_removing:
                is_deleted.set()
            return answer

        question = msgspec.msgpack.encode(Ask("a", 1, "me"))
        begun = time.monotonic()
        assert msgspec.msgpack.decode(await ask("other", question, 1.0), type=Answer) == Answer(is_removing=True)
        assert time.monotonic() - begun < 0.95
        is_deleted.clear()
        answer = await take_over(ask)._ask("other", Claim("a", 1))  # asks again
        assert (answer.had, answer.is_removing) == (False, False)

    asyncio.run(run())


def test_records_that_cannot_be_read_hold_up_nobody_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners_module, "CATCH_UP_SECONDS", 0.05)

    async def run() -> None:
        is_stuck = True

        async def catch_up() -> None:
            if is_stuck:
                await asyncio.Event().wait()

        owners = Owners(MemoryLog(), "me", "")
        monkeypatch.setattr(owners, "_tail", SimpleNamespace(catch_up=catch_up))
        with pytest.raises(TimeoutError):
            await owners.catch_up_together()
        is_stuck = False
        async with asyncio.timeout(30):
            await owners.catch_up_together()

    asyncio.run(run())


def test_a_share_whose_session_moves_is_asked_for_again() -> None:
    """The broker that it left does not know what became of it."""

    async def moving(_: Task) -> Use:
        raise Undecided("on its way")

    assert asyncio.run(hand_over(SimpleNamespace(use_of=moving))._tell_use(SHARED)) == NOT_KNOWN
    with pytest.raises(Undecided):
        use_of(SHARED, None, answer=NOT_KNOWN)
