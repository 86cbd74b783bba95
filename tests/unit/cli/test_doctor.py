"""`penstock doctor`: each thing that is wrong is found, said, and what to change with it; nothing is changed."""

import asyncio
import contextlib
import datetime
import json
import logging
import os
import pty
import re
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from penstock.__main__ import main
from penstock.operate.doctor import backends, storage
from penstock.operate.doctor.certificates import parse_certificates
from penstock.operate.doctor.network import find_holder
from penstock.operate.doctor.system import ClockWatch
from penstock.settings.kafka import KafkaSettings
from penstock.settings.redis import DeviceSettings, RedisSettings
from penstock.storage.log.kafka.inspect import KafkaReport, TopicReport
from penstock.storage.log.kafka.log import KafkaLog
from penstock.subscribers.device.store.redis import safety
from penstock.subscribers.device.store.redis.store import RedisDeviceStore
from tests.support.brokers.broker import free_port
from tests.support.servers.certificates import Authority
from tests.support.servers.kafka_fixtures import shared_cluster
from tests.support.servers.kafka_topics import forget_topics
from tests.support.servers.redis_server import RedisServer


def test_a_machine_that_is_fine_has_no_problems_and_nothing_is_left_behind(examine, tmp_path, capsys):
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    code, found = examine("--set", f"limits.max_connections={soft - 300}")
    assert code == 0
    assert not [state for _, state in found if state == "problem"]
    assert {area for area, _ in found} >= {"settings", "files", "memory", "disk", "listener mqtt", "admin", "clock"}
    assert any("fdatasync takes" in text for text in found["disk", "ok"])
    assert [path.name for path in tmp_path.iterdir()] == ["doctor.toml"]
    assert main(["doctor", "--config", "doctor.toml", "--quiet"]) == 0
    assert " 0 problems" in capsys.readouterr().out


def test_too_few_descriptors_and_strict(examine):
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    code, found = examine("--set", f"limits.max_connections={soft}")
    assert code == 0
    assert "LimitNOFILE=" in found["files", "warning"][0]
    assert examine("--set", f"limits.max_connections={soft}", "--strict")[0] == 1


def test_a_slow_disk(examine, monkeypatch):
    monkeypatch.setattr(storage, "SLOW", 0.0)
    assert "log.fsync = interval" in examine()[1]["disk", "warning"][0]
    monkeypatch.setattr(storage, "VERY_SLOW", 0.0)
    code, found = examine()
    assert code == 1
    assert "every acknowledgement of QoS 1 and 2 waits for it" in found["disk", "problem"][0]


def test_ports_that_are_taken(examine):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        name = Path("/proc/self/comm").read_text().strip()
        assert find_holder(port) == (os.getpid(), name)
        code, found = examine("--listen", f"127.0.0.1:{port}")
        assert code == 1
        assert f"is in use by {name} (pid {os.getpid()})" in found["listener mqtt", "problem"][0]
    assert find_holder(port) is None
    with socket.create_server(("127.0.0.1", 0)) as taken:
        data = f'[data_subscription]\naddress = "127.0.0.1:{taken.getsockname()[1]}"\n'
        assert "is in use by" in examine(settings=data)[1]["listener data", "problem"][0]
        assert ("listener data", "problem") not in examine("--set", "ingest.log=none", settings=data)[1]
    code, found = examine("--listen", "192.0.2.1:1883", "--set", "access.anonymous=allow")
    assert "is it an address of this machine?" in found["listener mqtt", "problem"][0]


def test_what_the_network_can_see(examine, tmp_path):
    (tmp_path / "passwords").write_text("")
    (tmp_path / "passwords").chmod(0o600)
    _, found = examine(
        settings=f'[[listeners]]\naddress = "0.0.0.0:{free_port()}"\nanonymous = "allow"\n'
        '[access]\npassword_file = "passwords"\n'
    )
    said = " ".join(found["listener mqtt", "warning"])
    assert "everybody who can reach it may connect" in said
    assert "in the clear" in said
    assert "every client may read and write every topic" in said
    assert "nobody can log in" in found["passwords", "warning"][0]


