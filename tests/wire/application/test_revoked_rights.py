"""Do the rules hold at delivery, for messages that were stored before a right was taken away?

Clients whose id begins with `app` are APPLICATIONs, the others DEVICEs.
"""

import re
import signal

import pytest

from tests.support.clients.packets import V5, V311, PacketType
from tests.support.worlds.application import persistent, running_app_broker, topic_of, until

OPEN = """
[[types]]
type = "application"
clients = ["app*"]

[[rules]]
effect = "allow"
topics = ["#"]
"""
KINDS = ("app", "device")


def closed_for(*names):
    quoted = ", ".join(f'"{name}"' for name in names)
    return f'[[rules]]\neffect = "deny"\nactions = ["subscribe"]\nclients = [{quoted}]\ntopics = ["secret/#"]\n{OPEN}'


@pytest.fixture
def set_rules(broker):
    def write(text):
        begin = broker.log_size()
        broker.acl_path.write_text(text)
        broker.process.send_signal(signal.SIGHUP)
        broker.await_log("reloaded", begin)

    write(OPEN)
    return write


def denied(broker):
    found = re.search(r'penstock_messages_dropped_total\{[^}]*cause="denied"[^}]*\} (\S+)', broker.metrics())
    return float(found[1]) if found else 0.0


def await_stored(broker, name, count):
    """Of an APPLICATION in its topic, of a DEVICE in the store."""
    if name.startswith("app"):
        until(lambda: broker.end_offset(topic_of(name)) >= count, what="the messages in the topic")
    else:
        until(lambda: (broker.api(f"sessions/{name}") or {}).get("stored") == count, what="the messages in the store")


def publish_both(publisher, numbers, qos=1):
    for number in numbers:
        for name in ("secret/x", "public/x"):
            publisher.publish(name, b"%d" % number, qos=qos)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("qos", [1, 2])
def test_stored_messages(*, broker, connect, new_name, set_rules, version, kind, qos):
    """What may not be delivered is left out, counted, and does not come when the right is given back."""
    name = new_name(kind)
    client = connect(version, name, broker=broker, **persistent(version))
    client.subscribe("secret/#", "public/#", qos=qos)
    client.disconnect()
    publisher = connect(V5, broker=broker)
    publish_both(publisher, range(5), qos)
    await_stored(broker, name, 10)
    before = denied(broker)
    set_rules(closed_for(name))
    client = connect(version, name, broker=broker, **persistent(version))
    assert client.connack.session_present
    for number in range(5):
        client.expect_publish("public/x", b"%d" % number, qos=qos, ack=True)
    client.expect_nothing(0.2)
    until(lambda: denied(broker) == before + 5, 10, lambda: f"denied: {before} {denied(broker)}")
    publish_both(publisher, [5], qos)
    client.expect_publish("public/x", b"5", qos=qos, ack=True)
    client.ping()
    client.disconnect()
    set_rules(OPEN)
    client = connect(version, name, broker=broker, **persistent(version))
    client.expect_nothing(0.3)
    publish_both(publisher, [6], qos)
    client.expect_publish("secret/x", b"6", qos=qos, ack=True)
    client.expect_publish("public/x", b"6", qos=qos, ack=True)
    client.ping()
    client.disconnect()


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_restart(*, broker, connect, new_name, set_rules, version, kind):
    name = new_name(kind)
    client = connect(version, name, broker=broker, **persistent(version))
    client.subscribe("secret/#", "public/#", qos=1)
    client.disconnect()
    publish_both(connect(V5, broker=broker), range(3))
    await_stored(broker, name, 6)
    broker.acl_path.write_text(closed_for(name))
    broker.kill()
    broker.restart()
    client = connect(version, name, broker=broker, **persistent(version))
    got = {client.expect_publish("public/x", dup=None, ack=True).payload for _ in range(3)}
    assert got == {b"0", b"1", b"2"}
    client.expect_nothing(0.3)
    client.disconnect()
    set_rules(OPEN)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("qos", [1, 2])
