"""Packets by name, their bytes annotated field by field: valid ones, and broken ones with the reason code they deserve.

The codec tests run all of them, and the fuzzer starts from them. The remaining length is computed, so that a table row
shows only what matters.
"""

from typing import NamedTuple

V3, V4, V5 = 3, 4, 5
BEFORE_5 = (V3, V4)
ALL = (V3, V4, V5)
ONLY_5 = (V5,)

MALFORMED = 0x81
PROTOCOL_ERROR = 0x82
UNSUPPORTED_VERSION = 0x84
BAD_CLIENT_ID = 0x85
TOPIC_NAME_INVALID = 0x90
TOPIC_ALIAS_INVALID = 0x94
QUOTA_EXCEEDED = 0x97

# One field: its bytes in hexadecimal, and what they are.
Field = tuple[str, str]


class Case(NamedTuple):
    name: str
    versions: tuple[int, ...]
    first_byte: int
    fields: tuple[Field, ...]
    reason: int = 0  # 0: valid

    @property
    def body(self) -> bytes:
        return b"".join(bytes.fromhex(data) for data, _ in self.fields)

    @property
    def packet(self) -> bytes:
        return bytes((self.first_byte,)) + encode_varint(len(self.body)) + self.body


def encode_varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


TOPIC = ("0003 612f62", "topic a/b")
FILTER = ("0003 612f62", "filter a/b")
ID_10 = ("000a", "packet identifier 10")
ID_0 = ("0000", "packet identifier 0")
NO_PROPERTIES = ("00", "property length 0")
HELLO = ("68656c6c6f", "payload hello")

