"""Messages shown, appended, moved and replayed: nothing is lost, and only what was asked for goes."""

import asyncio

import pytest

from penstock._ext.envelope import decode
from penstock.core.errors import ConflictError, NotFoundError, UsageError
from penstock.logs.base import LogUnavailable
from penstock.queues import transfers
from penstock.queues.control import QueueControl
from penstock.queues.definitions import Limits, QueueDefinition
from tests.support.memory_queues import NOW, MemoryQueues, publish_record


@pytest.fixture
def manager():
    return MemoryQueues()


@pytest.fixture
def control(manager):
    return QueueControl(manager, clock=lambda: NOW)


async def filled(manager, name="orders", keys=("eu/1", "us/1", "eu/2", "us/2"), **given):
    queue = await manager.create(QueueDefinition(name=name, **given))
    for key in keys:
        await queue.append(publish_record(f"$queue/{name}/{key}", key.encode()))
    return queue


async def payloads(control, name):
    answer = await transfers.peek(control, name, start=None, group=None, count=1_000, most_bytes=100)
    return [message["payload"] for message in answer["messages"]]


def test_peek_takes_nothing(manager, control):
    async def run():
        queue = await filled(manager)
        group = queue.group("g", cursor=3)

        async def look(count=10, most_bytes=100, **given):
            answer = await transfers.peek(
                control, "orders", **{"start": None, "group": None, **given}, count=count, most_bytes=most_bytes
            )
            return [message["offset"] for message in answer["messages"]], answer["truncated"]

        assert await look(group="g") == ([3], False)
        assert await look(start=1, count=2) == ([1, 2], True)
        assert await look(start=-1) == ([3], False)
        assert await look(start=99) == ([], False)
        assert await look() == ([3], False)  # what every group has settled is nobody's any more
        del queue.groups["g"]
        assert await look(count=4) == ([0, 1, 2, 3], False)
        assert group.cursor == 3
        answer = await transfers.peek(control, "orders", start=0, group=None, count=1, most_bytes=2)
        (message,) = answer["messages"]
        assert (message["key"], message["payload"], message["size"], message["payload_truncated"]) == (
            "eu/1",
            "eu",
            4,
            True,
        )
        assert (message["message_id"], message["published"]) == ("orders:0", "2023-11-14T22:13:20.000+00:00")

    asyncio.run(run())


def test_what_is_appended_is_a_message_like_others(manager, control):
    async def run():
        queue = await manager.create(QueueDefinition(name="orders", limits=Limits(message_ttl=60.0)))
        answer = await transfers.append(
            control,
            "orders",
            {"key": "eu/1", "payload": "ü", "user_properties": [["a", "b"]], "content_type": "text/plain", "expiry": 5},
        )
        assert answer == {"queue": "orders", "offset": 0, "message_id": "orders:0", "topic": "$queue/orders/eu/1"}
        await transfers.append(control, "orders", {"payload_base64": "AAE="})
        first, second = [decode(record.value) for pack in await queue.read(0, 10) for record in pack]
        assert (first.topic, first.payload, first.user_properties) == ("$queue/orders/eu/1", "ü".encode(), [("a", "b")])
        assert (first.received_at, first.expires_at - first.received_at) == (NOW * 1000, 5_000)
        assert (second.topic, second.payload) == ("$queue/orders", b"\0\1")
        assert second.expires_at - second.received_at == 60_000

    asyncio.run(run())


@pytest.mark.parametrize(
    ("document", "error"),
    [
        ({"key": "a/$ack"}, "no routing key"),
        ({"key": "a/#"}, "no routing key"),
        ({"key": "$x/a"}, "no topic of a queue"),
        ({"key": 1}, "key is not a text"),
        ({"payload": "\ud800"}, "payload is not a text"),
        ({"payload": "a", "payload_base64": "AA=="}, "one payload"),
        ({"payload_base64": "*"}, "not base64"),
        ({"user_properties": {"a": "b"}}, "list of pairs"),
        ({"expiry": -1}, "number of seconds"),
        ({"expiry": True}, "number of seconds"),
        ({"topic": "a"}, "'topic' is nothing a message has"),
        ({"payload": "x" * 11}, "limits.max_message_size is 10"),
        ({"key": "k" * 65_535}, "longer than"),
    ],
)
def test_what_cannot_be_appended(manager, control, document, error):
    async def run():
        await manager.create(QueueDefinition(name="orders", limits=Limits(max_message_size=10)))
        with pytest.raises(UsageError, match=error):
            await transfers.append(control, "orders", document)

    asyncio.run(run())


def test_a_full_queue_takes_nothing(manager, control):
    async def run():
        await filled(manager, limits=Limits(max_depth=4))
        with pytest.raises(ConflictError, match=r"limits\.max_depth = 4"):
            await transfers.append(control, "orders", {"payload": "x"})
        await filled(manager, "source")
        with pytest.raises(ConflictError, match=r"limits\.max_depth = 4"):
            await transfers.move(control, "source", "orders", count=None)
        assert len(await payloads(control, "source")) == 4

    asyncio.run(run())


