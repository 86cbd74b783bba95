"""Is everything that was acknowledged in the log, whenever the broker is killed and whatever happens to its files?"""

import json
import os
import random
import shutil
import time
import urllib.request
from collections import Counter

import pytest

from tests.support.brokers.broker import IS_MOSQUITTO
from tests.support.brokers.log_broker import TOPIC
from tests.support.clients.packets import V5, V311
from tests.support.clients.publishers import Publisher
from tests.support.worlds.application import until

pytestmark = pytest.mark.skipif(IS_MOSQUITTO, reason="the log is Penstock's own")

KILLS = 6
# Small segments: kills also fall into the moments in which one is closed and the next begins.
SMALL_SEGMENTS = "retention.ms:604800000;segment.bytes:65536"


def check(broker, publishers):
    """Every acknowledged publish is there, once, in order, and nothing is there that nobody sent."""
    records = sorted(broker.logged(), key=lambda record: (record.partition, record.offset))
    payloads = Counter(record.publish.payload for record in records)
    assert not [payload for payload, count in payloads.items() if count > 1], "logged twice"
    numbers = {}
    for record in records:
        name, number = record.publish.payload.split(b" ")[:2]
        assert record.publish.topic == f"load/{name.decode()}"
        assert record.publish.client_id == name.decode()
        numbers.setdefault(name.decode(), []).append(int(number))
    for publisher in publishers:
        assert not publisher.order_errors
        lost = publisher.acknowledged - payloads.keys()
        assert not lost, f"{len(lost)} acknowledged publishes of {publisher.name} are lost: {sorted(lost)[:5]}"
        logged = numbers.get(publisher.name, [])
        assert logged == list(range(len(logged))), f"a gap or another order in what {publisher.name} sent"
        assert len(logged) <= publisher.sent


