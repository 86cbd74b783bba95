"""Is every string checked to be the UTF-8 that MQTT asks for?"""

import pytest

from tests.support.clients.packets import V5, V311, Reason, pack_publish, pack_subscribe, pack_unsubscribe

ILL_FORMED = {
    "U+0000": b"a\x00b",
    "surrogate D800": b"\xed\xa0\x80",
    "surrogate DFFF": b"\xed\xbf\xbf",
    "surrogate pair": b"\xed\xa0\xbd\xed\xb8\x80",
    "overlong /": b"\xc0\xaf",
    "overlong of three bytes": b"\xe0\x80\xaf",
    "overlong of four bytes": b"\xf0\x80\x80\xaf",
    "overlong U+0000": b"\xc0\x80",
    "above U+10FFFF": b"\xf4\x90\x80\x80",
    "five bytes": b"\xf8\x88\x80\x80\x80",
    "lone continuation": b"\x80",
    "truncated": b"\xe2\x82",
    "0xff": b"\xff",
    "latin-1": "größe".encode("latin-1"),
}
WELL_FORMED = [
    "\u0001",
    "\u007f",
    "\u0080",
    "\u07ff",
    "\u0800",
    "\ud7ff",
    "\ue000",
    "\ufdd0",
    "\uffff",
    "\U00010000",
    "\U0010ffff",
    "\ufeff",
]
CASES = pytest.mark.parametrize("text", ILL_FORMED.values(), ids=ILL_FORMED.keys())


@CASES
def test_topic_name(connect, bystander, version, text):
    """[MQTT-1.5.4-1] [MQTT-1.5.4-2] [MQTT-3.3.2-1] [MQTT-4.7.3-2] [MQTT3-1.5.3-1] [MQTT3-1.5.3-2] [MQTT3-3.3.2-1]"""
    client = connect(version)
    client.send_raw(pack_publish(version, text, b"x"))
    client.expect_disconnect((Reason.MALFORMED, Reason.TOPIC_NAME_INVALID))


@CASES
def test_topic_filter(connect, bystander, version, text):
    """[MQTT-1.5.4-1] [MQTT-1.5.4-2] [MQTT-3.8.3-1] [MQTT3-1.5.3-1] [MQTT3-1.5.3-2] [MQTT3-3.8.3-1]"""
    client = connect(version)
    client.send_raw(pack_subscribe(version, 1, [(text, 0)]))
    client.expect_disconnect(Reason.MALFORMED)


@CASES
def test_filter_of_unsubscribe(connect, bystander, version, text):
    """[MQTT-1.5.4-1] [MQTT-3.10.3-1] [MQTT3-1.5.3-1] [MQTT3-3.10.3-1]"""
    client = connect(version)
    client.send_raw(pack_unsubscribe(version, 1, [text]))
    client.expect_disconnect(Reason.MALFORMED)


@CASES
def test_user_property(connect, bystander, topic, text):
    """[MQTT-1.5.4-1] [MQTT-1.5.4-2] [MQTT-1.5.7-1]: name and value."""
    for pair in ((text, "value"), ("name", text)):
        client = connect(V5)
        client.send_publish(topic, b"x", properties={"user_property": [pair]})
        client.expect_disconnect(Reason.MALFORMED)


@CASES
def test_client_id(open_client, bystander, version, text):
    """[MQTT-1.5.4-1] [MQTT-3.1.3-4] [MQTT3-1.5.3-1] [MQTT3-3.1.3-4]"""
    client = open_client(version)
    client.send_connect(text)
    client.expect_refused_connect((Reason.MALFORMED, Reason.CLIENT_ID_INVALID))


@pytest.mark.parametrize("character", WELL_FORMED, ids=ascii)
def test_well_formed_characters_pass_unchanged(connect, topic, character):
    """[MQTT-1.5.4-1] [MQTT-1.5.4-3] [MQTT3-1.5.3-3]: control and non-characters are discouraged, not forbidden; the
    byte order mark is a character like any other."""
    name = f"{topic}/a{character}b"
    for version in (V311, V5):
        client = connect(version)
        client.subscribe(name)
        client.publish(name, character.encode())
        client.expect_publish(name, character.encode())


def test_payload_is_not_text(connect, topic, version):
    """3.3.3: any bytes, whatever the payload format indicator is not."""
    client = connect(version)
    client.subscribe(topic)
    for payload in ILL_FORMED.values():
        client.publish(topic, payload)
        client.expect_publish(topic, payload)
