"""`penstock app` against a broker with a client that is away: does it show, move and delete what is kept for it?"""

import json

from tests.support.brokers.broker import Listener
from tests.support.clients.packets import V5
from tests.support.clients.raw_client import RawClient
from tests.support.clients.streams import open_tcp
from tests.support.worlds.application import until

FOREVER = {"session_expiry_interval": 3600}


def connect(listener, client_id, **options):
    client = RawClient(open_tcp(listener.host_and_port), V5)
    return client, client.connect(client_id, **options)


def test_show_reset_and_delete_a_client_that_is_away(start_file_broker, penstock_command):
    listener = Listener("tcp")
    broker = start_file_broker(
        {"access": {"anonymous_type": "application"}, "admin": {"address": "127.0.0.1:0"}}, [listener]
    )

    def app(*arguments, check=True):
        done = penstock_command("app", *arguments, "--config", str(broker.settings_path), "--json")
        assert (done.returncode == 0) == check, done.stderr
        return json.loads(done.stdout) if check else done.stderr

    away, _ = connect(listener, "away-1", properties=FOREVER)
    away.subscribe("jobs/#", qos=1)
    assert "is connected" in app("reset", "away-1", "--to", "end", "--yes", check=False)
    away.disconnect()
    publisher, _ = connect(listener, "publisher")
    for number in range(10):
        publisher.publish("jobs/a", b"%d" % number, qos=1)
    publisher.disconnect()
    until(lambda: app("show", "away-1")["lag"] == 10)  # dispatched, which a publisher does not wait for
    shown = app("show", "away-1")
    assert (shown["connected"], shown["lag"], shown["committed_offset"]) == (False, 10, 0)
    assert [entry["client_id"] for entry in app("list")] == ["away-1"]
    assert app("reset", "away-1", "--to", "-3", "--yes")["lag"] == 3
    away, _ = connect(listener, "away-1", clean_start=False, properties=FOREVER)
    away.expect_publish("jobs/a", b"7")
    away.close()
    assert app("delete", "away-1", "--yes")["client_id"] == "away-1"
    assert app("list") == []
    assert "there is no APPLICATION client 'away-1'" in app("show", "away-1", check=False)
    away, connack = connect(listener, "away-1", clean_start=False, properties=FOREVER)
    assert not connack.session_present
    away.disconnect()
