"""Clients between the check of their password and CONNACK: a removed user is refused, a failure ends the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from penstock._ext.wire import packets
from penstock.access.passwords import hash_password
from penstock.broker.build import build_broker
from penstock.broker.life import Broker
from penstock.mqtt import handle_auth
from penstock.settings.loader import load_settings
from tests.support.machine.waiting import until
from tests.support.toys.access import BADGES, KNOCK, REMOTE

NOT_AUTHORIZED = 0x87
CONNECT = packets.build_connect("c", username="alice", password=b"secret", session_expiry=60)

Held = list[Callable[[], None]]


def hold_store(broker: Broker, held: Held) -> None:
    """The session is opened, and waits for the store."""
    keeper = broker.frontend.registry.keeper
    assert keeper is not None
    original = keeper.wait
    keeper.wait = lambda on_durable: held.append(lambda: original(on_durable))  # type: ignore[method-assign]


def hold_preparation(broker: Broker, held: Held) -> None:
    """The log has to do something for the client before its session is opened."""
    kinds = broker.frontend.kinds
    original, gate = kinds.prepare, asyncio.Event()

    async def prepare(*arguments: object) -> str:
        held.append(gate.set)
        await gate.wait()
        return await original(*arguments)  # type: ignore[arg-type]

    kinds.prepare = prepare  # type: ignore[method-assign]


def run(directory: Path, scenario: Callable[[Broker], Awaitable[None]], **settings: str) -> None:
    async def main() -> None:
        (directory / "passwords").write_text(f"alice:{hash_password(b'secret')}\n")
        overrides = {
            "listeners.0.address": "127.0.0.1:0",
            "admin.address": "",
            "sys.interval": "0",
            "log.provider": "memory",
            "server.data_dir": str(directory / "data"),
            "access.password_file": str(directory / "passwords"),
            "logging.level": "error",
        }
        broker = build_broker(load_settings(None, {}, {**overrides, **settings}))
        await broker.start_only("log", "node", "ingest", "sessions")
        for listener in broker.listeners:
            await listener.start()
        try:
            await scenario(broker)
        finally:
            await broker.close()

    uvloop.run(asyncio.wait_for(main(), 60))


async def connect(broker: Broker) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*broker.listeners[0].address.rsplit(":", 1))
    writer.write(CONNECT)
    return reader, writer


def remove_users(broker: Broker, directory: Path) -> None:
    (directory / "passwords").write_text("")
    broker.frontend.access.reload(broker.settings.access)
    broker.frontend.access_changed()


@pytest.mark.parametrize("hold", [hold_store, hold_preparation])
@pytest.mark.parametrize("is_removed", [True, False])
def test_a_client_that_is_about_to_join(tmp_path: Path, hold: Callable[[Broker, Held], None], is_removed: bool) -> None:
    async def scenario(broker: Broker) -> None:
        held: Held = []
        hold(broker, held)
        reader, _writer = await connect(broker)
        await until(lambda: bool(held))
        if is_removed:
            remove_users(broker, tmp_path)
        held[0]()
        connack = await reader.readexactly(5)
        assert connack[3] == (NOT_AUTHORIZED if is_removed else 0)
        if is_removed:
            assert await reader.read() == b""
            assert broker.frontend.registry.get("c") is None

    run(tmp_path, scenario)


def test_its_earlier_session_stays(tmp_path: Path) -> None:
    """The CONNECT, with clean start, has no effect: the user may come back."""

    async def scenario(broker: Broker) -> None:
        first, _first_writer = await connect(broker)
        assert (await first.readexactly(5))[3] == 0
        session = broker.frontend.registry.get("c")
        held: Held = []
        hold_preparation(broker, held)
        reader, _writer = await connect(broker)
        await until(lambda: bool(held))
        remove_users(broker, tmp_path)
        held[0]()
        assert (await reader.readexactly(5))[3] == NOT_AUTHORIZED
        assert broker.frontend.registry.get("c") is session

    run(tmp_path, scenario, **{"access.default_type": "application"})


def test_a_failure_ends_the_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store calls back when the session is durable: nobody above it could answer the client."""

    async def scenario(broker: Broker) -> None:
        def fail(*_: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(handle_auth, "remember", fail)
        reader, _writer = await connect(broker)
        assert await reader.read() == b""

    run(tmp_path, scenario)


def test_a_mistake_in_a_provider_keeps_the_client_out(tmp_path: Path) -> None:
    """The password is checked by nobody, and the next client is served."""

    async def scenario(broker: Broker) -> None:
        reader, writer = await asyncio.open_connection(*broker.listeners[0].address.rsplit(":", 1))
        writer.write(packets.build_connect("c", username="bug", password=b"badge:lab"))
        assert (await reader.readexactly(5))[3] == packets.Reason.UNSPECIFIED_ERROR
        assert await reader.read() == b""
        reader, writer = await asyncio.open_connection(*broker.listeners[0].address.rsplit(":", 1))
        writer.write(packets.build_connect("c", username="ada", password=b"badge:lab"))
        assert (await reader.readexactly(5))[3] == 0

    run(tmp_path, scenario, **{"access.authenticators": f"{BADGES},password_file"})


def test_no_timer_is_kept_for_a_connection_that_ends_before_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its identity would expire later."""

    async def scenario(broker: Broker) -> None:
        monkeypatch.setattr(handle_auth, "remember", lambda connection, _: connection.shutdown("gone"))
        reader, writer = await asyncio.open_connection(*broker.listeners[0].address.rsplit(":", 1))
        writer.write(packets.build_connect("c", username="vic", password=b"badge:visitors", session_expiry=60))
        assert await reader.read() == b""
        assert not broker.frontend.expiries._timers

    run(tmp_path, scenario, **{"access.authenticators": f"{BADGES},password_file"})


def test_a_client_that_leaves_while_it_authenticates_again(tmp_path: Path) -> None:
    """Remote authorisers are asked in a task, which runs when the session is gone."""

    async def scenario(broker: Broker) -> None:
        errors: list[BaseException] = []
        broker.frontend.on_error = lambda _, error: errors.append(error)  # type: ignore[method-assign]
        reader, writer = await asyncio.open_connection(*broker.listeners[0].address.rsplit(":", 1))
        method = {"authentication_method": "knock", "authentication_data": b"lab"}
        writer.write(packets.build_connect("c", **method))
        assert (await reader.readexactly(5))[3] == 0
        writer.write(packets.build_auth(packets.Reason.RE_AUTHENTICATE, **method) + b"\xe0\x00")
        await reader.read()
        await broker.frontend._tasks.wait()
        assert errors == []

    run(tmp_path, scenario, **{"access.authorisers": REMOTE, "access.enhanced.knock": KNOCK})