def test_settings_that_are_wrong_end_with_78_and_the_rest_is_still_looked_at(examine):
    code, found = examine(settings="[limits]\nwrite_low_watermark = '2MiB'")
    assert code == 78
    assert "write_low_watermark" in found["settings", "problem"][0]
    assert ("memory", "ok") in found or ("memory", "warning") in found
    assert examine("--set", "limits.nothing=1")[0] == 78


def test_password_and_acl_files(examine, tmp_path):
    (tmp_path / "passwords").write_text("alice:no hash\n")
    (tmp_path / "acl.toml").write_text("[[rules]]\neffect = 'perhaps'\n")
    code, found = examine(settings='[access]\npassword_file = "passwords"\nacl_file = "acl.toml"')
    assert code == 1
    assert ("passwords", "problem") in found
    assert "perhaps" in found["acl", "problem"][0]


def test_tls_files(examine, tmp_path):
    authority, other = Authority(tmp_path), Authority(tmp_path, "Other Authority")
    good, expired = authority.issue("broker"), authority.issue("old", expired=True)

    def look(certificate, key):
        tls = f'transport = "tls"\ncertificate = "{certificate}"\nkey = "{key}"\n'
        return examine(settings=f'[[listeners]]\naddress = "127.0.0.1:{free_port()}"\n{tls}')

    code, found = look(good.certificate, good.key)
    said = " ".join(found["tls mqtt", "warning"])
    assert code == 0
    assert "broker expires in" in said
    assert "append the intermediate certificates" in said
    assert "may read the key" in said
    code, found = look(expired.certificate, expired.key)
    assert code == 1
    assert "old expired on" in found["tls mqtt", "problem"][0]
    code, found = look(good.certificate, expired.key)
    assert code == 78
    assert "key values mismatch" in found["tls mqtt", "problem"][0]
    chain = tmp_path / "chain.pem"
    chain.write_bytes(good.certificate.read_bytes() + other.path.read_bytes())
    code, found = look(chain, good.key)
    assert "Other Authority did not issue broker" in found["tls mqtt", "problem"][0]
    chain.write_bytes(good.certificate.read_bytes() + authority.path.read_bytes())
    code, found = look(chain, good.key)
    assert "did not issue" not in str(found)
    good.key.chmod(0)
    if os.geteuid():
        assert ("tls mqtt", "problem") in look(good.certificate, good.key)[1]


