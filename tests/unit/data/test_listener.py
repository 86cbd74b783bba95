"""The data listener: who gets in, what a frame is, and what a bad one costs whom."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.access import AccessControl, base
from penstock.access.passwords import PasswordFile, hash_password
from penstock.access.refusals import Refusals
from penstock.data.connection import DataConnection
from penstock.data.frontend import DataFrontend
from penstock.listen.listener import ListenerError
from penstock.settings.loader import load_settings
from penstock.subscribers.query.ports import Identity
from penstock_client.errors import NotAllowed, OutOfRange, SqlError
from penstock_client.wire import PROTOCOL, Execute, Table
from tests.support.machine.waiting import until
from tests.support.servers.certificates import Authority

LARGE = 1 << 20


class Service:
    """Answers `execute` with what the statement says."""

    def __init__(self) -> None:
        self.seen: list[tuple[Identity, str]] = []
        self.gate = asyncio.Event()
        self.committed: list[int] = []
        self.running = 0

    async def handle(self, who: Identity, method: str, params: msgspec.Struct) -> Any:
        self.seen.append((who, method))
        if method == "fetch":
            self.running += 1
            try:
                await self.gate.wait()
            finally:
                self.running -= 1
            is_large = getattr(params, "topic", "") == "large"
            return {"next_offset": 1, **({"blocks": [bytes(LARGE)]} if is_large else {})}
        if method == "commit":
            offset = params.offsets[0][2]  # type: ignore[attr-defined] # a Commit
            await asyncio.sleep(0.002 * (3 - offset))
            self.committed.append(offset)
            return None
        assert isinstance(params, Execute)
        if params.sql == "slow":
            self.running += 1
            await self.gate.wait()
            self.running -= 1
        if params.sql == "bad":
            raise SqlError("no such thing", 2, 7)
        if params.sql == "gone":
            error = OutOfRange("it is gone")
            error.begin, error.end = 3, 9
            raise error
        if params.sql == "forbidden":
            raise NotAllowed("user bob may not create topic hot")
        if params.sql == "bug":
            raise RuntimeError("a mistake in the broker")
        return Table(["a"], [[params.sql]])


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._number = 0

    def send(self, method: str, parameters: Any) -> int:
        self._number += 1
        self.send_raw(msgspec.msgpack.encode([self._number, method, parameters]))
        return self._number

    def send_raw(self, body: bytes) -> None:
        self.writer.write(len(body).to_bytes(4, "big") + body)

    async def receive(self) -> list[Any]:
        size = int.from_bytes(await self.reader.readexactly(4), "big")
        answer: list[Any] = msgspec.msgpack.decode(await self.reader.readexactly(size))
        return answer

    async def ask(self, method: str, parameters: Any) -> list[Any]:
        number = self.send(method, parameters)
        answer = await self.receive()
        assert answer[0] == number
        return answer[1:]

    async def hello(self, **parameters: Any) -> list[Any]:
        return await self.ask("hello", {"protocol": PROTOCOL, **parameters})

    async def is_closed(self) -> bool:
        return await self.reader.read(1) == b""


class World:
    def __init__(self, front: DataFrontend, service: Service) -> None:
        self.front, self.service = front, service
        self._writers: list[asyncio.StreamWriter] = []
        # Events of refusals: kind, client id, user name, cause.
        self.reports: list[tuple[str, str, str | None, str]] = []

    def report(self, kind: str, client_id: str, details: dict[str, Any]) -> None:
        assert details["address"].startswith("127.0.0.1:")
        self.reports.append((kind, client_id, details["username"], details["cause"]))

    async def connect(self, **options: Any) -> Client:
        host, _, port = self.front.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), **options)
        self._writers.append(writer)
        return Client(reader, writer)

    async def connected(self, **hello: Any) -> Client:
        client = await self.connect()
        assert (await client.hello(**hello))[0] is None
        return client

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


def run(scenario: Callable[[World], Awaitable[None]], **overrides: Any) -> None:
    async def main() -> None:
        settings = load_settings(None, {}, {"data_subscription.address": "127.0.0.1:0", **overrides}).settings
        access, service = AccessControl(settings.access), Service()
        front = DataFrontend(settings, service, access, version="1.2.3")
        await front.start()
        world = World(front, service)
        front.refusals = Refusals(
            lambda client_id, **details: world.report("denied", client_id, details),
            lambda client_id, **details: world.report("refused", client_id, details),
        )
        try:
            async with asyncio.timeout(30):
                await scenario(world)
        finally:
            world.close()
            await front.close()
            await access.stop()

    asyncio.run(main())


def test_hello_and_a_statement() -> None:
    async def scenario(world: World) -> None:
        client = await world.connect()
        assert await client.hello(client_id="me") == [
            None,
            {"protocol": PROTOCOL, "version": "1.2.3", "node": "penstock"},
        ]
        assert await client.ask("execute", {"sql": "x"}) == [None, {"columns": ["a"], "rows": [["x"]], "text": ""}]
        who, _ = world.service.seen[0]
        assert (who.user, who.client_id, who.address.partition(":")[0]) == (None, "me", "127.0.0.1")

    run(scenario)


def test_errors_travel_with_what_they_know() -> None:
    async def scenario(world: World) -> None:
        client = await world.connected()
        bad, _ = await client.ask("execute", {"sql": "bad"})
        assert bad == {"code": "sql", "message": "no such thing", "line": 2, "column": 7}
        gone, _ = await client.ask("execute", {"sql": "gone"})
        assert gone == {"code": "out-of-range", "message": "it is gone", "begin": 3, "end": 9}
        bug, _ = await client.ask("execute", {"sql": "bug"})
        assert (bug["code"], bug["retryable"]) == ("unavailable", True)
        # none of these ends the connection
        unknown, _ = await client.ask("guess", {})
        assert unknown["code"] == "bad-request"
        wrong, _ = await client.ask("execute", {"sql": 5})
        assert wrong["code"] == "bad-request"
        assert (await client.ask("execute", {"sql": "x"}))[0] is None

    run(scenario)


def test_denied_requests_are_reported() -> None:
    """With the user, once in a while, and no other errors."""

    async def scenario(world: World) -> None:
        client = await world.connected(client_id="editor")
        for sql in ("bad", "forbidden", "forbidden"):
            await client.ask("execute", {"sql": sql})
        assert world.reports == [("denied", "editor", None, "data execute: user bob may not create topic hot")]

    run(scenario)


def test_failed_logins_are_reported_with_the_user(tmp_path: Path) -> None:
    passwords = tmp_path / "passwords"
    passwords.write_text(f"bob:{hash_password(b'builder')}\n")
    passwords.chmod(0o600)

    async def scenario(world: World) -> None:
        client = await world.connect()
        failure, _ = await client.hello(client_id="etl", user="bob", password="guess")
        assert failure["code"] == "not-allowed"
        assert world.reports == [("refused", "etl", "bob", "user name or password is wrong")]

    run(scenario, **{"access.password_file": str(passwords)})


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\x00\x00\x03abc",
        b"\x00\x00\x00\x00",
        b"\xff\xff\xff\xff",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\x00\x00\x01\x90",
        b"\x00\x00\x00\x05\x93\x01\xa2hi",
    ],
    ids=["text", "empty", "too large", "http", "empty array", "cut short"],
)
@pytest.mark.parametrize("after_hello", [False, True])
def test_a_bad_frame_costs_the_connection_and_says_why(sent: bytes, after_hello: bool) -> None:
    async def scenario(world: World) -> None:
        other = await world.connected()
        client = await (world.connected() if after_hello else world.connect())
        client.writer.write(sent)
        number, failure, _ = await client.receive()
        assert (number, failure["code"]) == (0, "bad-request")
        assert failure["message"]
        assert await client.is_closed()
        assert (await other.ask("execute", {"sql": "x"}))[0] is None

    run(scenario)


def test_the_first_request_is_hello_and_only_the_first() -> None:
    async def scenario(world: World) -> None:
        early = await world.connect()
        early.send("execute", {"sql": "x"})
        assert (await early.receive())[1]["code"] == "bad-request"
        assert await early.is_closed()
        twice = await world.connected()
        twice.send("hello", {})
        assert (await twice.receive())[1]["code"] == "bad-request"
        assert await twice.is_closed()
        newer = await world.connect()
        failure, _ = await newer.hello(protocol=99)
        assert "protocol 99" in failure["message"]
        assert await newer.is_closed()
        assert world.service.seen == []

    run(scenario)


def test_who_says_nothing_is_put_out() -> None:
    async def scenario(world: World) -> None:
        client = await world.connect()
        assert "hello" in (await client.receive())[1]["message"]
        assert await client.is_closed()

    run(scenario, **{"data_subscription.hello_timeout": 0.1})


def test_of_somebody_unknown_little_is_kept() -> None:
    """The limit of a request is for those who have said who they are."""

    async def scenario(world: World) -> None:
        known, stranger = await world.connected(), await world.connect()
        size = 200_000
        for client in (known, stranger):
            client.writer.write(size.to_bytes(4, "big") + bytes(100))
        number, failure, _ = await stranger.receive()
        assert (number, failure["code"]) == (0, "bad-request")
        assert "200000 bytes is over the limit" in failure["message"]
        assert await stranger.is_closed()
        known.writer.write(bytes(size - 100))
        assert "MessagePack" in (await known.receive())[1]["message"], "it was read whole"
        named = await world.connect()
        failure, _ = await named.hello(client_id="c" * 256)
        assert "at most 255" in failure["message"]

    run(scenario)


def test_a_hello_that_has_come_is_answered_however_long_it_takes(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        gate = asyncio.Event()

        async def look(credentials: base.Credentials) -> base.Identity:
            await gate.wait()
            return base.Identity(credentials.username)

        world.front.access.chain.authenticate = look  # type: ignore[method-assign] # a password that takes its time
        client = await world.connect()
        client.send("hello", {"protocol": PROTOCOL, "user": "alice", "password": "x"})
        silent = await world.connect()
        assert "no hello" in (await silent.receive())[1]["message"]
        gate.set()
        assert (await client.receive())[1] is None

    passwords = write_passwords(tmp_path / "passwords")
    run(scenario, **{"data_subscription.hello_timeout": 0.2, "access.password_file": passwords})


def test_connections_are_bounded() -> None:
    async def scenario(world: World) -> None:
        first = await world.connected()
        second = await world.connect()
        assert "max_connections" in (await second.receive())[1]["message"]
        assert await second.is_closed()
        first.writer.close()
        await until(lambda: not world.front.counters()["datasub_connections"])
        await world.connected()

    run(scenario, **{"data_subscription.max_connections": 1})


def fetch_parameters() -> dict[str, Any]:
    return {"consumer": "c", "group": "g", "epoch": 1, "topic": "t", "partition": 0, "offset": 0}


def test_a_parked_fetch_holds_nobody_up_and_ends_with_its_connection() -> None:
    async def scenario(world: World) -> None:
        client = await world.connected()
        parked = client.send("fetch", fetch_parameters())
        assert (await client.ask("execute", {"sql": "x"}))[0] is None
        world.service.gate.set()
        assert await client.receive() == [parked, None, {"next_offset": 1}]
        world.service.gate.clear()
        client.send("fetch", fetch_parameters())
        await until(lambda: bool(world.service.running))
        client.writer.close()
        await until(lambda: not world.service.running)

    run(scenario)


def test_requests_under_way_are_bounded() -> None:
    async def scenario(world: World) -> None:
        client = await world.connected()
        for _ in range(10):
            client.send("fetch", fetch_parameters())
        client.send("execute", {"sql": "x"})
        await until(lambda: world.service.running == 4)
        await asyncio.sleep(0.02)
        assert world.service.running == 4
        world.service.gate.set()
        answers = [await client.receive() for _ in range(11)]
        assert sorted(answer[0] for answer in answers) == list(range(2, 13))

    run(scenario, **{"data_subscription.max_in_flight": 4})


def test_commits_are_handled_in_their_order() -> None:
    async def scenario(world: World) -> None:
        client = await world.connected()
        for offset in range(4):
            client.send("commit", {"consumer": "c", "group": "g", "epoch": 1, "offsets": [["t", 0, offset]]})
        for _ in range(4):
            assert (await client.receive())[1] is None
        assert world.service.committed == [0, 1, 2, 3]

    run(scenario)


def write_passwords(path: Path) -> str:
    PasswordFile({}).with_user("alice", hash_password(b"secret")).save(path)
    return str(path)


def test_rows_for_a_consumer_that_does_not_read_are_not_kept() -> None:
    """However many fetches it sends: a few answers wait for it, the others are to be fetched again."""

    async def scenario(world: World) -> None:
        client = await world.connected()
        for _ in range(300):
            client.send("fetch", {**fetch_parameters(), "topic": "large"})
        other = await world.connected()
        world.service.gate.set()
        await until(lambda: world.front.counters()["datasub_requests"] >= 300)
        assert sum(each.unsent for each in world.front._connections) < 8 * LARGE
        assert (await other.ask("execute", {"sql": "x"}))[0] is None
        failures = [(await client.receive())[1] for _ in range(300)]
        refused = [failure for failure in failures if failure is not None]
        assert {failure["code"] for failure in refused} == {"unavailable"}
        assert {failure["retryable"] for failure in refused} == {True}
        assert 1 <= len(failures) - len(refused) < 50
        assert world.front.counters()["datasub_unsent"] == len(refused)

    run(scenario, **{"data_subscription.max_fetch_bytes": LARGE})


def test_statements_of_a_connection_are_run_one_after_the_other() -> None:
    async def scenario(world: World) -> None:
        client, other = await world.connected(), await world.connected()
        for _ in range(3):
            client.send("execute", {"sql": "slow"})
        await until(lambda: world.service.running == 1)
        assert (await other.ask("execute", {"sql": "x"}))[0] is None
        assert world.service.running == 1
        world.service.gate.set()
        assert [(await client.receive())[0] for _ in range(3)] == [2, 3, 4]

    run(scenario)


def test_passwords_and_the_anonymous_policy(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        for wrong in ({}, {"user": "alice", "password": "wrong"}, {"user": "bob", "password": "secret"}):
            client = await world.connect()
            failure, _ = await client.hello(**wrong)
            assert failure["code"] == "not-allowed"
            assert await client.is_closed()
        client = await world.connected(user="alice", password="secret")
        await client.ask("execute", {"sql": "x"})
        assert world.service.seen[0][0].user == "alice"

    passwords = write_passwords(tmp_path / "passwords")
    run(scenario, **{"access.password_file": passwords, "data_subscription.anonymous": "deny"})


def test_a_name_without_a_password_file_opens_nothing() -> None:
    async def scenario(world: World) -> None:
        client = await world.connected(user="alice", password="whatever")
        await client.ask("execute", {"sql": "x"})
        assert world.service.seen[0][0].user is None

    run(scenario)


def test_tls_and_names_from_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, alice = authority.issue("localhost"), authority.issue("alice")

    async def scenario(world: World) -> None:
        context = ssl.create_default_context(cafile=str(authority.path))
        context.load_cert_chain(alice.certificate, alice.key)
        client = await world.connect(ssl=context, server_hostname="localhost")
        assert (await client.hello())[0] is None
        await client.ask("execute", {"sql": "x"})
        assert world.service.seen[0][0].user == "alice"

    run(
        scenario,
        **{
            "data_subscription.transport": "tls",
            "data_subscription.certificate": str(server.certificate),
            "data_subscription.key": str(server.key),
            "data_subscription.client_ca": str(authority.path),
            "data_subscription.client_certificate": "required",
            "data_subscription.certificate_username": "cn",
            "data_subscription.anonymous": "deny",
        },
    )


def test_a_port_that_is_taken_is_named_with_the_setting() -> None:
    async def scenario(world: World) -> None:
        overrides = {"data_subscription.address": world.front.address}
        settings = load_settings(None, {}, overrides).settings
        second = DataFrontend(settings, world.service, world.front.access, version="")
        with pytest.raises(ListenerError, match="in use") as caught:
            await second.start()
        assert "data_subscription.address" in caught.value.hint

    run(scenario)


def test_a_consumer_that_does_not_read_is_cut_off() -> None:
    async def scenario(world: World) -> None:
        client = await world.connected()
        statement = "x" * 900_000
        client.writer.transport.pause_reading()  # type: ignore[attr-defined] # a transport of a socket can be paused
        for _ in range(40):
            client.send("execute", {"sql": statement})
        await until(lambda: bool(world.front.counters()["datasub_stalled"]))

    run(scenario, **{"data_subscription.write_timeout": 0.2})


def test_a_consumer_that_reads_slowly_is_not() -> None:
    """What it has not taken becomes less: it is heard again and again, until that ends."""

    class Slow(asyncio.Transport):
        left = 0
        is_aborted = False

        def get_extra_info(self, name: str, default: Any = None) -> Any:
            return default

        def is_closing(self) -> bool:
            return self.is_aborted

        def pause_reading(self) -> None: ...

        def get_write_buffer_size(self) -> int:
            return self.left

        def write(self, data: Any) -> None:
            self.left += len(data)

        def abort(self) -> None:
            self.is_aborted = True

    async def scenario(world: World) -> None:
        transport = Slow()
        connection = DataConnection(world.front)
        connection.connection_made(transport)
        connection._send(bytes(1000))
        connection.pause_writing()
        for _ in range(5):
            transport.left -= 10
            connection._on_stall()
            assert not transport.is_aborted
        connection._on_stall()
        assert transport.is_aborted
        connection.connection_lost(None)

    run(scenario)
