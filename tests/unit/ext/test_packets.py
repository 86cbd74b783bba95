"""The rarer packets: what the parsers make of valid ones, what the builders write, and that the two agree.

Refusals are in the table that test_codec.py runs.
"""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._ext.wire import packets
from penstock._ext.wire.packets import ProtocolViolation, Reason, WillPacket
from tests.support.clients.packet_table import CONNECT_CASES, Case

unhurried = settings(deadline=None)  # another process may hold the processor in the middle of an example

texts = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
topics = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0+#"), min_size=1, max_size=20)
binaries = st.binary(max_size=20)
u16 = st.integers(0, 0xFFFF)
u32 = st.integers(0, 0xFFFF_FFFF)
packet_ids = st.integers(1, 0xFFFF)
pairs = st.lists(st.tuples(texts, texts), min_size=1, max_size=4)
versions = st.sampled_from((3, 4, 5))


def some(**properties: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Any subset of the properties."""
    return st.fixed_dictionaries({}, optional=properties)


def split(packet: bytes) -> tuple[int, bytes]:
    """Flags and body, the remaining length checked."""
    value = shift = 0
    at = 1
    while True:
        value |= (packet[at] & 127) << shift
        shift += 7
        at += 1
        if not packet[at - 1] & 128:
            break
    assert value == len(packet) - at
    return packet[0] & 15, packet[at:]


def connect_case(name: str) -> Case:
    return next(case for case in CONNECT_CASES if case.name == name)


def test_connect_defaults() -> None:
    packet = packets.parse_connect(connect_case("connect v5").body)
    assert (packet.protocol_name, packet.version, packet.client_id) == ("MQTT", 5, "c1")
    assert (packet.clean_start, packet.keep_alive) == (True, 60)
    assert (packet.username, packet.password, packet.will) == (None, None, None)
    assert (packet.session_expiry, packet.receive_maximum, packet.maximum_packet_size) == (None, 65535, 0)
    assert (packet.topic_alias_maximum, packet.user_properties) == (0, [])
    assert (packet.request_response_information, packet.request_problem_information) == (False, True)
    assert (packet.authentication_method, packet.authentication_data) == (None, None)


def test_connect_with_everything() -> None:
    """[MQTT-3.1.2-9] [MQTT-3.1.2-17] [MQTT-3.1.2-19] [MQTT-3.1.3-1] [MQTT-3.1.3-10]"""
    packet = packets.parse_connect(memoryview(connect_case("connect v5 with everything").body))
    assert (packet.username, packet.password) == ("u", b"\x00\xff")
    assert (packet.session_expiry, packet.receive_maximum, packet.maximum_packet_size) == (10, 20, 65536)
    assert (packet.topic_alias_maximum, packet.user_properties) == (16, [("k", "v")])
    assert (packet.request_response_information, packet.request_problem_information) == (True, False)
    assert (packet.authentication_method, packet.authentication_data) == ("SCRM1", b"\x01\x02")
    will = packet.will
    assert will is not None
    assert (will.topic, will.payload, will.qos, will.retain) == ("w", b"bye", 1, True)
    assert (will.delay, will.expiry) == (5, 60)
    assert packets.decode_publish_properties(will.props) == {
        "payload_format": 1,
        "content_type": "text",
        "response_topic": "r",
        "correlation_data": b"\x00\xff",
        "user_properties": [("k", "v")],
    }


def test_connect_3_1_takes_long_client_ids() -> None:
    packet = packets.parse_connect(split(packets.build_connect("x" * 100, version=3))[1])
    assert (packet.protocol_name, packet.version, packet.client_id) == ("MQIsdp", 3, "x" * 100)


def test_limits_of_connect() -> None:
    """Those of the will: the broker keeps no user property of the CONNECT itself."""
    pairs = [("k", "v")] * 3
    body = split(packets.build_connect("c", user_properties=pairs, maximum_packet_size=99))[1]
    assert len(packets.parse_connect(body, max_user_properties=2).user_properties) == 3
    props = b"\x26\x00\x01k\x00\x01v" * 3
    body = split(packets.build_connect("c", will=WillPacket("a", b"", 0, False, props), maximum_packet_size=99))[1]
    assert packets.parse_connect(body, max_user_properties=3).will.props == props
    with pytest.raises(ProtocolViolation) as refused:
        packets.parse_connect(body, max_user_properties=2)
    violation = refused.value
    assert (violation.reason_code, violation.version, violation.limit) == (Reason.QUOTA_EXCEEDED, 5, 99)
    body = split(packets.build_connect("c", will=WillPacket("a/b/c")))[1]
    with pytest.raises(ProtocolViolation) as refused:
        packets.parse_connect(body, max_topic_levels=2)
    assert refused.value.reason_code == Reason.TOPIC_NAME_INVALID


connect_properties = some(
    session_expiry=u32,
    receive_maximum=st.integers(1, 0xFFFF),
    maximum_packet_size=st.integers(1, 0xFFFF_FFFF),
    topic_alias_maximum=u16,
    request_response_information=st.booleans(),
    request_problem_information=st.booleans(),
    authentication_method=texts,
    user_properties=pairs,
)
message_properties = some(
    payload_format=st.integers(0, 1),
    content_type=texts,
    response_topic=topics,
    correlation_data=binaries,
    user_properties=pairs,
)
wills = st.builds(
    WillPacket,
    topic=topics,
    payload=binaries,
    qos=st.integers(0, 2),
    retain=st.booleans(),
    props=message_properties.map(lambda properties: packets.encode_publish_properties(**properties)),
    delay=u32,
    expiry=st.none() | u32,
)


connect_fields = st.fixed_dictionaries(
    {
        "client_id": texts.filter(bool),
        "clean_start": st.booleans(),
        "keep_alive": u16,
        "username": texts,
        "password": st.none() | binaries,
    }
)


@unhurried
@given(versions, connect_fields, st.none() | wills, connect_properties)
def test_connect_round_trip(
    version: int, fields: dict[str, Any], will: WillPacket | None, properties: dict[str, Any]
) -> None:
    if version < 5:
        properties = {}
    packet = packets.build_connect(version=version, will=will, **fields, **properties)
    parsed = packets.parse_connect(split(packet)[1])
    assert parsed.version == version
    for name, value in (fields | properties).items():
        assert getattr(parsed, name) == value
    assert (parsed.will is None) == (will is None)
    if will is not None and parsed.will is not None:
        for name in ("topic", "payload", "qos", "retain"):
            assert getattr(parsed.will, name) == getattr(will, name)
        if version == 5:
            assert (parsed.will.props, parsed.will.delay, parsed.will.expiry) == (will.props, will.delay, will.expiry)


filters = topics.filter(lambda topic: not topic.startswith("$share/"))
options = st.builds(
    lambda qos, bits, handling: qos | bits << 2 | handling << 4, *[st.integers(0, n) for n in (2, 3, 2)]
)


@unhurried
@given(versions, packet_ids, st.lists(st.tuples(filters, options), min_size=1, max_size=5), st.data())
def test_subscribe_round_trip(
    version: int, packet_id: int, entries: list[tuple[str, int]], data: st.DataObject
) -> None:
    identifier = data.draw(st.integers(0, 268_435_455)) if version == 5 else 0
    user_properties = data.draw(pairs) if version == 5 else []
    if version < 5:
        entries = [(topic, option & 3) for topic, option in entries]
    packet = packets.build_subscribe(
        packet_id, entries, version=version, identifier=identifier, user_properties=user_properties
    )
    parsed = packets.parse_subscribe(*split(packet), version)
    assert parsed.packet_id == packet_id
    assert parsed.entries == [(topic.encode(), option, 0) for topic, option in entries]
    assert (parsed.identifier, parsed.user_properties) == (identifier, user_properties)


@unhurried
@given(versions, packet_ids, st.lists(filters, min_size=1, max_size=5))
def test_unsubscribe_round_trip(version: int, packet_id: int, topic_filters: list[str]) -> None:
    parsed = packets.parse_unsubscribe(
        *split(packets.build_unsubscribe(packet_id, topic_filters, version=version)), version
    )
    assert parsed.packet_id == packet_id
    assert parsed.entries == [(topic.encode(), 0) for topic in topic_filters]


BAD_FILTERS = (
    b"",
    b"a#",
    b"a/#/b",
    b"+a",
    b"$share//a",
    b"$share/g",
    b"$share/g/",
    b"$share/+/a",
    b"$share/g#/a",
    b"$share/g/a#",
)
GOOD_FILTERS = (b"#", b"$share/g/#", b"$share/g//", b"$share/g/+/a", b"$share", b"$SYS/#", b"$shared/a")


@pytest.mark.parametrize("version", [3, 4, 5])
def test_bad_filters_are_marked_one_by_one(version: int) -> None:
    """[MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-4.7.3-1] [MQTT-4.8.2-1] [MQTT-4.8.2-2]"""
    names = BAD_FILTERS + GOOD_FILTERS
    expected = [Reason.TOPIC_FILTER_INVALID] * len(BAD_FILTERS) + [0] * len(GOOD_FILTERS)
    subscribe = packets.build_subscribe(1, [(name, 1) for name in names], version=version)
    assert [entry[2] for entry in packets.parse_subscribe(*split(subscribe), version).entries] == expected
    unsubscribe = packets.build_unsubscribe(1, names, version=version)
    assert [entry[1] for entry in packets.parse_unsubscribe(*split(unsubscribe), version).entries] == expected


def test_filters_have_a_level_limit() -> None:
    body = split(packets.build_subscribe(1, [("a/b/c", 0), ("$share/g/a/b", 0)]))[1]
    entries = packets.parse_subscribe(2, body, 5, max_topic_levels=2).entries
    assert [reason for _, _, reason in entries] == [Reason.TOPIC_FILTER_INVALID, 0]


@pytest.mark.parametrize(
    ("topic_filter", "expected"),
    [
        (b"a/b", (None, b"a/b")),
        (b"$share/g/a/b", (b"g", b"a/b")),
        (b"$share/g//", (b"g", b"/")),
        (b"$share/g", (b"g", b"")),
        (b"$share//a", (b"", b"a")),
        (b"$share", (None, b"$share")),
        (b"$SHARE/g/a", (None, b"$SHARE/g/a")),
    ],
)
def test_split_share(topic_filter: bytes, expected: tuple[bytes | None, bytes]) -> None:
    assert packets.split_share(topic_filter) == expected


@unhurried
@given(
    st.sampled_from((0x00, 0x04, 0x80, 0x99)),
    some(session_expiry=u32, reason_string=texts, user_properties=pairs),
)
def test_client_disconnect_round_trip(reason: int, properties: dict[str, Any]) -> None:
    parsed = packets.parse_disconnect(*split(packets.build_disconnect(reason, **properties)), 5)
    assert parsed.reason == reason
    assert parsed.session_expiry == properties.get("session_expiry")
    assert parsed.reason_string == properties.get("reason_string")
    assert parsed.user_properties == properties.get("user_properties", [])


def test_server_disconnect() -> None:
    """[MQTT-3.14.2-1] [MQTT-3.14.2-2]"""
    moved = packets.build_disconnect(Reason.SERVER_MOVED, server_reference="other")
    assert packets.parse_disconnect(*split(moved), 5, from_server=True).server_reference == "other"
    with pytest.raises(ProtocolViolation):
        packets.parse_disconnect(*split(packets.build_disconnect(0x04)), 5, from_server=True)
    with pytest.raises(ProtocolViolation):
        packets.parse_disconnect(*split(packets.build_disconnect(0, session_expiry=1)), 5, from_server=True)
    assert packets.build_disconnect(0x8E, version=4) == b"\xe0\x00"


@unhurried
@given(
    st.sampled_from((0x18, 0x19)), texts, some(authentication_data=binaries, reason_string=texts, user_properties=pairs)
)
def test_auth_round_trip(reason: int, method: str, properties: dict[str, Any]) -> None:
    parsed = packets.parse_auth(*split(packets.build_auth(reason, authentication_method=method, **properties)), 5)
    assert (parsed.reason, parsed.authentication_method) == (reason, method)
    assert parsed.authentication_data == properties.get("authentication_data")
    assert parsed.reason_string == properties.get("reason_string")
    assert parsed.user_properties == properties.get("user_properties", [])


def test_server_auth() -> None:
    """[MQTT-3.15.2-1]"""
    assert packets.parse_auth(0, b"", 5, from_server=True).reason == 0
    with pytest.raises(ProtocolViolation):
        packets.parse_auth(*split(packets.build_auth(0x19, authentication_method="m")), 5, from_server=True)


connack_properties = some(
    session_expiry=u32,
    receive_maximum=st.integers(1, 0xFFFF),
    maximum_qos=st.integers(0, 1),
    retain_available=st.booleans(),
    maximum_packet_size=st.integers(1, 0xFFFF_FFFF),
    assigned_client_identifier=texts,
    topic_alias_maximum=u16,
    reason_string=texts,
    user_properties=pairs,
    wildcard_subscription_available=st.booleans(),
    subscription_identifiers_available=st.booleans(),
    shared_subscription_available=st.booleans(),
    server_keep_alive=u16,
    response_information=texts,
    server_reference=texts,
    authentication_method=texts,
    authentication_data=binaries,
)


@unhurried
@given(st.booleans(), st.sampled_from((0, 0x80, 0x87)), connack_properties)
def test_connack_round_trip(session_present: bool, reason: int, properties: dict[str, Any]) -> None:
    """Session present only with success [MQTT-3.2.2-6]."""
    flags, body = split(packets.build_connack(5, session_present, reason, **properties))
    parsed = packets.parse_connack(body, 5)
    assert (flags, parsed.session_present, parsed.reason) == (0, session_present and reason == 0, reason)
    assert parsed.properties == properties


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (Reason.SUCCESS, 0),
        (Reason.UNSUPPORTED_PROTOCOL_VERSION, 1),
        (Reason.CLIENT_IDENTIFIER_NOT_VALID, 2),
        (Reason.SERVER_UNAVAILABLE, 3),
        (Reason.SERVER_BUSY, 3),
        (Reason.QUOTA_EXCEEDED, 3),
        (Reason.CONNECTION_RATE_EXCEEDED, 3),
        (Reason.BAD_USER_NAME_OR_PASSWORD, 4),
        (Reason.NOT_AUTHORIZED, 5),
        (Reason.BANNED, 5),
        (Reason.BAD_AUTHENTICATION_METHOD, 5),
    ],
)
def test_return_codes_of_3_x(reason: int, code: int) -> None:
    """[MQTT3-3.2.2-4]"""
    assert packets.build_connack(4, True, reason) == bytes((0x20, 2, reason == 0, code))
    assert packets.build_connack(3, True, reason) == bytes((0x20, 2, 0, code))


def test_no_return_code_no_connack() -> None:
    """[MQTT3-3.2.2-6]"""
    assert packets.build_connack(4, False, Reason.MALFORMED_PACKET) == b""


def test_suback_and_unsuback() -> None:
    """[MQTT-3.9.3-1] [MQTT-3.11.3-1] [MQTT3-3.9.3-1] [MQTT3-3.9.3-2]"""
    reasons = [0, 1, 2, 0x8F, 0x87]
    parsed = packets.parse_suback(split(packets.build_suback(5, 7, reasons, reason_string="why"))[1], 5)
    assert (parsed.packet_id, parsed.reasons, parsed.properties) == (7, reasons, {"reason_string": "why"})
    for version in (3, 4):
        parsed = packets.parse_suback(split(packets.build_suback(version, 7, reasons))[1], version)
        assert (parsed.packet_id, parsed.reasons) == (7, [0, 1, 2, 0x80, 0x80])
        assert packets.build_unsuback(version, 7, reasons) == b"\xb0\x02\x00\x07"
        assert packets.parse_unsuback(b"\x00\x07", version).packet_id == 7
    parsed = packets.parse_unsuback(split(packets.build_unsuback(5, 7, [0, 0x11]))[1], 5)
    assert (parsed.packet_id, parsed.reasons) == (7, [0, 0x11])


@pytest.mark.parametrize(
    "build",
    [
        lambda **rest: packets.build_connack(5, False, 0, receive_maximum=9, **rest),
        lambda **rest: packets.build_suback(5, 1, [0], **rest),
        lambda **rest: packets.build_unsuback(5, 1, [0], **rest),
        lambda **rest: packets.build_disconnect(0x8E, **rest),
        lambda **rest: packets.build_auth(0x18, authentication_method="m", **rest),
    ],
    ids=["connack", "suback", "unsuback", "disconnect", "auth"],
)
def test_a_small_limit_drops_user_properties_then_the_reason_string(build) -> None:
    """[MQTT-3.1.2-24] [MQTT-3.2.2-19] [MQTT-3.2.2-20] [MQTT-3.9.2-1] [MQTT-3.9.2-2] [MQTT-3.11.2-1] [MQTT-3.11.2-2]
    [MQTT-3.14.2-3] [MQTT-3.14.2-4] [MQTT-3.15.2-2] [MQTT-3.15.2-3]"""
    extras = {"reason_string": "because", "user_properties": [("key", "value")]}
    full = build(**extras)
    with_reason = build(reason_string="because")
    bare = build()
    assert len(full) > len(with_reason) > len(bare)
    assert build(**extras, limit=len(full)) == full
    assert build(**extras, limit=len(full) - 1) == with_reason
    assert build(**extras, limit=len(with_reason) - 1) == bare
    assert build(**extras, limit=len(bare)) == bare
    assert build(**extras, limit=2) == b""


def test_disconnect_has_a_shortest_form() -> None:
    assert packets.build_disconnect(0x8E, limit=3) == b"\xe0\x01\x8e"


publish_properties = some(
    payload_format=st.integers(0, 1),
    message_expiry=u32,
    topic_alias=packet_ids,
    content_type=texts,
    response_topic=topics,
    correlation_data=binaries,
    subscription_identifiers=st.lists(st.integers(1, 268_435_455), min_size=1, max_size=3),
    user_properties=pairs,
)


publish_fields = st.fixed_dictionaries(
    {
        "topic": topics,
        "payload": binaries,
        "qos": st.integers(1, 2),
        "retain": st.booleans(),
        "dup": st.booleans(),
        "packet_id": packet_ids,
    }
)


@unhurried
@given(versions, st.booleans(), publish_fields, publish_properties)
def test_publish_round_trip(
    version: int, at_most_once: bool, fields: dict[str, Any], properties: dict[str, Any]
) -> None:
    """[MQTT-2.2.1-2] [MQTT-3.3.1-2] [MQTT3-2.3.1-5] [MQTT3-3.3.1-2]"""
    if version < 5:
        properties = {}
    if at_most_once:
        fields |= {"qos": 0, "dup": False, "packet_id": 0}
    packet = packets.build_publish(version=version, **fields, **properties)
    parsed = packets.parse_publish_packet(*split(packet), version)
    assert {name: getattr(parsed, name) for name in fields} == fields
    assert parsed.properties == properties


@unhurried
@given(message_properties)
def test_publish_properties_round_trip(properties: dict[str, Any]) -> None:
    assert packets.decode_publish_properties(packets.encode_publish_properties(**properties)) == properties


def test_large_packets_have_longer_lengths() -> None:
    for size in (0, 100, 127, 128, 16_383, 16_384, 2_097_152):
        flags, body = split(packets.build_publish("t", b"x" * size, version=4))
        assert (flags, len(body)) == (0, size + 3)


@pytest.mark.parametrize(
    ("packet_type", "version", "reason", "expected"),
    [
        (4, 4, 0, b"\x40\x02\x00\x05"),
        (4, 4, 0x87, b"\x40\x02\x00\x05"),
        (5, 5, 0x87, b"\x50\x03\x00\x05\x87"),
        (6, 5, 0, b"\x62\x02\x00\x05"),
        (7, 5, 0x92, b"\x70\x03\x00\x05\x92"),
    ],
)
def test_acknowledgements(packet_type: int, version: int, reason: int, expected: bytes) -> None:
    assert packets.build_ack(packet_type, 5, reason, version=version) == expected


def test_pings() -> None:
    assert (packets.build_pingreq(), packets.build_pingresp()) == (b"\xc0\x00", b"\xd0\x00")


@pytest.mark.parametrize(
    "build",
    [
        lambda: packets.build_publish("a\0b"),
        lambda: packets.build_publish(b"\xff"),
        lambda: packets.build_publish("\ud800"),
        lambda: packets.build_publish("x" * 65_536),
        lambda: packets.build_publish("a", topic_alias=65_536),
        lambda: packets.build_publish("a", message_expiry=-1),
        lambda: packets.build_publish("a", payload_format=2),
        lambda: packets.build_publish("a", reason_string="misplaced"),  # type: ignore[call-arg]  # the point
        lambda: packets.build_connack(5, False, unheard_of=1),  # type: ignore[call-arg]  # the point
        lambda: packets.encode_publish_properties(topic_alias=1),  # type: ignore[call-arg]  # the point
        lambda: packets.build_ack(8, 1),
        lambda: packets.build_subscribe(65_536, [("a", 0)]),
        lambda: packets.build_subscribe(1, [("a", 0)], identifier=268_435_456),
    ],
)
def test_what_cannot_be_encoded(build) -> None:
    """[MQTT-1.5.4-1] [MQTT-1.5.4-2] [MQTT-4.7.3-3] [MQTT3-4.7.3-3]"""
    with pytest.raises(ValueError, match=r"\S"):
        build()


def test_clients_refuse_bad_answers() -> None:
    """[MQTT-3.2.2-1]"""
    for body, version in ((b"\x02\x00", 4), (b"\x00", 4), (b"\x00\x00", 5), (b"\x00\x00\x00", 4)):
        with pytest.raises(ProtocolViolation) as refused:
            packets.parse_connack(body, version)
        assert refused.value.reason_code == Reason.MALFORMED_PACKET
    for parse, body, version in (
        (packets.parse_suback, b"\x00\x01", 4),
        (packets.parse_suback, b"\x00\x01\x00", 5),
        (packets.parse_unsuback, b"\x00\x01\x00", 4),
        (packets.parse_unsuback, b"\x00\x01\x00", 5),
    ):
        with pytest.raises(ProtocolViolation):
            parse(body, version)
    for flags, body in (
        (0, b"\x00\x00\x00"),
        (6, b"\x00\x01a\x00\x01\x00"),
        (0, b"\x00\x01+\x00"),
        (8, b"\x00\x01a\x00"),
    ):
        with pytest.raises(ProtocolViolation):
            packets.parse_publish_packet(flags, body, 5)


def test_reason_names() -> None:
    assert packets.reason_name(0x8E) == "session taken over"
    assert packets.reason_name(0x03) == "reason 0x03"


def test_violation_says_what_is_wrong() -> None:
    with pytest.raises(ProtocolViolation, match="keep alive is cut off") as refused:
        packets.parse_connect(b"\x00\x04MQTT\x05\x02\x00")
    assert refused.value.message == "keep alive is cut off"
    assert isinstance(refused.value, ValueError)
