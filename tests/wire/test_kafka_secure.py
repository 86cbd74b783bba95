"""Kafka as operators have it: SASL_SSL with SCRAM, and TLS with client certificates. Does everything work through it,
is what is wrong said in words that help, and are passwords shown to nobody?"""

import json
import os
import re
import signal
import sys
import urllib.error
import urllib.request

import pytest

from tests.support.brokers.broker import IS_MOSQUITTO, REPOSITORY, free_port
from tests.support.brokers.forked import popen, run
from tests.support.clients.packets import V5, PacketType, Reason, pack_publish
from tests.support.documents.pages import blocks_of, commands_of
from tests.support.servers.certificates import Authority
from tests.support.servers.kafka_secure import PASSWORD, SecureKafka
from tests.support.servers.kafka_topics import forget_topics
from tests.support.worlds.application import AppBroker, persistent, until

pytestmark = pytest.mark.skipif(IS_MOSQUITTO, reason="the log is Penstock's own")
WRONG = "opens-nothing"
# librdkafka's own lines about the configuration and the connections, and everything of ours.
LOUD = {"logging.level": "debug", "kafka.common.debug": "conf,security,broker"}
QUICK = {"kafka.delivery_timeout_ms": 1500}


@pytest.fixture(scope="module")
def kafka():
    cluster = SecureKafka().start()
    yield cluster
    cluster.stop()


@pytest.fixture
def start(kafka, tmp_path):
    """start(settings) is a broker on this Kafka, with no topics of the last one."""
    started = []

    def start_one(settings):
        forget_topics(kafka.bootstrap)
        broker = AppBroker(tmp_path, "kafka", settings, kafka)
        started.append(broker)
        broker.wait_until_listening()
        return broker

    yield start_one
    for broker in started:
        if broker.is_alive:
            broker.stop()


def settings_of(kafka, way, **changes):
    return kafka.sasl(**changes) if way == "sasl" else kafka.ssl(**changes)


def ask(settings, tmp_path, *words):
    """A command with these settings: (exit code, all that it prints)."""
    given = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    command = [sys.executable, "-m", "penstock", *words, *given]
    done = run(command, env=environment, cwd=tmp_path, timeout=60)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr


def readiness(broker):
    """(status, what is said)"""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{broker.admin_port}/readyz", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:  # it is not there yet
        return 0, str(error)


@pytest.mark.parametrize("way", ["sasl", "ssl"])
def test_everything_works_through_it(kafka, start, connect, tmp_path, way):
    settings = settings_of(kafka, way)
    broker = start(settings | LOUD)
    until(lambda: readiness(broker)[0] == 200, 60, lambda: readiness(broker)[1])
    application = connect(V5, "app1", broker=broker, **persistent(V5))
    application.subscribe("plant/#", qos=1)
    publisher = connect(V5, "sender", broker=broker)
    publisher.publish("plant/4", b"21.5", qos=1)
    application.expect_publish("plant/4", b"21.5", qos=1, ack=True)
    application.disconnect()
    publisher.publish("plant/4", b"21.7", qos=1)
    application = connect(V5, "app1", broker=broker, **persistent(V5))
    application.expect_publish("plant/4", b"21.7", qos=1, ack=True)

    code, shown = ask(settings, tmp_path, "log", "read", "tbmq.msg.all", "--json")
    assert code == 0
    assert [json.loads(line)["payload"] for line in shown.splitlines()] == ["21.5", "21.7"]
    assert "tbmq.msg.app.app1" in ask(settings, tmp_path, "log", "topics")[1]
    code, shown = ask(settings, tmp_path, "log", "lag", "msg-all-consumer-group-penstock", "--json")
    assert code == 0
    assert {row["topic"] for row in json.loads(shown)} == {"tbmq.msg.all"}
    code, examined = ask(settings, tmp_path, "doctor", "--json")
    findings = [one["what"] for one in json.loads(examined)["findings"] if one["area"] == "kafka"]
    assert "1 broker: acknowledged messages are lost with a disk" in findings
    assert any("topics can lose acknowledged messages" in what for what in findings)
    code, checked = ask(settings, tmp_path, "check-config", "--json")
    assert code == 0
    assert (
        json.loads(checked)["kafka.common"]["value"]["security.protocol"] == settings["kafka.common.security.protocol"]
    )
    broker.stop()
    assert "Client configuration" in broker.log(), "librdkafka did not say what it was told"
    for text in (examined, checked, broker.log()):
        assert PASSWORD not in text
    # The rights that the document names are enough.
    assert "AUTHORIZATION_FAILED" not in broker.log()