PUBLISH_CASES = (
    Case("publish qos 0", BEFORE_5, 0x30, (TOPIC, HELLO)),
    Case("publish qos 0 retained", BEFORE_5, 0x31, (TOPIC, HELLO)),
    Case("publish without payload", BEFORE_5, 0x30, (TOPIC,)),
    Case("publish qos 1", BEFORE_5, 0x32, (TOPIC, ID_10, HELLO)),
    Case("publish qos 2 dup", BEFORE_5, 0x3C, (TOPIC, ID_10, HELLO)),
    Case("publish v5 qos 0", ONLY_5, 0x30, (TOPIC, NO_PROPERTIES, HELLO)),
    Case("publish v5 qos 1", ONLY_5, 0x32, (TOPIC, ID_10, NO_PROPERTIES, HELLO)),
    Case(
        "publish v5 every property",
        ONLY_5,
        0x34,
        (
            TOPIC,
            ID_10,
            ("2b", "property length 43"),
            ("01 01", "payload format: UTF-8"),
            ("02 0000003c", "message expiry 60 s"),
            ("03 0004 74657874", "content type text"),
            ("08 0003 722f31", "response topic r/1"),
            ("09 0002 00ff", "correlation data"),
            ("23 0007", "topic alias 7"),
            ("26 0001 6b 0001 76", "user property k: v"),
            ("26 0001 6b 0002 7632", "user property k: v2"),
            HELLO,
        ),
    ),
    Case(
        "publish v5 alias only", ONLY_5, 0x30, (("0000", "no topic"), ("03", "length"), ("23 0007", "alias 7"), HELLO)
    ),
    Case("publish v5 alias 65535", ONLY_5, 0x30, (TOPIC, ("03", "length"), ("23 ffff", "alias"), HELLO)),
    Case("publish v5 expiry 0", ONLY_5, 0x30, (TOPIC, ("05", "length"), ("02 00000000", "expiry"), HELLO)),
    Case("publish topic with U+FFFE", BEFORE_5, 0x30, (("0003 efbfbe", "noncharacter U+FFFE"),)),
    Case("publish topic with a byte order mark", BEFORE_5, 0x30, (("0004 efbbbf61", "BOM and a"),)),
    # broken
    Case("publish empty body", ALL, 0x30, (), MALFORMED),
    Case("publish half a topic length", ALL, 0x30, (("00", "length"),), MALFORMED),
    Case("publish topic cut off", ALL, 0x30, (("0004 612f62", "three of four bytes"),), MALFORMED),
    Case("publish qos 3", ALL, 0x36, (TOPIC, ID_10, NO_PROPERTIES), MALFORMED),
    Case("publish dup with qos 0", ALL, 0x38, (TOPIC, NO_PROPERTIES), MALFORMED),
    Case("publish packet id 0", ALL, 0x32, (TOPIC, ID_0, NO_PROPERTIES), PROTOCOL_ERROR),
    Case("publish packet id missing", ALL, 0x32, (TOPIC,), MALFORMED),
    Case("publish packet id cut off", ALL, 0x32, (TOPIC, ("00", "half an id")), MALFORMED),
    Case("publish empty topic", BEFORE_5, 0x30, (("0000", "no topic"), HELLO), TOPIC_NAME_INVALID),
    Case("publish v5 empty topic", ONLY_5, 0x30, (("0000", "no topic"), NO_PROPERTIES, HELLO), PROTOCOL_ERROR),
    Case("publish v5 no property length", ONLY_5, 0x30, (TOPIC,), MALFORMED),
    Case("publish v5 property length of 5 bytes", ONLY_5, 0x30, (TOPIC, ("8080808001", "length")), MALFORMED),
    Case("publish v5 property length not minimal", ONLY_5, 0x30, (TOPIC, ("8000", "0 in two bytes")), MALFORMED),
    Case("publish v5 property length cut off", ONLY_5, 0x30, (TOPIC, ("80", "half a length")), MALFORMED),
    Case("publish v5 properties cut off", ONLY_5, 0x30, (TOPIC, ("03", "length"), ("23 00", "alias")), MALFORMED),
    Case(
        "publish v5 alias beyond the length", ONLY_5, 0x30, (TOPIC, ("02", "length"), ("23 0001", "alias")), MALFORMED
    ),
    Case(
        "publish v5 format beyond the length", ONLY_5, 0x30, (TOPIC, ("01", "length"), ("01 01", "format")), MALFORMED
    ),
    Case("publish v5 expiry cut off", ONLY_5, 0x30, (TOPIC, ("04", "length"), ("02 000000", "expiry")), MALFORMED),
    Case("publish v5 alias 0", ONLY_5, 0x30, (TOPIC, ("03", "length"), ("23 0000", "alias 0")), TOPIC_ALIAS_INVALID),
    Case("publish v5 payload format 2", ONLY_5, 0x30, (TOPIC, ("02", "length"), ("01 02", "format")), PROTOCOL_ERROR),
    Case("publish v5 unknown property", ONLY_5, 0x30, (TOPIC, ("02", "length"), ("7f 00", "0x7f")), MALFORMED),
    Case("publish v5 property 0", ONLY_5, 0x30, (TOPIC, ("02", "length"), ("00 00", "0x00")), MALFORMED),
    Case("publish v5 long identifier", ONLY_5, 0x30, (TOPIC, ("03", "length"), ("8101 00", "0x81")), MALFORMED),
    Case("publish v5 will delay", ONLY_5, 0x30, (TOPIC, ("05", "length"), ("18 00000001", "misplaced")), MALFORMED),
    Case("publish v5 receive maximum", ONLY_5, 0x30, (TOPIC, ("03", "length"), ("21 0001", "misplaced")), MALFORMED),
    Case(
        "publish v5 subscription id",
        ONLY_5,
        0x30,
        (TOPIC, ("02", "length"), ("0b 01", "from a client")),
        PROTOCOL_ERROR,
    ),
    Case("publish v5 format twice", ONLY_5, 0x30, (TOPIC, ("04", "length"), ("01 00 01 00", "twice")), PROTOCOL_ERROR),
    Case(
        "publish v5 alias twice", ONLY_5, 0x30, (TOPIC, ("06", "length"), ("23 0001 23 0001", "twice")), PROTOCOL_ERROR
    ),
    Case(
        "publish v5 expiry twice",
        ONLY_5,
        0x30,
        (TOPIC, ("0a", "length"), ("02 00000001 02 00000001", "twice")),
        PROTOCOL_ERROR,
    ),
    Case(
        "publish v5 type twice", ONLY_5, 0x30, (TOPIC, ("06", "length"), ("03 0000 03 0000", "twice")), PROTOCOL_ERROR
    ),
    Case(
        "publish v5 data twice", ONLY_5, 0x30, (TOPIC, ("06", "length"), ("09 0000 09 0000", "twice")), PROTOCOL_ERROR
    ),
    Case(
        "publish v5 response topic twice",
        ONLY_5,
        0x30,
        (TOPIC, ("08", "length"), ("08 0001 61 08 0001 61", "twice")),
        PROTOCOL_ERROR,
    ),
    Case("publish v5 response topic +", ONLY_5, 0x30, (TOPIC, ("04", "length"), ("08 0001 2b", "+")), PROTOCOL_ERROR),
    Case("publish v5 response topic #", ONLY_5, 0x30, (TOPIC, ("04", "length"), ("08 0001 23", "#")), PROTOCOL_ERROR),
    Case("publish v5 content type not UTF-8", ONLY_5, 0x30, (TOPIC, ("04", "length"), ("03 0001 ff", "ff")), MALFORMED),
    Case("publish v5 content type with NUL", ONLY_5, 0x30, (TOPIC, ("04", "length"), ("03 0001 00", "NUL")), MALFORMED),
    Case(
        "publish v5 user property with a surrogate",
        ONLY_5,
        0x30,
        (TOPIC, ("09", "length"), ("26 0003 eda080 0001 76", "U+D800: v")),
        MALFORMED,
    ),
    Case(
        "publish v5 half a user property",
        ONLY_5,
        0x30,
        (TOPIC, ("04", "length"), ("26 0001 6b", "no value")),
        MALFORMED,
    ),
)

