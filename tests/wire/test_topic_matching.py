"""Does a filter match exactly the topics the specification says?"""

import pytest

from tests.support.clients.packets import V5, V311

# filter, topics it matches, topics it does not match; `T` stands for the test's own first level
CASES = [
    ("T/a", ["T/a"], ["T", "T/A", "T/a/", "T/a/b", "/T/a", "T//a", "T/aa"]),
    ("T/#", ["T", "T/", "T/a", "T/a/b/c", "T//"], ["Tx", "/T", "t/a"]),
    ("T/+", ["T/a", "T/", "T/$a"], ["T", "T/a/b", "T/a/", "T//"]),
    ("T/+/c", ["T/a/c", "T//c"], ["T/c", "T/a/b/c", "T/a/c/"]),
    ("T/+/+", ["T/a/b", "T//", "T/a/"], ["T/a", "T/a/b/c"]),
    ("T/+/#", ["T/a", "T/", "T/a/b", "T/a/b/c"], ["T"]),
    ("+/T", ["/T", "x/T"], ["T", "x/y/T", "$x/T"]),
    ("/T", ["/T"], ["T", "x/T", "//T"]),
    ("+/+/T", ["//T", "a/b/T"], ["a/T", "$a/b/T"]),
    ("/+/T", ["//T", "/a/T"], ["a/b/T"]),
    ("$T/#", ["$T", "$T/a"], ["T/a", "$Tx"]),
    ("$T/+", ["$T/a"], ["$T", "T/a"]),
    ("T/a b", ["T/a b"], ["T/ab", "T/a  b"]),
    ("T/\ufeffbom", ["T/\ufeffbom"], ["T/bom"]),
    ("T/\u00e9", ["T/\u00e9"], ["T/e\u0301"]),
    ("T/\U0001f600/#", ["T/\U0001f600", "T/\U0001f600/x"], ["T/x"]),
    ("T/a/#", ["T/a", "T/a/"], ["T/ab", "T/A"]),
]


@pytest.mark.parametrize(("topic_filter", "matching", "others"), CASES, ids=[ascii(case[0]) for case in CASES])
def test_filter(*, connect, new_name, version, topic_filter, matching, others):
    """[MQTT-1.5.4-3] [MQTT-3.3.2-3] [MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-4.7.2-1] [MQTT-4.7.3-4]
    [MQTT3-1.5.3-3] [MQTT3-3.3.2-3] [MQTT3-4.7.1-2] [MQTT3-4.7.1-3] [MQTT3-4.7.2-1] [MQTT3-4.7.3-4]"""
    level = new_name("level")
    client = connect(version)
    client.subscribe(topic_filter.replace("T", level))
    publisher = connect(version)
    for topic in [*others, *matching]:
        publisher.publish(topic.replace("T", level), b"x")
    assert [client.expect_publish().topic for _ in matching] == [topic.replace("T", level) for topic in matching]
    client.expect_nothing(0.05)


def test_hash_alone_matches_all_but_dollar(connect, topic, new_name, version):
    """[MQTT-4.7.2-1] [MQTT3-4.7.2-1]"""
    client = connect(version)
    client.subscribe("#", **({"retain_handling": 2} if version == V5 else {}))
    publisher = connect(version)
    publisher.publish(new_name("$hidden/"), b"x", qos=1)
    publisher.publish(f"/{topic}", b"x", qos=1)
    while (packet := client.receive()).topic != f"/{topic}":  # retained messages of other tests come first
        assert not packet.topic.startswith("$")


@pytest.mark.parametrize("length", [127, 128, 16_384, 65_535])
def test_long_topics(connect, new_name, version, length):
    """[MQTT-4.7.3-3] [MQTT3-4.7.3-3]: up to 65,535 bytes, also as a filter."""
    topic = new_name("long/").ljust(length, "x")
    client = connect(version)
    client.subscribe(topic)
    connect(version).publish(topic, b"x")
    client.expect_publish(topic, b"x")


def test_deepest_topic_and_one_deeper(connect, new_name):
    """limits.max_topic_levels is 32: more are refused, in a filter with a reason code, in a topic name, too."""
    name = new_name("deep")
    deepest, deeper = "/".join([name] * 32), "/".join([name] * 33)
    client = connect(V5)
    assert client.subscribe(deepest, deeper) == [0, 0x8F]
    publisher = connect(V5)
    publisher.publish(deepest, b"x")
    client.expect_publish(deepest, b"x")
    publisher.send_publish(deeper, b"x", qos=1, packet_id=1)
    answer = publisher.receive()
    assert answer.reason in (0x90, 0x97, 0x81, 0x82)


def test_case_and_space_matter(connect, topic):
    """4.7.3: topics are case sensitive and may contain spaces."""
    client = connect(V311)
    client.subscribe(f"{topic}/ Accounts payable ")
    publisher = connect(V311)
    for name in ("accounts payable", " accounts payable ", " Accounts payable "):
        publisher.publish(f"{topic}/{name}", b"x")
    client.expect_publish(f"{topic}/ Accounts payable ")
    client.expect_nothing(0.05)
