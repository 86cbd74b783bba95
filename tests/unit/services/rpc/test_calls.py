"""The compiled reader and writer of calls against the messages of the queues, which are plain Python."""

from __future__ import annotations

from itertools import islice
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._ext.record.segment import RecordPack
from penstock._ext.services.calls import CallReader, CallWriter
from penstock.services.messages import decode_message, encode_time
from penstock.services.rpc.wire import new_ids

ID = bytes(range(16))


@given(
    data=st.binary(max_size=100),
    request_id=st.binary(min_size=16, max_size=16),
    times=st.tuples(st.integers(0, 2**62), st.integers(-(2**63), 2**63 - 1)),
    topic=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300),
    key=st.one_of(st.none(), st.binary(max_size=60)),
    headers=st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=9), st.binary(max_size=9))),
)
def test_a_request_is_a_queue_message(*, data, request_id, times, topic, key, headers) -> None:
    now_ms, expire_ts = times
    headers = [(f"x{name}", value) for name, value in headers]
    pack = RecordPack()
    CallWriter(b"core-1", topic.encode()).put(pack, data, request_id, now_ms, expire_ts, key, headers)
    (record,) = pack
    message = decode_message(record)
    assert message.data == data
    assert message.request_id == UUID(bytes=request_id)
    assert record.key == (str(UUID(bytes=request_id)).encode() if key is None else key)
    assert (message.response_topic, message.expire_ts) == (topic, expire_ts)
    assert (message.producer_id, message.ts, record.timestamp) == ("core-1", now_ms, now_ms)
    (call,) = CallReader().read_requests(pack)
    assert (call.data, call.request_id, call.response_topic, call.expire_ts) == (data, request_id, topic, expire_ts)
    assert call.fault is None
    assert call.key == record.key
    assert (call.headers or []) == headers


def test_an_answer() -> None:
    pack = RecordPack()
    writer = CallWriter(b"js-1")
    writer.put(pack, b"fine", ID, 5)
    writer.put(pack, b"", ID, 5, headers=(("errorCode", b"HANDLER_FAILED"), ("errorMessage", b"no")))
    good, bad = CallReader().read_answers(pack)
    assert (good.data, good.request_id, good.error_code, good.fault) == (b"fine", ID, None, None)
    assert (bad.error_code, bad.error_message) == (b"HANDLER_FAILED", b"no")


FAULTS = {
    "no headers": ([], "requestId is missing"),
    "no response topic": ([("requestId", ID), ("expireTs", encode_time(1))], "responseTopic is missing"),
    "no expiry": ([("requestId", ID), ("responseTopic", b"t")], "expireTs"),
    "short expiry": ([("requestId", ID), ("responseTopic", b"t"), ("expireTs", b"1234")], "expireTs"),
    "short id": ([("requestId", b"short"), ("responseTopic", b"t"), ("expireTs", encode_time(1))], "5 bytes"),
    "topic not UTF-8": ([("requestId", ID), ("responseTopic", b"\xff"), ("expireTs", encode_time(1))], "UTF-8"),
}


@pytest.mark.parametrize(("headers", "fault"), FAULTS.values(), ids=FAULTS)
def test_a_record_that_is_no_request_has_a_fault_alone(headers: list, fault: str) -> None:
    pack = RecordPack()
    CallWriter(b"a", b"t").put(pack, b"1", ID, 1, 1)
    pack.append(b"2", b"k", headers)
    CallWriter(b"a", b"t").put(pack, b"3", ID, 1, 1)
    first, second, third = CallReader().read_requests(pack)
    assert fault in second.fault
    assert first.fault is third.fault is None


def test_a_tombstone_is_no_request() -> None:
    pack = RecordPack()
    pack.append(None, b"k", [("requestId", ID), ("responseTopic", b"t"), ("expireTs", encode_time(1))])
    (call,) = CallReader().read_requests(pack)
    assert call.fault == "it has no data"


def test_ids_are_random_uuids_of_version_4() -> None:
    ids = list(islice(new_ids(), 1_000))
    assert len(set(ids)) == 1_000
    assert all(UUID(bytes=one).version == 4 and UUID(bytes=one).variant == UUID(int=1 << 63).variant for one in ids)


def test_an_id_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        CallWriter(b"a").put(RecordPack(), b"", b"short", 1)