def test_certificates_are_read_as_by_a_library(tmp_path):
    authority = Authority(tmp_path)
    pem = authority.issue("größe").certificate.read_bytes() + authority.path.read_bytes()
    ours, theirs = parse_certificates(pem), x509.load_pem_x509_certificates(pem)
    assert len(ours) == 2
    for one, known in zip(ours, theirs, strict=True):
        assert (one.not_before, one.not_after) == (known.not_valid_before_utc, known.not_valid_after_utc)
        assert one.name == known.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value
    assert ours[0].issuer == ours[1].subject
    assert ours[0].not_after > datetime.datetime.now(datetime.UTC)
    with pytest.raises(ValueError, match="certificate 1 cannot be read"):
        parse_certificates(b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n")


def test_file_systems_and_a_directory_that_cannot_be_written(examine, tmp_path):
    assert storage.find_file_system(Path("/proc/self")) == "proc"
    if storage.find_file_system(Path("/dev/shm")) == "tmpfs":
        _, found = examine("--data-dir", "/dev/shm")
        assert "it is in memory and gone with the machine" in str(found["disk", "warning"])
    (tmp_path / "file").touch()
    code, found = examine("--data-dir", str(tmp_path / "file" / "data"))
    assert code == 1
    assert "cannot be written" in found["disk", "problem"][0]


def test_a_clock_that_jumps(monkeypatch):
    watch = ClockWatch()
    real = __import__("time").time()
    monkeypatch.setattr("penstock.operate.doctor.system.time.time", lambda: real + 3600)
    assert any("the clock jumped by +3" in finding.what for finding in watch.check())


def redis_settings(server):
    return ["--set", "device.store=redis", "--set", f"redis.addresses={server.address}"]


def test_a_redis_that_evicts_and_does_not_append_is_named_by_doctor_and_at_the_start(examine, caplog):
    server = RedisServer("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru").start()

    async def start_store():
        store = RedisDeviceStore(RedisSettings(addresses=server.address), DeviceSettings(store="redis"))
        await store.start()
        await store.close()

    try:
        code, found = examine(*redis_settings(server))
        assert code == 1
        said = " ".join(found[f"redis {server.address}", "problem"])
        assert "maxmemory-policy is allkeys-lru (maxmemory: 100.00M)" in said
        assert "CONFIG SET maxmemory-policy noeviction" in said
        assert "CONFIG SET appendonly yes" in said
        with caplog.at_level(logging.WARNING, "penstock"):
            asyncio.run(start_store())
        told = [record for record in caplog.records if "can lose acknowledged messages" in record.getMessage()]
        assert len(told) == 2

        # What the advice says helps.
        server.cli("CONFIG", "SET", "maxmemory-policy", "noeviction")
        server.cli("CONFIG", "SET", "appendonly", "yes")
        code, found = examine(*redis_settings(server))
        assert code == 0
        assert "appendfsync is everysec" in found[f"redis {server.address}", "warning"][0]
        server.cli("CONFIG", "SET", "appendfsync", "always")
        code, found = examine(*redis_settings(server))
        assert "append-only file on" in str(found[f"redis {server.address}", "ok"])
        caplog.clear()
        with caplog.at_level(logging.WARNING, "penstock"):
            asyncio.run(start_store())
        assert "can lose" not in caplog.text
    finally:
        server.stop()
    code, found = examine(*redis_settings(server))
    assert code == 1
    assert "is it running" in found["redis", "problem"][0]


def test_what_else_info_tells():
    assert safety.find_weaknesses({}) == []
    assert safety.find_weaknesses({"aof_enabled": "1", "maxmemory_policy": "noeviction"}) == []
    (failing,) = safety.find_weaknesses({"aof_enabled": "1", "aof_last_write_status": "err"})
    assert "cannot be written" in failing.what
    (evicting,) = safety.find_weaknesses({"maxmemory_policy": "volatile-ttl", "maxmemory": "0"})
    assert "not set now" in evicting.what
    assert safety.version_of({"redis_version": "7.2.4"}) == (7, 2)
    assert safety.is_nearly_full({"maxmemory": "100", "used_memory": "81"})


def test_a_kafka_of_one_broker_is_named_by_doctor_and_at_the_start(examine, caplog):
    servers = shared_cluster(1).bootstrap

    async def start_log():
        log = KafkaLog(KafkaSettings(bootstrap_servers=servers))
        await log.start()
        async with asyncio.timeout(60):
            while "this Kafka can lose acknowledged records" not in caplog.text:  # noqa: ASYNC110 - said in the background
                await asyncio.sleep(0.05)
        await log.close()

    with caplog.at_level(logging.WARNING, "penstock"):
        asyncio.run(start_log())
    arguments = ["--set", "log.provider=kafka", "--set", f"kafka.bootstrap_servers={servers}"]
    code, found = examine(*arguments)
    assert code == 1
    assert "1 broker: acknowledged messages are lost" in found["kafka", "problem"][0]
    assert "kafka.replication_factor = 3" in found["kafka", "problem"][0]


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        (("security.protocol=ssl", "ssl.ca.location=/nope.pem"), "ssl.ca.location failed"),
        (("nonsense=1",), 'No such configuration property: "nonsense"'),
        (("security.protocol=sasl_ssl",), "SASL mechanism"),
    ],
    ids=["a file that is not there", "unknown", "incomplete"],
)
@pytest.mark.parametrize("command", ["doctor", "check-config", "serve"])
def test_properties_that_librdkafka_does_not_take_are_named_by_all(command, properties, said, examine, capsys):
    """One clear line, 78, and nobody is asked."""
    arguments = ["--set", "log.provider=kafka", "--set", f"kafka.bootstrap_servers=127.0.0.1:{free_port()}"]
    for each in properties:
        arguments += ["--set", f"kafka.common.{each}"]
    if command == "doctor":
        code, found = examine(*arguments)
        assert said in found["settings", "problem"][0]
        assert said in found["kafka", "problem"][0]
        assert "librdkafka/blob/master/CONFIGURATION.md" in found["kafka", "problem"][0]
    else:
        code = main([command, *arguments, "--port", str(free_port())])
        shown = capsys.readouterr().err
        assert said in shown
        assert shown.startswith("penstock: kafka: ")
        assert "Traceback" not in shown
    assert code == 78


