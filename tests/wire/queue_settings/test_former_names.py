"""Settings with the former names `[queue]` and `[queue_manager]` still work, and the broker says the new ones."""

import pytest

from tests.support.brokers.broker import IS_MOSQUITTO
from tests.support.clients.packets import V5
from tests.support.worlds.queues import running_queue_broker

FORMER = {
    "queue.prefix": "site",
    "queue.core.partitions": 2,
    "queue.cluster.adopt_after": 20,
    "queue_manager.auto_create": "off",
    "queue_manager.default_queue": False,
}
TOPIC_NAME_INVALID = 0x90

pytestmark = pytest.mark.skipif(IS_MOSQUITTO, reason="settings of Penstock")


def test_former_names_have_their_effect_and_a_warning(tmp_path, connect):
    with running_queue_broker(tmp_path, "embedded", FORMER) as broker:
        client = connect(V5, broker=broker)
        assert client.publish("$queue/unknown/1", b"", qos=1).reason == TOPIC_NAME_INVALID
        client.publish("sensors/1", b"on", qos=1)
        client.close()
        assert "site.tbmq.msg.all" in broker.command("log", "topics")
        said = broker.log()
        assert said.count("[queue] has a new name") == 1
        assert "queue.prefix is services.prefix" in said
        assert "queue.cluster.adopt_after is cluster.adopt_after" in said
        assert said.count("[queue_manager] has a new name") == 1
        assert "queue_manager.auto_create is durable_queues.auto_create" in said
