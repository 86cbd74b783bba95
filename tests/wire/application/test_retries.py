"""What happens to a message that is not acknowledged in time?"""

import time

import pytest

from tests.support.clients.packets import V5, V311, PacketType

TIMEOUT = 0.3
SETTINGS = {
    "application.max_poll_records": 5,
    "application.packs_in_flight": 1,
    "application.pack_timeout": TIMEOUT,
    "application.retry_pause": 0,
    "application.retries": 3,
}
RETRIES = 3


def ids_of(packets):
    return [packet.packet_id for packet in packets]


def expect_settled(client):
    """Nothing comes again of what is acknowledged, unless it was on its way: a busy machine acknowledges late."""
    client.ping()
    for late in client.received():
        assert late.dup or late.type == PacketType.PUBREL, late
    client.forget_received()
    client.expect_nothing(2 * TIMEOUT)


def test_sent_again_three_times_then_given_up(open_app, backlog):
    """Seed, RETRY_ALL: DUP on each (reference, defect 1), 3 retries, then the pack is committed and the next comes."""
    payloads = backlog(V311, 7)
    client = open_app(V311)
    first = client.expect_payloads(payloads[:5], ack=False)
    for _ in range(RETRIES):
        assert ids_of(client.expect_payloads(payloads[:5], ack=False, dup=True)) == ids_of(first)
    client.expect_payloads(payloads[5:])
    for packet in first:
        client.ack(packet)  # too late, and harmless
    expect_settled(client)
    client.close()
    open_app(V311).expect_nothing()


def test_only_what_is_missing_is_sent_again(open_app, backlog):
    payloads = backlog(V311, 6)
    client = open_app(V311)
    first = client.expect_payloads(payloads[:5], ack=False)
    for at in (0, 2, 3):
        client.ack(first[at])
    client.ping()
    client.forget_received()  # on its way before the acknowledgements
    again = client.expect_payloads([payloads[1], payloads[4]], ack=False, dup=True)
    assert ids_of(again) == [first[1].packet_id, first[4].packet_id]
    client.ack(again[0])
    client.ping()
    client.forget_received()
    [last] = client.expect_payloads([payloads[4]], ack=False, dup=True)
    client.ack(last)
    while (packet := client.expect_publish(dup=None, ack=True)).payload != payloads[5]:
        assert packet.dup, "on its way before the acknowledgement"
    client.expect_nothing(0.1)


@pytest.mark.parametrize("at_step", ["PUBREC", "PUBCOMP"])
def test_qos_2_is_repeated_where_it_stands(open_app, backlog, at_step):
    """[MQTT3-4.3.3-1]: a PUBLISH until PUBREC has come, a PUBREL until PUBCOMP has, never a PUBLISH after it."""
    payloads = backlog(V311, 1, 2)
    client = open_app(V311)
    [first] = client.expect_payloads(payloads, ack=False, qos=2)
    if at_step == "PUBREC":
        again = client.expect_publish(payload=payloads[0], qos=2, dup=True)
        assert again.packet_id == first.packet_id
        client.ack(again)
    else:
        client.send_ack(PacketType.PUBREC, first.packet_id)
        client.await_packet(PacketType.PUBREL, first.packet_id)
        assert all(late.dup for late in client.received()), "on its way before PUBREC"
        client.forget_received()
        client.expect(PacketType.PUBREL, packet_id=first.packet_id)
        client.send_ack(PacketType.PUBCOMP, first.packet_id)
    expect_settled(client)


def test_mqtt_5_is_not_sent_the_same_on_one_connection(open_app, backlog):
    """[MQTT-4.4.0-1]: only after a reconnect, and then with the same ids and DUP."""
    payloads = backlog(V5, 6)
    client = open_app(V5)
    first = client.expect_payloads(payloads[:5], ack=False)
    client.expect_nothing(2 * TIMEOUT)
    client.close()
    client = open_app(V5)
    again = client.expect_payloads(payloads[:5], ack=True, dup=True)
    assert ids_of(again) == ids_of(first)
    client.expect_payloads(payloads[5:])


def test_mqtt_5_is_given_up_after_the_same_time(open_app, backlog):
    """Reference, open point 1: the waits are counted, nothing is sent; the pack is committed when they are spent."""
    payloads = backlog(V5, 7)
    client = open_app(V5)
    start = time.monotonic()
    client.expect_payloads(payloads[:5], ack=False)
    client.expect_payloads(payloads[5:])
    assert time.monotonic() - start > RETRIES * TIMEOUT
    client.expect_nothing(0.1)
    client.close()
    open_app(V5).expect_nothing()


def test_a_retry_waits_for_the_reconnect(open_app, backlog):
    """The time of a pack does not run while nobody is there."""
    payloads = backlog(V311, 3)
    client = open_app(V311)
    first = client.expect_payloads(payloads, ack=False)
    client.close()
    time.sleep((RETRIES + 2) * TIMEOUT)
    client = open_app(V311)
    assert ids_of(client.expect_payloads(payloads, dup=True)) == ids_of(first)
    expect_settled(client)


def test_others_do_not_wait(open_app, backlog, publisher, topic, new_name):
    """A client that never acknowledges holds up only itself."""
    other = new_name("app")
    payloads = backlog(V311, 5)
    stuck, well = open_app(V311), open_app(V311, other)
    well.subscribe(topic, qos=1)
    stuck.expect_payloads(payloads, ack=False)
    for number in range(50):
        publisher.publish(topic, b"live %d" % number, qos=1)
        well.expect_publish(topic, b"live %d" % number, ack=True)
