"""Records of the log as a person sees them."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import pytest

from penstock._ext.segment import RecordPack
from penstock.cli.log_records import describe, render
from penstock.partition.messages import QueueMessage, encode_message, request_headers, stamped

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
