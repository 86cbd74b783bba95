"""An event loop in a thread of its own, for programs that have none."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from penstock_client.errors import BadRequest

T = TypeVar("T")


class LoopThread:
    """Ends with the process, or by stop()."""

    def __init__(self, name: str) -> None:
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._last: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            if left := asyncio.all_tasks(self._loop):
                for task in left:
                    task.cancel()
                self._loop.run_until_complete(asyncio.wait(left))
            self._last()
            self._loop.run_until_complete(asyncio.sleep(0))  # for connections that were closed just now
        finally:
            self._loop.close()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs it there and waits here. Whatever interrupts the waiting, as Ctrl-C does, cancels it."""
        try:
            self._check()
        except BadRequest:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise BadRequest("the consumer was closed during the call") from None
        except BaseException:
            future.cancel()
            raise

    def run(self, work: Callable[[], T]) -> T:
        """The same for what does not wait."""

        async def run() -> T:
            return work()

        return self.call(run())

    def post(self, work: Callable[[], object]) -> None:
        """Before anything that is called later. Nothing is waited for, so nothing can interrupt it; after the end of
        the loop there is nothing to do."""
        if os.getpid() == self._process and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(work)

    def _check(self) -> None:
        if os.getpid() != self._process:
            raise BadRequest("made before a fork: every process needs a consumer of its own")
        if self._loop.is_closed() or not self._thread.is_alive():
            raise BadRequest("the consumer is closed")
        if threading.current_thread() is self._thread:
            raise BadRequest("called from the thread of the consumer itself")

    def stop(self, last: Callable[[], object] = lambda: None) -> None:
        """`last` runs there when nothing else does any more."""
        if os.getpid() == self._process and self._thread.is_alive():
            self._last = last
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
