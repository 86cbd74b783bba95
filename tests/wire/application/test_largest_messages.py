"""Messages as large as the log takes: the copy of a client is a little larger than the record it was made from."""

import pytest

from tests.support.broker import IS_MOSQUITTO
from tests.support.packets import PacketType

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
