"""Sessions end and the broker is killed before their topics are gone: they go when it is back, and only they."""

import pytest

from tests.support.brokers.broker import IS_MOSQUITTO
from tests.support.clients.packets import V5, pack_disconnect
from tests.support.worlds.application import SHARED_PREFIX, topic_of, until

pytestmark = pytest.mark.skipif(IS_MOSQUITTO, reason="the log is Penstock's own")
CLIENTS = 20
ENDS = {"session_expiry_interval": 0}
SETTINGS = {"application.shared_partitions": 2}


def test_no_topic_stays_behind(*, broker, open_app, connect, new_name):
    names = [new_name("app") for _ in range(CLIENTS)]
    stays, topic = new_name("app"), new_name("topic")
    kept = open_app(V5, stays)
    kept.subscribe(topic, qos=1)
    apps = [open_app(V5, name) for name in names]
    for app in apps:
        app.subscribe(f"$share/group/{topic}", qos=1)
    ours = {*map(topic_of, names), SHARED_PREFIX + topic}
    assert ours | {topic_of(stays)} <= broker.topics()
    before = broker.tasks()
    for app in apps:
        app.send_raw(pack_disconnect(V5, 0, ENDS))
    until(lambda: broker.tasks() >= before + len(ours), 60, "everything written down")
    broker.kill()
    broker.restart()
    # Of a session whose end was not stored yet nothing is removed; it is ended again.
    for entry in broker.api("applications"):
        if entry["client_id"] in names:
            open_app(V5, entry["client_id"]).disconnect(0, ENDS)
    until(lambda: not ours & broker.topics(), 90, lambda: f"left behind: {ours & broker.topics()}")
    assert {entry["client_id"] for entry in broker.api("applications")}.isdisjoint(names)
    connect(V5).publish(topic, b"still there", qos=1)
    assert open_app(V5, stays).expect_publish(topic, ack=True).payload == b"still there"
