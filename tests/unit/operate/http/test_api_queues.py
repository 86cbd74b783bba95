"""Durable queues over HTTP: every command with its token, names in paths, refusals in words."""

from __future__ import annotations

import http.client
import json
from urllib.parse import quote

import pytest

from tests.support.clients.admin_api import TOKEN, serving
from tests.support.worlds.application import until
from tests.support.worlds.queues import open_queue_client, running_queue_broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with running_queue_broker(tmp_path_factory.mktemp("queues"), settings={"admin.token": TOKEN}) as running:
        yield running


@pytest.fixture
def ask(broker):
    def request(method, path, body=None, token=TOKEN):
        connection = http.client.HTTPConnection("127.0.0.1", broker.admin_port, timeout=60)
        sent = None if body is None else json.dumps(body)
        connection.request(method, f"/api/v1{path}", sent, {"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        document = json.loads(response.read())
        connection.close()
        return response.status, document

    return request


@pytest.fixture
def orders(broker, ask):
    """Three messages, one of them with w1."""
    assert ask("POST", "/queues", {"name": "orders"})[0] == 200
    assert ask("POST", "/queues", {"name": "other"})[0] == 200
    client = open_queue_client(broker, "w1")
    for number in range(3):
        client.publish(f"$queue/orders/k/{number}", b"%d" % number)
    client.consume("$queue/orders", "workers", prefetch=1)
    client.take(b"0")
    yield
    client.close()
    for name in ("orders", "other"):
        ask("DELETE", f"/queues/{name}")


STEADY = ("name", "type", "durable", "paused", "origin", "tail", "group_count", "consumers", "refused", "topic")

COMMANDS = [
    ("GET", "/queues", None),
    ("POST", "/queues", {"name": "new"}),
    ("GET", "/queues/orders", None),
    ("PATCH", "/queues/orders", {"limits.max_depth": 7}),
    ("POST", "/queues/orders/pause", {}),
    ("POST", "/queues/orders/resume", {}),
    ("GET", "/queues/orders/messages", None),
    ("POST", "/queues/orders/messages", {"payload": "x"}),
    ("POST", "/queues/orders/ack", {"group": "workers", "offsets": [0]}),
    ("POST", "/queues/orders/nack", {"group": "workers", "offsets": [0]}),
    ("POST", "/queues/orders/reject", {"group": "workers", "offsets": [0]}),
    ("POST", "/queues/orders/claim", {"group": "workers", "offsets": [0]}),
    ("POST", "/queues/orders/truncate", {"before": 1}),
    ("POST", "/queues/orders/move", {"to": "other"}),
    ("POST", "/queues/orders/replay", {}),
    ("GET", "/queues/orders/groups", None),
    ("GET", "/queues/orders/pending?group=workers", None),
    ("POST", "/queues/orders/seek", {"group": "workers", "to": "first"}),
    ("POST", "/queues/orders/purge", {}),
    ("DELETE", "/queues/orders", None),
]


def test_each_command_needs_the_token_and_works_with_it(ask, orders):
    def look():
        """What only commands change: retention and the consumer move the rest at any time."""
        return [{name: queue[name] for name in STEADY} for queue in ask("GET", "/queues")[1]["queues"]]

    for method, path, body in COMMANDS:
        before = look()
        for token in ("another-token-of-its-length", ""):
            assert ask(method, path, body, token)[0] == 401
        assert look() == before
        status, answer = ask(method, path, body)
        assert status == 200, (method, path, answer)


def test_a_queue_is_made_changed_and_deleted(ask):
    status, entry = ask("POST", "/queues", {"name": "made", "type": "stream", "retention": {"max_age": "2h"}})
    assert (status, entry["type"], entry["definition"]["retention"]["max_age"]) == (200, "stream", 7200.0)
    assert ask("PATCH", "/queues/made", {"limits": {"max_message_size": "1KiB"}})[1]["definition"]["limits"] == {
        "max_message_size": 1024,
        "max_depth": 100_000,
        "message_ttl": 604_800.0,
    }
    assert ask("DELETE", "/queues/made?if_empty=1&if_unused=1")[0] == 200
    assert ask("GET", "/queues/made")[0] == 404


def test_the_deepest_is_found_among_many(ask, orders):
    assert ask("POST", "/queues", {"name": "empty"})[0] == 200
    every = ask("GET", "/queues")[1]["queues"]
    status, answer = ask("GET", "/queues?order=depth&limit=1")
    assert status == 200
    assert [queue["depth"] for queue in answer["queues"]] == [max(queue["depth"] for queue in every)]


def test_names_of_all_kinds_are_reached(ask):
    for name in ("$dlq/orders", "messages", "ü %?", "purge", "a.b_c"):
        assert ask("POST", "/queues", {"name": name})[0] == 200
        path = "/queues/" + "/".join(quote(level, safe="") for level in name.split("/"))
        assert ask("GET", path)[1]["name"] == name
        assert ask("GET", f"{path}/messages")[1]["queue"] == name
        assert ask("POST", f"{path}/messages", {"payload": name})[1]["message_id"] == f"{name}:0"
        assert ask("GET", f"{path}/messages")[1]["messages"][0]["payload"] == name
    assert ask("GET", "/queues/$dlq/messages")[1]["error"] == "there is no queue '$dlq/messages'"
    assert ask("GET", "/queues/%24dlq%2Forders")[1]["name"] == "$dlq/orders"


def test_messages_are_seen_appended_and_moved(ask, orders):
    status, answer = ask("GET", "/queues/orders/messages?from=1&limit=1")
    assert (status, answer["messages"][0]["payload"], answer["truncated"]) == (200, "1", True)
    assert ask("GET", "/queues/orders/messages?group=workers")[1]["messages"][0]["offset"] == 1
    status, answer = ask("POST", "/queues/orders/messages", {"key": "k/3", "payload": "y" * 100_000})
    assert (status, answer["message_id"]) == (200, "orders:3")
    status, answer = ask("POST", "/queues/orders/move", {"to": "other", "count": 2, "filter": "k/+"})
    assert (status, answer["moved"], answer["left"]) == (200, 2, 2)
    assert [each["payload"] for each in ask("GET", "/queues/other/messages")[1]["messages"]] == ["0", "1"]


def test_groups_are_seen_moved_and_deleted(ask, orders):
    (group,) = ask("GET", "/queues/orders/groups")[1]["groups"]
    (member,) = group["members"]
    assert (member["client_id"], member["prefetch"], member["unsettled"]) == ("w1", 1, 1)
    (entry,) = ask("GET", "/queues/orders/pending?group=workers&limit=5")[1]["entries"]
    assert (entry["offset"], entry["consumer"], entry["deliveries"]) == (0, "w1", 1)
    assert 0 < entry["due_in"] <= 30
    assert ask("POST", "/queues/orders/seek", {"group": "workers", "to": 2})[1]["cursor"] == 2
    assert ask("DELETE", "/queues/orders/groups?group=workers")[0] == 409
    assert ask("POST", "/sessions/w1/kick")[0] == 200
    until(lambda: ask("GET", "/queues/orders/groups")[1]["groups"][0]["consumers"] == 0, 60, "the consumer is gone")
    assert ask("DELETE", "/queues/orders/groups?group=workers")[0] == 200
    assert ask("GET", "/queues/orders/groups")[1]["groups"] == []


REFUSALS = [
    ("GET", "/queues/nobody", None, 404, "there is no queue 'nobody'"),
    ("GET", "/queues?limit=0", None, 400, "limit is a number from 1"),
    ("GET", "/queues?offset=-1", None, 400, "offset is an offset"),
    ("GET", "/queues?page=1", None, 400, "'page' is not known"),
    ("POST", "/queues", {"name": "orders", "type": "stream"}, 409, "with other settings"),
    ("POST", "/queues", {"name": "a/b"}, 400, "use one topic level"),
    ("POST", "/queues", {"nmae": "a"}, 400, "'nmae' is no setting of a queue"),
    ("PATCH", "/queues/orders", {"type": "stream"}, 400, "cannot become stream"),
    ("PATCH", "/queues/orders", {"limits.max_depth": -1}, 400, "max_depth = -1 is not allowed"),
    ("DELETE", "/queues/orders?if_empty=yes", None, 400, "if_empty is 0 or 1"),
    ("DELETE", "/queues/orders?if_empty=1", None, 409, "3 messages wait"),
    ("GET", "/queues/orders/messages?from=x", None, 400, "from is an offset"),
    ("GET", "/queues/orders/messages?bytes=0", None, 400, "bytes is a number"),
    ("POST", "/queues/orders/messages", {"topic": "x"}, 400, "'topic' is nothing a message has"),
    ("POST", "/queues/orders/move", {}, 400, "to is missing"),
    ("POST", "/queues/orders/move", {"to": "other", "count": 0}, 400, "count is a number from 1"),
    ("POST", "/queues/orders/move", {"to": "other", "filter": 1}, 400, "filter is not a text"),
    ("POST", "/queues/orders/move", {"to": "other", "all": 1}, 400, "'all' is not known"),
    ("POST", "/queues/orders/move", {"to": "orders"}, 400, "moved to itself"),
    ("GET", "/queues/orders/pending", None, 400, "group is missing"),
    ("GET", "/queues?order=age", None, 400, "order is name or depth, not 'age'"),
    ("POST", "/queues/orders/ack", {"group": "workers"}, 400, "offsets is a list of offsets"),
    ("POST", "/queues/orders/ack", {"group": "workers", "offsets": []}, 400, "offsets is a list of offsets"),
    ("POST", "/queues/orders/nack", {"group": "workers", "offsets": [-1]}, 400, "offsets is a list of offsets"),
    ("POST", "/queues/orders/claim", {"group": "workers", "offsets": ["0"]}, 400, "offsets is a list of offsets"),
    ("POST", "/queues/orders/reject", {"offsets": [0]}, 400, "group is missing"),
    ("POST", "/queues/orders/reject", {"group": "nobody", "offsets": [0]}, 404, "has no group 'nobody'"),
    ("POST", "/queues/orders/truncate", {"before": True}, 400, "before is an offset"),
    ("POST", "/queues/orders/truncate", {"before": 4}, 400, "ends at offset 3"),
    ("POST", "/queues/orders/seek", {"group": "workers", "to": "first"}, 409, "unsettled deliveries up to offset 0"),
    ("POST", "/queues/orders/seek", {"group": "workers", "to": "soon"}, 400, "no position in a queue"),
    ("POST", "/queues/orders/seek", {"group": "workers", "to": True}, 400, "to is missing"),
    ("POST", "/queues/orders/seek", {"group": "nobody", "to": "first"}, 404, "has no group 'nobody'"),
    ("GET", "/queues/a/b", None, 404, "is not a path"),
]


def test_a_refusal_says_why(ask, orders):
    for method, path, body, status, words in REFUSALS:
        found, answer = ask(method, path, body)
        assert (found, words in answer["error"]) == (status, True), (method, path, answer)


def test_a_broker_without_a_log_has_no_queues(tmp_path):
    with serving(tmp_path, None, TOKEN) as server:
        connection = http.client.HTTPConnection(server.address, timeout=60)
        connection.request("GET", "/api/v1/queues", headers={"Authorization": f"Bearer {TOKEN}"})
        response = connection.getresponse()
        assert response.status == 409
        assert "keeps no log" in json.loads(response.read())["error"]
