"""Do the promises to well-behaved clients hold while others do whatever they can think of?

Per publisher and subscriber: what was acknowledged arrives, in order, at QoS 2 once, also across broken connections
and shared among a group. Nobody gets what was meant for others, and the broker neither dies nor logs an exception.
"""

import asyncio
import logging
import random

import pytest

from tests.support.brokers.broker import Listener
from tests.support.clients.packets import V5, V311
from tests.support.clients.storm import Storm, WatchedPublisher, WatchedSubscriber, chaos

TINY = {
    "limits.write_high_watermark": 20_000,
    "limits.write_low_watermark": 10_000,
    "limits.max_queued_messages": 20,
    "limits.max_inflight": 5,
    "limits.match_cache": 10,
    "limits.max_packet_size": 100_000,
    "limits.backpressure_seconds": 0.3,
    "limits.max_retained_messages": 6,
    "logging.level": "warning",
}
# The same, but no queue is ever full: nothing that was acknowledged may be missing.
ROOMY = TINY | {"limits.max_queued_messages": 1_000_000, "limits.max_queued_bytes": 1_000_000_000}
OLDEST = TINY | {"limits.queue_overflow": "drop-oldest", "mqtt.shared_strategy": "sticky"}


def check_order(storm: Storm, subscriber: WatchedSubscriber, publishers: list[WatchedPublisher]) -> None:
    for publisher in publishers:
        numbers = [number for name, number in subscriber.received if name == publisher.name]
        first = list(dict.fromkeys(numbers))
        if first != sorted(first):
            at = next(i for i in range(1, len(first)) if first[i] < first[i - 1])
            storm.fail(f"{subscriber.name}: order of {publisher.name} is {first[max(0, at - 3) : at + 3]}")
        if min(publisher.qos, subscriber.qos) == 2 and len(first) != len(numbers):
            twice = sorted({number for number in numbers if numbers.count(number) > 1})
            storm.fail(f"{subscriber.name}: QoS 2 messages of {publisher.name} came twice: {twice[:10]}")


def check_complete(storm: Storm, who: str, received: list, publishers: list[WatchedPublisher]) -> None:
    for publisher in publishers:
        missing = publisher.acknowledged - {number for name, number in received if name == publisher.name}
        if missing:
            storm.fail(f"{who}: {len(missing)} of {publisher.name} never came: {sorted(missing)[:10]}")


async def wait_until(condition, seconds: float) -> bool:
    for _ in range(int(seconds * 50)):
        if condition():
            return True
        await asyncio.sleep(0.02)
    return False


async def run_storm(
    address, websocket, seed: int, seconds: float, *, is_lossless: bool, chaotic: int = 16
) -> list[str]:
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # writing to who has gone is daily business here
    storm = Storm(address, websocket, random.Random(seed))
    subscribers = [
        WatchedSubscriber(storm, f"sub{number}-{seed}", version, qos)
        for number, (version, qos) in enumerate([(V5, 2), (V311, 2), (V5, 1), (V311, 1)])
    ]
    members = [WatchedSubscriber(storm, f"member{n}-{seed}", V5, 2, f"$share/w{seed}/o/#") for n in range(2)]
    publishers = [
        WatchedPublisher(storm, f"pub{number}-{seed}", version, qos, 0.005)
        for number, (version, qos) in enumerate([(V5, 2), (V311, 2), (V5, 1), (V311, 1)])
    ]
    watched = [*subscribers, *members]
    tasks = [asyncio.ensure_future(client.run()) for client in watched]
    await asyncio.wait_for(asyncio.gather(*(client.subscribed.wait() for client in watched)), 60)
    tasks += [asyncio.ensure_future(client.run()) for client in publishers]
    tasks += [asyncio.ensure_future(chaos(storm)) for _ in range(chaotic)]
    await asyncio.sleep(seconds)
    storm.is_over = True
    for client in publishers:
        client.stays = client.is_stopping = True
    if not await wait_until(lambda: all(client.done for client in publishers) or storm.failures, 60):
        storm.fail("publishers still wait for acknowledgements: " + ", ".join(f"{p.name} {p.open}" for p in publishers))
    for client in watched:
        client.stays = True
    now = asyncio.get_running_loop().time
    await asyncio.sleep(1.5)
    await wait_until(lambda: all(now() - client.last_arrival > 1.0 for client in watched), 60)
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception):
            storm.fail(f"a client failed: {outcome!r}")
    # What a publisher sends again at QoS 1 may be the first that reaches another member of a group, or one whose queue
    # was full the first time.
    once = [publisher for publisher in publishers if publisher.qos == 2]
    for subscriber in watched:
        check_order(storm, subscriber, publishers if is_lossless and subscriber in subscribers else once)
    shared = [item for member in members for item in member.received]
    for publisher in publishers:
        numbers = [number for name, number in shared if name == publisher.name]
        if publisher.qos == 2 and len(set(numbers)) != len(numbers):
            storm.fail(f"members: QoS 2 messages of {publisher.name} came twice")
    if is_lossless:
        for subscriber in subscribers:
            check_complete(storm, subscriber.name, subscriber.received, publishers)
        check_complete(storm, "members", shared, publishers)
    assert sum(len(publisher.acknowledged) for publisher in publishers) > 20, "hardly anything was published"
    return storm.failures


@pytest.mark.parametrize(
    ("seed", "settings", "is_lossless"),
    [(1, ROOMY, True), (2, ROOMY, True), (3, TINY, False), (4, OLDEST, False)],
    ids=["roomy-1", "roomy-2", "tiny", "drop-oldest"],
)
def test_random_clients(start_broker, seed, settings, is_lossless):
    """[MQTT-4.3.3-1] [MQTT-4.4.0-1] [MQTT-4.5.0-1] [MQTT-4.6.0-6] [MQTT3-4.3.3-1] [MQTT3-4.4.0-1] [MQTT3-4.6.0-6]"""
    listener = Listener("ws")
    broker = start_broker(settings, [listener])
    failures = asyncio.run(run_storm(broker.address, listener.host_and_port, seed, 3.0, is_lossless=is_lossless))
    broker.assert_healthy()
    assert not failures, "\n".join(failures)
