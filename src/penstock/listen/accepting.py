"""An accept loop for connections that need a word before MQTT: a PROXY header, or the certificates of this moment.

Plain listeners are accepted by the event loop itself, which is cheaper.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from penstock.core.tasks import TaskSet

# So that a storm of connections leaves time for those who are in.
ACCEPTS_PER_TURN = 64
# How long accepting rests when the process has no descriptors left; the backlog keeps who comes meanwhile.
PAUSE_SECONDS = 0.5
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_log = logging.getLogger(__name__)


class AcceptLoop:
    """Accepts from one listening socket and runs `serve` on each connection; at most `limit` of them at once.

    `has_room` says whether there is a descriptor for one more. It is asked before the next is accepted: `serve` runs
    later, and those that are accepted until then would take the descriptors of everything else.
    """

    def __init__(
        self,
        listening: socket.socket,
        serve: Callable[[socket.socket], Coroutine[Any, Any, None]],
        limit: int,
        on_refused: Callable[[str], None],
        *,
        has_room: Callable[[socket.socket], bool],
    ) -> None:
        self._listening = listening
        self._serve = serve
        self._limit = limit
        self._on_refused = on_refused
        self._has_room = has_room
        self._tasks = TaskSet("a new connection failed")
        self._resume: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        self._listening.setblocking(False)
        self._resume = None
        self._loop.add_reader(self._listening, self._on_readable)

    def stop(self) -> None:
        """No more connections; those that are being served go on."""
        if self._resume is not None:
            self._resume.cancel()
        if self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening)
            self._listening.close()

    async def close(self) -> None:
        """Also ends those that are still being served."""
        self.stop()
        await self._tasks.close()

    def _on_readable(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                connection, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:  # it went away while it waited
                continue
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._pause(error)
                return
            if len(self._tasks) >= self._limit:
                self._on_refused("handshake_limit")
                connection.close()
                continue
            if not self._has_room(connection):
                connection.close()
                continue
            connection.setblocking(False)
            self._tasks.spawn(self._serve(connection))

    def _pause(self, error: OSError) -> None:
        # The socket stays readable: without a pause the loop would do nothing but fail to accept.
        _log.error("cannot accept connections, trying again in %s s: %s", PAUSE_SECONDS, error.strerror)
        self._on_refused("descriptors")
        self._loop.remove_reader(self._listening)
        self._resume = self._loop.call_later(PAUSE_SECONDS, self.start)
