"""The life of a broker's process: starts it, tells people and the service manager, and ends when a signal says so."""

from __future__ import annotations

import asyncio
import signal
import sys

import uvloop

from penstock.broker.build import build_broker
from penstock.broker.closing import end_soon
from penstock.broker.life import Broker
from penstock.broker.service_manager import ServiceManager
from penstock.cli.banner import render_banner
from penstock.settings.loader import Loaded


def run(loaded: Loaded) -> int:
    """Runs the broker until a signal ends it; the exit code."""
    return uvloop.run(_main(loaded))


async def _main(loaded: Loaded) -> int:
    manager = ServiceManager(asyncio.get_running_loop())
    manager.starting()
    try:
        broker = build_broker(loaded)
        return await _serve(broker, manager)
    finally:
        manager.close()


async def _serve(broker: Broker, manager: ServiceManager) -> int:
    starting = asyncio.ensure_future(broker.start())
    stopping = asyncio.ensure_future(broker.stopping.wait())
    try:
        # A signal ends a start that takes long as well.
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait([starting])
            await broker.close()
            return _end()
        starting.result()
    except BaseException:
        await broker.close()
        raise
    listeners, data_dir = broker.bound_listeners(), broker.settings.server.data_dir
    sys.stdout.write(
        render_banner(listeners, data_dir, broker.admin.address, broker.data_address, broker.settings.access)
    )
    sys.stdout.flush()
    status = f"listening on {', '.join(listener.address for listener in listeners)}"
    manager.ready(status)

    def reload() -> None:
        manager.reloading()
        broker.reload()
        manager.ready(status)

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
    await stopping
    server = broker.settings.server
    manager.stopping(server.drain_seconds + 2 * server.close_seconds)
    await broker.run_until_stopped()
    return _end()


def _end() -> int:
    """Everything is closed: what threads still wait for must not keep the process."""
    end_soon(0)
    return 0