def test_files_that_are_shown_to_kafka_and_redis(examine, tmp_path):
    authority = Authority(tmp_path)
    mine, other = authority.issue("broker"), authority.issue("other")
    for identity in (mine, other):
        identity.key.chmod(0o600)

    def look_at_kafka(ca, certificate, key, protocol="SSL"):
        properties = {"security.protocol": protocol, "ssl.ca.location": ca}
        properties |= {"ssl.certificate.location": certificate, "ssl.key.location": key}
        common = [word for name, value in properties.items() for word in ("--set", f"kafka.common.{name}={value}")]
        servers = f"kafka.bootstrap_servers=127.0.0.1:{free_port()}"
        return examine("--set", "log.provider=kafka", "--set", servers, *common)[1]

    def look_at_redis(ca, certificate, key):
        files = {"tls": "true", "tls_ca": ca, "tls_certificate": certificate, "tls_key": key}
        given = [word for name, value in files.items() for word in ("--set", f"redis.{name}={value}")]
        return examine("--set", "device.store=redis", "--set", f"redis.addresses=127.0.0.1:{free_port()}", *given)[1]

    for area, look in (("tls kafka", look_at_kafka), ("tls redis", look_at_redis)):
        found = look(authority.path, mine.certificate, mine.key)
        assert (area, "problem") not in found
        assert "broker expires in" in " ".join(found[area, "warning"])
        assert "may read the key" not in str(found)
        (said,) = look(authority.path, mine.certificate, other.key)[area, "problem"]
        assert "are not a certificate with its key: key values mismatch" in said
        (said,) = look(authority.path, mine.certificate, "/nope.key")[area, "problem"]
        assert said.startswith("/nope.key: No such file or directory")
        said = look("/nope.pem", mine.certificate, mine.key)[area, "problem"][0]
        assert said.startswith("/nope.pem: No such file or directory")
        mine.key.chmod(0o644)
        assert "may read the key" in str(look(authority.path, mine.certificate, mine.key)[area, "warning"])
        mine.key.chmod(0o600)
        assert "a key without a certificate" in str(look(authority.path, "", mine.key)[area, "warning"])
    assert ("tls kafka", "problem") not in look_at_kafka("/nope.pem", "", "", "plaintext")


def test_what_is_not_safe_is_in_the_log_of_a_broker_that_starts(cli):
    """An evicting Redis and a Kafka of one broker, and `penstock serve` as it is."""
    kafka = shared_cluster(1)
    forget_topics(kafka.bootstrap)
    redis = RedisServer("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru").start()
    settings = ["log.provider=kafka", f"kafka.bootstrap_servers={kafka.bootstrap}", "logging.format=json"]
    settings += ["device.store=redis", f"redis.addresses={redis.address}"]
    given = [word for each in settings for word in ("--set", each)]
    broker = cli.start("serve", "--port", free_port(), "--admin", "", *given)
    expected = {
        "this Kafka can lose acknowledged records when a broker dies",
        "this Redis can lose acknowledged messages",
    }
    told = {}
    try:
        while expected - told.keys() or "maxmemory-policy" not in str(told):
            line = broker.stderr.readline()
            assert line, f"it ended, and has told {told}"
            event = json.loads(line)
            told.setdefault(event["event"], []).append(event)
    finally:
        broker.kill()
        broker.communicate()
        redis.stop()
    kafka_said = told["this Kafka can lose acknowledged records when a broker dies"][0]
    assert (kafka_said["level"], kafka_said["brokers"]) == ("warning", 1)
    assert "kafka.replication_factor = 3" in kafka_said["advice"]
    redis_said = told["this Redis can lose acknowledged messages"]
    assert {event["level"] for event in redis_said} == {"warning"}
    assert "allkeys-lru" in str(redis_said)


