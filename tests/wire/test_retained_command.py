"""`penstock retained` against a broker: does it show what subscribers would get, and delete as a client would?"""

import json

from tests.support.brokers.broker import Listener
from tests.support.clients.packets import V5
from tests.support.clients.raw_client import RawClient
from tests.support.clients.streams import open_tcp


def connect(listener, client_id):
    client = RawClient(open_tcp(listener.host_and_port), V5)
    client.connect(client_id)
    return client


def test_list_get_and_delete(start_file_broker, penstock_command):
    listener = Listener("tcp")
    broker = start_file_broker({"admin": {"address": "127.0.0.1:0"}}, [listener])

    def retained(*arguments, check=True):
        done = penstock_command("retained", *arguments, "--config", str(broker.settings_path), "--json")
        assert (done.returncode == 0) == check, done.stderr
        return json.loads(done.stdout) if check else done.stderr

    publisher = connect(listener, "publisher")
    publisher.publish("home/lamp", b"on", qos=1, retain=True, properties={"message_expiry_interval": 600})
    publisher.publish("home/raw", b"\xff\xfe", qos=1, retain=True)
    listed = retained("list", "home/#")
    assert {each["topic"]: each["payload"] for each in listed["messages"]} == {"home/lamp": "on", "home/raw": "fffe"}
    assert listed["truncated"] is False
    assert retained("list", "home/#", "--limit", "1")["truncated"] is True
    shown = retained("get", "home/lamp")
    assert (shown["qos"], shown["payload"], shown["payload_encoding"]) == (1, "on", "text")
    assert shown["expires"] is not None

    observer = connect(listener, "observer")
    observer.subscribe("home/lamp", qos=0)
    observer.expect_publish("home/lamp", b"on")
    retained("delete", "home/lamp", "--yes")
    observer.expect_publish("home/lamp", b"")
    assert "nothing is retained" in retained("get", "home/lamp", check=False)
    assert [each["topic"] for each in retained("list", "home/#")["messages"]] == ["home/raw"]
    late = connect(listener, "late")
    late.subscribe("home/lamp", qos=0)
    late.expect_nothing()
    for client in (publisher, observer, late):
        client.disconnect()
