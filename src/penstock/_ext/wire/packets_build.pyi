from collections.abc import Iterable
from typing import TypeAlias

from penstock._ext.wire.packets import WillPacket

Buffer: TypeAlias = bytes | bytearray | memoryview
Text: TypeAlias = str | bytes
Pairs: TypeAlias = Iterable[tuple[Text, Text]]

def build_connack(
    version: int,
    session_present: bool,
    reason: int = 0,
    *,
    limit: int = 0,
    session_expiry: int | None = None,
    receive_maximum: int | None = None,
    maximum_qos: int | None = None,
    retain_available: bool | None = None,
    maximum_packet_size: int | None = None,
    assigned_client_identifier: str | None = None,
    topic_alias_maximum: int | None = None,
    reason_string: str | None = None,
    user_properties: Pairs | None = None,
    wildcard_subscription_available: bool | None = None,
    subscription_identifiers_available: bool | None = None,
    shared_subscription_available: bool | None = None,
    server_keep_alive: int | None = None,
    response_information: str | None = None,
    server_reference: str | None = None,
    authentication_method: str | None = None,
    authentication_data: bytes | None = None,
) -> bytes: ...
def build_suback(
    version: int,
    packet_id: int,
    reasons: Iterable[int],
    *,
    limit: int = 0,
    reason_string: str | None = None,
    user_properties: Pairs | None = None,
) -> bytes: ...
def build_unsuback(
    version: int,
    packet_id: int,
    reasons: Iterable[int] = (),
    *,
    limit: int = 0,
    reason_string: str | None = None,
    user_properties: Pairs | None = None,
) -> bytes: ...
def build_disconnect(
    reason: int = 0,
    *,
    version: int = 5,
    limit: int = 0,
    session_expiry: int | None = None,
    reason_string: str | None = None,
    user_properties: Pairs | None = None,
    server_reference: str | None = None,
) -> bytes: ...
def build_auth(
    reason: int,
    *,
    limit: int = 0,
    authentication_method: str | None = None,
    authentication_data: bytes | None = None,
    reason_string: str | None = None,
    user_properties: Pairs | None = None,
) -> bytes: ...
def build_pingreq() -> bytes: ...
def build_pingresp() -> bytes: ...
def build_ack(packet_type: int, packet_id: int, reason: int = 0, *, version: int = 5) -> bytes: ...
def build_connect(
    client_id: Text,
    *,
    version: int = 5,
    clean_start: bool = True,
    keep_alive: int = 60,
    username: Text | None = None,
    password: Buffer | None = None,
    will: WillPacket | None = None,
    session_expiry: int | None = None,
    receive_maximum: int | None = None,
    maximum_packet_size: int | None = None,
    topic_alias_maximum: int | None = None,
    request_response_information: bool | None = None,
    request_problem_information: bool | None = None,
    authentication_method: str | None = None,
    authentication_data: bytes | None = None,
    user_properties: Pairs | None = None,
) -> bytes: ...
def build_subscribe(
    packet_id: int,
    entries: Iterable[tuple[Text, int]],
    *,
    version: int = 5,
    identifier: int = 0,
    user_properties: Pairs | None = None,
) -> bytes: ...
def build_unsubscribe(
    packet_id: int, filters: Iterable[Text], *, version: int = 5, user_properties: Pairs | None = None
) -> bytes: ...
def build_publish(
    topic: Text,
    payload: Buffer = b"",
    *,
    qos: int = 0,
    retain: bool = False,
    dup: bool = False,
    packet_id: int = 0,
    version: int = 5,
    payload_format: int | None = None,
    message_expiry: int | None = None,
    topic_alias: int | None = None,
    content_type: str | None = None,
    response_topic: str | None = None,
    correlation_data: bytes | None = None,
    subscription_identifiers: Iterable[int] | None = None,
    user_properties: Pairs | None = None,
) -> bytes: ...
def encode_publish_properties(
    *,
    payload_format: int | None = None,
    content_type: str | None = None,
    response_topic: str | None = None,
    correlation_data: bytes | None = None,
    user_properties: Pairs | None = None,
) -> bytes: ...
