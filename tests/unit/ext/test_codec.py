"""PUBLISH, the acknowledgements, topic names and filters: the parsers that run in C."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._ext.wire.codec import (
    debug_check_topic_filter,
    debug_check_topic_name,
    debug_parse_ack,
    debug_parse_publish,
)
from penstock._ext.wire.packets import ProtocolViolation, build_publish, encode_publish_properties
from tests.support.clients.packet_table import CASES, MALFORMED, PUBLISH_CASES, QUOTA_EXCEEDED, Case
from tests.support.clients.parse_any import GuardedMemory, attempt, parse_any

unhurried = settings(deadline=None)  # another process may hold the processor in the middle of an example

TOPIC_FILTER_INVALID = 0x8F
TOPIC_NAME_INVALID = 0x90

every_case = pytest.mark.parametrize(
    ("case", "version"), [pytest.param(case, v, id=f"{case.name} v{v}") for case in CASES for v in case.versions]
)


@every_case
def test_table(case: Case, version: int) -> None:
    """Each packet of the table is accepted, or refused with its reason code.

    PUBLISH: [MQTT-3.3.1-2] [MQTT-3.3.1-4] [MQTT-2.2.1-3] [MQTT-3.3.2-8] [MQTT-3.3.2-13] [MQTT-3.3.2-14]
    [MQTT-3.3.2-19] [MQTT-3.3.4-6] [MQTT3-3.3.1-2] [MQTT3-3.3.1-4] [MQTT3-2.3.1-1] [MQTT3-4.7.3-1]
    Acknowledgements: [MQTT-2.1.3-1] [MQTT-3.4.2-1] [MQTT-3.5.2-1] [MQTT-3.6.1-1] [MQTT-3.6.2-1] [MQTT-3.7.2-1]
    [MQTT3-2.2.2-1] [MQTT3-2.2.2-2] [MQTT3-3.6.1-1]
    CONNECT: [MQTT-3.1.2-1] [MQTT-3.1.2-2] [MQTT-3.1.2-3] [MQTT-3.1.2-9] [MQTT-3.1.2-11] [MQTT-3.1.2-12]
    [MQTT-3.1.2-13] [MQTT-3.1.2-16] [MQTT-3.1.2-17] [MQTT-3.1.2-18] [MQTT-3.1.2-19] [MQTT-3.1.3-1] [MQTT-3.1.3-3]
    [MQTT-3.1.3-4] [MQTT-3.1.3-11] [MQTT-3.1.3-12] [MQTT3-3.1.2-1] [MQTT3-3.1.2-2] [MQTT3-3.1.2-3] [MQTT3-3.1.2-9]
    [MQTT3-3.1.2-11] [MQTT3-3.1.2-13] [MQTT3-3.1.2-14] [MQTT3-3.1.2-15] [MQTT3-3.1.2-18] [MQTT3-3.1.2-19]
    [MQTT3-3.1.2-20] [MQTT3-3.1.2-21] [MQTT3-3.1.2-22] [MQTT3-3.1.3-1] [MQTT3-3.1.3-3] [MQTT3-3.1.3-4]
    [MQTT3-3.1.3-8] [MQTT3-3.1.3-10] [MQTT3-3.1.3-11]
    SUBSCRIBE, UNSUBSCRIBE: [MQTT-3.8.1-1] [MQTT-3.8.3-1] [MQTT-3.8.3-2] [MQTT-3.8.3-4] [MQTT-3.8.3-5] [MQTT-3.10.1-1]
    [MQTT-3.10.3-1] [MQTT-3.10.3-2] [MQTT3-3.8.1-1] [MQTT3-3.8.3-1] [MQTT3-3.8.3-3] [MQTT3-3.8.3-4] [MQTT3-3.10.1-1]
    [MQTT3-3.10.3-1] [MQTT3-3.10.3-2]
    DISCONNECT, AUTH: [MQTT-3.14.1-1] [MQTT-3.14.2-1] [MQTT-3.15.1-1] [MQTT-3.15.2-1] [MQTT3-3.14.1-1]
    Lengths: [MQTT-1.5.5-1] [MQTT-2.2.2-1]
    """
    if not case.reason:
        assert parse_any(case.first_byte, case.body, version) is not None
        return
    with pytest.raises(ProtocolViolation) as refused:
        parse_any(case.first_byte, case.body, version)
    assert refused.value.reason_code == case.reason
    if case.first_byte == 0x10:
        assert refused.value.version == version


@every_case
def test_every_prefix_is_read_within_its_bounds(case: Case, version: int) -> None:
    """A body cut anywhere is parsed or refused, without a byte read behind it."""
    memory = GuardedMemory(4096)
    for size in range(len(case.body) + 1):
        parsed, refused = attempt(parse_any, case.first_byte, memory.place(case.body[:size]), version)
        assert parsed is not None if refused is None else refused.reason_code >= 0x80


def publish_case(name: str) -> Case:
    return next(case for case in PUBLISH_CASES if case.name == name)


def test_publish_fields() -> None:
    """Flags, topic, identifier and payload come out as they went in."""
    case = publish_case("publish qos 2 dup")
    assert debug_parse_publish(case.first_byte & 15, case.body, 4) == {
        "topic": b"a/b",
        "payload": b"hello",
        "props": b"",
        "props_copied": False,
        "expiry": None,
        "packet_id": 10,
        "alias": 0,
        "qos": 2,
        "retain": False,
        "dup": True,
    }


def test_forwarded_properties_lose_alias_and_expiry_and_keep_their_order() -> None:
    """[MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-3.3.2-20]"""
    case = publish_case("publish v5 every property")
    parsed = debug_parse_publish(case.first_byte & 15, case.body, 5)
    assert not isinstance(parsed, int)
    assert parsed["props"] == encode_publish_properties(
        payload_format=1,
        content_type="text",
        response_topic="r/1",
        correlation_data=b"\x00\xff",
        user_properties=[("k", "v"), ("k", "v2")],
    )
    assert (parsed["expiry"], parsed["alias"], parsed["payload"]) == (60, 7, b"hello")
    assert parsed["props_copied"]


@pytest.mark.parametrize(
    "props",
    [
        b"\x26\x00\x01k\x00\x01v\x03\x00\x01t",  # nothing taken out
        b"\x23\x00\x07\x26\x00\x01k\x00\x01v\x03\x00\x01t",  # alias first
        b"\x26\x00\x01k\x00\x01v\x03\x00\x01t\x02\x00\x00\x00\x05\x23\x00\x07",  # both last
    ],
)
def test_properties_in_one_piece_are_not_copied(props: bytes) -> None:
    parsed = debug_parse_publish(0, b"\x00\x01a" + bytes((len(props),)) + props, 5)
    assert not isinstance(parsed, int)
    assert parsed["props"] == b"\x26\x00\x01k\x00\x01v\x03\x00\x01t"
    assert not parsed["props_copied"]


def test_too_many_user_properties() -> None:
    body = build_publish("a", user_properties=[("k", "v")] * 3)[2:]
    assert not isinstance(debug_parse_publish(0, body, 5, 3), int)
    assert debug_parse_publish(0, body, 5, 2) == QUOTA_EXCEEDED


def test_reason_of_an_acknowledgement() -> None:
    assert debug_parse_ack(4, 0, b"\x01\x02", 5) == (0x102, 0)
    assert debug_parse_ack(4, 0, b"\x01\x02\x87", 5) == (0x102, 0x87)


ILL_FORMED = {
    "U+0000": b"a\x00b",
    "lone continuation": b"\x80",
    "overlong slash": b"\xc0\xaf",
    "overlong of three": b"\xe0\x80\xaf",
    "overlong of four": b"\xf0\x80\x80\xaf",
    "surrogate U+D800": b"\xed\xa0\x80",
    "surrogate U+DFFF": b"\xed\xbf\xbf",
    "pair of surrogates": b"\xed\xa0\xbd\xed\xb8\x80",
    "above U+10FFFF": b"\xf4\x90\x80\x80",
    "cut off": b"abcdefgh\xe2\x82",
    "latin-1": b"caf\xe9",
}
WELL_FORMED = {
    "noncharacter U+FFFE": "\ufffe",
    "noncharacter U+FFFF": "\uffff",
    "byte order mark": "\ufeffa",
    "U+D7FF": "\ud7ff",
    "U+E000": "\ue000",
    "U+10FFFF": "\U0010ffff",
    "control character": "\u0001",
    "mixed": "größe/温度/🌡",
}


@pytest.mark.parametrize("text", ILL_FORMED.values(), ids=ILL_FORMED)
def test_ill_formed_utf8(text: bytes) -> None:
    """[MQTT-1.5.4-1] [MQTT-1.5.4-2] [MQTT-3.3.2-1] [MQTT-4.7.3-2] [MQTT3-1.5.3-1] [MQTT3-1.5.3-2] [MQTT3-4.7.3-2]"""
    assert debug_check_topic_name(text) == MALFORMED
    assert debug_check_topic_filter(text) == MALFORMED
    assert debug_check_topic_name(b"some/topic/" + text + b"/behind") == MALFORMED


@pytest.mark.parametrize("text", WELL_FORMED.values(), ids=WELL_FORMED)
def test_well_formed_utf8(text: str) -> None:
    """A byte order mark is a character as any other [MQTT-1.5.4-3] [MQTT3-1.5.3-3]."""
    assert debug_check_topic_name(text.encode()) == 0
    assert debug_check_topic_filter(text.encode()) == 0


NAMES = ("a", "/", "//", "a/b", "/a", "a/", " ", "$SYS/x", "12345678", "1234567/", "sport/tennis/player1")


@pytest.mark.parametrize("name", NAMES)
def test_topic_names(name: str) -> None:
    assert debug_check_topic_name(name.encode()) == 0


@pytest.mark.parametrize(
    "name", ["", "+", "#", "a/+", "a+b", "a/#/b", "1234567+", "#2345678", "123456789+", "a" * 20 + "#"]
)
def test_invalid_topic_names(name: str) -> None:
    """[MQTT-3.3.2-2] [MQTT-4.7.0-1] [MQTT-4.7.3-1] [MQTT3-3.3.2-2] [MQTT3-4.7.1-1] [MQTT3-4.7.3-1]"""
    assert debug_check_topic_name(name.encode()) == TOPIC_NAME_INVALID


@pytest.mark.parametrize(
    "name", ["#", "+", "+/+", "/+", "+/", "a/#", "/#", "+/a/#", "a/+/b", "$share/g/a", "//", *NAMES]
)
def test_topic_filters(name: str) -> None:
    assert debug_check_topic_filter(name.encode()) == 0


@pytest.mark.parametrize(
    "name", ["", "a#", "#/a", "#/", "a/#/b", "a+", "+a", "a/+b", "a/b+/c", "##", "++", "+#", "a/b#"]
)
def test_invalid_topic_filters(name: str) -> None:
    """[MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-4.7.3-1] [MQTT3-4.7.1-2] [MQTT3-4.7.1-3] [MQTT3-4.7.3-1]"""
    assert debug_check_topic_filter(name.encode()) == TOPIC_FILTER_INVALID


@unhurried
@given(st.lists(st.sampled_from(["", "a", "level", "ü"]), min_size=1, max_size=40), st.integers(0, 40))
def test_level_limit(levels: list[str], limit: int) -> None:
    topic = "/".join(levels).encode()
    too_many = limit and len(levels) > limit
    assert debug_check_topic_name(topic, limit) == (TOPIC_NAME_INVALID if too_many or not topic else 0)
    assert debug_check_topic_filter(topic, limit) == (TOPIC_FILTER_INVALID if too_many or not topic else 0)


@unhurried
@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=40) | st.text("a/+#", max_size=20))
def test_topic_name_against_its_definition(name: str) -> None:
    """The rules written naively."""
    expected = MALFORMED if "\0" in name else TOPIC_NAME_INVALID if not name or set(name) & {"+", "#"} else 0
    assert debug_check_topic_name(name.encode()) == expected


@unhurried
@given(st.text("ab/+#$", max_size=12))
def test_topic_filter_against_its_definition(name: str) -> None:
    """The rules written naively, level by level [MQTT-4.7.1-1] [MQTT-4.7.1-2]."""
    levels = name.split("/")
    valid = (
        bool(name)
        and all(level == "+" or "+" not in level for level in levels)
        and all("#" not in level for level in levels[:-1])
        and (levels[-1] == "#" or "#" not in levels[-1])
    )
    assert debug_check_topic_filter(name.encode()) == (0 if valid else TOPIC_FILTER_INVALID)


@unhurried
@given(st.binary(max_size=12))
def test_utf8_against_python(text: bytes) -> None:
    """Python's strict decoder refuses what the codec refuses, U+0000 apart."""
    try:
        well_formed = "\0" not in text.decode()
    except UnicodeDecodeError:
        well_formed = False
    assert (debug_check_topic_filter(b"x" + text.replace(b"#", b"_").replace(b"+", b"_")) == 0) == well_formed


@settings(unhurried, max_examples=200)
@given(st.integers(0x10, 0xFF), st.binary(max_size=64))
def test_random_bodies(first_byte: int, body: bytes) -> None:
    """Any bytes give a packet or a reason code."""
    memory = GuardedMemory(4096)
    for version in (3, 4, 5):
        _, refused = attempt(parse_any, first_byte, memory.place(body), version)
        assert refused is None or refused.reason_code >= 0x80
