"""The thread of one consumer. librdkafka's consumer calls wait, so none of them is made on the loop's thread."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from penstock.core.logging import get_logger
from penstock.storage.log.base import LogError

log = get_logger("penstock.logs.kafka")
Result = TypeVar("Result")

Job = Callable[[], None]
# A callback of a rebalance that never ends must not cost the member its place in the group.
CALLBACK_SECONDS = 30.0


class Worker:
    """Runs jobs one after the other and gives their results to the loop."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._callbacks = 0  # librdkafka waits for, in the thread
        self._ends: list[Job | None] = []  # that came meanwhile
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[[], Result]) -> asyncio.Future[Result]:
        """Queues a call; on the loop."""
        job, future = self._new_job(function)
        self._jobs.put(job)
        return future

    def submit_end(self, function: Callable[[], Result]) -> asyncio.Future[Result]:
        """The same, but never while librdkafka waits for a callback: it ends what would go on afterwards."""
        job, future = self._new_job(function)

        def end() -> None:
            if self._callbacks:
                self._ends.append(end)
            else:
                job()

        self._jobs.put(end)
        return future

    def stop(self) -> None:
        """After the jobs queued so far."""
        self._jobs.put(None)

    def serve_waiting(self) -> None:
        """Runs the jobs that wait now; on the thread, between two steps of a long job."""
        while True:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                return
            if job is None:
                self._jobs.put(None)
                return
            job()

    def run_on_loop(self, callback: Callable[[], Any]) -> None:
        """Calls back on the loop and waits for it (for a coroutine's end, too), while jobs go on: it may commit."""
        self._callbacks += 1
        try:
            self._call_and_serve(callback)
        finally:
            self._callbacks -= 1
            if not self._callbacks:
                for end in self._ends:
                    self._jobs.put(end)
                self._ends.clear()

    def _call_and_serve(self, callback: Callable[[], Any]) -> None:
        is_done = threading.Event()

        def finish(task: asyncio.Future[Any] | None = None) -> None:
            if task is not None and not task.cancelled() and task.exception() is not None:
                log.error("callback of a rebalance", reason=repr(task.exception()))
            is_done.set()
            self._jobs.put(_nothing)

        def start() -> None:
            try:
                result = callback()
            except Exception:
                log.exception("callback of a rebalance")
                result = None
            if inspect.isawaitable(result):
                asyncio.ensure_future(result).add_done_callback(finish)
            else:
                finish()

        if not self._post(start):
            return
        deadline = time.monotonic() + CALLBACK_SECONDS
        while not is_done.is_set():
            try:
                job = self._jobs.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                log.error("callback of a rebalance takes too long", seconds=CALLBACK_SECONDS)
                return
            if job is None:
                self._ends.append(job)
            else:
                job()

    def _new_job(self, function: Callable[[], Result]) -> tuple[Job, asyncio.Future[Result]]:
        future: asyncio.Future[Result] = self._loop.create_future()

        def job() -> None:
            try:
                result = function()
            except BaseException as error:
                self._post(_reject, future, error)
            else:
                self._post(_resolve, future, result)

        return job, future

    def _post(self, function: Callable[..., None], *arguments: object) -> bool:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            return False  # the loop is closed: nobody waits for anything any more
        return True

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


def _nothing() -> None:
    """Wakes the thread."""


def _resolve(future: asyncio.Future[Any], result: object) -> None:
    if not future.done():
        future.set_result(result)


def _reject(future: asyncio.Future[Any], error: BaseException) -> None:
    if future.done():
        if not isinstance(error, LogError):
            log.error("kafka consumer", reason=repr(error))
        return
    future.set_exception(error)
    future.exception()  # who does not await it does not want to hear of it
