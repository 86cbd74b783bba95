"""Addresses of Redis and Kafka where somebody else listens: doctor says in a line who, and what to do; a broker that
was started with them says it in its log, and goes on when the right one is there."""

import asyncio
import json
import re

import pytest

from penstock.settings.redis import DeviceSettings, RedisSettings
from penstock.subscribers.device.store.redis.store import RedisDeviceStore
from tests.support.brokers.broker import free_port
from tests.support.clients.strangers import stranger
from tests.support.servers.certificates import Authority
from tests.support.servers.redis_server import RedisServer

WRONG_PLACE = "names another service"
REDIS = [
    ("http", "is not Redis: it sent b'HTTP/1.1 400 Bad Request", WRONG_PLACE),
    ("mail", "is not Redis: it sent b'220 mail.example ESMTP", WRONG_PLACE),
    ("number", "is not Redis: it sent 5", WRONG_PLACE),
    ("hangs", "no answer in time", "does another service listen there"),
    ("closes", "closed the connection without an answer", "does Redis listen there"),
]
KAFKA = [
    ("http", "is not Kafka: it sent b'HTTP'", WRONG_PLACE),
    ("mail", "is not Kafka: it sent b'220 '", WRONG_PLACE),
    ("hangs", "cannot be reached: no answer", "does another service listen there"),
    ("closes", "closes connections without an answer", "does Kafka listen there"),
]


def look(cli, *settings):
    """The line about the problem, and the one of advice below."""
    words = [word for each in ("admin.address=", *settings) for word in ("--set", each)]
    code, out, err = cli.run("doctor", "--port", free_port(), "--quiet", *words)
    assert (code, err) == (1, "")
    found = re.search(r"PROBLEM ((?:redis|kafka): .*)\n {8}(.*)", out.decode())
    assert found, out.decode()
    return found[1], found[2]


@pytest.mark.parametrize(("kind", "said", "advice"), REDIS)
def test_redis_is_somebody_else(kind, said, advice, cli):
    for mode in ("standalone", "sentinel", "cluster"):
        with stranger(kind) as port:
            what, to_do = look(
                cli,
                "device.store=redis",
                "redis.connect_timeout=1",
                f"redis.mode={mode}",
                f"redis.addresses=127.0.0.1:{port}",
            )
        assert f"127.0.0.1:{port} ({mode}): " in what
        assert said in what
        assert advice in to_do


def test_redis_that_answers_a_word_to_everything(cli):
    with stranger("word") as port:
        address = f"127.0.0.1:{port}"
        given = ["--set", "admin.address=", "--set", "device.store=redis", "--set", f"redis.addresses={address}"]
        _, out, err = cli.run("doctor", "--port", free_port(), *given)
        assert f"warning redis {address}: it does not tell its version" in out.decode()
        assert err == ""
        for mode in ("sentinel", "cluster"):
            what, to_do = look(cli, "device.store=redis", f"redis.mode={mode}", f"redis.addresses={address}")
            assert "is not Redis: it sent b'OK'" in what
            assert WRONG_PLACE in to_do


def test_redis_is_the_mqtt_port_or_nobody(cli, broker):
    what, _ = look(cli, "device.store=redis", f"redis.addresses=127.0.0.1:{broker.open}")
    assert "no answer in time" in what  # it waits for the rest of what could be a packet
    what, to_do = look(cli, "device.store=redis", f"redis.addresses=127.0.0.1:{free_port()}")
    assert what.endswith("(standalone): connection refused")
    assert to_do.startswith("is it running")


@pytest.fixture(scope="module")
def redis():
    server = RedisServer().start()
    yield server
    server.stop()


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        (("redis.tls=true",), "does that port speak TLS"),
        (("redis.mode=cluster",), 'redis.mode = "standalone"'),
        (("redis.mode=sentinel",), "it is not a Sentinel"),
        (("redis.password=secret",), "remove redis.password"),
    ],
)
def test_redis_is_of_another_kind(settings, advice, cli, redis):
    common = ("device.store=redis", "redis.connect_timeout=2", f"redis.addresses={redis.address}")
    assert advice in look(cli, *common, *settings)[1]