def test_messages_in_flight_are_not_sent_again(*, broker, connect, new_name, set_rules, version, kind, qos):
    """Neither those that were sent and not acknowledged, nor those that waited for them."""
    name = new_name(kind)
    client = connect(version, name, broker=broker, **persistent(version))
    client.subscribe("secret/#", "public/#", qos=qos)
    publisher = connect(V5, broker=broker)
    publisher.publish("secret/x", b"in flight", qos=qos)
    publisher.publish("public/x", b"in flight", qos=qos)
    secret = client.expect_publish("secret/x", b"in flight")
    client.expect_publish("public/x", b"in flight")
    client.close()
    until(lambda: not (broker.api(f"sessions/{name}") or {}).get("connected"), what="the end of the connection")
    set_rules(closed_for(name))
    client = connect(version, name, broker=broker, **persistent(version))
    if qos == 2:
        client.await_packet(PacketType.PUBREL, secret.packet_id)
        client.send_ack(PacketType.PUBCOMP, secret.packet_id)
    client.expect_publish("public/x", b"in flight", dup=True, ack=True)
    client.expect_nothing(0.2)
    client.ping()
    client.disconnect()
    set_rules(OPEN)
    client = connect(version, name, broker=broker, **persistent(version))
    client.expect_nothing(0.2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_qos_2_handshake_is_finished(*, broker, connect, new_name, set_rules, version, kind, is_restarted):
    """The client may hold the packet id of a message that it may not have any more [MQTT-4.3.3-4] [MQTT3-4.3.3-1]."""
    name = new_name(kind)
    client = connect(version, name, broker=broker, **persistent(version))
    client.subscribe("secret/#", qos=2)
    connect(V5, broker=broker).publish("secret/x", b"in flight", qos=2)
    packet_id = client.expect_publish("secret/x", b"in flight").packet_id
    client.close()
    until(lambda: not (broker.api(f"sessions/{name}") or {}).get("connected"), what="the end of the connection")
    if is_restarted:
        broker.acl_path.write_text(closed_for(name))
        broker.kill()
        broker.restart()
    else:
        set_rules(closed_for(name))
    for _ in range(2):
        client = connect(version, name, broker=broker, **persistent(version))
        client.expect(PacketType.PUBREL, packet_id=packet_id)  # until it is answered
        client.expect_nothing(0.1)
        client.close()
        until(lambda: not (broker.api(f"sessions/{name}") or {}).get("connected"), what="the end of the connection")
    client = connect(version, name, broker=broker, **persistent(version))
    client.expect(PacketType.PUBREL, packet_id=packet_id)
    client.send_ack(PacketType.PUBCOMP, packet_id, 0x92 if version == V5 else 0)
    client.ping()
    client.disconnect()
    set_rules(OPEN)
    client = connect(version, name, broker=broker, **persistent(version))
    client.expect_nothing(0.3)
    client.disconnect()


@pytest.mark.parametrize("kind", KINDS)
def test_a_connected_client_with_more_to_come(*, broker, connect, new_name, set_rules, kind):
    """Its messages were read and wait for the first to be acknowledged."""
    name = new_name(kind)
    client = connect(V5, name, broker=broker, **persistent(V5, receive_maximum=1))
    client.subscribe("secret/#", "public/#", qos=1)
    publisher = connect(V5, broker=broker)
    publish_both(publisher, range(3))
    first = client.expect_publish("secret/x", b"0")
    until(lambda: name[0] == "d" or broker.end_offset(topic_of(name)) == 6, what="the messages in the topic")
    set_rules(closed_for(name))
    client.ack(first)
    for number in range(3):
        client.expect_publish("public/x", b"%d" % number, ack=True)
    client.expect_nothing(0.2)
    client.ping()


def test_qos_2_that_was_received_is_finished(*, broker, connect, new_name, set_rules, version):
    """The client has the message: the handshake ends as ever, and its packet id is free again."""
    name = new_name("app")
    client = connect(version, name, broker=broker, **persistent(version))
    client.subscribe("secret/#", "public/#", qos=2)
    publisher = connect(V5, broker=broker)
    publisher.publish("secret/x", b"x", qos=2)
    packet = client.expect_publish("secret/x", b"x")
    client.send_ack(PacketType.PUBREC, packet.packet_id)
    client.expect(PacketType.PUBREL)
    client.close()
    set_rules(closed_for(name))
    client = connect(version, name, broker=broker, **persistent(version))
    assert client.expect(PacketType.PUBREL).packet_id == packet.packet_id
    client.send_ack(PacketType.PUBCOMP, packet.packet_id)
    publisher.publish("public/x", b"y", qos=2)
    client.expect_publish("public/x", b"y", ack=True)
    client.ping()
    assert broker.api(f"sessions/{name}")["in_flight"] == 0


@pytest.mark.providers("embedded")
def test_a_stored_share_of_devices(*, broker, connect, new_name, set_rules, version):
    """What waits for a share group while all its members are away follows the rules of the member who gets it."""
    name, group = new_name("device"), new_name("group")
    client = connect(version, name, broker=broker, **persistent(version))
    client.subscribe(f"$share/{group}/secret/#", f"$share/{group}/public/#", qos=1)
    client.disconnect()
    publish_both(connect(V5, broker=broker), range(3))
    set_rules(closed_for(name))
    client = connect(version, name, broker=broker, **persistent(version))
    assert {client.expect_publish("public/x", dup=None, ack=True).payload for _ in range(3)} == {b"0", b"1", b"2"}
    client.expect_nothing(0.3)


@pytest.mark.providers("embedded")
def test_a_stored_share_of_devices_with_another_member(*, broker, connect, new_name, set_rules, version):
    """The first member to return leaves what it may not have to another one, who is offline."""
    name, other, group = new_name("device"), new_name("device"), new_name("group")
    filters = (f"$share/{group}/secret/#", f"$share/{group}/public/#")
    for one in (name, other):
        client = connect(version, one, broker=broker, **persistent(version))
        client.subscribe(*filters, qos=1)
        client.disconnect()
    publish_both(connect(V5, broker=broker), range(3))
    before = denied(broker)
    set_rules(closed_for(name))
    client = connect(version, name, broker=broker, **persistent(version))
    assert {client.expect_publish("public/x", dup=None, ack=True).payload for _ in range(3)} == {b"0", b"1", b"2"}
    client.expect_nothing(0.2)
    member = connect(version, other, broker=broker, **persistent(version))
    for number in range(3):
        member.expect_publish("secret/x", b"%d" % number, dup=None, ack=True)
    member.expect_nothing(0.2)
    assert denied(broker) == before


@pytest.mark.providers("embedded")
def test_a_member_of_devices_that_is_given_the_right(*, broker, connect, new_name, set_rules, version):
    """It is connected, and gets what was left to others at once."""
    name, other, group = new_name("device"), new_name("device"), new_name("group")
    for one in (name, other):
        client = connect(version, one, broker=broker, **persistent(version))
        client.subscribe(f"$share/{group}/secret/#", qos=1)
        client.disconnect()
    publish_both(connect(V5, broker=broker), range(3))
    set_rules(closed_for(name))
    client = connect(version, name, broker=broker, **persistent(version))
    client.expect_nothing(0.2)
    set_rules(OPEN)
    for number in range(3):
        client.expect_publish("secret/x", b"%d" % number, dup=None, ack=True)
    client.ping()


@pytest.mark.parametrize("qos", [1, 2])
def test_a_stored_share_of_applications(*, broker, connect, new_name, set_rules, version, qos):
    """A member who may not have a message any more is passed over, and one who may gets it."""
    name, other, group = new_name("app"), new_name("app"), new_name("group")
    filters = [f"$share/{group}/secret/{group}", f"$share/{group}/public/{group}"]
    for one in (name, other):
        client = connect(version, one, broker=broker, **persistent(version))
        client.subscribe(*filters, qos=qos)
        client.disconnect()
    publisher = connect(V5, broker=broker)
    for number in range(4):
        for topic in ("secret", "public"):
            publisher.publish(f"{topic}/{group}", b"%d" % number, qos=qos)
    set_rules(closed_for(name))
    client = connect(version, name, broker=broker, **persistent(version))
    got = [client.expect_publish(f"public/{group}", qos=qos, ack=True).payload for _ in range(4)]
    assert sorted(got) == [b"0", b"1", b"2", b"3"]
    client.expect_nothing(0.3)
    client.disconnect()
    member = connect(version, other, broker=broker, **persistent(version))
    # In any order: the messages of a shared topic are spread over its partitions by their offsets in the log of all
    # messages, and each partition is read on its own. test_revoked_shares.py has the order within a partition.
    got = [member.expect_publish(f"secret/{group}", qos=qos, ack=True).payload for _ in range(4)]
    assert sorted(got) == [b"0", b"1", b"2", b"3"]
    member.expect_nothing(0.2)


@pytest.mark.providers("embedded")
@pytest.mark.parametrize("version", [V311, V5], scope="module")
def test_queues_in_memory(*, connect, new_name, tmp_path, version):
    """Without a log, messages wait in memory; those of a share group go to a member who may have them."""
    with running_app_broker(tmp_path, "embedded", {"ingest.log": "none"}) as broker:
        name, other = new_name("device"), new_name("other")
        client = connect(version, name, broker=broker, **persistent(version))
        client.subscribe("secret/#", "public/#", "$share/g/secret/shared", qos=1)
        client.disconnect()
        publisher = connect(V5, broker=broker)
        publish_both(publisher, range(3))
        publisher.publish("secret/shared", b"for the group", qos=1)
        member = connect(version, other, broker=broker, **persistent(version))
        member.subscribe("$share/g/secret/shared", qos=1)
        broker.acl_path.write_text(closed_for(name))
        begin = broker.log_size()
        broker.process.send_signal(signal.SIGHUP)
        broker.await_log("reloaded", begin)
        client = connect(version, name, broker=broker, **persistent(version))
        for number in range(3):
            client.expect_publish("public/x", b"%d" % number, ack=True)
        client.expect_nothing(0.2)
        member.expect_publish("secret/shared", b"for the group", ack=True)
        member.expect_nothing(0.1)
