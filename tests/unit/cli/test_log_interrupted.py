"""`penstock log append` that is ended by a signal: what was read is appended, and told."""

import asyncio
import json
import signal

import pytest

from penstock.cli.log.append import NewRecord, append_all
from penstock.core.errors import PenstockError
from penstock.storage.log.base import Appended
from tests.support.worlds.application import until

TOPIC = "demo"


@pytest.fixture
def run(cli):
    """Another command meanwhile; what it prints."""
    return lambda *arguments: cli.run("log", *arguments)[1].decode()


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_append_lines_says_how_many_were_appended_before_a_signal(cli, run, number, exit_code):
    process = cli.start("log", "append", TOPIC, "--create", "2", "-l", "-p", "1")
    process.stdin.write(b"one\ntwo\nthree\n")
    until(lambda: run("read", TOPIC, "--json").count("\n") == 3, 60, "they are appended")
    process.send_signal(number)
    process.wait(60)  # not the end of its input
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (exit_code, b"")
    assert out == b"3 appended to demo, partition 1, offsets 0 to 2; interrupted before the end of the lines\n"


def test_append_that_is_interrupted_before_a_line(cli, run):
    process = cli.start("log", "append", TOPIC, "--create", "1", "-l", "--json")
    until(lambda: TOPIC in run("topics"), 60, "it waits for lines")
    process.send_signal(signal.SIGINT)
    process.wait(60)  # not the end of its input
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, b"")
    told = json.loads(out)
    assert (told["appended"], told["first_offset"], told["interrupted"]) == (0, None, True)


def test_append_that_is_interrupted_twice_does_not_wait():
    """Such as of a log that does not answer: then nobody knows what became of the rest."""

    taken, are_taken = [], asyncio.Event()

    class Log:
        class producer:
            @staticmethod
            def append(topic, partition, pack, on_done):
                taken.append(on_done)

    async def values():
        for number in range(3):
            yield b"%d" % number
        are_taken.set()
        await asyncio.Event().wait()

    async def interrupt_twice():
        record = NewRecord(TOPIC, 0, None, [], None, 0, False, "", None)
        task = asyncio.ensure_future(append_all(Log(), record, 0, values()))
        await are_taken.wait()
        taken[0](Appended(TOPIC, 0, 7, 1))
        task.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not task.done(), "what is under way is waited for"
        task.cancel()
        await task

    with pytest.raises(
        PenstockError, match=r"^interrupted: 1 record appended to demo.*; 2 more were under way"
    ) as raised:
        asyncio.run(interrupt_twice())
    assert raised.value.exit_code == 130
