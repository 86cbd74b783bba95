"""Micro-benchmarks of the codec: pytest bench/micro --benchmark-columns=min,median,ops.

The parsers of the hot path run BATCH times inside C, so that the call from Python does not hide them: divide by BATCH.
The rarer packets are measured as they are used, one call from Python each.
"""

from collections.abc import Callable
from typing import Any

import pytest

from penstock._ext.wire import codec, packets
from penstock._ext.wire.packets import WillPacket

BATCH = 100_000
TOPIC = b"sensors/building-7/floor-3/temperature"
PAYLOAD = b"x" * 66


def body_of(packet: bytes) -> bytes:
    return packet[2:] if packet[1] < 128 else packet[3:]


PUBLISHES = {
    "v4 qos 0": packets.build_publish(TOPIC, PAYLOAD, version=4),
    "v4 qos 1": packets.build_publish(TOPIC, PAYLOAD, version=4, qos=1, packet_id=7),
    "v5 no properties": packets.build_publish(TOPIC, PAYLOAD, qos=1, packet_id=7),
    "v5 alias": packets.build_publish("", PAYLOAD, topic_alias=3),
    "v5 expiry and two user properties": packets.build_publish(
        TOPIC, PAYLOAD, message_expiry=60, content_type="text", user_properties=[("key", "value"), ("unit", "celsius")]
    ),
    "v5 properties in pieces": packets.build_publish(
        TOPIC, PAYLOAD, content_type="text", message_expiry=60, user_properties=[("key", "value")]
    ),
}


@pytest.mark.parametrize("name", PUBLISHES)
def test_parse_publish(benchmark: Any, name: str) -> None:
    packet = PUBLISHES[name]
    version = int(name[1])
    total = benchmark(codec.bench_parse_publish, packet[0] & 15, body_of(packet), version, BATCH)
    assert total == BATCH * len(PAYLOAD)


@pytest.mark.parametrize(("name", "body"), [("2 bytes", b"\x00\x07"), ("reason", b"\x00\x07\x10")])
def test_parse_ack(benchmark: Any, name: str, body: bytes) -> None:
    assert benchmark(codec.bench_parse_ack, 4, 0, body, 5, BATCH) == BATCH * 7


def test_check_topic_name(benchmark: Any) -> None:
    assert benchmark(codec.bench_check_topic_name, TOPIC, BATCH) == BATCH


CONNECTS = {
    "v4": packets.build_connect("device-000123", version=4),
    "v4 password": packets.build_connect("device-000123", version=4, username="user", password=b"secret"),
    "v5 three properties": packets.build_connect(
        "device-000123", session_expiry=3600, receive_maximum=100, topic_alias_maximum=10
    ),
    "v5 will": packets.build_connect("device-000123", will=WillPacket("status/123", b"gone", 1, True, delay=5)),
}


@pytest.mark.parametrize("name", CONNECTS)
def test_parse_connect(benchmark: Any, name: str) -> None:
    assert benchmark(packets.parse_connect, body_of(CONNECTS[name])).client_id == "device-000123"


def test_parse_subscribe(benchmark: Any) -> None:
    body = body_of(packets.build_subscribe(1, [("sensors/+/temperature", 1)]))
    assert benchmark(packets.parse_subscribe, 2, body, 5).packet_id == 1


BUILDERS: dict[str, Callable[[], bytes]] = {
    "connack v4": lambda: packets.build_connack(4, False),
    "connack v5": lambda: packets.build_connack(
        5, False, receive_maximum=100, topic_alias_maximum=16, maximum_packet_size=1 << 20, server_keep_alive=600
    ),
    "suback v5": lambda: packets.build_suback(5, 1, (1,)),
    "disconnect v5": lambda: packets.build_disconnect(0x8E),
    "publish v5": lambda: packets.build_publish(TOPIC, PAYLOAD, qos=1, packet_id=7),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_build(benchmark: Any, name: str) -> None:
    assert benchmark(BUILDERS[name])
