"""Deliveries that the guard counts: to direct subscribers, to APPLICATION and DEVICE clients, and from durable queues,
each of them acknowledged."""

from __future__ import annotations

import time

from bench.guard.room import MESSAGES, PAYLOAD, TOPIC, Acknowledgements, Client, Loop
from penstock._ext.application.feed import Feed, take_filled
from penstock._ext.application.lane import ApplicationDesk, Lane
from penstock._ext.device.outlet import DeviceDesk
from penstock._ext.dispatch.desk import DispatchDesk, Round
from penstock._ext.hub.connection import DurableQueue, Hub, MqttConsumer, QueueGroup
from penstock._ext.record.envelope import encode
from penstock._ext.record.segment import RecordPack
from penstock._ext.wire import packets

QUEUE_TOPIC = b"$queue/orders/building-7/floor-3"
LIMITS = {"max_inflight": 1_000, "max_queued_messages": 10_000}


def packs(topic: bytes) -> list[RecordPack]:
    """Two packs of records, one for each call of a job."""
    value = encode(topic.decode(), PAYLOAD, 1, client_id="client-0001", received_at=int(time.time() * 1000))
    made = []
    for first in (0, MESSAGES):
        pack = RecordPack()
        for _ in range(MESSAGES):
            pack.append(value, key=topic, timestamp=int(time.time() * 1000))
        pack.place(first)
        made.append(pack)
    return made


class DirectRoom:
    """One publisher and one subscriber with QoS 1, which acknowledges."""

    def __init__(self) -> None:
        self.loop = Loop()
        hub = Hub(self.loop, **LIMITS)
        self.publisher, self.subscriber = Client(hub, "publisher"), Client(hub, "subscriber")
        hub.trie.subscribe(self.subscriber.session, TOPIC, 1)
        self.input = packets.build_publish(TOPIC, PAYLOAD, version=4, qos=1, packet_id=7) * MESSAGES
        self.acks = Acknowledgements()

    def run(self) -> None:
        self.publisher.say(self.input)
        self.loop.turn()
        self.subscriber.say(self.acks.take())
        self.loop.turn()
        assert self.subscriber.session.inflight == 0, "not everything is acknowledged"


class LaneRoom:
    """An APPLICATION client that is sent packs of its log and acknowledges them."""

    def __init__(self) -> None:
        self.loop = Loop()
        hub = Hub(self.loop, **LIMITS)
        desk = ApplicationDesk(hub, lambda lanes: None, lambda session: None)
        self.client = Client(hub, "application", keeps=True)
        self.lane = Lane(self.client.session, "tbmq.msg.app.application")
        desk.open(self.lane)
        self.packs, self.acks = packs(TOPIC), Acknowledgements()

    def run(self) -> None:
        self.lane.offer([self.packs.pop(0)])
        self.lane.snapshot()
        self.lane.saved(self.lane.last_mark)
        self.loop.turn()
        self.client.say(self.acks.take())
        self.loop.turn()
        assert self.lane.in_flight == 0, "not everything is acknowledged"


class FeedRoom:
    """Records that are written to the log of an APPLICATION client."""

    def __init__(self) -> None:
        self.hub = Hub(Loop(), **LIMITS)
        self.desk = DispatchDesk(self.hub)
        self.client = Client(self.hub, "application", keeps=True)
        self.client.session.since = 0
        self.client.session.intake = Feed("tbmq.msg.app.application")
        self.hub.trie.subscribe(self.client.session, TOPIC, 1)
        self.packs = packs(TOPIC)

    def run(self) -> None:
        self.desk.dispatch(self.packs.pop(0), 0, Round())
        [(_, _, pack)] = take_filled(self.hub)
        assert pack.count == MESSAGES, "not everything was written"


class DeviceRoom:
    """A persistent DEVICE client that is sent messages from the log as they come, and acknowledges them."""

    def __init__(self) -> None:
        self.loop = Loop()
        hub = Hub(self.loop, **LIMITS)
        self.desk = DispatchDesk(hub)
        self.client = Client(hub, "device", keeps=True)
        self.client.session.since = 0
        outlet = DeviceDesk(hub, lambda outlets: None, lambda session: None).of(self.client.session)
        outlet.open()
        outlet.live = True
        hub.trie.subscribe(self.client.session, TOPIC, 1)
        self.packs, self.acks = packs(TOPIC), Acknowledgements()

    def run(self) -> None:
        dispatched = Round()
        self.desk.dispatch(self.packs.pop(0), 0, dispatched)
        self.loop.turn()
        self.client.say(self.acks.take())
        self.loop.turn()
        assert dispatched.pending == 0, "not everything is acknowledged"


class QueueRoom:
    """A durable queue: messages are published to it, given to a consumer and settled."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.hub = Hub(self.loop, **LIMITS)
        self.queue = DurableQueue(self.hub, "orders")
        self.hub.queues.serve(lambda topic, is_settlement: self.queue, lambda groups: None, lambda session: None)
        self.hub.queues.bind(self.queue, b"$queue/orders/#")
        self.hub.log_to(self.submit, mode="persistent", partitions=1)
        self.publisher, self.client = Client(self.hub, "publisher"), Client(self.hub, "consumer")
        self.group = QueueGroup(self.queue, "workers", "workers", None)
        self.group.is_reading = True
        MqttConsumer(self.group, self.client.session, prefetch=10 * MESSAGES, settles_by_ack=True).join()
        self.input = packets.build_publish(QUEUE_TOPIC, PAYLOAD, version=4, qos=1, packet_id=7) * MESSAGES
        self.packs, self.acks = packs(QUEUE_TOPIC), Acknowledgements()

    def submit(self, ticket: int, batch: object, size: int, beside: object) -> None:
        self.loop.call_soon(self.hub.log_committed, ticket, size)

    def publish(self) -> None:
        self.publisher.say(self.input)
        self.loop.turn()

    def settle(self) -> None:
        self.group.offer(self.packs.pop(0))
        self.loop.turn()
        self.group.stored(self.group.take_changes()[0])
        self.loop.turn()
        self.client.say(self.acks.take())
        self.loop.turn()
        assert self.group.acknowledged % MESSAGES == 0, "not everything is settled"
        assert self.group.acknowledged, "nothing is settled"