@pytest.mark.timeout(300)
def test_nothing_acknowledged_is_lost_by_kill_9(start_log_broker):
    """[MQTT-4.3.2-4] [MQTT-4.3.3-8]: the receiver owns what it has acknowledged."""
    seed = time.time_ns()
    chance = random.Random(seed)
    broker = start_log_broker({"ingest.properties": SMALL_SEGMENTS, "limits.receive_maximum": 500})
    everyone = []
    for kill in range(KILLS):
        publishers = [
            Publisher(broker, f"p{kill}-{at}", (V311, V5)[at % 2], qos=1 + at // 2, window=(1, 20, 100, 50)[at])
            for at in range(4)
        ]
        for publisher in publishers:
            publisher.start()
        time.sleep(chance.uniform(0.05, 1.2))
        if kill == 0:
            until(lambda publishers=publishers: sum(len(one.acknowledged) for one in publishers) > 100, 60)
        broker.kill()
        for publisher in publishers:
            publisher.join()
        everyone += publishers
        broker.restart()
        check(broker, everyone)
    assert sum(len(publisher.acknowledged) for publisher in everyone) > 100, f"too little load, seed {seed}"


def test_a_stop_in_the_middle_of_a_load_loses_nothing(start_log_broker):
    """SIGTERM: what was received is logged and acknowledged, and the next start finds a log without a torn end."""
    broker = start_log_broker({"server.drain_seconds": 1})
    publishers = [Publisher(broker, f"p{at}", V5, qos=1 + at) for at in range(2)]
    for publisher in publishers:
        publisher.start()
    time.sleep(0.5)
    assert broker.terminate() == 0
    for publisher in publishers:
        publisher.join()
    broker.restart()
    assert "tail of the log cut off" not in broker.log()
    check(broker, publishers)


@pytest.fixture
def damaged(start_log_broker, connect):
    """A stopped broker whose log has a hole in the middle of a segment; 200 records were in it."""
    broker = start_log_broker({"ingest.partitions": 2})
    client = connect(V5, broker=broker)
    for number in range(200):
        client.publish(f"t/{number % 5}", b"record %d " % number + b"." * 200, qos=1)
    client.disconnect()
    broker.terminate()
    [segment] = (broker.data_dir / "log" / TOPIC).glob("*.seg")
    data = bytearray(segment.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 50] = b"\xff" * 50
    segment.write_bytes(data)
    return broker


def test_damage_in_the_middle_is_refused_with_the_command_that_repairs_it(damaged, connect, penstock_command):
    before = shutil.copytree(damaged.data_dir, damaged.directory / "copy")
    damaged.restart(is_expected_to_fail=True)
    assert damaged.process.wait(60) not in (0, None)
    complaint = damaged.log()
    assert "Traceback" not in complaint
    assert ".seg is damaged at byte " in complaint
    assert f"`penstock log repair {TOPIC} --data-dir {damaged.data_dir}`" in complaint
    [segment] = (damaged.data_dir / "log" / TOPIC).glob("*.seg")
    assert segment.read_bytes() == (before / "log" / TOPIC / segment.name).read_bytes(), "a refusal changes nothing"

    repaired = penstock_command("log", "repair", TOPIC, "--data-dir", str(damaged.data_dir), "--json")
    assert repaired.returncode == 0, repaired.stderr
    [report] = json.loads(repaired.stdout)
    lost = sum(hole["end"] - hole["first"] for hole in report["lost"])
    assert report["is_sound"] is False
    assert 1 <= lost <= 5

    damaged.restart()
    payloads = damaged.logged_payloads()
    assert len(payloads) == 200 - lost
    client = connect(V5, broker=damaged)
    client.publish("t/1", b"goes on", qos=1)
    assert b"goes on" in damaged.logged_payloads()


def test_a_torn_tail_is_cut_off_at_the_start(start_log_broker, connect):
    """A batch that was being written when the power went was never acknowledged."""
    broker = start_log_broker()
    client = connect(V5, broker=broker)
    client.publish("t", b"whole", qos=1)
    broker.kill()
    [segment] = (broker.data_dir / "log" / TOPIC).glob("*.seg")
    with segment.open("ab") as file:
        file.write(segment.read_bytes()[-60:-10])
    broker.restart()
    until(lambda: "tail of the log cut off" in broker.log())
    client = connect(V5, broker=broker)
    client.publish("t", b"next", qos=1)
    assert broker.logged_payloads() == [b"whole", b"next"]


def test_after_a_repair_new_messages_are_not_taken_for_those_that_are_lost(start_log_broker, connect, penstock_command):
    """The store of a client that is away knows messages by their offsets: one that were given twice would be dropped
    as stored already, acknowledged as it is. [MQTT-4.5.0-1]"""
    broker = start_log_broker({"ingest.partitions": 1})
    stays = {"clean_start": False, "properties": {"session_expiry_interval": 3600}}
    sleeper = connect(V5, "sleeper", broker=broker, **stays)
    sleeper.subscribe("t", qos=1)
    sleeper.disconnect()
    # After a restart, messages of the millisecond in which the client left count as possibly sent (DUP).
    time.sleep(0.005)
    old = [b"old %d" % number for number in range(20)]
    client = connect(V5, broker=broker)
    for payload in old:
        client.publish("t", payload, qos=1)
    metrics = f"http://127.0.0.1:{broker.admin_port}/metrics"
    until(lambda: b"\npenstock_device_stored_messages 20" in urllib.request.urlopen(metrics, timeout=30).read(), 60)
    client.disconnect()
    broker.terminate()
    [segment] = (broker.data_dir / "log" / TOPIC).glob("*.seg")
    os.truncate(segment, segment.stat().st_size // 2)
    repaired = penstock_command("log", "repair", TOPIC, "--data-dir", str(broker.data_dir))
    assert "lost: partition 0" in repaired.stdout

    broker.restart()
    new = [b"new %d" % number for number in range(20)]
    client = connect(V5, broker=broker)
    for payload in new:
        client.publish("t", payload, qos=1)
    sleeper = connect(V5, "sleeper", broker=broker, **stays)
    sleeper.expect_payloads([*old, *new], qos=1)
    sleeper.expect_nothing()
