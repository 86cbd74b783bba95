"""Verification beside the loop: bounded, shared, remembered."""

import asyncio
import threading
import time

import pytest

from penstock.access import PasswordFile
from penstock.access.password_checks import PasswordChecks, TooManyChecks
from penstock.access.passwords import hash_password
from penstock.core.refusal import Refusal


@pytest.fixture(scope="module")
def stored():
    return hash_password(b"secret")


class CountingFile(PasswordFile):
    """Counts the verifications, and lets a test hold them up."""

    def __init__(self, users):
        super().__init__(users)
        self.calls = 0
        self.gate = threading.Event()
        self.gate.set()

    def verify(self, username, password):
        self.calls += 1
        self.gate.wait(30)
        return super().verify(username, password)


@pytest.fixture
def users(stored):
    return CountingFile({"alice": stored})


@pytest.fixture
def make(users):
    made = []

    def make_checks(**limits):
        made.append(PasswordChecks(users, **limits))
        return made[-1]

    yield make_checks
    users.gate.set()
    for checks in made:
        checks.close()


def test_right_and_wrong(make, users):
    async def scenario():
        checks = make()
        assert await checks.check("alice", b"secret")
        assert not await checks.check("alice", b"wrong")
        assert not await checks.check("bob", b"secret")
        assert not await checks.check("alice", b"x" * 70_000)

    asyncio.run(scenario())


def test_a_verified_pair_is_remembered_and_a_wrong_one_is_not(make, users):
    async def scenario():
        checks = make()
        assert not checks.try_remembered("alice", b"secret")
        for _ in range(3):
            assert await checks.check("alice", b"secret")
        assert users.calls == 1
        assert checks.try_remembered("alice", b"secret")
        for _ in range(2):
            assert not await checks.check("alice", b"wrong")
        assert users.calls == 3
        assert not checks.try_remembered("alice", b"wrong")

    asyncio.run(scenario())


def test_the_memory_is_bounded(stored):
    async def scenario():
        users = CountingFile(dict.fromkeys("abc", stored))
        checks = PasswordChecks(users, max_remembered=2)
        for name in "abc":
            assert await checks.check(name, b"secret")
        assert [checks.try_remembered(name, b"secret") for name in "abc"] == [False, True, True]
        checks.close()

    asyncio.run(scenario())


def test_a_reload_forgets_what_changed(make, stored):
    async def scenario():
        checks = make()
        assert await checks.check("alice", b"secret")
        checks.replace(PasswordFile({"alice": hash_password(b"new")}))
        assert not checks.try_remembered("alice", b"secret")
        assert not await checks.check("alice", b"secret")
        assert await checks.check("alice", b"new")

    asyncio.run(scenario())


def test_a_verification_that_ends_after_a_reload_does_not_count_for_the_new_file(make, users):
    async def scenario():
        checks = make()
        users.gate.clear()
        waiting = asyncio.create_task(checks.check("alice", b"secret"))
        await asyncio.sleep(0.05)
        checks.replace(PasswordFile({"alice": hash_password(b"new")}))
        users.gate.set()
        assert not await waiting
        assert not checks.try_remembered("alice", b"secret")
        assert not await checks.check("alice", b"secret")

    asyncio.run(scenario())


def test_clients_with_the_same_password_wait_for_one_verification(make, users):
    async def scenario():
        checks = make()
        answers = await asyncio.gather(*(checks.check("alice", b"secret") for _ in range(50)))
        assert all(answers)
        assert users.calls == 1

    asyncio.run(scenario())


def test_too_many_waiting_is_busy(make, users):
    """The refusal is BUSY."""

    async def scenario():
        checks = make(max_pending=3)
        users.gate.clear()
        waiting = [asyncio.create_task(checks.check("alice", b"%d" % n)) for n in range(3)]
        await asyncio.sleep(0.05)
        with pytest.raises(TooManyChecks) as caught:
            await checks.check("alice", b"one too many")
        assert caught.value.refusal is Refusal.BUSY
        users.gate.set()
        assert await asyncio.gather(*waiting) == [False] * 3
        assert await checks.check("alice", b"secret")

    asyncio.run(scenario())


def test_a_client_that_leaves_does_not_take_the_verification_from_the_others(make, users):
    async def scenario():
        checks = make()
        users.gate.clear()
        first, second = (asyncio.create_task(checks.check("alice", b"secret")) for _ in range(2))
        await asyncio.sleep(0.05)
        first.cancel()
        users.gate.set()
        assert await second

    asyncio.run(scenario())


def test_the_loop_goes_on_while_a_password_is_checked(make):
    async def scenario():
        checks = make()
        longest = 0.0
        checking = asyncio.create_task(checks.check("alice", b"secret"))
        turns = 0
        last = time.thread_time()
        while not checking.done():
            await asyncio.sleep(0)
            turns += 1
            longest = max(longest, time.thread_time() - last)
            last = time.thread_time()
        assert await checking
        # The machine may be busy, so it is the time of this thread that counts: the verification alone takes more.
        assert longest < 0.02
        assert turns > 2

    asyncio.run(scenario())


def test_a_flood_from_one_address_keeps_nobody_else_out(make, users):
    """Wrong passwords fill the share of their address: a right first login from elsewhere waits for its turn only."""

    async def scenario():
        checks = make(max_pending=8)
        users.gate.clear()
        flood = [asyncio.create_task(checks.check(f"nobody{n}", b"guess", "127.0.0.2")) for n in range(100)]
        await asyncio.sleep(0.05)
        carol = asyncio.create_task(checks.check("alice", b"secret", "127.0.0.3"))
        await asyncio.sleep(0.05)
        users.gate.set()
        assert await carol is True
        results = await asyncio.gather(*flood, return_exceptions=True)
        assert sum(isinstance(result, TooManyChecks) for result in results) >= 92
        assert len(checks._line) == 0

    asyncio.run(scenario())


def test_a_flood_of_one_user_name_keeps_no_other_name_out(make, users):
    async def scenario():
        checks = make(max_pending=8)
        users.gate.clear()
        flood = [asyncio.create_task(checks.check("bob", b"%d" % n, "127.0.0.2")) for n in range(100)]
        await asyncio.sleep(0.05)
        carol = asyncio.create_task(checks.check("alice", b"secret", "127.0.0.2"))
        await asyncio.sleep(0.05)
        users.gate.set()
        assert await carol is True
        await asyncio.gather(*flood, return_exceptions=True)

    asyncio.run(scenario())


def test_closing_refuses_everything_that_waits(make, users):
    """A reload without a password file closes it while clients wait in the line, and they must not wait for ever."""

    async def scenario():
        checks = make(threads=1)
        users.gate.clear()
        waiting = [asyncio.create_task(checks.check("alice", b"%d" % n)) for n in range(3)]
        while users.calls == 0:  # noqa: ASYNC110  # the first is on its thread, which has no events for the loop
            await asyncio.sleep(0.01)
        checks.close()
        users.gate.set()
        async with asyncio.timeout(10):
            results = await asyncio.gather(*waiting, return_exceptions=True)
        assert results[0] is False
        assert [type(result) for result in results[1:]] == [TooManyChecks, TooManyChecks]

    asyncio.run(scenario())
