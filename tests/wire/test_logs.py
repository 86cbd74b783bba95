"""Are the logs of a running broker JSON, without secrets, and proof against what clients put in their names?"""

import json
import os
import pty
import subprocess
import sys

from tests.support.brokers.broker import REPOSITORY, free_port, open_tcp
from tests.support.clients.packets import V5, V311, Reason
from tests.support.clients.raw_client import RawClient

FORGED = 'a\n{"event": "forged"}\r\x1b[31mred\u2028"quoted"'


def test_json_when_it_is_not_a_terminal(start_file_broker, connect, version):
    """One object a line with time, level, logger and event; what clients are called cannot forge a line."""
    broker = start_file_broker()
    client = connect(version, FORGED, broker=broker)
    client.disconnect()
    broker.await_event("client disconnected")
    lines = [json.loads(line) for line in broker.log().splitlines() if line.startswith("{")]
    assert all({"time", "level", "logger", "event"} <= set(line) for line in lines)
    assert "forged" not in {line["event"] for line in lines}
    connected = broker.events("client connected")
    assert connected[-1]["client_id"] == FORGED
    assert connected[-1]["version"] == version
    assert "\x1b" not in broker.log()
    assert broker.log().isascii()


def test_no_secrets(start_file_broker, connect, open_client, password_file):
    """Passwords, right and wrong, and the payloads of messages are in no line, at the most talkative level."""
    access = {"anonymous": "deny", "password_file": str(password_file)}
    broker = start_file_broker({"access": access, "logging": {"level": "debug"}})
    client = connect(V311, broker=broker, username="alice", password=b"alice-secret")
    client.publish("topic", b"payload-of-a-message", qos=1)
    refused = open_client(V5, broker=broker)
    refused.send_connect("mallory", username="alice", password=b"guessed-password")
    refused.expect_refused_connect(Reason.BAD_CREDENTIALS)
    client.disconnect()
    broker.await_event("client disconnected")
    assert broker.events("client refused")
    log = broker.log()
    hashes = [line.partition(":")[2] for line in password_file.read_text().splitlines()]
    for secret in ("alice-secret", "guessed-password", "payload-of-a-message", *hashes):
        assert secret not in log


def test_key_value_on_a_terminal(tmp_path):
    """The same for people: key=value, unprintable characters escaped."""
    port, (controller, terminal) = free_port(), pty.openpty()
    command = [sys.executable, "-m", "penstock", "serve", "--listen", f"127.0.0.1:{port}", "--admin", ""]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "NO_COLOR": "1"}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=terminal, stderr=terminal)
    os.close(terminal)
    try:
        text = read_until(controller, b"listening address")
        client = RawClient(open_tcp(("127.0.0.1", port)), V311)
        client.connect(FORGED)
        client.disconnect()
        text += read_until(controller, b"client disconnected")
    finally:
        process.terminate()
        assert process.wait(30) == 0
        os.close(controller)
    lines = [line for line in text.replace("\r\n", "\n").split("\n") if "client connected" in line]
    assert len(lines) == 1
    assert 'client_id="a\\n{\\"event' in lines[0]
    assert "version=4" in lines[0]
    assert "\x1b" not in text


def read_until(descriptor, word):
    text = b""
    while word not in text and not (word == b"listening address" and b"penstock pub" in text):
        text += os.read(descriptor, 4096)
    return text.decode()
