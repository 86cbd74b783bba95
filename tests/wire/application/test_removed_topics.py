"""Somebody removes a topic with other tools while clients live on it: it is made again, and they go on."""

import pytest
from confluent_kafka.admin import AdminClient

from tests.support.brokers.broker import IS_MOSQUITTO
from tests.support.worlds.application import SHARED_PREFIX, topic_of, until

pytestmark = pytest.mark.skipif(IS_MOSQUITTO, reason="the log is Penstock's own")
PROVIDERS = ["kafka"]  # the topics of an embedded log are the broker's alone
SETTINGS = {"application.shared_partitions": 2}


@pytest.mark.parametrize("is_shared", [False, True], ids=["own", "shared"])
def test_a_topic_is_removed_under_a_client(*, broker, open_app, publisher, new_name, app_id, is_shared):
    topic = new_name("topic")
    app = open_app(5)
    app.subscribe(f"$share/group/{topic}" if is_shared else topic, qos=1)
    for number in range(10):
        publisher.publish(topic, b"%d" % number, qos=1)
    assert {app.expect_publish(topic, ack=True).payload for _ in range(10)} == {b"%d" % number for number in range(10)}
    name = SHARED_PREFIX + topic if is_shared else topic_of(app_id)
    admin = AdminClient({"bootstrap.servers": broker.cluster.bootstrap})
    admin.delete_topics([name])[name].result()
    until(lambda: name not in broker.topics(), 60)
    publisher.publish(topic, b"makes it again", qos=1)
    broker.await_log("was removed by somebody", seconds=60)
    expected = {b"makes it again"}
    for number in range(10, 14):
        expected.add(b"%d" % number)
        publisher.publish(topic, b"%d" % number, qos=1)
    assert {app.expect_publish(topic, dup=None, ack=True, timeout=60).payload for _ in expected} == expected