def test_topics_of_kafka():
    def topic(name, *, copies=3, in_sync=3, min_in_sync=2, retention_ms=1000, is_compacted=False):
        return TopicReport(name, 1, copies, in_sync, min_in_sync, retention_ms, is_compacted)

    def look(*topics):
        return {(finding.state, finding.what) for finding in backends.check_topics(KafkaReport(3, list(topics), 0))}

    assert [state for state, _ in look()] == ["ok"]
    assert [state for state, _ in look(topic("a"), topic("b", retention_ms=-1, is_compacted=True))] == ["ok"]
    assert ("problem", "copies are missing or behind: a") in look(topic("a", in_sync=2))
    (weak,) = look(topic("a", min_in_sync=1), topic("b"))
    assert weak[1].startswith("1 of 2 topics can lose acknowledged messages: a (replication.factor 3, min.insync.rep")
    assert ("warning", "retention.ms is for ever, and nothing compacts: a") in look(topic("a", retention_ms=-1))


def test_a_broker_that_runs_is_known(examine, tmp_path, cli):
    port, admin = free_port(), free_port()
    places = ["--port", port, "--data-dir", tmp_path / "data"]
    broker = cli.start("serve", *places, "--admin", f"127.0.0.1:{admin}")
    try:
        while b"Try it" not in broker.stdout.readline():
            assert broker.poll() is None
        code, out, err = cli.run("doctor", *places, "--set", f"admin.address=127.0.0.1:{admin}")
        assert code in (0, 1), err  # 1: its disk is slow
        assert f"127.0.0.1:{port} is in use by the broker that runs here (pid {broker.pid})" in out.decode()
        assert "of the running broker" in out.decode()
    finally:
        broker.kill()
        broker.communicate()


def test_no_word_is_cut_on_a_terminal(tmp_path):
    ours, theirs = pty.openpty()
    words = ["doctor", "--port", str(free_port()), "--set", "limits.max_connections=1000000", "--set", "admin.address="]
    environment = {**os.environ, "COLUMNS": "60"}
    command = [sys.executable, "-m", "penstock", *words]
    process = subprocess.Popen(command, stdout=theirs, cwd=tmp_path, env=environment)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while data := os.read(ours, 65_536):
            shown += data
    os.close(ours)
    process.wait()
    lines = re.sub(r"\x1b\[[\d;]*m", "", shown.decode()).splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("warning files: "))
    following = next(number for number in range(first + 1, len(lines)) if not lines[number].startswith(" " * 8))
    assert following - first > 2
    assert max(map(len, lines[first:following])) <= 60
    text = " ".join(line[8:] for line in lines[first:following])
    assert "connections, limits.max_connections is 1,000,000 LimitNOFILE=1048576 in the unit" in text