def test_redis_wants_tls(cli, tmp_path):
    authority = Authority(tmp_path)
    identity = authority.issue("localhost")
    files = ["--tls-cert-file", identity.certificate, "--tls-key-file", identity.key, "--tls-auth-clients", "no"]
    server = RedisServer(*map(str, files), "--tls-ca-cert-file", str(authority.path), speaks_tls=True).start()
    try:
        what, advice = look(cli, "device.store=redis", f"redis.addresses={server.address}")
        assert "closed the connection without an answer" in what
        assert "set redis.tls = true" in advice
        _, advice = look(cli, "device.store=redis", f"redis.addresses={server.address}", "redis.tls=true")
        assert "did redis.tls_ca sign for it?" in advice
    finally:
        server.stop()


@pytest.mark.parametrize(("kind", "said", "advice"), KAFKA)
def test_kafka_is_somebody_else(kind, said, advice, cli):
    with stranger(kind) as port:
        what, to_do = look(cli, "log.provider=kafka", f"kafka.bootstrap_servers=127.0.0.1:{port}")
    assert said in what
    assert advice in to_do


def test_kafka_is_the_mqtt_port_or_nobody_or_has_no_name(cli, broker):
    what, _ = look(cli, "log.provider=kafka", f"kafka.bootstrap_servers=127.0.0.1:{broker.open}")
    assert f"127.0.0.1:{broker.open} cannot be reached: it closes connections without an answer" in what
    port = free_port()
    what, to_do = look(cli, "log.provider=kafka", f"kafka.bootstrap_servers=127.0.0.1:{port}")
    assert what.startswith(f"kafka: Kafka at 127.0.0.1:{port} cannot be reached: ")
    assert what.endswith(f"Connect to ipv4#127.0.0.1:{port} failed: Connection refused")
    assert to_do.startswith("is it running")
    what, _ = look(cli, "log.provider=kafka", "kafka.bootstrap_servers=nobody.invalid:9092")
    assert "Failed to resolve 'nobody.invalid:9092'" in what


def test_what_is_found_is_told_at_once_while_a_server_does_not_answer(cli):
    with stranger("hangs") as port:
        words = ["device.store=redis", "redis.connect_timeout=60", f"redis.addresses=127.0.0.1:{port}"]
        given = [word for each in ("admin.address=", *words) for word in ("--set", each)]
        doctor = cli.start("doctor", "--port", free_port(), *given)
        try:
            told = b""
            while b"listener mqtt" not in told:
                line = doctor.stdout.readline()
                assert line, "it ended, or has waited"
                told += line
            assert doctor.poll() is None  # it still waits for Redis
        finally:
            doctor.kill()
            doctor.communicate()


@pytest.mark.parametrize("mode", ["standalone", "sentinel", "cluster"])
@pytest.mark.parametrize("kind", ["http", "number"])
def test_a_broker_says_it_in_its_log_and_goes_on(kind, mode, caplog):
    """The store reconnects when the right one listens there, whatever the stranger has answered."""

    async def run():
        with stranger(kind) as port:
            settings = RedisSettings(addresses=f"127.0.0.1:{port}", mode=mode, reconnect_delay_max=0.05)
            store = RedisDeviceStore(settings, DeviceSettings(store="redis"))
            await store.start()
            async with asyncio.timeout(60):
                while "Redis cannot be used" not in caplog.text:  # noqa: ASYNC110 - said in the background
                    await asyncio.sleep(0.01)
        assert "is not Redis" in str(store.check())
        server = None
        try:
            if mode == "standalone":
                server = RedisServer()
                server.port = port
                server.start()
                async with asyncio.timeout(60):
                    while store.check() is not True:  # noqa: ASYNC110 - it reconnects in the background
                        await asyncio.sleep(0.01)
        finally:
            await store.close()
            if server is not None:
                server.stop()

    asyncio.run(run())


def test_a_broker_says_that_its_kafka_is_none_and_where_to_learn_more(cli):
    expected = {"kafka is unavailable", "the log is not ready, publishes wait for it"}
    told = {}
    with stranger("http") as port:
        settings = ["log.provider=kafka", f"kafka.bootstrap_servers=127.0.0.1:{port}", "logging.format=json"]
        given = [word for each in settings for word in ("--set", each)]
        broker = cli.start("serve", "--port", free_port(), "--admin", "", *given)
        try:
            while expected - told.keys():
                line = broker.stderr.readline()
                assert line, f"it ended, and has told {told}"
                event = json.loads(line)
                told.setdefault(event["event"], event)
        finally:
            broker.kill()
            broker.communicate()
    assert "is not Kafka: it sent b'HTTP'" in told["kafka is unavailable"]["reason"]
    assert WRONG_PLACE in told["kafka is unavailable"]["advice"]
    assert told["the log is not ready, publishes wait for it"]["error"]
