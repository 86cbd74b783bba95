"""Messages as large as the log takes: the copy of a client is a little larger than the record it was made from."""

import pytest

from tests.support.brokers.broker import IS_MOSQUITTO
from tests.support.clients.packets import V5, PacketType, pack_publish

pytestmark = pytest.mark.skipif(IS_MOSQUITTO, reason="the log is Penstock's own")

PROVIDERS = ["kafka"]  # the embedded log takes records of any size
LARGEST = 10_000
SETTINGS = {"kafka.max_request_size": LARGEST}


def test_whatever_is_acknowledged_arrives(open_app, publisher, topic):
    """Defect 19 of the original and its opposite: nothing acknowledged is skipped, and no single message stops the
    dispatch of all others."""
    app = open_app(5)
    app.subscribe(topic, qos=1, properties={"subscription_identifier": 200_000_000})
    accepted = []
    for size in range(LARGEST - 900, LARGEST + 1, 10):
        packet_id = publisher.send_publish(topic, bytes(size), qos=1)
        if publisher.await_packet(PacketType.PUBACK, packet_id).reason < 0x80:
            accepted.append(size)
    assert accepted
    assert len(accepted) < 91, "no message was too large: the test tests nothing"
    publisher.publish(topic, b"a small one", qos=1)
    for size in accepted:
        assert len(app.expect_publish(topic, qos=1, ack=True).payload) == size
    app.expect_publish(topic, b"a small one", qos=1, ack=True)


@pytest.mark.parametrize("address", ["{}", "$queue/{}"])
@pytest.mark.parametrize("qos", [1, 2])
def test_one_that_is_too_large_costs_nobody_else_anything(publisher, topic, address, qos):
    """Publishes of one loop iteration become durable, or fail, together: what cannot be logged is refused alone."""
    name = address.format(topic)
    sizes = [10, LARGEST, 20, 2 * LARGEST, 30]
    ids = [publisher.new_packet_id() for _ in sizes]
    publishes = [
        pack_publish(V5, name, bytes(size), qos=qos, packet_id=own) for size, own in zip(sizes, ids, strict=True)
    ]
    publisher.send_raw(b"".join(publishes))
    answer = PacketType.PUBACK if qos == 1 else PacketType.PUBREC
    answers = [publisher.await_packet(answer, packet_id) for packet_id in ids]
    assert [found.reason >= 0x80 for found in answers] == [size >= LARGEST for size in sizes]
    for found in answers:
        if found.reason >= 0x80:
            assert found.reason == 0x97
            assert "kafka.max_request_size" in found.properties["reason_string"]
