"""Sessions and retained messages over HTTP: names in paths, questions in queries, refusals in words."""

from __future__ import annotations

import http.client
import json
from urllib.parse import quote

import pytest

from tests.support.clients.admin_api import TOKEN, SessionWorld, serving

ODD = ("a/b", "x/kick", "/", "ü %?#", "..", "a\n", "a\nb")


@pytest.fixture
def world():
    made = SessionWorld()
    for client_id in ("one", *ODD):
        made.open(client_id)
    for topic in ("t", "a/b", "/a//b/", "ü %?", ".."):
        made.hub.publish(topic, b"1", retain=True)
    return made


@pytest.fixture
def ask(tmp_path, world):
    with serving(tmp_path, None, TOKEN, world) as server:

        def request(method, path, token=TOKEN):
            connection = http.client.HTTPConnection(server.address, timeout=30)
            connection.request(method, f"/api/v1{path}", headers={"Authorization": f"Bearer {token}"})
            response = connection.getresponse()
            document = json.loads(response.read())
            connection.close()
            return response.status, document

        yield request


PATHS = [
    ("GET", "/sessions"),
    ("GET", "/sessions/one"),
    ("POST", "/sessions/one/kick"),
    ("DELETE", "/sessions/one"),
    ("GET", "/retained"),
    ("GET", "/retained/t"),
    ("DELETE", "/retained/t"),
]


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_nothing_without_the_token(ask, world, method, path):
    assert ask(method, path, token="another-token-of-its-length")[0] == 401
    assert world.registry.get("one") is not None
    assert world.hub.retained.get(b"t") is not None


def test_lists_take_a_filter_and_a_limit(ask):
    status, answer = ask("GET", "/sessions?filter=o*&limit=5")
    assert (status, [each["client_id"] for each in answer["sessions"]], answer["total"]) == (200, ["one"], 1 + len(ODD))
    assert ask("GET", "/sessions?limit=2")[1]["truncated"] is True
    status, answer = ask("GET", "/retained?filter=a%2F%2B")
    assert (status, [each["topic"] for each in answer["messages"]]) == (200, ["a/b"])


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/sessions?limit=0", "limit is a number from 1 to 10000, not '0'"),
        ("/sessions?limit=10001", "limit is a number"),
        ("/sessions?limit=-1", "limit is a number"),
        ("/sessions?limit=x", "limit is a number"),
        ("/sessions?limit=%C2%B2", "limit is a number"),
        ("/sessions?limit=" + "9" * 5_000, "limit is a number"),
        ("/sessions?client=one", "'client' is not known here"),
        ("/sessions?filter=" + "a" * 2_000, "the pattern is longer"),
        ("/retained?filter=a%23", "is not a topic filter"),
        ("/retained?filter=", "is not a topic filter"),
        ("/retained/t?bytes=0", "bytes is a number"),
    ],
)
def test_what_makes_no_sense(ask, path, words):
    status, answer = ask("GET", path)
    assert status == 400
    assert words in answer["error"]


@pytest.mark.parametrize("client_id", ODD)
def test_a_client_id_may_be_any_text(ask, world, client_id):
    path = f"/sessions/{quote(client_id, safe='')}"
    assert ask("GET", path)[1]["client_id"] == client_id
    status, answer = ask("POST", f"{path}/kick")
    assert (status, "is not connected" in answer["error"]) == (409, True)
    assert ask("DELETE", path)[0] == 200
    assert world.registry.get(client_id) is None
    assert ask("GET", path)[0] == 404


@pytest.mark.parametrize("topic", ["a/b", "/a//b/", "ü %?", ".."])
def test_a_topic_may_be_any_text(ask, world, topic):
    path = f"/retained/{quote(topic, safe='')}"
    assert ask("GET", path)[1]["topic"] == topic
    assert ask("DELETE", path)[1]["topic"] == topic
    assert world.hub.retained.get(topic.encode()) is None
    assert ask("GET", path)[0] == 404


def test_a_broker_without_them_has_no_such_paths(tmp_path):
    with serving(tmp_path, None, TOKEN) as server:
        connection = http.client.HTTPConnection(server.address, timeout=30)
        connection.request("GET", "/api/v1/sessions", headers={"Authorization": f"Bearer {TOKEN}"})
        assert connection.getresponse().status == 404
        connection.close()