def test_a_wrong_password_is_named_and_mended_by_kafka_alone(kafka, start, connect, tmp_path):
    settings = kafka.sasl(sasl_password=WRONG)
    broker = start(settings | QUICK | LOUD)
    status, said = until(lambda: (found := readiness(broker))[0] and found, 60)
    assert status == 503
    for shown in (said, broker.log()):
        assert f"Kafka at {kafka.sasl_servers} refuses this client: SASL authentication error" in shown
        assert "set sasl.username, sasl.password and sasl.mechanism in kafka.common" in shown
    client = connect(V5, "sender", broker=broker)
    client.send_raw(pack_publish(V5, "t", b"refused", qos=1, packet_id=1))
    assert client.expect(PacketType.PUBACK, timeout=60).reason == Reason.QUOTA_EXCEEDED

    code, complaint = ask(settings, tmp_path, "log", "topics")
    assert code == 1
    assert complaint.startswith("penstock: the log cannot be used now: Kafka at")
    assert "refuses this client: SASL authentication error" in complaint
    assert "set sasl.username, sasl.password and sasl.mechanism in kafka.common" in complaint
    assert complaint.count("\n") == 1, complaint
    code, examined = ask(settings, tmp_path, "doctor")
    assert code == 1
    assert "refuses this client: SASL authentication error" in examined
    assert "set sasl.username, sasl.password and sasl.mechanism in kafka.common" in examined

    kafka.set_password(WRONG)
    try:
        until(lambda: readiness(broker)[0] == 200, 60, lambda: readiness(broker)[1])
        client.publish("t", b"taken", qos=1)
        assert broker.is_alive
        broker.stop()
    finally:
        kafka.set_password(PASSWORD)
    assert "kafka is available" in broker.log()
    for text in (said, complaint, examined, broker.log()):
        assert WRONG not in text


def wrong_authority(kafka, directory):
    return kafka.sasl(ssl_ca_location=str(Authority(directory, "somebody-else").path))


def no_certificate(kafka, directory):
    return kafka.ssl(ssl_certificate_location="", ssl_key_location="")


def certificate_of_a_stranger(kafka, directory):
    return kafka.ssl(kafka.certificates.stranger)


def no_tls(kafka, directory):
    return {"log.provider": "kafka", "kafka.bootstrap_servers": kafka.sasl_servers}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (wrong_authority, ("certificate verify failed", "set ssl.ca.location in kafka.common")),
        (no_certificate, ("alert", "set ssl.certificate.location and ssl.key.location in kafka.common")),
        (certificate_of_a_stranger, ("alert", "set ssl.certificate.location and ssl.key.location in kafka.common")),
        (no_tls, ("closes connections without an answer", "set security.protocol and sasl.*")),
    ],
)
def test_what_else_may_be_wrong_is_named(kafka, start, tmp_path, make, said):
    settings = make(kafka, tmp_path)
    what, advice = said
    for words in (("log", "topics"), ("doctor",)):
        code, complaint = ask(settings, tmp_path, *words)
        assert code == 1
        assert what in complaint
        assert advice in complaint
    if make is wrong_authority:
        broker = start(settings | QUICK)
        status, shown = until(lambda: (found := readiness(broker))[0] and found, 60)
        assert (status, advice in shown, advice in broker.log()) == (503, True, True), shown
        broker.assert_healthy()


def test_a_user_without_rights_is_told_where_they_are_named(kafka, tmp_path):
    """Kafka knows this certificate, and its ACL does not."""
    forget_topics(kafka.bootstrap)
    settings = kafka.ssl(kafka.certificates.new_server) | {"data_subscription.address": "127.0.0.1:0"}
    code, said = ask(settings, tmp_path, "serve", "--port", str(free_port()), "--admin", "")
    assert code == 1
    assert "create topic 'tbmq.msg.all': Kafka says TOPIC_AUTHORIZATION_FAILED" in said
    assert "docs/kafka-security.md names the rights" in said


def test_the_page_about_it(kafka, tmp_path):
    """Its files with the addresses of this Kafka, then its commands as they stand."""
    for name in ("kafka-tls.toml", "kafka-mtls.toml"):
        (text,) = (block.text for block in blocks_of("docs/kafka-security.md") if f"# {name}" in block.text)
        servers = kafka.sasl_servers if name == "kafka-tls.toml" else kafka.ssl_servers
        (tmp_path / name).write_text(re.sub(r'(?<=bootstrap_servers = ").*(?=")', servers, text))
    identity = kafka.certificates.client
    identity.key.chmod(0o600)
    files = {"kafka-ca.pem": kafka.certificates.ca.path, "penstock.pem": identity.certificate}
    for name, path in {**files, "penstock.key": identity.key}.items():
        (tmp_path / name).symlink_to(path)
    (tmp_path / "kafka-password").write_text(f"{PASSWORD}\n")
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    for command in commands_of(__file__):
        words = command.words
        if words[0] == "export":
            name, _, value = words[1].partition("=")
            environment[name] = value
            continue
        served = words[1] == "serve"
        ports = ["--port", str(free_port()), "--admin", "", "--set", "data_subscription.address=127.0.0.1:0"]
        line = [sys.executable, "-m", "penstock", *words[1:], *(ports if served else [])]
        with (tmp_path / "shown").open("w+") as shown:
            process = popen(line, env=environment, cwd=tmp_path, stdout=shown, stderr=shown)
            try:
                if served:
                    until(lambda: "sessions restored" in (tmp_path / "shown").read_text(), 60)
                    process.send_signal(signal.SIGTERM)
                code = process.wait(60)
            finally:
                process.kill()
        text = (tmp_path / "shown").read_text()
        # doctor finds that one broker is not enough, and that is all
        assert code == (1 if words[1] == "doctor" else 0), text
        assert "cannot be reached" not in text
        assert "refuses" not in text
        assert PASSWORD not in text
        if words[1] == "doctor":
            assert "1 broker: acknowledged messages are lost with a disk" in text
