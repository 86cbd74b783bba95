"""Retained messages as an operator sees them: bounded lists, payloads as text or hexadecimal, nothing expired."""

from __future__ import annotations

import asyncio

import pytest

from penstock.core.errors import NotFoundError, UsageError
from penstock.core.payloads import show_payload
from penstock.operate.retained import RetainedControl, check_filter
from tests.support.clients.admin_api import SessionWorld

CONTENT_TYPE = b"\x03\x00\x04text"
CORRELATION = b"\x09\x00\x02\xff\x00"
USER = b"\x26\x00\x01k\x00\x01v"


@pytest.fixture
def world():
    made = SessionWorld()
    for topic, payload in (("a/1", b"one"), ("a/2", b"\xff\0"), ("b", b"x" * 100), ("$SYS/up", b"7")):
        made.hub.publish(topic, payload, qos=1, retain=True)
    return made


def listed(world, topic_filter="#", limit=100):
    answer = asyncio.run(world.retained.list(topic_filter, limit))
    return [entry["topic"] for entry in answer["messages"]], answer["total"], answer["truncated"]


def test_a_filter_chooses_and_a_limit_bounds(world):
    assert listed(world) == (["a/1", "a/2", "b"], 4, False)
    assert listed(world, "a/+") == (["a/1", "a/2"], 4, False)
    assert listed(world, "$SYS/#")[0] == ["$SYS/up"]
    assert listed(world, limit=3)[2] is False
    assert listed(world, limit=2) == (["a/1", "a/2"], 4, True)
    assert listed(world, "none/#") == ([], 4, False)


def test_an_entry(world):
    short, binary, long = asyncio.run(world.retained.list("#", 10))["messages"]
    assert short == {
        "topic": "a/1",
        "qos": 1,
        "size": 3,
        "payload": "one",
        "payload_encoding": "text",
        "payload_truncated": False,
        "expires": None,
    }
    assert (binary["payload"], binary["payload_encoding"]) == ("ff00", "hex")
    assert (long["payload"], long["size"], long["payload_truncated"]) == ("x" * 64, 100, True)


def test_one_with_its_properties(world):
    world.hub.publish("p", b"1234", retain=True, properties=CONTENT_TYPE + CORRELATION + USER)
    entry = asyncio.run(world.retained.get("p", 3))
    assert (entry["payload"], entry["size"], entry["payload_truncated"]) == ("123", 4, True)
    properties = entry["properties"]
    assert (properties["content_type"], properties["correlation_data"]) == ("text", "ff00")
    assert [tuple(pair) for pair in properties["user_properties"]] == [("k", "v")]


def test_what_has_expired_is_not_there(world):
    world.hub.publish("brief", b"1", retain=True, expiry=60)
    entry = asyncio.run(world.retained.get("brief", 10))
    assert entry["expires"].endswith("+00:00")
    later = RetainedControl(world.hub, clock=lambda: 4_000_000_000.0)
    assert "brief" not in [each["topic"] for each in asyncio.run(later.list("#", 10))["messages"]]
    with pytest.raises(NotFoundError):
        asyncio.run(later.get("brief", 10))


def test_delete_is_what_a_client_would_do(world):
    observer = world.open("observer")
    world.hub.trie.subscribe(observer, b"a/1", 0)
    assert asyncio.run(world.retained.delete("a/1"))["payload"] == "one"
    assert world.hub.retained.get(b"a/1") is None
    with pytest.raises(NotFoundError, match="nothing is retained"):
        asyncio.run(world.retained.delete("a/1"))


def test_a_filter_where_a_topic_is_needed_is_explained(world):
    with pytest.raises(NotFoundError) as caught:
        asyncio.run(world.retained.delete("a/#"))
    assert "This is a filter" in caught.value.hint


@pytest.mark.parametrize("topic_filter", ["", "a#", "a/#/b", "+a/b", "#/", "a\0b"])
def test_what_is_not_a_filter(world, topic_filter):
    with pytest.raises(UsageError):
        asyncio.run(world.retained.list(topic_filter, 10))


@pytest.mark.parametrize("topic_filter", ["#", "+", "/", "a/+/b/#", "/+", "$SYS/#"])
def test_what_is_a_filter(topic_filter):
    check_filter(topic_filter)


@pytest.mark.parametrize(
    ("payload", "is_cut", "expected"),
    [
        (b"", False, ("", "text")),
        ("Füße\n\t1".encode(), False, ("Füße\n\t1", "text")),
        (b"\x1b[31m", False, ("1b5b33316d", "hex")),
        (b"\x1c\x1d", False, ("1c1d", "hex")),
        (b"a\xc3", False, ("61c3", "hex")),
        (b"a\xc3", True, ("a", "text")),
        (b"\0\1", True, ("0001", "hex")),
    ],
)
def test_payloads(payload, is_cut, expected):
    assert show_payload(payload, is_cut=is_cut) == expected
