"""The client's packets: the same bytes as the broker's compiled codec, and everything it sends is read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._ext.wire import packets as compiled
from penstock._ext.wire.fields import Reason
from penstock._ext.wire.fields import reason_name as compiled_name
from penstock_client.mqtt import packets
from penstock_client.mqtt.packets import MalformedPacket, PacketIds, PacketReader, encode_length, read_header
from penstock_client.mqtt.reasons import reason_name

VERSIONS = (3, 4, 5)
PAIRS = [("a", "b"), ("", "ü")]
MESSAGE = {
    "payload_format": 1,
    "message_expiry": 7,
    "content_type": "text",
    "response_topic": "r/t",
    "correlation_data": b"\0\1",
    "user_properties": PAIRS,
}


def body_of(packet: bytes) -> bytes:
    ((_, _, body),) = PacketReader().feed(packet)
    return body


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, 268_435_455])
def test_a_length_is_read_as_it_was_written(size: int) -> None:
    packet = bytearray(b"\0\0\x30" + encode_length(size))
    assert read_header(packet, 2) == (len(packet), size)
    assert read_header(packet[:-1], 2) is None


def test_a_length_of_five_bytes_is_malformed() -> None:
    with pytest.raises(ValueError, match="without a length"):
        read_header(bytearray(b"\x30\x80\x80\x80\x80\x01"), 0)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("has_will", [False, True])
def test_connect(version: int, has_will: bool) -> None:
    given: dict[str, Any] = {"username": "u", "password": b"p", "keep_alive": 9, "clean_start": False}
    if version == 5:
        given |= {"session_expiry": 5, "receive_maximum": 6, "authentication_method": "m", "user_properties": PAIRS}
    will = packets.Will("w/t", b"gone", 1, True, {"will_delay": 3, "message_expiry": 4, "content_type": "c"})
    same = compiled.WillPacket(
        "w/t", b"gone", 1, True, compiled.encode_publish_properties(content_type="c"), delay=3, expiry=4
    )
    assert packets.build_connect("id", version=version, will=will if has_will else None, **given) == (
        compiled.build_connect("id", version=version, will=same if has_will else None, **given)
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_packets_to_the_broker(version: int) -> None:
    message: dict[str, Any] = {"qos": 1, "retain": True, "packet_id": 300, "version": version, **MESSAGE}
    pairs: dict[str, Any] = {"version": version, "user_properties": PAIRS}
    for ours, theirs in (
        (packets.build_publish("t/ü", b"x" * 200, **message), compiled.build_publish("t/ü", b"x" * 200, **message)),
        (packets.build_publish("t", b""), compiled.build_publish("t", b"")),
        (
            packets.build_subscribe(1, [("a/#", 2), ("b", 0)], identifier=200, **pairs),
            compiled.build_subscribe(1, [("a/#", 2), ("b", 0)], identifier=200, **pairs),
        ),
        (packets.build_unsubscribe(2, ["a", "b"], **pairs), compiled.build_unsubscribe(2, ["a", "b"], **pairs)),
        (packets.build_ack(5, 3, 0x87, version=version), compiled.build_ack(5, 3, 0x87, version=version)),
        (packets.build_ack(6, 3, version=version), compiled.build_ack(6, 3, version=version)),
        (packets.build_disconnect(version=version), compiled.build_disconnect(version=version)),
        (
            packets.build_disconnect(4, version=version, session_expiry=3),
            compiled.build_disconnect(4, version=version, session_expiry=3),
        ),
        (
            packets.build_auth(0x18, authentication_method="m", authentication_data=b"d"),
            compiled.build_auth(0x18, authentication_method="m", authentication_data=b"d"),
        ),
        (packets.build_pingreq(), compiled.build_pingreq()),
    ):
        assert ours == theirs


def test_packets_from_the_broker() -> None:
    properties = {"receive_maximum": 10, "server_keep_alive": 30, "reason_string": "ü", "user_properties": PAIRS}
    connack = packets.parse_connack(body_of(compiled.build_connack(5, True, 0, **properties)))  # type: ignore[arg-type]
    assert connack == (0, True, properties)
    assert packets.parse_connack(body_of(compiled.build_connack(4, False, 0x87)), 4) == (5, False, {})
    suback = packets.parse_suback(body_of(compiled.build_suback(5, 300, [1, 0x87], reason_string="no")))
    assert suback == (300, [1, 0x87], {"reason_string": "no"})
    assert packets.parse_suback(body_of(compiled.build_unsuback(4, 7)), 4) == (7, [], {})
    sent = compiled.build_publish("t", b"p", qos=2, packet_id=9, subscription_identifiers=[5, 300], **MESSAGE)  # type: ignore[arg-type]
    message = packets.parse_publish(4, body_of(sent))
    assert message == ("t", b"p", 2, False, 9, {**MESSAGE, "subscription_identifiers": [5, 300]})
    assert packets.parse_ack(body_of(compiled.build_ack(4, 9))) == (9, [0], {})
    assert packets.parse_ack(b"\0\x09\x87\x05\x1f\0\x02no") == (9, [0x87], {"reason_string": "no"})
    assert packets.parse_reason(body_of(compiled.build_disconnect(0x8B, server_reference="x"))) == (
        0x8B,
        {"server_reference": "x"},
    )
    assert packets.parse_reason(b"") == (0, {})


@given(st.binary(max_size=40), st.integers(0, 15))
def test_nonsense_is_malformed_and_nothing_else(body: bytes, flags: int) -> None:
    for parse in (
        packets.parse_connack,
        packets.parse_suback,
        packets.parse_ack,
        packets.parse_reason,
        lambda data: packets.parse_publish(flags, data),
    ):
        try:
            parse(body)
        except MalformedPacket:
            continue


@given(st.lists(st.binary(max_size=300), max_size=5), st.integers(1, 50))
def test_packets_arrive_in_any_pieces(bodies: list[bytes], piece: int) -> None:
    stream = b"".join(packets.build_packet(3, 2, body) for body in bodies)
    reader = PacketReader()
    pieces = [stream[at : at + piece] for at in range(0, len(stream), piece)]
    assert [packet for part in pieces for packet in reader.feed(part)] == [(3, 2, body) for body in bodies]


@pytest.mark.parametrize(
    "given_values", [{"receive_maximum": 65_536}, {"session_expiry": -1}, {"content_type": "x" * 65_536}]
)
def test_values_that_do_not_fit(given_values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is not between 0 and"):
        packets.encode_properties(given_values)


def test_packet_ids_in_use_are_left_out() -> None:
    ids = PacketIds()
    assert [ids.next({2, 3}) for _ in range(3)] == [1, 4, 5]
    with pytest.raises(ValueError, match="in use"):
        ids.next(set(range(65_536)))


def test_reason_codes_have_the_same_names() -> None:
    codes = [code for name, code in vars(Reason).items() if name.isupper()]
    assert {code: reason_name(code) for code in codes} == {code: compiled_name(code) for code in codes}
    assert reason_name(0x7F) == compiled_name(0x7F)
