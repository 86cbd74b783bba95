"""What the Redis store leaves in Redis, and how it gets there: keys, TLS, an ACL user, databases, addresses."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import hiredis
import pytest

from penstock.core.errors import SettingsError
from penstock.settings.redis import DeviceSettings, RedisSettings
from penstock.subscribers.device.store.base import (
    Added,
    Addition,
    Queue,
    StoreError,
    StoreFull,
    client_queue,
    group_queue,
    result_of,
)
from penstock.subscribers.device.store.redis import RedisDeviceStore, errors, topology
from penstock.subscribers.device.store.redis.connection import Endpoint, RedisConnection
from penstock.subscribers.device.store.redis.keys import KeyMaker
from penstock.subscribers.device.store.redis.store import read_scripts
from tests.contract.device_providers import CLIENT, Caller, opened, run
from tests.support.machine.waiting import until
from tests.support.servers.certificates import Authority
from tests.support.servers.redis_server import own_redis, shared_redis_cluster


def store_of(**settings: Any) -> RedisDeviceStore:
    return RedisDeviceStore(RedisSettings(**settings), DeviceSettings())


def test_the_keys_are_those_of_the_seed() -> None:
    with own_redis() as server:

        async def test() -> None:
            async with opened(store_of(addresses=server.address)) as store:
                caller = Caller(store)
                await caller.reserve(CLIENT, 65_533)
                await caller.add(CLIENT, b"\x00one", b"two", b"three")

        run(test())
        assert server.cli("GET", "{client}_last_packet_id") == "1\n"
        assert server.cli("ZRANGE", "{client}_messages", "0", "-1").split() == [
            "{client}_messages_65534",
            "{client}_messages_65535",
            "{client}_messages_1",
        ]
        assert server.cli("GET", "{client}_messages_65535") == "two\n"
        assert 604_700 < int(server.cli("TTL", "{client}_messages_1")) <= 604_800
        keys = set(server.cli("KEYS", "*").split())
        assert {key for key in keys if not key.startswith("{client}_messages")} == {
            "{client}_last_packet_id",
            "{client}_state",
            "{client}_marks",
            "stored_bytes",
        }
        assert server.cli("GET", "stored_bytes") == "12\n"


def test_counters_of_an_earlier_version_are_completed() -> None:
    """It wrote them without the bytes, and writes them so again if it takes over the client for a while."""
    device = DeviceSettings(bytes_limit=1_000)
    with own_redis() as server:

        async def test() -> None:
            async with opened(RedisDeviceStore(RedisSettings(addresses=server.address), device)) as store:
                caller = Caller(store)
                await caller.add(CLIENT, bytes(400), bytes(400))
                cut = "redis.call('HSET', KEYS[1], 'n', string.sub(redis.call('HGET', KEYS[1], 'n'), 1, 34))"
                server.cli(
                    "EVAL", f"{cut} redis.call('SETRANGE', '{{client}}_messages_2', 549, 'x')", "1", "{client}_state"
                )
                server.cli("DEL", "stored_bytes")
                assert await caller.remove(CLIENT, 1) == 1
                assert (await caller.add(CLIENT, bytes(400))).trimmed == 0
                assert server.cli("GET", "stored_bytes") == "950\n"
                assert (await caller.add(CLIENT, bytes(100))).trimmed == 1
                assert server.cli("GET", "stored_bytes") == "500\n"
                # one that has been removed without being counted
                server.cli("ZREM", "{client}_messages", "{client}_messages_3")
                assert (await caller.add(CLIENT, bytes(800))).trimmed == 0
                assert server.cli("GET", "stored_bytes") == "900\n"

        run(test())


def test_the_bytes_of_all_clients_are_known() -> None:
    with own_redis() as server:

        async def test() -> None:
            async with opened(store_of(addresses=server.address)) as store:
                await Caller(store).add(CLIENT, bytes(400))
                await until(lambda: store.statistics.stored_bytes == 400)

        run(test())


def test_a_pubrel_keeps_its_time() -> None:
    """Defect 8 of the original."""
    with own_redis() as server:

        async def test() -> None:
            async with opened(store_of(addresses=server.address)) as store:
                caller = Caller(store)
                await caller.add(CLIENT, b"x")
                server.cli("PEXPIRE", "{client}_messages_1", "5000")
                await caller.release(CLIENT, 1)

        run(test())
        assert 0 < int(server.cli("PTTL", "{client}_messages_1")) <= 5000


def test_nothing_is_left_of_a_queue_that_is_forgotten() -> None:
    with own_redis() as server:

        async def test() -> None:
            async with opened(
                RedisDeviceStore(RedisSettings(addresses=server.address), DeviceSettings(messages_limit=3))
            ) as store:
                caller = Caller(store)
                group = group_queue("g", "t/#")
                for _ in range(10):
                    await caller.add(CLIENT, b"a", b"b")
                    await caller.add(group, b"a")
                await caller.move(group, CLIENT, 1)
                await result_of(store.remove_all, [CLIENT, group])

        run(test())
        assert server.cli("KEYS", "*").split() == []


def test_marks_are_bounded() -> None:
    with own_redis() as server:

        async def test() -> None:
            settings = RedisSettings(addresses=server.address)
            async with opened(RedisDeviceStore(settings, DeviceSettings(messages_limit=50))) as store:
                caller = Caller(store)
                first = caller.pack([b"first"])
                await caller.add_pack(CLIENT, first)
                for number in range(300):
                    added = await caller.add(CLIENT, b"x")
                    await caller.remove(CLIENT, *added.packet_ids)
                    if number == 49:
                        assert (await caller.add_pack(CLIENT, first)).packet_ids == [1]
                # Even when it is long ago, what is stored is not overwritten.
                assert (await caller.add_pack(CLIENT, first)).packet_ids != [1]
                assert len(await caller.all(CLIENT)) == 2

        run(test())
        marks = sum(int(server.cli("STRLEN", key)) // 16 for key in ("{client}_marks", "{client}_marks_old"))
        assert 50 <= marks <= 101
        assert int(server.cli("HLEN", "{client}_state")) == 2


def test_database_and_prefix() -> None:
    with own_redis() as server:

        async def test() -> None:
            async with opened(store_of(addresses=server.address, database=5, prefix="tb:")) as store:
                await Caller(store).add(CLIENT, b"a")

        run(test())
        assert server.cli("-n", "0", "DBSIZE") == "0\n"
        assert "tb:{client}_messages_1" in server.cli("-n", "5", "KEYS", "*").split()


def test_an_acl_user() -> None:
    with own_redis() as server:
        server.cli("ACL", "SETUSER", "penstock", "on", ">secret", "~tb:*", "+@all", "-@dangerous")
        server.cli("ACL", "SETUSER", "default", "off")
        settings = {"addresses": server.address, "username": "penstock", "prefix": "tb:"}

        async def test() -> None:
            async with opened(store_of(password="secret", **settings)) as store:
                assert (await Caller(store).add(CLIENT, b"a")).packet_ids == [1]
            refused = store_of(password="wrong", command_timeout=0.3, **settings)
            await refused.start()
            assert "redis.password" in str(refused.check())
            await refused.close()
            # A prefix the user has no right to.
            elsewhere = RedisSettings(addresses=server.address, username="penstock", password="secret", prefix="other:")
            async with opened(RedisDeviceStore(elsewhere, DeviceSettings())) as store:
                (result,) = await result_of(store.add, [Addition(CLIENT, Caller(store).pack([b"a"]))])
                assert isinstance(result, StoreError)
                assert "ACL" in str(result) or "NOPERM" in str(result)

        run(test())


def test_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    identity, ours = authority.issue("server"), authority.issue("penstock")
    options = ("--tls-cert-file", str(identity.certificate), "--tls-key-file", str(identity.key))
    with own_redis(*options, "--tls-ca-cert-file", str(authority.path), speaks_tls=True) as server:
        settings = {"addresses": server.address, "tls": True, "tls_ca": str(authority.path)}

        async def test() -> None:
            certificate = {"tls_certificate": str(ours.certificate), "tls_key": str(ours.key)}
            async with opened(store_of(**settings, **certificate)) as store:
                assert (await Caller(store).add(CLIENT, b"a", b"b")).packet_ids == [1, 2]
            # Redis asks for a certificate of ours, and we ask for one that we trust.
            for wrong in (settings, {**settings, **certificate, "tls_ca": ""}):
                store = store_of(**wrong, connect_timeout=1.0)
                await store.start()
                assert isinstance(store.check(), str)
                await store.close()

        run(test())


def test_files_for_tls_that_are_missing() -> None:
    with pytest.raises(SettingsError, match="tls_ca"):
        topology.make_tls(RedisSettings(tls=True, tls_ca="nowhere.pem"))
    assert topology.make_tls(RedisSettings()) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost", [Endpoint("localhost", 7000)]),
        ("a:1, b ,[::1]:2", [Endpoint("a", 1), Endpoint("b", 7000), Endpoint("::1", 2)]),
        ("[::1]", [Endpoint("::1", 7000)]),
    ],
)
def test_addresses(text: str, expected: list[Endpoint]) -> None:
    assert topology.parse_endpoints(RedisSettings(addresses=text, port=7000)) == expected


@pytest.mark.parametrize("text", [",", "a:b", "a:99999", "::1"])
def test_bad_addresses(text: str) -> None:
    with pytest.raises(SettingsError, match=r"redis\.addresses"):
        topology.parse_endpoints(RedisSettings(addresses=text))


def test_redirects() -> None:
    asked = Endpoint("10.0.0.1", 1)
    assert topology.parse_redirect("MOVED 3999 127.0.0.1:6381", asked) == Endpoint("127.0.0.1", 6381)
    assert topology.parse_redirect("ASK 3999 :6381", asked) == Endpoint("10.0.0.1", 6381)
    assert topology.parse_redirect("MOVED 3999 ::1:6381", asked) == Endpoint("::1", 6381)
    assert topology.master_of([b"", 7], asked) == Endpoint("10.0.0.1", 7)
    assert topology.master_of([None, 7], asked) == Endpoint("10.0.0.1", 7)


@pytest.mark.parametrize("name", ["client", "{", "a{b}c", "", "ss_x", "ü" * 100])
def test_every_key_of_a_queue_is_in_its_slot(name: str) -> None:
    cluster = shared_redis_cluster()
    for queue in (client_queue(name), group_queue(name, "a/{b}")):
        keys = KeyMaker("prefix:")(queue)
        for key in keys.all:
            assert int(cluster.servers[0].cli("CLUSTER", "KEYSLOT", key.decode())) == keys.slot


def test_names() -> None:
    assert client_queue("client") == "client"
    assert client_queue("a/b c_d-e.f") == "a/b c_d-e.f"
    assert client_queue("") == "%"
    assert client_queue("{a}%") == "%7Ba%7D%25"
    assert client_queue("ss_g_t") == "%73s_g_t"
    assert group_queue("g", "a/+") == "ss_g_a/+"
    assert group_queue("g_h", "a_b/{#}") == "ss_g%5Fh_a_b/%7B#%7D"


def test_scripts_are_known_by_their_hash() -> None:
    with own_redis() as server:
        for text in read_scripts().values():
            loaded = server.cli("SCRIPT", "LOAD", text.decode()).strip()
            assert loaded == hashlib.sha1(text).hexdigest()


def test_errors_say_what_to_do() -> None:
    full = errors.to_store_error("OOM command not allowed when used memory > 'maxmemory'.")
    assert isinstance(full, StoreFull)
    assert "maxmemory" in full.hint
    assert "redis.mode" in errors.to_store_error(hiredis.ReplyError("CROSSSLOT Keys in request")).hint
    assert errors.describe(TimeoutError()) == "no answer in time"
    assert "redis.password" in errors.describe(hiredis.ReplyError("NOAUTH Authentication required."))


def test_additions_that_wait_leave_together() -> None:
    """A queue with a command on its way gathers what comes: a few large commands, and answers for everybody."""
    with own_redis() as server:

        async def test() -> None:
            async with opened(store_of(addresses=server.address)) as store:
                caller = Caller(store)
                results: list[Any] = []
                done = asyncio.Event()

                def on_done(result: list[Any]) -> None:
                    results.append(result[0])
                    if len(results) == 2000:
                        done.set()

                before = store.statistics.commits
                for i in range(2000):
                    store.add([Addition(CLIENT, caller.pack([b"%d" % i]))], on_done)
                assert store.pending_bytes > 2000 * 30
                await done.wait()
                assert results == [Added([i + 1], 0) for i in range(2000)]
                assert store.statistics.commits - before < 10
                assert store.pending_bytes == 0

        run(test())


def test_a_wrong_key_of_a_record_harms_nobody_else() -> None:
    with own_redis() as server:

        async def test() -> None:
            async with opened(store_of(addresses=server.address)) as store:
                caller = Caller(store)
                pack = caller.pack([b"good"])
                pack.append(b"bad", b"short")
                batch = [Addition(CLIENT, pack), Addition(Queue("other"), caller.pack([b"x"]))]
                bad, good = await result_of(store.add, batch)
                assert isinstance(bad, StoreError)
                assert good == Added([1], 0)
                assert await caller.values(CLIENT) == []

        run(test())


def test_two_nodes_store_for_one_client() -> None:
    """Packet ids are given by Redis, so nodes that know nothing of each other do not clash."""
    with own_redis() as server:

        async def test() -> None:
            async with (
                opened(store_of(addresses=server.address)) as one,
                opened(store_of(addresses=server.address)) as two,
            ):
                callers = Caller(one), Caller(two, 1_000_000)

                async def add(caller: Caller, name: bytes) -> list[int]:
                    ids = []
                    for i in range(200):
                        ids += (await caller.add(CLIENT, *[b"%b %d" % (name, i)] * (1 + i % 2))).packet_ids
                    return ids

                first, second = await asyncio.gather(add(callers[0], b"one"), add(callers[1], b"two"))
                assert sorted(first + second) == list(range(1, 601))
                assert first == sorted(first)
                assert len(await callers[0].all(CLIENT)) == 600
                # One's answer is not the other's business, however often it is given.
                reserved = await asyncio.gather(*(callers[i % 2].reserve(CLIENT, 10) for i in range(10)))
                assert sorted(i for ids in reserved for i in ids) == list(range(601, 701))

        run(test())


def test_the_commands_of_an_iteration_leave_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One write for all of them, however many clients they are for."""
    writes: list[int] = []
    flush = RedisConnection._flush

    def counted(connection: RedisConnection) -> None:
        writes.append(1)
        flush(connection)

    monkeypatch.setattr(RedisConnection, "_flush", counted)
    with own_redis() as server:

        async def test() -> None:
            async with opened(store_of(addresses=server.address)) as store:
                await result_of(store.describe, CLIENT)
                writes.clear()
                queues = [client_queue(f"c{number}") for number in range(200)]
                states = await asyncio.gather(*(result_of(store.describe, queue) for queue in queues))
                assert len(states) == 200
                assert len(writes) == 1

        run(test())
