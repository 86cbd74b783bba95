"""The fields of publish.proto as data, and the versions of the record. The rules for changes are in publish.proto."""

from __future__ import annotations

from typing import Literal, NamedTuple

FIRST_VERSION = 1
"""The oldest version that is read."""
VERSION = 1
"""The version that is written, and the newest that is read."""

PACKAGE = "penstock.v1"

Type = Literal["uint32", "int64", "bool", "string", "bytes", "UserProperty"]
Label = Literal["", "optional", "repeated"]


class Field(NamedTuple):
    name: str
    number: int
    type: Type
    label: Label = ""


SCHEMA_VERSION = 1
TOPIC = 2
PAYLOAD = 3
QOS = 4
RETAIN = 5
CLIENT_ID = 6
USERNAME = 7
RECEIVED_AT = 8
EXPIRES_AT = 9
PAYLOAD_FORMAT = 16
CONTENT_TYPE = 17
RESPONSE_TOPIC = 18
CORRELATION_DATA = 19
USER_PROPERTIES = 20

USER_PROPERTY_NAME = 1
USER_PROPERTY_VALUE = 2

PUBLISH_FIELDS = (
    Field("schema_version", SCHEMA_VERSION, "uint32"),
    Field("topic", TOPIC, "string"),
    Field("payload", PAYLOAD, "bytes"),
    Field("qos", QOS, "uint32"),
    Field("retain", RETAIN, "bool"),
    Field("client_id", CLIENT_ID, "string"),
    Field("username", USERNAME, "string", "optional"),
    Field("received_at", RECEIVED_AT, "int64"),
    Field("expires_at", EXPIRES_AT, "int64"),
    Field("payload_format", PAYLOAD_FORMAT, "uint32", "optional"),
    Field("content_type", CONTENT_TYPE, "string", "optional"),
    Field("response_topic", RESPONSE_TOPIC, "string", "optional"),
    Field("correlation_data", CORRELATION_DATA, "bytes", "optional"),
    Field("user_properties", USER_PROPERTIES, "UserProperty", "repeated"),
)
USER_PROPERTY_FIELDS = (
    Field("name", USER_PROPERTY_NAME, "string"),
    Field("value", USER_PROPERTY_VALUE, "string"),
)
