"""`penstock session` against a broker with clients: does it show them, disconnect them, and end their sessions?"""

import json
import time
import urllib.request

from tests.support.brokers.broker import Listener
from tests.support.clients.packets import V5, Reason
from tests.support.clients.raw_client import RawClient
from tests.support.clients.streams import open_tcp

SECONDS = 30
FOREVER = {"session_expiry_interval": 3600}


def connect(listener, client_id, **options):
    client = RawClient(open_tcp(listener.host_and_port), V5)
    return client, client.connect(client_id, **options)


def read_metrics(broker):
    address = (broker.settings_path.parent / "data" / "admin.address").read_text().strip()
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=SECONDS) as answer:
        return answer.read().decode()


def wait_until(is_so):
    end = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_list_show_kick_and_delete(start_file_broker, penstock_command):
    listener = Listener("tcp")
    broker = start_file_broker({"admin": {"address": "127.0.0.1:0"}}, [listener])

    def session(*arguments, check=True):
        done = penstock_command("session", *arguments, "--config", str(broker.settings_path), "--json")
        assert (done.returncode == 0) == check, done.stderr
        return json.loads(done.stdout) if check else done.stderr

    pump, _ = connect(listener, "pump-1", properties=FOREVER)
    pump.subscribe("jobs/#", qos=1)
    publisher, _ = connect(listener, "publisher")
    publisher.publish("jobs/1", b"first", qos=1)
    pump.expect_publish("jobs/1", b"first")
    listed = session("list")
    assert {each["client_id"]: each["connected"] for each in listed["sessions"]} == {"pump-1": True, "publisher": True}
    shown = session("show", "pump-1")
    assert (shown["version"], shown["session_expiry"], shown["in_flight"]) == ("5.0", 3600, 1)
    assert shown["peer"].startswith("127.0.0.1:")
    assert [(each["filter"], each["qos"]) for each in shown["filters"]] == [("jobs/#", 1)]

    session("kick", "pump-1", "--yes")
    pump.expect_disconnect(Reason.ADMINISTRATIVE_ACTION)
    pump.close()
    shown = session("show", "pump-1")
    assert (shown["connected"], shown["subscriptions"], shown["delivery"]) == (False, 1, "backlog")
    assert shown["disconnected"] is not None
    assert "is not connected" in session("kick", "pump-1", "--yes", check=False)

    publisher.publish("jobs/2", b"second", qos=1)
    wait_until(lambda: [each["stored"] for each in session("list", "pump-*")["sessions"]] == [2])
    wait_until(lambda: "penstock_device_stored_messages 2.0" in read_metrics(broker))
    pump, connack = connect(listener, "pump-1", clean_start=False, properties=FOREVER)
    assert connack.session_present
    pump.expect_publish("jobs/1", b"first", dup=True)
    pump.expect_publish("jobs/2", b"second")

    session("delete", "pump-1", "--yes")
    pump.expect_disconnect(Reason.ADMINISTRATIVE_ACTION)
    pump.close()
    assert "there is no session of the client 'pump-1'" in session("show", "pump-1", check=False)
    assert [each["client_id"] for each in session("list", "p*")["sessions"]] == ["publisher"]
    pump, connack = connect(listener, "pump-1", clean_start=False, properties=FOREVER)
    assert not connack.session_present
    pump.expect_nothing()
    pump.disconnect()
    publisher.disconnect()