ACK_CASES = (
    Case("puback", ALL, 0x40, (ID_10,)),
    Case("pubrec", ALL, 0x50, (ID_10,)),
    Case("pubrel", ALL, 0x62, (ID_10,)),
    Case("pubcomp", ALL, 0x70, (ID_10,)),
    Case("puback v5 no matching subscribers", ONLY_5, 0x40, (ID_10, ("10", "reason"))),
    Case("puback v5 not authorized, no properties", ONLY_5, 0x40, (ID_10, ("87", "reason"), NO_PROPERTIES)),
    Case("pubrec v5 quota exceeded", ONLY_5, 0x50, (ID_10, ("97", "reason"))),
    Case("pubrel v5 not found", ONLY_5, 0x62, (ID_10, ("92", "reason"))),
    Case(
        "pubcomp v5 with reason string and user properties",
        ONLY_5,
        0x70,
        (
            ID_10,
            ("92", "reason"),
            ("13", "property length 19"),
            ("1f 0002 6e6f", "reason string no"),
            ("26 0001 6b 0001 76", "user property k: v"),
            ("26 0001 6b 0001 76", "user property k: v"),
        ),
    ),
    Case("puback with flags", ALL, 0x42, (ID_10,), MALFORMED),
    Case("pubrec with flags", ALL, 0x51, (ID_10,), MALFORMED),
    Case("pubrel without its flag", ALL, 0x60, (ID_10,), MALFORMED),
    Case("pubrel with a flag too many", ALL, 0x66, (ID_10,), MALFORMED),
    Case("pubcomp with flags", ALL, 0x78, (ID_10,), MALFORMED),
    Case("puback empty", ALL, 0x40, (), MALFORMED),
    Case("puback cut off", ALL, 0x40, (("00", "half an id"),), MALFORMED),
    Case("puback packet id 0", ALL, 0x40, (ID_0,), PROTOCOL_ERROR),
    Case("pubrel packet id 0", ALL, 0x62, (ID_0,), PROTOCOL_ERROR),
    Case("puback 3.x with a reason", BEFORE_5, 0x40, (ID_10, ("00", "reason")), MALFORMED),
    Case("puback v5 with a code of PUBREL", ONLY_5, 0x40, (ID_10, ("92", "reason")), PROTOCOL_ERROR),
    Case("puback v5 unknown reason", ONLY_5, 0x40, (ID_10, ("01", "reason")), PROTOCOL_ERROR),
    Case("pubrel v5 with a code of PUBREC", ONLY_5, 0x62, (ID_10, ("80", "reason")), PROTOCOL_ERROR),
    Case("puback v5 bytes behind", ONLY_5, 0x40, (ID_10, ("00", "reason"), NO_PROPERTIES, ("00", "more")), MALFORMED),
    Case("puback v5 properties cut off", ONLY_5, 0x40, (ID_10, ("00", "reason"), ("05", "length")), MALFORMED),
    Case(
        "puback v5 misplaced property",
        ONLY_5,
        0x40,
        (ID_10, ("00", "reason"), ("02", "length"), ("01 00", "payload format")),
        MALFORMED,
    ),
    Case(
        "puback v5 reason string twice",
        ONLY_5,
        0x40,
        (ID_10, ("00", "reason"), ("06", "length"), ("1f 0000 1f 0000", "twice")),
        PROTOCOL_ERROR,
    ),
    Case(
        "puback v5 reason string not UTF-8",
        ONLY_5,
        0x40,
        (ID_10, ("00", "reason"), ("04", "length"), ("1f 0001 c0", "overlong")),
        MALFORMED,
    ),
)

