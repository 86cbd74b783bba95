"""Is nothing lost and nothing of QoS 2 doubled for DEVICEs, whenever the broker or its store ends in the middle?"""

import contextlib
import random
import time

import pytest

from tests.adversity.test_application_crash import Load
from tests.support.brokers.broker import IS_MOSQUITTO
from tests.support.checkers.app_checker import await_deliveries, check_delivered, version_of
from tests.support.worlds.device import Device, running_device_broker

pytestmark = pytest.mark.skipif(IS_MOSQUITTO, reason="mosquitto keeps nothing over a kill")

KILLS = {"embedded": 4, "kafka": 2}
# Nothing may give way here, however much piles up while Redis is away.
SETTINGS = {"device.page_size": 50, "device.messages_limit": 65_535, "limits.receive_maximum": 500}


@pytest.fixture(params=["embedded", "kafka"])
def broker(request, tmp_path):
    with running_device_broker(tmp_path, request.param, SETTINGS, keeps_redis=True) as started:
        request.node.broker_logs = [(started, 0)]
        yield started


@contextlib.contextmanager
def subscribed(broker, seed, count=4):
    """DEVICEs of both versions and QoS that hold acknowledgements back and return when cut off, and the load."""
    load = Load(broker)
    devices = [
        Device(broker, f"device{number}", version_of(number), 1 + number // 2, ("load/#",), seed + number)
        for number in range(count)
    ]
    try:
        for device in devices:
            device.start()
        for device in devices:
            device.await_subscribed()
        yield devices, load
    finally:
        load.stop()
        for device in devices:
            device.stop()


def finish(broker, devices, load, note):
    """No more disturbance: everything that is left arrives, then all is judged, and nothing is left in the store."""
    for device in devices:
        device.acknowledge_at_once()
    acknowledged = load.acknowledged
    for device in devices:
        device.await_payloads(acknowledged, 60)
    stored = {device.client_id: broker.stored(device.client_id) for device in devices}
    note = f"{note} {len(acknowledged)} acknowledged, stored {stored}, repeated {[one.repeated for one in devices]}"
    for device in devices:
        check_delivered(device, load.everybody, note)
    assert len(acknowledged) > 200, f"too little load {note}"
    for device in devices:
        broker.await_stored(device.client_id, 0)


@pytest.mark.slow
def test_the_broker_is_killed_with_messages_in_every_state(broker):
    """[MQTT-4.3.2-4] [MQTT-4.3.3-8] [MQTT-4.4.0-1]: kill -9 under load, several times; connections end in between."""
    seed = time.time_ns()
    chance = random.Random(seed)
    with subscribed(broker, seed) as (devices, load):
        for _ in range(KILLS[broker.provider]):
            load.start()
            for _ in range(chance.randrange(3)):
                time.sleep(chance.uniform(0.1, 0.4))
                chance.choice(devices).cut_off()
            await_deliveries(devices)
            time.sleep(chance.uniform(0.0, 0.5))
            broker.kill()
            load.join()
            broker.restart()
        load.start()
        load.stop_after(0.4)
        finish(broker, devices, load, f"(seed {seed})")
    assert any(device.repeated for device in devices), "no kill fell into a delivery"


@pytest.mark.slow
@pytest.mark.parametrize("broker", ["kafka"], indirect=True)
def test_redis_ends_under_load(broker):
    """The issue: killed and started again, with the broker living; what was acknowledged to publishers arrives."""
    seed = time.time_ns()
    chance = random.Random(seed)
    with subscribed(broker, seed) as (devices, load):
        load.start()
        for _ in range(2):
            time.sleep(chance.uniform(0.2, 0.4))
            broker.redis.kill()
            for device in devices[:2]:
                device.cut_off()
            time.sleep(chance.uniform(0.1, 0.4))
            broker.redis.start()
        load.stop_after(0.2)
        finish(broker, devices, load, f"(seed {seed})")
