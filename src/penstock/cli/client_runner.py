"""Runs the asynchronous half of a command and turns how it ended into an exit code."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import typer

from penstock.core import exit_codes
from penstock.core.errors import PenstockError

_LONGEST_LINE = 268_435_455


def run(work: Coroutine[Any, Any, int], *, quiet: bool, is_endless: bool = True) -> None:
    """Ends the command with the code that `work` gives; --quiet keeps the code and drops the words. A signal is the
    normal end of what is endless, else the code says that there was one."""
    try:
        code = asyncio.run(_until_signal(work, is_endless=is_endless))
    except PenstockError as error:
        if not quiet:
            raise
        code = error.exit_code
    raise typer.Exit(code)


async def _until_signal(work: Coroutine[Any, Any, int], *, is_endless: bool) -> int:
    """SIGINT and SIGTERM cancel the work, which then says goodbye to the broker, or what it has done so far."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    code_of_signal = exit_codes.OK

    def cancel(number: signal.Signals) -> None:
        nonlocal code_of_signal
        if not is_endless:
            code_of_signal = exit_codes.INTERRUPTED - signal.SIGINT + number
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, cancel, number)
    try:
        return await task or code_of_signal
    except asyncio.CancelledError:
        return code_of_signal


def warn(text: str, *, quiet: bool) -> None:
    if not quiet:
        print(f"penstock: {text}", file=sys.stderr)


async def stdin_lines() -> AsyncIterator[bytes]:
    """Lines as they come. A pipe or terminal is read by the loop, so that Ctrl-C does not wait for the next line."""
    mode = os.fstat(sys.stdin.fileno()).st_mode
    # a file, or a device such as /dev/null: a loop cannot wait for those
    if stat.S_ISREG(mode) or (stat.S_ISCHR(mode) and not sys.stdin.isatty()):
        for line in sys.stdin.buffer:
            yield line.rstrip(b"\r\n")
        return
    reader = asyncio.StreamReader(limit=_LONGEST_LINE)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield line.rstrip(b"\r\n")
