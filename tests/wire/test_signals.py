"""SIGTERM and the work in flight, /readyz meanwhile; SIGHUP and the settings that change live or need a restart."""

import signal
import time
import urllib.error
import urllib.request

import pytest

from tests.support.brokers.broker import Listener, free_port
from tests.support.clients.packets import V5, V311, PacketType, Reason
from tests.support.clients.raw_client import NothingCame


def get_status(url):
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def busy_broker(start_file_broker, connect, version, *, drain_seconds, topic, admin=""):
    """A broker with a subscriber that has one message it has not acknowledged."""
    broker = start_file_broker({"server": {"drain_seconds": drain_seconds}, "admin": {"address": admin}})
    subscriber, publisher = connect(version, broker=broker), connect(version, broker=broker)
    subscriber.subscribe(topic, qos=1)
    publisher.publish(topic, b"work", qos=1)
    publish = subscriber.expect_publish(topic, b"work", qos=1)
    return broker, subscriber, publish


def test_late_acknowledgement_is_waited_for(start_file_broker, connect, open_client, version, topic):
    """The issue: in-flight work is finished within the limit; meanwhile nobody new comes in, but /readyz is 503."""
    admin = f"127.0.0.1:{free_port()}"
    broker, subscriber, publish = busy_broker(
        start_file_broker, connect, version, drain_seconds=60, topic=topic, admin=admin
    )
    assert get_status(f"http://{admin}/readyz") == 200
    broker.process.send_signal(signal.SIGTERM)
    broker.await_event("draining")
    with pytest.raises(NothingCame):
        subscriber.receive(0.3)
    assert get_status(f"http://{admin}/readyz") == 503
    assert get_status(f"http://{admin}/healthz") == 200
    with pytest.raises(OSError, match="refused"):
        open_client(V5, broker=broker)
    assert broker.is_alive
    started = time.monotonic()
    subscriber.ack(publish)
    subscriber.expect_disconnect(Reason.SERVER_SHUTTING_DOWN)
    assert broker.process.wait(30) == 0
    assert time.monotonic() - started < 30


def test_queue_behind_the_work_in_flight_is_delivered_too(start_file_broker, connect, topic):
    """Also what waits for the receive maximum of the client."""
    broker = start_file_broker({"server": {"drain_seconds": 60}})
    subscriber = connect(V5, broker=broker, properties={"receive_maximum": 1})
    subscriber.subscribe(topic, qos=2)
    publisher = connect(V5, broker=broker)
    payloads = [b"%d" % number for number in range(5)]
    for number, payload in enumerate(payloads):
        publisher.publish(topic, payload, qos=1 + number % 2)
    broker.process.send_signal(signal.SIGTERM)
    broker.await_event("draining")
    subscriber.expect_payloads(payloads)
    subscriber.expect_disconnect(Reason.SERVER_SHUTTING_DOWN)
    assert broker.process.wait(30) == 0


def test_publisher_finishes_its_qos_2(start_file_broker, connect, topic):
    """A PUBREL under way is answered with PUBCOMP before the end."""
    broker = start_file_broker({"server": {"drain_seconds": 60}})
    publisher = connect(V5, broker=broker)
    publisher.send_publish(topic, b"x", qos=2, packet_id=1)
    publisher.expect(PacketType.PUBREC)
    broker.process.send_signal(signal.SIGTERM)
    broker.await_event("draining")
    publisher.send_ack(PacketType.PUBREL, 1)
    publisher.expect(PacketType.PUBCOMP, packet_id=1)
    publisher.expect_disconnect(Reason.SERVER_SHUTTING_DOWN)
    assert broker.process.wait(30) == 0


def test_client_that_never_acknowledges_is_cut_at_the_limit(start_file_broker, connect, version, topic):
    """server.drain_seconds"""
    broker, subscriber, _ = busy_broker(start_file_broker, connect, version, drain_seconds=1, topic=topic)
    started = time.monotonic()
    broker.process.send_signal(signal.SIGTERM)
    subscriber.expect_disconnect(Reason.SERVER_SHUTTING_DOWN)
    assert broker.process.wait(30) == 0
    assert 0.8 < time.monotonic() - started < 20


def test_second_sigterm_and_sigint_do_no_harm(start_file_broker, connect, topic):
    """Impatient supervisors send it again."""
    broker, subscriber, publish = busy_broker(start_file_broker, connect, V311, drain_seconds=60, topic=topic)
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGHUP):
        broker.process.send_signal(number)
        broker.await_event("draining")
    subscriber.ack(publish)
    subscriber.expect_closed()
    assert broker.process.wait(30) == 0