MQTT_4 = ("0004 4d515454 04", "MQTT 4")
MQTT_5 = ("0004 4d515454 05", "MQTT 5")
MQISDP = ("0006 4d5149736470 03", "MQIsdp 3")
CLEAN = ("02", "flags: clean start")
WILL = ("06", "flags: clean start, will")
KEEP_ALIVE = ("003c", "keep alive 60 s")
CLIENT = ("0002 6331", "client identifier c1")
WILL_TOPIC = ("0001 77", "will topic w")
WILL_PAYLOAD = ("0003 627965", "will payload bye")


def connect_5(name: str, properties: str, reason: int = 0) -> Case:
    """A CONNECT of MQTT 5 of which only the properties matter."""
    length = encode_varint(len(bytes.fromhex(properties))).hex()
    fields = (MQTT_5, CLEAN, KEEP_ALIVE, (length, "length"), (properties, name), CLIENT)
    return Case(f"connect v5 {name}", ONLY_5, 0x10, fields, reason)


def will_5(name: str, properties: str, reason: int = 0) -> Case:
    """A CONNECT of MQTT 5 of which only the will properties matter."""
    length = encode_varint(len(bytes.fromhex(properties))).hex()
    fields = (MQTT_5, WILL, KEEP_ALIVE, NO_PROPERTIES, CLIENT, (length, "length"), (properties, name))
    return Case(f"connect v5 will with {name}", ONLY_5, 0x10, (*fields, WILL_TOPIC, WILL_PAYLOAD), reason)


