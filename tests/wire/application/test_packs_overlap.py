"""Do several packs overlap, so that a client far away is not held to one pack per round trip?"""

from tests.support.clients.packets import V5

PROVIDERS = ["embedded"]  # the rules of packs do not depend on the log; recovery and sharing are tested on both
SETTINGS = {"application.max_poll_records": 5, "application.packs_in_flight": 4, "application.pack_timeout": 60}


def test_four_packs_are_under_way(open_app, backlog, version):
    """The issue: up to application.packs_in_flight overlap, counted from the lowest message not acknowledged."""
    payloads = backlog(version, 32)
    client = open_app(version)
    sent = client.expect_payloads(payloads[:20], ack=False)
    client.expect_nothing()
    for packet in sent[1:5]:
        client.ack(packet)
    client.expect_nothing(0.1)
    client.ack(sent[0])
    sent += client.expect_payloads(payloads[20:25], ack=False)
    client.expect_nothing(0.1)
    for packet in sent[5:]:
        client.ack(packet)
    client.expect_payloads(payloads[25:])
    client.expect_nothing(0.1)


def test_the_commit_waits_for_the_first_pack(broker, open_app, backlog, version):
    """The lowest contiguous acknowledged offset: later packs that are done are not sent again, the first one is."""
    payloads = backlog(version, 20)
    client = open_app(version)
    sent = client.expect_payloads(payloads, ack=False)
    for packet in (*sent[:2], *sent[5:]):
        client.ack(packet)
    client.ping()
    client.close()
    client = open_app(version)
    again = client.expect_payloads(payloads[2:5], dup=True)
    assert [packet.packet_id for packet in again] == [packet.packet_id for packet in sent[2:5]]
    client.expect_nothing(0.1)


def test_receive_maximum_across_packs(open_app, backlog):
    """[MQTT-3.3.4-9]: a maximum that is no multiple of the pack."""
    payloads = backlog(V5, 24)
    client = open_app(V5, receive_maximum=7)
    in_flight = client.expect_payloads(payloads[:7], ack=False)
    client.expect_nothing()
    for payload in payloads[7:]:
        client.ack(in_flight.pop(0))
        in_flight.append(client.expect_publish(payload=payload))
    client.expect_nothing(0.1)


def test_acknowledged_backwards(open_app, backlog, version):
    """Whatever the order of the acknowledgements, everything comes once and in order."""
    payloads = backlog(version, 60)
    client = open_app(version)
    received = []
    while len(received) < 60:
        batch = [client.expect_publish(), *client.receive_all(0.1)]
        received += [packet.payload for packet in batch]
        for packet in reversed(batch):
            client.ack(packet)
    assert received == payloads