def test_messages_move_in_order_and_as_they_are(manager, control):
    async def run():
        source, target = await filled(manager), await filled(manager, "target", ["old"])
        answer = await transfers.move(control, "orders", "target", count=3)
        assert answer == {
            "source": "orders",
            "target": "target",
            "moved": 3,
            "skipped": 0,
            "left": 1,
            "truncated": False,
        }
        assert await payloads(control, "target") == ["old", "eu/1", "us/1", "eu/2"]
        assert await payloads(control, "orders") == ["us/2"]
        moved = (await target.read(1, 1))[0].values()[0]
        assert decode(moved).topic == "$queue/orders/eu/1"
        with pytest.raises(UsageError, match="to itself"):
            await transfers.move(control, "orders", "orders", count=None)
        with pytest.raises(NotFoundError):
            await transfers.move(control, "orders", "nobody", count=None)
        assert source.depth == 1

    asyncio.run(run())


def test_a_filter_moves_from_the_middle(manager, control):
    async def run():
        await filled(manager)
        await filled(manager, "target", [])
        assert (await transfers.move(control, "orders", "target", count=None, topic_filter="eu/#"))["moved"] == 2
        assert await payloads(control, "orders") == ["us/1", "us/2"]
        assert (await transfers.move(control, "orders", "target", count=1, topic_filter="+/2"))["moved"] == 1
        assert await payloads(control, "target") == ["eu/1", "eu/2", "us/2"]
        assert (await transfers.move(control, "orders", "target", count=None, topic_filter="#"))["moved"] == 1
        with pytest.raises(UsageError, match="# stands alone"):
            await transfers.move(control, "orders", "target", count=None, topic_filter="a#")

    asyncio.run(run())


def test_what_is_settled_does_not_move_what_is_pending_does(manager, control):
    async def run():
        queue = await filled(manager)
        await filled(manager, "target", [])
        group = queue.group("g")
        group.claim(3, "w")
        del group.entries[1]  # acknowledged, while 0 is not
        assert (await transfers.move(control, "orders", "target", count=None))["moved"] == 3
        assert await payloads(control, "target") == ["eu/1", "eu/2", "us/2"]
        assert group.pending == 0

    asyncio.run(run())


def test_a_failure_leaves_everything_where_it_was(manager, control):
    async def run():
        await filled(manager)
        target = await filled(manager, "target", [])

        async def fail(pack):
            raise LogUnavailable("the disk is full")

        target.append = fail
        with pytest.raises(LogUnavailable):
            await transfers.move(control, "orders", "target", count=None)
        assert len(await payloads(control, "orders")) == 4

    asyncio.run(run())


def test_many_messages_go_in_steps(manager, control, monkeypatch):
    monkeypatch.setattr(transfers, "MOST_MOVED", 7)
    monkeypatch.setattr(transfers, "READ_AT_ONCE", 3)

    async def run():
        await filled(manager, keys=[str(number) for number in range(10)])
        await filled(manager, "target", [])
        answer = await transfers.move(control, "orders", "target", count=None)
        assert (answer["moved"], answer["left"], answer["truncated"]) == (7, 3, True)
        answer = await transfers.move(control, "orders", "target", count=None)
        assert (answer["moved"], answer["left"], answer["truncated"]) == (3, 0, False)
        assert await payloads(control, "target") == [str(number) for number in range(10)]

    asyncio.run(run())


def test_dead_letters_go_back_as_they_were(manager, control):
    async def run():
        orders = await manager.create(QueueDefinition(name="orders", limits=Limits(message_ttl=60.0)))
        dead = await manager.create(QueueDefinition(name="$dlq/orders"))

        async def bury(key, queue, payload):
            pairs = [("own", "1"), ("_dlq_original_queue", queue), ("_dlq_original_topic", f"$queue/{queue}/{key}")]
            pairs += [("_dlq_delivery_count", "11"), ("_dlq_reason", "rejected"), ("reason", "bad")]
            await dead.append(publish_record(f"$queue/$dlq/orders/{key}", payload, pairs=pairs))

        await bury("eu/1", "orders", b"one")
        await bury("us/1", "orders", b"two")
        await bury("us/1", "gone", b"three")
        answer = await transfers.replay(control, "$dlq/orders", count=None, topic_filter="us/#")
        assert (answer["moved"], answer["skipped"], answer["left"]) == (1, 1, 3)
        (record,) = [record for pack in await orders.read(0, 10) for record in pack]
        publish = decode(record.value)
        assert (publish.topic, publish.payload, publish.user_properties) == (
            "$queue/orders/us/1",
            b"two",
            [("own", "1")],
        )
        assert publish.expires_at == int(NOW * 1000) + 60_000
        assert await payloads(control, "$dlq/orders") == ["one", "three"]

    asyncio.run(run())
