"""Do `penstock app` and the metrics say what is true of APPLICATION clients, and do what they are told?"""

import pytest

from tests.support.brokers.broker import IS_MOSQUITTO
from tests.support.clients.packets import V5
from tests.support.worlds.application import topic_of, until

pytestmark = pytest.mark.skipif(IS_MOSQUITTO, reason="the commands are Penstock's own")


def test_list_and_show(broker, open_app, backlog, app_id, topic):
    backlog(V5, 4)
    broker.await_records(topic_of(app_id), 4)
    entry = broker.command_json("app", "show", app_id)
    assert entry["client_id"] == app_id
    assert entry["topic"] == topic_of(app_id)
    assert entry["connected"] is False
    assert (entry["lag"], entry["end_offset"] - entry["committed_offset"]) == (4, 4)
    client = open_app(V5)
    client.expect_payloads([b"0", b"1", b"2", b"3"], ack=False)
    entry = broker.application(app_id)
    assert entry["connected"] is True
    assert entry["in_flight"] == 4
    assert app_id in {one["client_id"] for one in broker.command_json("app", "list")}
    assert app_id in broker.command("app", "list")
    assert topic_of(app_id) in broker.command("app", "show", app_id)


def test_lag(broker, open_app, backlog, app_id):
    payloads = backlog(V5, 3)
    assert app_id in broker.command("app", "lag")
    until(lambda: broker.application(app_id)["lag"] == 3, 60, "a lag of 3")
    open_app(V5).expect_payloads(payloads)
    until(lambda: broker.application(app_id)["lag"] == 0, 60, "no lag")


@pytest.mark.parametrize(("place", "left"), [("end", 0), ("begin", 5), ("-2", 2)])
def test_reset(*, broker, open_app, backlog, app_id, place, left):
    """Moves the offset of a client that is not connected."""
    payloads = backlog(V5, 5)
    client = open_app(V5)
    client.expect_payloads(payloads[:5])
    client.ping()
    client.disconnect()
    until(lambda: broker.application(app_id)["lag"] == 0, 60, "everything committed")
    broker.command("app", "reset", app_id, f"--to={place}", options=["--yes"])
    client = open_app(V5)
    client.expect_payloads(payloads[5 - left :] if left else [], dup=None)
    client.expect_nothing(0.1)


def test_reset_drops_a_backlog(*, broker, open_app, backlog, publisher, topic, app_id):
    backlog(V5, 5)
    broker.await_records(topic_of(app_id), 5)
    broker.command("app", "reset", app_id, "--to=end", options=["--yes"])
    publisher.publish(topic, b"next", qos=1)
    client = open_app(V5)
    client.expect_publish(topic, b"next", dup=False, ack=True)
    client.expect_nothing(0.1)


def test_delete(broker, open_app, backlog, app_id):
    backlog(V5, 5)
    broker.command("app", "delete", app_id, options=["--yes"])
    broker.await_topic(topic_of(app_id), exists=False)
    assert app_id not in {one["client_id"] for one in broker.command_json("app", "list")}
    client = open_app(V5)
    assert not client.connack.session_present
    client.expect_nothing(0.1)


@pytest.mark.parametrize("words", [("show",), ("reset", "--to=end"), ("delete",)])
def test_unknown_clients(broker, words):
    options = ["--yes"] if words[0] != "show" else []
    complaint = broker.command("app", words[0], "nobody", *words[1:], options=options, fails=1)
    assert "nobody" in complaint
    assert "Traceback" not in complaint


def test_metrics(broker, open_app, backlog, app_id):
    """Lag, in flight, retries and expired of a client."""
    backlog(V5, 3)
    broker.await_records(topic_of(app_id), 3)

    def lines():
        return [line for line in broker.metrics().splitlines() if f'client="{app_id}"' in line]

    for word in ("lag", "in_flight", "retries", "expired"):
        assert any(word in line.partition("{")[0] for line in lines()), (word, lines())
    until(lambda: [line for line in lines() if "client_lag" in line and line.endswith(" 3.0")], 60, "a lag of 3")
