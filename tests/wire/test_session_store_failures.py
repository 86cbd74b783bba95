"""Do CONNACK, SUBACK and UNSUBACK of a session that is kept wait for the disk, and what if the disk says no?"""

import errno
import time

import pytest

from tests.support.brokers.broker import IS_MOSQUITTO
from tests.support.clients.packets import V5, V311, PacketType, Reason, Will, pack_unsubscribe
from tests.support.clients.raw_client import NothingCame
from tests.support.machine.slow_disk import SlowDisk

pytestmark = pytest.mark.skipif(IS_MOSQUITTO, reason="the store is Penstock's own")

HOUR = 3_600


@pytest.fixture
def disk(tmp_path, monkeypatch):
    slow_disk = SlowDisk(tmp_path)
    for name, value in slow_disk.environment.items():
        monkeypatch.setenv(name, value)
    return slow_disk


@pytest.fixture
def broker(disk, start_log_broker, monkeypatch):
    started = start_log_broker({"ingest.log": "none"})
    monkeypatch.delenv("LD_PRELOAD")
    return started


def persistent(version, **options):
    if version == V5:
        return {"clean_start": False, "properties": {"session_expiry_interval": HOUR}, **options}
    return {"clean_start": False, **options}


def test_answers_wait_for_the_disk_and_nothing_else_does(disk, broker, connect, open_client, version):
    """[MQTT-3.1.4-5] [MQTT-3.8.4-2] [MQTT-3.10.4-4]"""
    kept = connect(version, "kept", broker=broker, **persistent(version))
    clean = connect(version, broker=broker)
    disk.hold()
    new = open_client(version, broker=broker)
    new.send_connect("new", **persistent(version))
    packet_id = kept.send_subscribe(("a", 1))
    clean.subscribe("a")
    connect(version, broker=broker).ping()
    # the subscription is live meanwhile: MQTT lets messages come before the SUBACK
    clean.publish("a", b"early")
    kept.expect_publish("a", b"early")
    kept.expect_nothing()
    with pytest.raises(NothingCame):
        new.receive(0.05)
    disk.set()
    kept.expect(PacketType.SUBACK, packet_id=packet_id)
    new.expect(PacketType.CONNACK, reason=0)
    disk.hold()
    kept.send_raw(pack_unsubscribe(version, 9, ["a"]))
    kept.expect_nothing()
    disk.set()
    kept.expect(PacketType.UNSUBACK, packet_id=9)
    disk.hold()
    # a client that only comes back need not wait
    kept.disconnect()
    connect(version, "kept", broker=broker, **persistent(version)).ping()
    disk.set()


def test_a_disk_that_refuses_takes_nothing_back_that_was_promised(disk, broker, connect, open_client):
    client = connect(V5, "kept", broker=broker, **persistent(V5))
    client.subscribe("old", qos=1)
    client.subscribe("other", qos=1)
    disk.set(errno=errno.EIO)
    assert client.subscribe("new", "old", qos=2) == [Reason.UNSPECIFIED] * 2
    client.send_subscribe(("x", 1))
    client.send_subscribe(("x", 0))
    client.send_raw(pack_unsubscribe(V5, 99, ["x", "other"]))
    for _ in range(2):
        client.expect(PacketType.SUBACK, reasons=[Reason.UNSPECIFIED])
    unsuback = client.expect(PacketType.UNSUBACK, packet_id=99)
    assert unsuback.reasons == [Reason.UNSPECIFIED] * 2
    publisher = connect(V5, broker=broker)
    for topic in ("new", "x", "other", "old"):
        publisher.publish(topic, b"", qos=2)
    client.expect_publish("other", qos=1, ack=True)
    client.expect_publish("old", qos=1, ack=True)
    client.expect_nothing(0.05)
    refused = open_client(V5, broker=broker)
    refused.send_connect("fresh", **persistent(V5, will=Will("other", b"never")))
    refused.expect_refused_connect(Reason.SERVER_UNAVAILABLE)
    is_ready, why = broker.is_ready()
    assert not is_ready
    assert "disk" in why
    client.disconnect()
    disk.set()
    deadline = time.monotonic() + 30
    while not broker.is_ready()[0] and time.monotonic() < deadline:
        time.sleep(0.05)
    # nobody asked for anything: what was owed is stored by now
    broker.kill()
    broker.restart()
    client = connect(V5, "kept", broker=broker, **persistent(V5))
    assert client.connack.session_present
    assert not connect(V5, "fresh", broker=broker, **persistent(V5)).connack.session_present
    publisher = connect(V5, broker=broker)
    for topic in ("new", "x", "other", "old"):
        publisher.publish(topic, b"", qos=2)
    client.expect_publish("other", qos=1, ack=True)
    client.expect_publish("old", qos=1, ack=True)
    client.expect_nothing(0.05)


def test_mqtt_3_is_refused_in_its_own_words(disk, broker, connect, open_client):
    """[MQTT3-3.2.2-4] [MQTT3-3.9.3-2]: CONNACK 3, SUBACK 0x80, and no UNSUBACK for what is still subscribed."""
    client = connect(V311, "kept", broker=broker, **persistent(V311))
    client.subscribe("old", qos=1)
    disk.set(errno=errno.ENOSPC)
    assert client.subscribe("new", qos=1) == [0x80]
    refused = open_client(V311, broker=broker)
    refused.send_connect("fresh", **persistent(V311))
    refused.expect_refused_connect(Reason.SERVER_UNAVAILABLE, code=3)
    # a clean session needs no store, and a session that is there is resumed
    connect(V311, broker=broker).subscribe("t")
    client.send_raw(pack_unsubscribe(V311, 9, ["old"]))
    client.expect_closed()
    client = connect(V311, "kept", broker=broker, **persistent(V311))
    assert client.connack.session_present
    connect(V5, broker=broker).publish("old", b"still", qos=1)
    client.expect_publish("old", b"still", ack=True)


def test_a_clean_start_is_not_told_that_the_old_session_is_gone_while_it_is_not(disk, broker, connect, open_client):
    """[MQTT-3.1.2-4]: it would be back after a crash."""
    connect(V5, "kept", broker=broker, **persistent(V5)).subscribe("old", qos=1)
    disk.set(errno=errno.EIO)
    for _ in range(2):
        refused = open_client(V5, broker=broker)
        refused.send_connect("kept", clean_start=True)
        refused.expect_refused_connect(Reason.SERVER_UNAVAILABLE)
    disk.set()
    clean = connect(V5, "kept", broker=broker, clean_start=True)
    assert not clean.connack.session_present
    broker.kill()
    broker.restart()
    assert not connect(V5, "kept", broker=broker, **persistent(V5)).connack.session_present
