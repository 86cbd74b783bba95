"""Runs the asynchronous half of a command and turns how it ended into an exit code."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine
from typing import Any

import typer

from penstock.core import exit_codes
from penstock.core.errors import PenstockError


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
