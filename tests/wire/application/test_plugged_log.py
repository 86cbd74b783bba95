"""A broker on a log that is not in src/: `log.provider` names its factory, and everything else works as it does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.brokers.broker import IS_MOSQUITTO, REPOSITORY
from tests.support.clients.packets import V5

TOY = "tests.support.toys.sqlite_log:make_log"
PROVIDERS = [TOY]
pytestmark = pytest.mark.skipif(IS_MOSQUITTO, reason="mosquitto has no logs")


def test_messages_reach_an_application(open_app, publisher, topic):
    client = open_app(V5)
    client.subscribe(topic, qos=1)
    for number in range(10):
        publisher.publish(topic, b"%d" % number, qos=1)
        client.expect_publish(topic, b"%d" % number, qos=1, ack=True)
    client.disconnect()
    open_app(V5).expect_nothing()


def test_a_backlog_survives_a_kill(broker, connect, open_app, publisher, topic):
    client = open_app(V5)
    client.subscribe(topic, qos=1)
    client.disconnect()
    for number in range(10):
        publisher.publish(topic, b"%d" % number, qos=1)
    broker.kill()
    broker.restart()
    client = open_app(V5)
    assert client.connack.session_present
    client.expect_payloads([b"%d" % number for number in range(10)], topic=topic, qos=1)


@pytest.mark.parametrize(
    ("factory", "code", "message"),
    [
        (TOY, 0, f'log.provider = "{TOY}"'),
        ("tests.support.toys.sqlite_log:make_lag", 78, "cannot be loaded"),
        ("kafak", 78, '"embedded", "kafka", "memory" or "module:factory"'),
    ],
)
def test_check_config_loads_the_factory(tmp_path, factory, code, message):
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "check-config", "--set", f"log.provider={factory}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY / 'src'}{os.pathsep}{REPOSITORY}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert message in done.stdout + done.stderr