CONNECT_CASES = (
    Case("connect 3.1", (V3,), 0x10, (MQISDP, CLEAN, KEEP_ALIVE, CLIENT)),
    Case("connect 3.1.1", (V4,), 0x10, (MQTT_4, CLEAN, KEEP_ALIVE, CLIENT)),
    Case("connect v5", ONLY_5, 0x10, (MQTT_5, CLEAN, KEEP_ALIVE, NO_PROPERTIES, CLIENT)),
    Case("connect 3.1.1 empty client id", (V4,), 0x10, (MQTT_4, CLEAN, KEEP_ALIVE, ("0000", "no id"))),
    Case(
        "connect 3.1.1 with everything",
        (V4,),
        0x10,
        (
            MQTT_4,
            ("f6", "flags: user name, password, will retain, will QoS 2, will, clean session"),
            KEEP_ALIVE,
            CLIENT,
            WILL_TOPIC,
            WILL_PAYLOAD,
            ("0001 75", "user name u"),
            ("0002 00ff", "password, any bytes"),
        ),
    ),
    Case(
        "connect v5 with everything",
        ONLY_5,
        0x10,
        (
            MQTT_5,
            ("ee", "flags: user name, password, will retain, will QoS 1, will, clean start"),
            KEEP_ALIVE,
            ("28", "property length 40"),
            ("11 0000000a", "session expiry 10 s"),
            ("21 0014", "receive maximum 20"),
            ("27 00010000", "maximum packet size 65,536"),
            ("22 0010", "topic alias maximum 16"),
            ("19 01", "request response information"),
            ("17 00", "request problem information: no"),
            ("26 0001 6b 0001 76", "user property k: v"),
            ("15 0005 5343524d31", "authentication method"),
            ("16 0002 0102", "authentication data"),
            CLIENT,
            ("23", "will property length 35"),
            ("18 00000005", "will delay 5 s"),
            ("01 01", "payload format"),
            ("02 0000003c", "message expiry 60 s"),
            ("03 0004 74657874", "content type text"),
            ("08 0001 72", "response topic r"),
            ("09 0002 00ff", "correlation data"),
            ("26 0001 6b 0001 76", "user property k: v"),
            WILL_TOPIC,
            WILL_PAYLOAD,
            ("0001 75", "user name u"),
            ("0002 00ff", "password"),
        ),
    ),
    Case(
        "connect v5 password without user name",
        ONLY_5,
        0x10,
        (MQTT_5, ("42", "flags: password"), KEEP_ALIVE, NO_PROPERTIES, CLIENT, ("0001 70", "password")),
    ),
    Case(
        "connect v5 empty client id, resume",
        ONLY_5,
        0x10,
        (MQTT_5, ("00", "flags"), KEEP_ALIVE, NO_PROPERTIES, ("0000", "no id")),
    ),
    # broken
    Case("connect empty", (0,), 0x10, (), MALFORMED),
    Case(
        "connect unknown protocol",
        (0,),
        0x10,
        (("0004 48545450 04", "HTTP"), CLEAN, KEEP_ALIVE, CLIENT),
        UNSUPPORTED_VERSION,
    ),
    Case("connect protocol name not UTF-8", (0,), 0x10, (("0004 ffffffff 04", "name"),), MALFORMED),
    Case("connect without version", (0,), 0x10, (("0004 4d515454", "MQTT"),), MALFORMED),
    Case(
        "connect version 6",
        (V5,),
        0x10,
        (("0004 4d515454 06", "MQTT 6"), CLEAN, KEEP_ALIVE, CLIENT),
        UNSUPPORTED_VERSION,
    ),
    Case(
        "connect MQTT 3", (V4,), 0x10, (("0004 4d515454 03", "MQTT 3"), CLEAN, KEEP_ALIVE, CLIENT), UNSUPPORTED_VERSION
    ),
    Case(
        "connect MQIsdp 4", (V3,), 0x10, (("0006 4d5149736470 04", "4"), CLEAN, KEEP_ALIVE, CLIENT), UNSUPPORTED_VERSION
    ),
    Case("connect without flags", (V4,), 0x10, (MQTT_4,), MALFORMED),
    Case("connect without keep alive", (V4,), 0x10, (MQTT_4, CLEAN, ("00", "half")), MALFORMED),
    Case("connect without client id", (V4,), 0x10, (MQTT_4, CLEAN, KEEP_ALIVE), MALFORMED),
    Case("connect reserved flag", (V4,), 0x10, (MQTT_4, ("03", "reserved"), KEEP_ALIVE, CLIENT), MALFORMED),
    Case("connect v5 reserved flag", ONLY_5, 0x10, (MQTT_5, ("03", "r"), KEEP_ALIVE, NO_PROPERTIES, CLIENT), MALFORMED),
    Case(
        "connect will QoS 3",
        (V4,),
        0x10,
        (MQTT_4, ("1e", "QoS 3"), KEEP_ALIVE, CLIENT, WILL_TOPIC, WILL_PAYLOAD),
        MALFORMED,
    ),
    Case("connect will QoS without will", (V4,), 0x10, (MQTT_4, ("0a", "QoS 1"), KEEP_ALIVE, CLIENT), MALFORMED),
    Case("connect will retain without will", (V4,), 0x10, (MQTT_4, ("22", "retain"), KEEP_ALIVE, CLIENT), MALFORMED),
    Case("connect will missing", (V4,), 0x10, (MQTT_4, WILL, KEEP_ALIVE, CLIENT), MALFORMED),
    Case("connect will payload missing", (V4,), 0x10, (MQTT_4, WILL, KEEP_ALIVE, CLIENT, WILL_TOPIC), MALFORMED),
    Case(
        "connect will topic with a wildcard",
        (V4,),
        0x10,
        (MQTT_4, WILL, KEEP_ALIVE, CLIENT, ("0003 612f23", "a/#"), WILL_PAYLOAD),
        TOPIC_NAME_INVALID,
    ),
    Case(
        "connect will topic empty",
        (V4,),
        0x10,
        (MQTT_4, WILL, KEEP_ALIVE, CLIENT, ("0000", "no topic"), WILL_PAYLOAD),
        TOPIC_NAME_INVALID,
    ),
    Case(
        "connect password without user name",
        (V4,),
        0x10,
        (MQTT_4, ("42", "flags"), KEEP_ALIVE, CLIENT, ("0001 70", "password")),
        MALFORMED,
    ),
    Case("connect user name missing", (V4,), 0x10, (MQTT_4, ("82", "flags"), KEEP_ALIVE, CLIENT), MALFORMED),
    Case("connect bytes behind", (V4,), 0x10, (MQTT_4, CLEAN, KEEP_ALIVE, CLIENT, ("00", "more")), MALFORMED),
    Case("connect client id not UTF-8", (V4,), 0x10, (MQTT_4, CLEAN, KEEP_ALIVE, ("0001 ff", "ff")), MALFORMED),
    Case("connect client id with NUL", (V4,), 0x10, (MQTT_4, CLEAN, KEEP_ALIVE, ("0001 00", "NUL")), MALFORMED),
    Case(
        "connect user name not UTF-8",
        (V4,),
        0x10,
        (MQTT_4, ("82", "flags"), KEEP_ALIVE, CLIENT, ("0002 c0af", "overlong /")),
        MALFORMED,
    ),
    Case("connect 3.1 empty client id", (V3,), 0x10, (MQISDP, CLEAN, KEEP_ALIVE, ("0000", "no id")), BAD_CLIENT_ID),
    Case(
        "connect 3.1.1 empty id, resume", (V4,), 0x10, (MQTT_4, ("00", "f"), KEEP_ALIVE, ("0000", "id")), BAD_CLIENT_ID
    ),
    connect_5("session expiry twice", "11 00000001 11 00000001", PROTOCOL_ERROR),
    connect_5("receive maximum 0", "21 0000", PROTOCOL_ERROR),
    connect_5("maximum packet size 0", "27 00000000", PROTOCOL_ERROR),
    connect_5("request response information 2", "19 02", PROTOCOL_ERROR),
    connect_5("request problem information 2", "17 02", PROTOCOL_ERROR),
    connect_5("authentication data without method", "16 0001 00", PROTOCOL_ERROR),
    connect_5("topic alias maximum 0", "22 0000"),
    connect_5("session expiry for ever", "11 ffffffff"),
    connect_5("misplaced property", "23 0001", MALFORMED),
    connect_5("property of CONNACK", "12 0001 61", MALFORMED),
    connect_5("unknown property", "05 00", MALFORMED),
    connect_5("property cut off", "11 000000", MALFORMED),
    connect_5("user property not UTF-8", "26 0001 ff 0000", MALFORMED),
    will_5("will delay twice", "18 00000001 18 00000001", PROTOCOL_ERROR),
    will_5("topic alias", "23 0001", MALFORMED),
    will_5("subscription identifier", "0b 01", MALFORMED),
    will_5("session expiry", "11 00000001", MALFORMED),
    will_5("payload format 3", "01 03", PROTOCOL_ERROR),
    will_5("response topic with a wildcard", "08 0001 23", PROTOCOL_ERROR),
    will_5("will delay cut off", "18 0000", MALFORMED),
    will_5("properties in pieces", "01 00 18 00000001 26 0000 0000 02 00000001 03 0000"),
)

