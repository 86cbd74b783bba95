"""Does the C code of the hot functions touch Python objects? It must not: no call, no allocation, no attribute."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

# What a message passes through while its subscribers are connected, what it passes through on its way to the log of an
# APPLICATION client and from there to the client, through a durable queue until it is settled, and through the queries
# of SQL topics.
HOT = {
    "hub.connection": [
        "route",
        "deliver",
        "send_shape",
        "encode_shape",
        "take_slot",
        "send_copy",
        "send_message",
        "use_alias",
        "choose_member",
        "deliver_to_group",
        "handle_publish",
        "handle_ack",
        "find_topic",
        "find_congested",
        "send_ack",
        "resolve_alias",
        "store_retained",
        "10Connection_feed",
        "10Connection_parse",
        "10Connection_dispatch",
        "10Connection_make_room",
        "7Session_pump",
        "7Session_enqueue",
        "log_publish",
        "answer",
        "has_place",
        "take_place",
        "free_place",
        "pump_outlets",
        "ack_delivery",
        "end_turn",
        "has_rivals",
        "release_slot",
        "handle_queue_publish",
        "refusal_of",
        "enqueue_all",
        "12DurableQueue_take",
        "settle_by_publish",
        "read_settlement",
        "send_planned",
        "build_properties",
        "12MqttConsumer_on_done",
        "10QueueGroup_give",
        "10QueueGroup_is_readable",
        "10QueueGroup_choose",
        "may_have",
        "may_have_topic",
        "10QueueGroup_plan",
        "10QueueGroup_settle_one",
        "12MqttConsumer_has_room",
        "12MqttConsumer_send",
    ],
    "dispatch.desk": [
        "dispatch_pack",
        "dispatch_record",
        "dispatch_copies",
    ],
    "application.feed": [
        "feed_record",
        "4Feed_accept",
    ],
    "application.lane": [
        "pump_lane",
        "may_plan",
        "send_entry",
        "take_ids",
        "ack_entry",
        "4Lane_plan",
        "4Lane_note_seen",
        "4Lane_take_kept",
        "4Lane_finish",
        "4Lane_await_release",
        "4Lane_pump",
        "4Lane_on_ack",
    ],
    "device.outlet": [
        "12DeviceOutlet_accept",
        "send_live",
    ],
    "application.pack": ["11PackTracker_put", "11PackTracker_finish"],
    "queue.pending": [
        "11PendingList_claim",
        "11PendingList_claim_again",
        "11PendingList_settle",
        "11PendingList_nack",
        "11PendingList_find",
        "mark_changed",
        "find_index",
        "entry_add",
        "entry_remove",
        "become_timed",
        "heap_rise",
        "heap_fill",
    ],
    "wire.codec": ["parse_publish", "parse_ack", "check_topic_name"],
    "hub.inflight": [
        "window_add",
        "window_put",
        "window_release",
        "queue_push",
        "queue_pop",
        "ids_add",
        "ids_has",
        "ids_discard",
    ],
    "record.envelope": [
        "envelope_size",
        "put_envelope",
        "get_envelope",
        "put_properties",
        "lay_out",
        "delivery_size",
        "put_delivery",
    ],
    "match.partition": ["hash_key", "partition_of"],
    # what is done for each record on its way to Kafka, for the report that it is there, and on its way back
    "kafka.client": [
        "fill_messages",
        "take_report",
        "8Delivery_succeed",
        "12PackConsumer__goes_on",
        "12PackConsumer__put",
    ],
    "device.rows": ["9RowWriter__put", "9RowWriter__put_mark", "9RowWriter__next_id", "next_entry"],
    "device.commands": ["7_Places_note", "put_word", "put_value"],
    "query.evaluator": [
        "8QuerySet_look_at",
        "8QuerySet_ask_source",
        "8QuerySet_ask_query",
        "8QuerySet_ask_row",
        "8QuerySet_ask_elements",
        "8QuerySet_ask_group",
        "8QuerySet_put_row",
        "10IndexGroup_find",
        "scan_json",
        "scan_value",
        "scan_object",
        "scan_array",
        "skip_value",
        "run",
        "compute",
        "run_cast",
        "run_call",
        "run_comparison",
        "run_logic",
        "run_in",
        "run_like",
        "run_regex",
        "regex_matches",
        "regex_step",
        "regex_state",
        "run_choice",
        "read_field",
        "cast_value",
        "call_fixed",
        "put_row",
        "put_text",
    ],
    "wire.buffer": ["buffer_grow"],
    "hub.message": ["message_new"],
    # what the load generator does for each message
    "load.generator": [
        "on_readable",
        "on_packet",
        "on_publish",
        "count_arrival",
        "note_run",
        "follow_run",
        "pump_in_turn",
        "count_acks",
        "follow_acks",
        "put_messages",
        "pump",
        "pace",
        "settle_delivery",
        "put_settlement",
    ],
}
# Calls into the interpreter that make, look up or call an object; not reference counts, not error reports, and not the
# macros that read a pointer out of a list, or where the text of bytes is.
FORBIDDEN = re.compile(
    r"\b(?:PyObject_(?:Call|GetAttr|SetAttr|RichCompare|GetItem|SetItem|IsTrue)\w*|__Pyx_PyObject_(?:Fast|Vector)?Call\w*"
    r"|__Pyx_PyObject_GetAttr\w*|__Pyx_GetModuleGlobalName\w*|__Pyx_GetBuiltinName|__Pyx_GetItem\w*"
    r"|Py(?:Long|Float|Bool)_From\w+|__Pyx_PyLong_From\w+|__Pyx_PyInt_From\w+|PyBytes_(?!AS_STRING|GET_SIZE)\w+|__Pyx_PyBytes_(?!AS_STRING|GET_SIZE)\w+|PyUnicode_\w+"
    r"|PyTuple_New|PyTuple_Pack|PyList_(?!GET_)\w+|__Pyx_PyList_(?!GET_)\w+|PyDict_\w+|PySet_\w+|PyNumber_\w+|PySequence_\w+|PyMemoryView_\w+"
    r"|__Pyx_PyNumber_\w+|PyEval_\w+|PyIter_\w+)\s*\("
)


@cache
def generated(module: str) -> str:
    return (ROOT / "build/cython/ext/penstock/_ext" / f"{module.replace('.', '/')}.c").read_text()


def function_body(source: str, module: str, name: str) -> str:
    """The C text of one function in Cython's output."""
    mangled = "".join(f"{len(part)}{part}_" for part in module.split("."))
    symbol = f"__pyx_f_8penstock_4_ext_{mangled}{name}("
    at = source.find(symbol)
    while at >= 0:
        # A definition begins with its line; a declaration ends with a semicolon, and a call is indented.
        head = source[at : source.index(")", at) + 200].partition("\n")[0]
        if not source[source.rindex("\n", 0, at) + 1].isspace() and head.endswith("{"):
            start = source.index("\n", at)
            return source[start : source.index("\n}\n", start)]
        at = source.find(symbol, at + 1)
    raise AssertionError(f"{symbol}) is not in the generated C")


def without_error_paths(body: str) -> str:
    """A raised exception may cost what it likes; only `raise` lines and what follows the error label are left out."""
    body = re.split(r"\n\s*/\* function exit code \*/", body)[0]
    lines = body.splitlines()
    kept: list[str] = []
    is_raise = False
    for line in lines:
        marker = re.match(r"\s*\* (?P<code>.*)# <{14}", line)
        if marker:
            is_raise = marker["code"].strip().startswith("raise ")
        if not is_raise:
            kept.append(line)
    return "\n".join(kept)


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in HOT.items() for name in names])
def test_hot_function_is_c(module: str, name: str) -> None:
    body = without_error_paths(function_body(generated(module), module, name))
    assert not FORBIDDEN.findall(body)
