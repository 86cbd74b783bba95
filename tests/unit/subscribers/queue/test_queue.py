"""A queue and its log: when one of them is slow, or has lost something."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock._ext.hub.connection import QUEUE_OFF, DurableQueue, answer_text
from penstock.core.refusal import Refusal, Refused
from penstock.mqtt.queue_consumers import subscribe
from penstock.settings.queues import DurableQueueSettings
from penstock.storage.log.base import Appended, LogError, LogUnavailable
from penstock.subscribers.queue.definitions import Limits, QueueDefinition, QueueError, Replication, Retention
from penstock.subscribers.queue.retention import enforce_retention
from penstock.subscribers.queue.sizes import Sizes
from penstock.subscribers.queue.state import GROUP, STATE, state_key
from tests.support.worlds.queue_world import QueueWorld, in_world, record_of


def test_a_queue_deleted_while_its_log_is_made_leaves_nobody_waiting():
    """The hub hears of publishes in their order: one that is never answered would hold up all that come behind it."""

    async def work(world: QueueWorld) -> None:
        create = world.log.admin.create

        async def never(*_: Any, **__: Any) -> None:
            await asyncio.Event().wait()

        world.log.admin.create = never  # type: ignore[method-assign] # as slow as Kafka can be
        queue = await world.manager.create(QueueDefinition(name="slow"))
        told: list[Appended | LogError] = []
        queue.append_pack(record_of("$queue/slow", b"1"), told.append)
        await asyncio.sleep(0)
        await world.manager.delete("slow")
        queue.append_pack(record_of("$queue/slow", b"2"), told.append)
        world.log.admin.create = create  # type: ignore[method-assign]
        assert [type(result) for result in told] == [Appended, Appended]

    in_world(work)


def test_a_queue_whose_log_cannot_be_removed_keeps_its_name_until_it_can(monkeypatch: pytest.MonkeyPatch):
    """Or the messages of the old one would be in the next one of this name."""
    monkeypatch.setattr("penstock.subscribers.queue.deletions.AGAIN_SECONDS", 0.05)

    async def work(world: QueueWorld) -> None:
        manager = world.manager
        queue = await manager.create(QueueDefinition(name="orders"))
        done: asyncio.Future[Appended | LogError] = asyncio.get_running_loop().create_future()
        queue.append_pack(record_of("$queue/orders", b"old"), done.set_result)
        assert isinstance(await done, Appended)
        delete = world.log.admin.delete

        async def broken(_: str) -> None:
            raise LogUnavailable("away")

        world.log.admin.delete = broken  # type: ignore[method-assign] # the fault this is about
        await manager.delete("orders")
        with pytest.raises(QueueError, match="still being deleted"):
            await manager.create(QueueDefinition(name="orders"))
        with pytest.raises(LogError, match="still being deleted"):
            await manager.adopt(QueueDefinition(name="orders"))
        definitions, _, _ = await manager.state.load()
        assert "orders" in {key.decode() if isinstance(key, bytes) else key for key in definitions}
        world.log.admin.delete = delete  # type: ignore[method-assign]
        async with asyncio.timeout(30):
            while "orders" in manager.deletions:  # noqa: ASYNC110  # nobody tells when it changes
                await asyncio.sleep(0.01)
        again = await manager.create(QueueDefinition(name="orders"))
        await again.make()
        assert again.depth == 0

    in_world(work)


def test_a_queue_that_ends_with_the_broker_promises_nothing():
    told: list[Appended | LogError] = []

    async def work(world: QueueWorld) -> None:
        queue = await world.manager.create(QueueDefinition(name="closing"))
        queue.append_pack(record_of("$queue/closing", b"1"), told.append)
        await queue.close()

    in_world(work)
    assert [isinstance(result, LogError) for result in told] == [True]


def test_a_group_is_never_further_than_its_log():
    """A power cut may take the end of a log (ack_durability = "buffered") and not what is known of its groups: what is
    published at the same offsets afterwards is new."""

    async def work(world: QueueWorld) -> None:
        queue = await world.fill("cut", ["0", "1", "2"])
        group = await world.join(queue, "workers")
        world.claim(group, 3)
        group.core.pending.settle(0, 0)
        group.stay_within(3)
        assert (group.cursor, group.committed, group.pending) == (3, 1, 2)
        group.stay_within(2)
        assert (group.cursor, group.committed, group.pending) == (2, 1, 1)
        stream = await world.fill("cut-stream", ["0"], type="stream")
        readers = await world.join(stream, "readers")
        readers.core.seek(9)
        readers.stay_within(1)
        assert (readers.cursor, readers.committed) == (1, 1)

    in_world(work)


def test_one_queue_that_cannot_be_tidied_is_not_the_end_of_tidying():
    async def work(world: QueueWorld) -> None:
        bad, good = await world.fill("bad", ["0"]), await world.fill("good", ["0"])

        async def fail(_: int) -> None:
            raise RuntimeError("no")

        bad.truncate = fail  # type: ignore[method-assign]
        group = await world.join(good, "workers")
        (await world.join(bad, "workers")).core.seek(1)
        for offset in range(3):
            group.core.seek(offset + 1)
            async with asyncio.timeout(30):
                while good.head <= offset:  # noqa: ASYNC110 - nobody tells when a log was cut
                    await asyncio.sleep(0.01)
            await good.append(record_of("$queue/good", b"next"))

    in_world(work, DurableQueueSettings(retention_interval=0.05))


def test_what_has_expired_makes_room_where_nobody_reads():
    """Else the queue `mqtt`, which takes a copy of everything, would refuse what lives because of what is dead."""

    async def work(world: QueueWorld) -> None:
        queue = await world.fill("unread", limits=Limits(max_depth=700))
        for number in range(701):
            # more than is read at once has expired, and one that lives is among them
            expires_at = 0 if number == 600 else 1
            await queue.append(record_of("$queue/unread", b"%d" % number, expires_at=expires_at))
        await enforce_retention(queue)
        assert (queue.head, queue.depth, queue.expired, queue.dropped) == (600, 101, 600, 0)
        await enforce_retention(queue)
        assert (queue.head, queue.expired) == (600, 600)

    in_world(work)


def test_a_group_counts_what_has_expired_itself():
    async def work(world: QueueWorld) -> None:
        queue = await world.fill("read")
        await queue.append(record_of("$queue/read", b"dead", expires_at=1))
        await world.join(queue, "workers")
        await enforce_retention(queue)
        assert (queue.head, queue.expired) == (0, 0)

    in_world(work)


def test_sizes_of_a_log_that_is_empty_again():
    sizes = Sizes()
    sizes.add(0, 100)
    sizes.add(10, 50)
    sizes.prune(5, 12)
    assert sizes.total == 150
    sizes.prune(10, 12)
    assert sizes.total == 50
    sizes.prune(12, 12)
    assert sizes.total == 0
    assert sizes.first is None


def test_the_copies_of_a_queue_are_properties_of_its_topic():
    """Reference, section 12: on Kafka the keys map to replication factor and min.insync.replicas."""

    async def work(world: QueueWorld) -> None:
        replication = Replication(enabled=True, replication_factor=3, min_in_sync_replicas=2)
        queue = await world.manager.create(QueueDefinition(name="safe", replication=replication))
        await queue.make()
        made = await world.log.admin.describe(queue.topic)
        assert (made.properties["replication.factor"], made.properties["min.insync.replicas"]) == ("3", "2")
        plain = await world.fill("plain")
        assert "replication.factor" not in (await world.log.admin.describe(plain.topic)).properties

    in_world(work)


def test_queues_are_made_on_first_use_only_where_that_is_wanted():
    """`durable_queues.auto_create = "off"`: publishing and subscribing make nothing."""

    async def work(world: QueueWorld) -> None:
        await world.fill("there")
        session = world.open_session("c")
        for topic, is_there in ((b"$queue/there/k", True), (b"$queue/none/k", False)):
            assert isinstance(world.manager._find_queue(topic, False), DurableQueue) == is_there
        with pytest.raises(Refused) as refused:
            await subscribe(world.manager, session, "$queue/none", qos=1)
        assert (refused.value.refusal, str(refused.value)) == (Refusal.NOT_FOUND, answer_text(QUEUE_OFF))
        assert list(world.queues) == ["there"]

    in_world(work, DurableQueueSettings(auto_create="off"))


def test_a_change_of_what_the_log_does_reaches_the_log():
    """Else the log would go on removing what a policy that was lifted asked for, or acknowledge before the disk."""

    async def work(world: QueueWorld) -> None:
        queue = await world.fill(
            "events", ["a"], type="stream", retention=Retention(max_age=3600.0), ack_durability="buffered"
        )

        async def told() -> tuple[str | None, str | None]:
            properties = (await world.log.admin.describe(queue.topic)).properties
            return properties.get("retention.ms"), properties.get("flush.ms")

        assert await told() == ("3600000", "1000")
        await world.control.update("events", {"retention.max_age": 0})
        assert await told() == ("-1", "1000")
        await world.control.update("events", {"ack_durability": "fsync"})
        assert await told() == ("-1", None)
        replication = {"enabled": True, "replication_factor": 1, "min_in_sync_replicas": 1}
        await world.control.update("events", {"replication": replication})
        assert (await world.log.admin.describe(queue.topic)).properties["min.insync.replicas"] == "1"

        async def refuse(topic: str, properties: object) -> None:
            raise LogUnavailable("Kafka is away")

        world.log.admin.alter = refuse  # type: ignore[method-assign]
        with pytest.raises(LogUnavailable):
            await world.control.update("events", {"retention.max_age": "1h"})
        assert queue.definition.retention.max_age == 0
        await world.control.update("events", {"limits.message_ttl": "1h"})  # nothing of the log

    in_world(work)


def test_records_of_which_the_log_does_not_say_where_they_are_count_all_the_same() -> None:
    """Kafka does not, when a retry finds that they were written already: the queue looks where its end is."""

    async def work(world: QueueWorld) -> None:
        queue = await world.manager.create(QueueDefinition(name="orders"))
        await queue.make()
        append = world.log.producer.append

        def forgetful(topic: str, partition: int, pack: Any, on_done: Any, **_: Any) -> None:
            def forget(result: Appended | LogError) -> None:
                assert isinstance(result, Appended)
                on_done(Appended(result.topic, result.partition, -1, result.count))

            append(topic, partition, pack, forget)

        world.log.producer.append = forgetful  # type: ignore[method-assign] # the fault this is about
        for number in range(3):
            done: asyncio.Future[Appended | LogError] = asyncio.get_running_loop().create_future()
            queue.append_pack(record_of("$queue/orders", b"%d" % number), done.set_result)
            await done
        async with asyncio.timeout(30):
            while queue.end < 3:  # noqa: ASYNC110 - nobody tells when it changes
                await asyncio.sleep(0.01)
        assert queue.depth == 3

    in_world(work)


def test_a_consumer_is_one_when_its_group_is_stored(monkeypatch: pytest.MonkeyPatch):
    """What was given to the store before and failed has to be stored first, too."""
    monkeypatch.setattr("penstock.subscribers.queue.ordered_writes.RETRY_SECONDS", 0.05)

    async def work(world: QueueWorld) -> None:
        await world.fill("orders")
        await world.fill("passing", durable=False)
        session = world.open_session("c")
        reasons = []
        for failure in ("the disk is full", ""):
            world.store.failure = failure
            with pytest.raises(Refused) as refused:
                await subscribe(world.manager, session, "$queue/orders", qos=1, properties=[("consumer-group", "all")])
            reasons.append(refused.value.refusal)
        assert reasons == [Refusal.UNAVAILABLE] * 2
        assert not world.manager.memberships_of(session)
        await asyncio.sleep(0.1)
        await subscribe(world.manager, session, "$queue/orders", qos=1, properties=[("consumer-group", "all")])
        assert state_key("orders", "all", GROUP) in world.store.tables[STATE]
        world.store.failure = "the disk is full"
        passing = world.open_session("p", lasts=False)
        await subscribe(world.manager, passing, "$queue/passing", qos=1)
        world.store.failure = ""

    in_world(work)