def test_a_broker_on_kafka_that_runs_is_known(cli, tmp_path):
    """It has no log in its data directory that would say so."""
    kafka = shared_cluster(1)
    forget_topics(kafka.bootstrap)
    port, admin = free_port(), free_port()
    settings = [f"kafka.bootstrap_servers={kafka.bootstrap}", "log.provider=kafka", f"admin.address=127.0.0.1:{admin}"]
    places = ["--port", port, "--data-dir", tmp_path / "data"]
    places += [word for each in settings for word in ("--set", each)]
    broker = cli.start("serve", *places)
    try:
        while b"Try it" not in broker.stdout.readline():
            assert broker.poll() is None
        _, out, err = cli.run("doctor", *places)
        assert err == ""
        assert f"ok      broker: one runs on {tmp_path / 'data'} (pid {broker.pid})" in out.decode()
        assert out.decode().count(f"is in use by the broker that runs here (pid {broker.pid})") == 2
    finally:
        broker.kill()
        broker.communicate()
    # what a killed one has left says nothing
    assert (tmp_path / "data" / "admin.address").exists()
    _, out, err = cli.run("doctor", *places)
    assert f"127.0.0.1:{port} is free" in out.decode()
    assert "one runs on" not in out.decode()


@pytest.mark.parametrize(
    "settings",
    [
        '[[listeners]]\naddress = "nowhere"\n',
        f'[[listeners]]\naddress = "{70 * "a"}.example:1883"\n',
    ],
)
def test_an_address_that_is_none_is_a_problem_of_the_settings(settings, examine):
    code, found = examine(settings=settings)
    assert code == 78
    assert found["settings", "problem"]
    assert found["disk", "ok"]  # the rest was looked at


def test_an_admin_address_that_is_none_is_a_problem_of_the_settings(examine):
    code, found = examine("--set", "admin.address=nowhere")
    assert code == 78
    assert "host:port" in found["admin", "problem"][0]


def test_an_address_of_redis_that_is_none(examine):
    code, found = examine(settings=f'[device]\nstore = "redis"\n[redis]\naddresses = "{70 * "a"}.example:6379"\n')
    assert code == 1
    assert "1 to 63 characters" in found["redis", "problem"][0]


def test_a_socket_whose_owner_accepts_nobody_does_not_keep_doctor_waiting(examine, tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.operate.doctor.network.ANSWER_SECONDS", 0.1)
    path = tmp_path / "socket"
    with contextlib.ExitStack() as stack:
        owner = stack.enter_context(socket.socket(socket.AF_UNIX))
        owner.bind(str(path))
        owner.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                client = stack.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                client.connect(str(path))
        _, found = examine(settings=f'[[listeners]]\ntransport = "unix"\naddress = "{path}"\n')
        assert "does not accept" in found["listener mqtt", "problem"][0]


def test_a_file_system_that_is_read_only(examine, tmp_path, monkeypatch):
    known = os.statvfs(tmp_path)
    fields = (*known[:8], known.f_flag | os.ST_RDONLY, *known[9:])
    monkeypatch.setattr(os, "statvfs", lambda _path: os.statvfs_result(fields))
    code, found = examine()
    assert code == 1
    assert "is on a read-only file system | mount it read-write" in found["disk", "problem"][0]


@pytest.mark.parametrize(
    ("certificate", "key", "said"),
    [
        ("", "", "no certificate is named"),
        ("chain.pem", "locked.pem", "one of them is not a pem file, or the key has a pass phrase"),
        ("none.pem", "none.pem", "none.pem: No such file or directory"),
        ("chain.pem", "folder", "folder: Is a directory"),
    ],
)
def test_what_is_wrong_with_tls_files_is_said_in_words(certificate, key, said, examine, tmp_path):
    made = Authority(tmp_path).issue("localhost")
    (tmp_path / "chain.pem").write_bytes(Path(made.certificate).read_bytes())
    loaded = serialization.load_pem_private_key(Path(made.key).read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"secret")
    (tmp_path / "locked.pem").write_bytes(
        loaded.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
    )
    (tmp_path / "folder").mkdir()
    listener = f'[[listeners]]\naddress = "127.0.0.1:{free_port()}"\ntransport = "tls"\n'
    code, found = examine(settings=f'{listener}certificate = "{certificate}"\nkey = "{key}"\n')
    assert code == 78
    assert said in found["tls mqtt", "problem"][0]
    assert " or :" not in found["tls mqtt", "problem"][0]
