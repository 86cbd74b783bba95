"""Records of the log as a person sees them."""

from __future__ import annotations

import struct
from datetime import datetime
from uuid import UUID

import msgspec
import pytest

from penstock._ext.application.context import write_context
from penstock._ext.hub.connection import Hub, Session
from penstock._ext.record.segment import RecordPack
from penstock.ingest.received import ReceivedIds
from penstock.operate.inspect.decoders import describe_own, find_decoder, render_own
from penstock.operate.inspect.records import describe, render
from penstock.services.messages import QueueMessage, encode_message, request_headers, stamped
from penstock.sessions.records import FORM, SessionRecord, WillRecord, encode_subscriptions
from penstock.settings import Settings
from penstock.settings.services import ServiceSettings
from penstock.subscribers.application.contexts import make_key
from penstock_schema.event import Event, EventKind, encode_event
from tests.support.worlds.lanes import StepLoop

NOW_MS = 1_700_000_000_123
REQUEST = UUID("784f394c-42b6-435a-983c-b7beff2784f9")


def test_headers_of_queue_messages_are_readable():
    pack = RecordPack()
    message = QueueMessage("key", b"{}", request_headers(REQUEST, "js_eval.responses.re-1", NOW_MS + 60_000))
    encode_message(stamped(message, producer_id="core-1", now_ms=NOW_MS), pack, NOW_MS)
    (record,) = pack
    shown = {header["name"]: header["value"] for header in describe(0, record, None)["headers"]}
    assert (shown["requestId"], shown["producerId"]) == (str(REQUEST), "core-1")
    assert datetime.fromisoformat(shown["ts"]).timestamp() == NOW_MS / 1000
    assert datetime.fromisoformat(shown["expireTs"]).timestamp() == NOW_MS / 1000 + 60
    line = render(0, record, None)
    assert all(f"{name}={shown[name]}" in line for name in ("requestId", "ts", "expireTs", "producerId"))


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("ts", b"12345678", {"value": "12345678"}),  # somebody's own header, as text
        ("ts", b"\xff\xff", {"value_base64": "//8="}),
        ("requestId", b"sixteen letters!", {"value": "sixteen letters!"}),
        ("other", b"\xff" * 8, {"value_base64": "//////////8="}),
    ],
)
def test_other_headers_are_shown_as_they_are(name, value, shown):
    pack = RecordPack()
    pack.append(b"x", headers=[(name, value)])
    (record,) = pack
    assert describe(0, record, None)["headers"] == [{"name": name, **shown}]


def own_fields(topic, value, key=None, settings=Settings()):  # noqa: B008  settings do not change
    """What a record of the broker is shown as, as JSON and as a line."""
    pack = RecordPack()
    pack.append(value, key=key, timestamp=NOW_MS)
    (record,) = pack
    fields = find_decoder(settings, topic)(record)
    if fields is None:
        return None
    line = render_own(0, record, fields)
    assert line.isprintable()
    return describe_own(0, record, fields), line


def test_who_connected_is_readable():
    event = Event(
        kind=EventKind.CONNECTED,
        at=NOW_MS - 20,
        client_id="pump\x1b[2J",
        username="bob",
        protocol=5,
        address="127.0.0.1:9",
        node="n1",
    )
    shown, line = own_fields("tbmq.events", encode_event(event))
    happened = shown.pop("at")
    assert datetime.fromisoformat(happened).timestamp() == (NOW_MS - 20) / 1000
    assert datetime.fromisoformat(shown.pop("time")).timestamp() == NOW_MS / 1000
    assert shown == {
        "partition": 0,
        "offset": -1,
        "kind": "connected",
        "client_id": "pump\x1b[2J",
        "username": "bob",
        "address": "127.0.0.1:9",
        "node": "n1",
        "protocol": 5,
    }
    words = r"connected  pump\x1b[2J  username=bob  address=127.0.0.1:9  node=n1  protocol=5"
    assert line == f"0:-1  {happened}  {words}"


def test_what_was_dropped_is_readable():
    event = Event(kind=EventKind.DROPPED, at=NOW_MS, client_id="slow", cause="queue_full", count=7)
    shown, line = own_fields("tbmq.events", encode_event(event))
    assert (shown["kind"], shown["cause"], shown["count"]) == ("dropped", "queue_full", 7)
    assert line.endswith("  dropped  slow  cause=queue_full  count=7")
    assert own_fields("tbmq.events", encode_event(event._replace(kind=99)))[0]["kind"] == "kind 99"


def test_sessions_subscriptions_and_wills_are_readable():
    will = WillRecord("gone/pump", b"\xff", 1, True, b"", 5, None)
    session = SessionRecord(FORM, "pump", None, "device", 5, 3600, NOW_MS, 0, will, "n1")
    value = msgspec.msgpack.encode(session)
    settings = Settings(services=ServiceSettings(prefix="plant"))
    shown, line = own_fields("plant.tbmq.client.session", value, b"pump", settings)
    assert (shown["client_id"], shown["client_type"], shown["disconnected_at"]) == ("pump", "device", None)
    assert shown["will"]["payload_base64"] == "/w=="
    assert "will=(topic=gone/pump, payload_base64=/w==, qos=1, retain=yes, delay=5)" in line
    assert own_fields("tbmq.client.will", value, b"pump\0n1")[0]["will"]["topic"] == "gone/pump"
    shown, line = own_fields("tbmq.client.subscriptions", encode_subscriptions([(b"a/#", 1, 0)]), b"pump")
    assert shown["subscriptions"] == [{"filter": "a/#", "qos": 1, "identifier": None}]
    assert line.endswith("  pump  subscriptions=[(filter=a/#, qos=1)]")


