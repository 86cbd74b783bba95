"""Publishes that nobody waits for are written together; what is waited for is not held back by that."""

import time

import pytest

from tests.support.brokers.broker import IS_MOSQUITTO
from tests.support.clients.packets import V5
from tests.support.worlds.application import until

pytestmark = pytest.mark.skipif(IS_MOSQUITTO, reason="the log is Penstock's own")

LONG = {"log.linger_ms": 1000, "log.ack_linger_ms": 1000}


def test_an_acknowledged_publish_survives_a_kill_while_qos_0_lingers(start_log_broker, connect):
    """kill -9 loses at most the QoS 0 messages of the last log.linger_ms, and of those only the ones behind the last
    acknowledged publish."""
    broker = start_log_broker(LONG)
    client = connect(V5, broker=broker)
    client.publish("t", b"before", qos=0)
    client.publish("t", b"acknowledged", qos=1)
    client.publish("t", b"lingers", qos=0)
    client.ping()
    broker.kill()
    broker.restart()
    payloads = broker.logged_payloads()
    assert payloads[:2] == [b"before", b"acknowledged"]
    assert payloads[2:] in ([], [b"lingers"])


def test_qos_0_is_in_the_log_soon(start_log_broker, connect):
    broker = start_log_broker()
    client = connect(V5, broker=broker)
    for number in range(100):
        client.publish("t", b"%d" % number, qos=0)
    until(lambda: len(broker.logged()) == 100, 30)
    assert broker.logged_payloads() == [b"%d" % number for number in range(100)]


def test_what_lingers_is_written_when_the_broker_stops(start_log_broker, connect):
    broker = start_log_broker(LONG)
    client = connect(V5, broker=broker)
    client.publish("t", b"last", qos=0)
    client.ping()
    broker.stop()
    assert broker.logged_payloads() == [b"last"]


@pytest.mark.parametrize("client_type", ["device", "application"])
def test_a_persistent_subscriber_does_not_wait_for_company(start_log_broker, connect, tmp_path, client_type):
    """It gets a message when that is durable: such a message is written at once."""
    acl = tmp_path / "acl.toml"
    rule = '[[rules]]\neffect = "allow"\ntopics = ["#"]\n'
    acl.write_text(f'{rule}[[types]]\ntype = "{client_type}"\nclients = ["reader"]\n')
    broker = start_log_broker({**LONG, "access.acl_file": str(acl)})
    settings = {"clean_start": False, "properties": {"session_expiry_interval": 3600}}
    subscriber = connect(V5, "reader", broker=broker, **settings)
    subscriber.subscribe("kept/#", qos=1)
    publishers = [connect(V5, f"p{number}", broker=broker) for number in range(20)]
    began = time.monotonic()
    for number, publisher in enumerate(publishers):
        publisher.publish("kept/x", b"%d" % number, qos=1)
        subscriber.expect_publish("kept/x", b"%d" % number, qos=1)
    assert time.monotonic() - began < 10  # each would wait for a second
