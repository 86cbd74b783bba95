"""The life of a broker: its parts start, drain and stop."""

from __future__ import annotations

import asyncio
import gc
import math
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from penstock._ext.hub.connection import Hub
from penstock._ext.wire.packets import Reason
from penstock.broker.closing import close_parts
from penstock.broker.health import Readiness, find_away
from penstock.broker.parts import Part, in_closing_order
from penstock.broker.reload import Reloading
from penstock.core.logging import get_logger
from penstock.listen.listener import Listener
from penstock.mqtt.frontend import MqttFrontend
from penstock.operate.http.server import AdminServer
from penstock.settings import ListenerSettings, Settings

log = get_logger("penstock.app")

DRAIN_POLL_SECONDS = 0.02


class Broker:
    """One node with everything in it; build.py makes it. `listening`: other listeners than those of MQTT."""

    def __init__(
        self,
        hub: Hub,
        frontend: MqttFrontend,
        parts: Sequence[Part],
        *,
        listeners: Sequence[Listener],
        listening: Mapping[str, Callable[[], str]],
        admin: AdminServer,
        readiness: Readiness,
        reloading: Reloading,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.hub = hub
        self.frontend = frontend
        self.parts = parts
        self.listeners = listeners
        self.admin = admin
        self._listening = listening
        self._readiness = readiness
        self._reloading = reloading
        self.stopping = asyncio.Event()

    @property
    def settings(self) -> Settings:
        """As they are now: a reload may have changed them."""
        return self._reloading.settings

    @property
    def data_address(self) -> str:
        """Where consumers of query topics connect; empty where they cannot."""
        return self._listening["data"]() if "data" in self._listening else ""

    def bound_listeners(self) -> list[ListenerSettings]:
        """With the addresses they really got."""
        return [msgspec.structs.replace(listener.settings, address=listener.address) for listener in self.listeners]

    # ---- start ----

    async def start(self) -> None:
        self._handle_signals()  # before a client can see that it listens
        for part in self.parts:
            await part.start()
        self._readiness.set(is_ready=True)
        # What is here now stays: the collector need not look at it again, and looks less often at the rest.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        for listener in self.listeners:
            log.info("listening", listener=listener.settings.name, address=listener.address)
        for name, find_address in self._listening.items():
            log.info("listening", listener=name, address=find_address())

    async def start_only(self, *names: str) -> None:
        """Start the parts of these names, as far as there are any: for tests."""
        for part in self.parts:
            if part.name in names:
                await part.start()

    def _handle_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self.stop)
        self._loop.add_signal_handler(signal.SIGHUP, self.reload)

    # ---- reload ----

    def reload(self) -> None:
        self._reloading.reload()

    # ---- end ----

    def stop(self) -> None:
        self.stopping.set()

    async def run_until_stopped(self) -> None:
        await self.stopping.wait()
        await self.drain()
        await self.close()

    async def drain(self) -> None:
        """No new clients; what is in flight is finished, within the limit; MQTT 5 clients get a DISCONNECT."""
        self._readiness.set(is_ready=False)
        for part in self.parts:
            part.drain()
        seconds = self.settings.server.drain_seconds
        log.info("draining", connections=self.hub.connection_count, seconds=seconds)
        deadline = self._loop.time() + seconds
        while self.hub.has_work() and self._loop.time() < deadline:  # noqa: ASYNC110  # the compiled side has no events
            await asyncio.sleep(DRAIN_POLL_SECONDS)
        for connection in self.hub.connections():
            connection.disconnect(Reason.SERVER_SHUTTING_DOWN, "the broker is shutting down")
        while self.hub.connection_count and self._loop.time() < deadline:  # noqa: ASYNC110  # as above
            await asyncio.sleep(DRAIN_POLL_SECONDS)

    async def close(self) -> None:
        is_remote = any(part.is_remote for part in self.parts)
        seconds = self.settings.server.close_seconds if is_remote else math.inf
        await close_parts(in_closing_order(self.parts), seconds, partial(find_away, self.parts))
        log.info("stopped")