SUBSCRIBE_CASES = (
    Case("subscribe", BEFORE_5, 0x82, (ID_10, FILTER, ("01", "QoS 1"))),
    Case("subscribe to two", BEFORE_5, 0x82, (ID_10, FILTER, ("01", "QoS 1"), ("0001 23", "#"), ("02", "QoS 2"))),
    Case(
        "subscribe v5",
        ONLY_5,
        0x82,
        (ID_10, NO_PROPERTIES, FILTER, ("2d", "QoS 1, no local, as published, handling 2")),
    ),
    Case(
        "subscribe v5 with properties",
        ONLY_5,
        0x82,
        (
            ID_10,
            ("0c", "property length 12"),
            ("0b ffffff7f", "the largest subscription identifier"),
            ("26 0001 6b 0001 76", "user property k: v"),
            FILTER,
            ("00", "QoS 0"),
        ),
    ),
    Case("subscribe to a bad filter", BEFORE_5, 0x82, (ID_10, ("0002 6123", "a#"), ("00", "QoS 0"))),
    Case("subscribe to an empty filter", BEFORE_5, 0x82, (ID_10, ("0000", "no filter"), ("00", "QoS 0"))),
    Case("subscribe without flag", ALL, 0x80, (ID_10, NO_PROPERTIES, FILTER, ("00", "options")), MALFORMED),
    Case("subscribe with a flag too many", ALL, 0x83, (ID_10, NO_PROPERTIES, FILTER, ("00", "options")), MALFORMED),
    Case("subscribe packet id 0", ALL, 0x82, (ID_0, NO_PROPERTIES, FILTER, ("00", "options")), PROTOCOL_ERROR),
    Case("subscribe empty", ALL, 0x82, (), MALFORMED),
    Case("subscribe without filter", BEFORE_5, 0x82, (ID_10,), PROTOCOL_ERROR),
    Case("subscribe v5 without filter", ONLY_5, 0x82, (ID_10, NO_PROPERTIES), PROTOCOL_ERROR),
    Case("subscribe without options", BEFORE_5, 0x82, (ID_10, FILTER), MALFORMED),
    Case("subscribe filter cut off", BEFORE_5, 0x82, (ID_10, ("0004 612f62", "three of four")), MALFORMED),
    Case("subscribe filter not UTF-8", BEFORE_5, 0x82, (ID_10, ("0001 ff", "ff"), ("00", "QoS 0")), MALFORMED),
    Case("subscribe QoS 3", BEFORE_5, 0x82, (ID_10, FILTER, ("03", "QoS 3")), MALFORMED),
    Case("subscribe reserved bits", BEFORE_5, 0x82, (ID_10, FILTER, ("04", "reserved")), MALFORMED),
    Case("subscribe v5 QoS 3", ONLY_5, 0x82, (ID_10, NO_PROPERTIES, FILTER, ("03", "QoS 3")), PROTOCOL_ERROR),
    Case("subscribe v5 reserved bits", ONLY_5, 0x82, (ID_10, NO_PROPERTIES, FILTER, ("40", "bit 6")), MALFORMED),
    Case("subscribe v5 retain handling 3", ONLY_5, 0x82, (ID_10, NO_PROPERTIES, FILTER, ("30", "3")), PROTOCOL_ERROR),
    Case(
        "subscribe v5 shared, no local",
        ONLY_5,
        0x82,
        (ID_10, NO_PROPERTIES, ("000a 24736861 72652f67 2f61", "$share/g/a"), ("04", "no local")),
        PROTOCOL_ERROR,
    ),
    Case(
        "subscribe v5 identifier 0",
        ONLY_5,
        0x82,
        (ID_10, ("02", "l"), ("0b 00", "0"), FILTER, ("00", "o")),
        PROTOCOL_ERROR,
    ),
    Case(
        "subscribe v5 identifier twice",
        ONLY_5,
        0x82,
        (ID_10, ("04", "length"), ("0b 01 0b 02", "twice"), FILTER, ("00", "options")),
        PROTOCOL_ERROR,
    ),
    Case(
        "subscribe v5 identifier not minimal",
        ONLY_5,
        0x82,
        (ID_10, ("03", "length"), ("0b 8100", "1 in two bytes"), FILTER, ("00", "options")),
        MALFORMED,
    ),
    Case(
        "subscribe v5 misplaced",
        ONLY_5,
        0x82,
        (ID_10, ("02", "l"), ("01 00", "format"), FILTER, ("00", "o")),
        MALFORMED,
    ),
    Case("unsubscribe", BEFORE_5, 0xA2, (ID_10, FILTER)),
    Case(
        "unsubscribe v5",
        ONLY_5,
        0xA2,
        (ID_10, ("07", "length"), ("26 0001 6b 0001 76", "k: v"), FILTER, ("0001 23", "#")),
    ),
    Case("unsubscribe without flag", ALL, 0xA0, (ID_10, NO_PROPERTIES, FILTER), MALFORMED),
    Case("unsubscribe packet id 0", ALL, 0xA2, (ID_0, NO_PROPERTIES, FILTER), PROTOCOL_ERROR),
    Case("unsubscribe without filter", BEFORE_5, 0xA2, (ID_10,), PROTOCOL_ERROR),
    Case("unsubscribe v5 without filter", ONLY_5, 0xA2, (ID_10, NO_PROPERTIES), PROTOCOL_ERROR),
    Case("unsubscribe filter not UTF-8", BEFORE_5, 0xA2, (ID_10, ("0003 eda080", "U+D800")), MALFORMED),
    Case(
        "unsubscribe v5 identifier", ONLY_5, 0xA2, (ID_10, ("02", "length"), ("0b 01", "misplaced"), FILTER), MALFORMED
    ),
)

