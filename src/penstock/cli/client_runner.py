"""Runs the asynchronous half of `pub` and `sub` and turns how it ended into an exit code."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine
from typing import Any

import typer

from penstock.core.errors import PenstockError


def run(work: Coroutine[Any, Any, int], *, quiet: bool) -> None:
    """Ends the command with the code that `work` gives; --quiet keeps the code and drops the words."""
    try:
        code = asyncio.run(_until_signal(work))
    except PenstockError as error:
        if not quiet:
            raise
        code = error.exit_code
    raise typer.Exit(code)


async def _until_signal(work: Coroutine[Any, Any, int]) -> int:
    """SIGINT and SIGTERM cancel the work, which then says goodbye to the broker; that is a normal end."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        return 0


def counted(number: int, noun: str) -> str:
    """`1 record`, `2,000 records`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def warn(text: str, *, quiet: bool) -> None:
    if not quiet:
        print(f"penstock: {text}", file=sys.stderr)
