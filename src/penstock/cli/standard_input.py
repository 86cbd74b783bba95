"""Standard input for commands that run a loop."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator

_LONGEST_LINE = 268_435_455


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