CLOSING_CASES = (
    Case("disconnect", ALL, 0xE0, ()),
    Case("disconnect v5 with will", ONLY_5, 0xE0, (("04", "reason"),)),
    Case(
        "disconnect v5 with properties",
        ONLY_5,
        0xE0,
        (
            ("00", "reason"),
            ("11", "property length 17"),
            ("11 00000000", "session expiry 0"),
            ("1f 0002 6279", "reason string by"),
            ("26 0001 6b 0001 76", "user property k: v"),
        ),
    ),
    Case("disconnect with flags", ALL, 0xE1, (), MALFORMED),
    Case("disconnect 3.x with a body", BEFORE_5, 0xE0, (("00", "reason"),), MALFORMED),
    Case("disconnect v5 unknown reason", ONLY_5, 0xE0, (("01", "reason"),), PROTOCOL_ERROR),
    Case("disconnect v5 reason of a server", ONLY_5, 0xE0, (("8e", "session taken over"),), PROTOCOL_ERROR),
    Case(
        "disconnect v5 reference", ONLY_5, 0xE0, (("00", "r"), ("04", "l"), ("1c 0001 61", "reference")), PROTOCOL_ERROR
    ),
    Case(
        "disconnect v5 expiry twice",
        ONLY_5,
        0xE0,
        (("00", "reason"), ("0a", "length"), ("11 00000001 11 00000001", "twice")),
        PROTOCOL_ERROR,
    ),
    Case("disconnect v5 bytes behind", ONLY_5, 0xE0, (("00", "reason"), NO_PROPERTIES, ("00", "more")), MALFORMED),
    Case("disconnect v5 misplaced", ONLY_5, 0xE0, (("00", "r"), ("03", "l"), ("21 0001", "misplaced")), MALFORMED),
    Case("auth v5", ONLY_5, 0xF0, (("18", "continue"), ("05", "length"), ("15 0002 5831", "method X1"))),
    Case(
        "auth v5 again, with data",
        ONLY_5,
        0xF0,
        (("19", "re-authenticate"), ("0a", "length"), ("15 0002 5831", "method X1"), ("16 0002 00ff", "data")),
    ),
    Case("auth before v5", BEFORE_5, 0xF0, (("18", "continue"), ("05", "l"), ("15 0002 5831", "X1")), MALFORMED),
    Case("auth v5 with flags", ONLY_5, 0xF1, (("18", "continue"), ("05", "l"), ("15 0002 5831", "X1")), MALFORMED),
    Case(
        "auth v5 success from a client",
        ONLY_5,
        0xF0,
        (("00", "r"), ("05", "l"), ("15 0002 5831", "X1")),
        PROTOCOL_ERROR,
    ),
    Case("auth v5 empty", ONLY_5, 0xF0, (), PROTOCOL_ERROR),
    Case("auth v5 without method", ONLY_5, 0xF0, (("18", "continue"), NO_PROPERTIES), PROTOCOL_ERROR),
    Case("auth v5 without property length", ONLY_5, 0xF0, (("18", "continue"),), MALFORMED),
    Case(
        "auth v5 method twice", ONLY_5, 0xF0, (("18", "r"), ("06", "l"), ("15 0000 15 0000", "twice")), PROTOCOL_ERROR
    ),
)

CASES = (*PUBLISH_CASES, *ACK_CASES, *CONNECT_CASES, *SUBSCRIBE_CASES, *CLOSING_CASES)