def test_sigint_ends_it_as_well(start_file_broker, connect):
    broker = start_file_broker()
    client = connect(V5, broker=broker)
    broker.process.send_signal(signal.SIGINT)
    client.expect_disconnect(Reason.SERVER_SHUTTING_DOWN)
    assert broker.process.wait(30) == 0


def test_unix_socket_file_is_removed(start_broker):
    listener = Listener("unix")
    broker = start_broker(listeners=[listener])
    assert broker.terminate() == 0
    assert not (broker.directory / "0.sock").exists()


def test_limits_change_live(start_file_broker, connect):
    """SIGHUP: the log tells what changed and what needs a restart."""
    broker = start_file_broker({"limits": {"max_subscriptions": 1}})
    client = connect(V5, broker=broker)
    assert client.subscribe("a", "b") == [0, Reason.QUOTA_EXCEEDED]
    broker.write_settings(
        limits={"max_subscriptions": 3, "receive_maximum": 7, "match_cache": 5}, mqtt={"maximum_qos": 1}
    )
    event = broker.reload()
    assert {"limits.max_subscriptions", "limits.receive_maximum"} == set(event["changed"])
    assert {"limits.match_cache", "mqtt.maximum_qos"} == set(event["needs_restart"])
    assert client.subscribe("b", "c", "d") == [0, 0, Reason.QUOTA_EXCEEDED]
    newcomer = connect(V5, broker=broker)
    assert newcomer.connack.properties["receive_maximum"] == 7
    assert "maximum_qos" not in newcomer.connack.properties
    assert newcomer.subscribe("a", qos=2) == [2]


BAD_SETTINGS = {
    "unknown key": ("[limits]\nmax_subscription = 5\n", "max_subscription"),
    "bad value": ('[limits]\nmax_subscriptions = "many"\n', "max_subscriptions"),
    "no TOML": ("[limits\n", "penstock.toml"),
}


@pytest.mark.parametrize(("text", "named"), BAD_SETTINGS.values(), ids=BAD_SETTINGS.keys())
def test_bad_settings_keep_the_old(start_file_broker, connect, text, named):
    """The log names the file and the key; clients notice nothing."""
    broker = start_file_broker({"limits": {"max_subscriptions": 1}})
    client = connect(V5, broker=broker)
    broker.settings_path.write_text(text)
    event = broker.reload(refused=True)
    assert event["level"] == "error"
    assert named in event["error"]
    assert str(broker.settings_path) in event["error"]
    assert client.subscribe("a", "b") == [0, Reason.QUOTA_EXCEEDED]
    broker.write_settings(limits={"max_subscriptions": 2})
    broker.reload()
    assert client.subscribe("b") == [0]


def test_log_level_changes_live(start_file_broker, connect):
    broker = start_file_broker({"logging": {"level": "info"}})
    connect(V5, "loud", broker=broker).disconnect()
    broker.write_settings(logging={"level": "warning"})
    start = broker.log_size()
    broker.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + 30
    while True:  # it tells of the change in the new level only, so clients have to try
        quiet_from = broker.log_size()
        connect(V5, "quiet", broker=broker).disconnect()
        if not is_told("client connected", broker, quiet_from):
            break
        assert time.monotonic() < deadline, broker.log(start)


def is_told(event, broker, start):
    """Within a time that is long for a line, which may wait 10 ms for others."""
    deadline = time.monotonic() + 1
    while not (told := broker.events(event, start)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(told)


def test_check_config_before_a_reload(start_file_broker, penstock_command):
    """`penstock check-config` prints each setting and where it came from, and finds what SIGHUP would refuse."""
    broker = start_file_broker({"limits": {"max_subscriptions": 3}})
    path = str(broker.settings_path)
    good = penstock_command("check-config", "--config", path, "--set", "limits.max_inflight=9")
    assert good.returncode == 0, good.stderr
    lines = dict(line.split(" = ", 1) for line in good.stdout.splitlines())
    assert lines["limits.max_subscriptions"] == f"3\t# file {path}"
    assert lines["limits.max_inflight"] == "9\t# flag --set"
    assert lines["limits.connect_rate"] == "0\t# default"
    broker.settings_path.write_text("[limits]\nmax_subscriptions = 0\n")
    bad = penstock_command("check-config", "--config", path)
    assert bad.returncode == 78
    assert path in bad.stderr
    assert "max_subscriptions" in bad.stderr