def test_qos_2_ids_that_are_not_released_are_readable():
    """As a session of the broker gives them, and as the marks of a node are stored."""

    class Store:
        def store(self, changes, _on_done=None):
            self.changes = changes

    session = Session(Hub(StepLoop()), "pump\x1b[2J")
    session.restore_received(b"\x01" + struct.pack("<I3H", 70_000, 9, 300, 2))
    store = Store()
    ids = ReceivedIds(store, node="n1")
    ids.store([(session, session.received_ids())], None)
    ((table, key, value),) = store.changes
    shown, line = own_fields(table, value, key)
    assert (shown["client_id"], shown["sequence"], shown["packet_ids"]) == ("pump\x1b[2J", 70_000, [2, 9, 300])
    assert line.endswith(r"  pump\x1b[2J  sequence=70000  packet_ids=[2, 9, 300]")

    ids._is_restored = True
    ids.mark({3: 41, 0: 7}, NOW_MS)
    ((table, key, value),) = store.changes
    shown, line = own_fields(table, value, key)
    assert (shown["kind"], shown["node"], shown["stored_to"]) == ("mark", "n1", {"0": 7, "3": 41})
    assert datetime.fromisoformat(shown["at"]).timestamp() == NOW_MS / 1000
    assert line.endswith("  mark  node=n1  stored_to=(0=7, 3=41)")

    ids.mark_queues({"tbmq.queue.jobs": 12})
    ((table, key, value),) = store.changes
    shown, line = own_fields(table, value, key)
    assert (shown["node"], shown["topic"], shown["stored_to"]) == ("n1", "tbmq.queue.jobs", 12)
    # those of before there were sequence numbers
    assert own_fields(table, struct.pack("<2H", 4, 5), b"pump")[0]["packet_ids"] == [4, 5]


def test_what_is_under_way_to_application_clients_is_readable():
    runs = [(7, 0, 2, "planned"), (11, 300, 3, "received")]
    value = write_context({"committed": 5, "end": 20, "last_packet_id": 302, "seen": {}, "in_flight": runs})
    shown, line = own_fields("tbmq.client.app.context", value, make_key("c", "billing", "tbmq.msg.app.billing", 0))
    assert (shown["kind"], shown["client_id"], shown["topic"]) == ("own", "billing", "tbmq.msg.app.billing")
    assert (shown["committed"], shown["end"], len(shown["in_flight"])) == (5, 20, 2)
    assert "in_flight=[(offset=7, count=2, state=planned), (offset=11, packet_id=300, count=3, state=received)]" in line
    key = make_key("s", "workers", "tbmq.msg.app.shared.jobs", 3)
    shown, _ = own_fields("tbmq.client.app.context", b"billing\0" + value, key)
    assert (shown["kind"], shown["group"], shown["client_id"]) == ("shared", "workers", "billing")
    assert (shown["partition"], shown["of_partition"]) == (0, 3)
    assert own_fields("tbmq.client.app.context", value, b"no key of ours") is None
    assert own_fields("tbmq.client.app.context", b"\xff", key) is None


@pytest.mark.parametrize("topic", ["tbmq.client.session", "tbmq.queue.state", "tbmq.datasub.topics"])
def test_markers_of_a_start_are_readable(topic):
    shown, line = own_fields(topic, b"sessions of n1 1 17", b"\xffload")
    assert (shown["kind"], shown["by"]) == ("marker", "sessions of n1 1 17")
    assert line.endswith("  marker  by=sessions of n1 1 17")
    assert own_fields(topic, b"", b"\xffload")[0]["kind"] == "marker"
    assert own_fields("tbmq.queue.state", b"\xff", b"other") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"pump", b""), (b"pump", b"\xff"), (b"pump", b"\x02\0\0\0\0"), (b"\xff", b"\1\0\0\0\0"), (b"\0mark n", b"no")],
)
def test_what_is_no_list_of_packet_ids_is_left_as_it_is(key, value):
    assert own_fields("tbmq.client.received", value, key) is None
    assert own_fields("tbmq.client.received", b"x", b"\0mark n\0q") is None


@pytest.mark.parametrize(
    "topic", ["tbmq.events", "tbmq.client.session", "tbmq.client.subscriptions", "tbmq.client.will"]
)
@pytest.mark.parametrize("value", [b"", b"\xff", b"text", None, b"\x92\x63\x01"])
def test_what_is_not_the_brokers_is_left_as_it_is(topic, value):
    assert own_fields(topic, value, b"pump") is None


def test_other_topics_have_no_decoder():
    assert find_decoder(Settings(), "tbmq.msg.all") is None
    assert find_decoder(Settings(services=ServiceSettings(prefix="plant")), "tbmq.events") is None
