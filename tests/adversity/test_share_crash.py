"""Does a share of APPLICATIONs lose or double anything when the broker is killed in the middle of deliveries?"""

import os
import random
import time

import pytest

from tests.support.brokers.broker import IS_MOSQUITTO
from tests.support.checkers.app_checker import await_deliveries, version_of
from tests.support.checkers.share_checker import ShareMember, await_together, explain_missing, find_faults
from tests.support.clients.packets import V5, PacketType
from tests.support.clients.publishers import Publisher
from tests.support.worlds.application import persistent, running_app_broker, until

pytestmark = pytest.mark.skipif(IS_MOSQUITTO, reason="mosquitto keeps nothing over a kill")

# SHARE_CRASH_KILLS=100 makes a campaign of it.
KILLS = {"embedded": 8, "kafka": 2}
SETTINGS = {"application.shared_partitions": 4, "application.shared_max_poll_records": 40, "server.drain_seconds": 1}
FILTER = "$share/group/load/#"


@pytest.fixture(params=["embedded", "kafka"])
def broker(request, tmp_path):
    with running_app_broker(tmp_path, request.param, SETTINGS) as started:
        request.node.broker_logs = [(started, 0)]
        yield started


def publishers_of(broker, round_number):
    return [
        Publisher(broker, f"p{round_number}x{at}", version_of(at), qos=(2, 2, 1)[at], window=(10, 30, 10)[at])
        for at in range(3)
    ]


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_the_broker_is_killed_while_members_receive(broker):
    """[MQTT-2.2.1-3] [MQTT-4.3.3-8] [MQTT-4.4.0-1] [MQTT-4.8.2-4]: none lost, QoS 2 once, no id in flight reused."""
    seed = int(os.environ.get("SHARE_CRASH_SEED", time.time_ns()))
    kills = int(os.environ.get("SHARE_CRASH_KILLS", KILLS[broker.provider]))
    chance = random.Random(seed)
    members = [ShareMember(broker, f"app{at}", version_of(at), 2, (FILTER,), seed + at) for at in range(3)]
    everybody, running = [], []
    try:
        for member in members:
            member.start()
        for member in members:
            member.await_subscribed()
        for number in range(kills):
            running = publishers_of(broker, number)
            everybody += running
            for publisher in running:
                publisher.start()
            await_deliveries(members, chance.randrange(1, 120))
            if number % 2:
                chance.choice(members).cut_off()  # partitions move just before the kill, or back
            time.sleep(chance.uniform(0.0, 0.05))
            broker.kill()
            for publisher in running:
                publisher.join()
            broker.restart()
            print(f"kill {number + 1}: {sum(map(len, (one.delivered for one in members)))} delivered", flush=True)
            if any(member.errors for member in members):
                break
        for member in members:
            member.acknowledge_at_once()
        acknowledged = {payload for one in everybody for payload in one.acknowledged}
        missing = await_together(members, acknowledged, 60)
        note = explain_missing(broker, members, missing) if missing else ""
    finally:
        for publisher in running:
            publisher.stop()
        for member in members:
            member.stop()
    faults = find_faults(members, everybody)
    figures = {"acknowledged": len(acknowledged), "repeated": [one.repeated for one in members], "seed": seed}
    print(kills, "kills", figures, {name: len(found) for name, found in faults.items()})
    assert not faults, ({name: found[:5] for name, found in faults.items()}, figures, note)
    assert len(acknowledged) > 20 * kills, f"too little load: {figures}"


def publish_numbers(broker, numbers):
    payloads = [b"%d" % number for number in numbers]
    with broker.client(V5) as client:
        client.connect("publisher")
        for payload in payloads:
            client.publish("load/x", payload, qos=2)
    return set(payloads)


def lag_of(broker, topic):
    """Return how many messages of a topic its group has not committed."""
    return sum(row["lag"] for row in broker.command_json("log", "lag") if row["topic"] == topic)


def test_the_broker_is_killed_just_after_the_session_of_a_member_has_ended(broker):
    """Another member gets the messages that the ended session was never sent [MQTT-4.8.2-5]."""
    options = persistent(V5, receive_maximum=5)
    member = ShareMember(broker, "app1", V5, 2, (FILTER,))
    with broker.client(V5) as quiet:
        quiet.connect("app0", **options)
        quiet.subscribe(FILTER, qos=2)
        member.start()
        try:
            member.await_subscribed()
            member.acknowledge_at_once()
            payloads = publish_numbers(broker, range(80))
            until(lambda: len(member.delivered) == 40, 60, "the messages of app1")
            until(lambda: broker.application("app0")["in_flight"] > 20, 60, "four times what app0 takes at once")
            state = broker.application("app0")
            sent = {quiet.expect(PacketType.PUBLISH).payload for _ in range(state["delivered"])}
            broker.kill()
            broker.restart()
            payloads |= publish_numbers(broker, range(80, 120))
            topic = broker.application("app1")["shared"][0]["topic"]
            others = 120 - state["in_flight"]
            until(lambda: len(member.delivered) == others, 60, "the messages that are not app0's")
            until(lambda: lag_of(broker, topic) == 0, 60, "the commits of the group")
            assert len(member.delivered) == others, "messages of app0 went to app1"
            with broker.client(V5) as client:
                client.connect("app0", clean_start=True)
                broker.kill()
            broker.restart()
            missing = await_together([member], payloads - sent, 60)
            note = explain_missing(broker, [member], missing) if missing else ""
        finally:
            member.stop()
    assert not note, note
    assert not member.errors
