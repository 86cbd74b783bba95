"""Messages shown, appended, moved and replayed: nothing is lost, and only what was asked for goes."""

import pytest

from penstock._ext.record.envelope import decode
from penstock.core.errors import ConflictError, NotFoundError, UsageError
from penstock.storage.log.base import LogUnavailable
from penstock.subscribers.queue import transfers
from penstock.subscribers.queue.definitions import Limits
from tests.support.worlds.queue_world import NOW, in_world, record_of

KEYS = ("eu/1", "us/1", "eu/2", "us/2")


async def payloads(control, name):
    answer = await transfers.peek(control, name, start=None, group=None, count=1_000, most_bytes=100)
    return [message["payload"] for message in answer["messages"]]


def test_peek_takes_nothing():
    async def work(world):
        control = world.control
        queue = await world.fill("orders", KEYS)
        group = await world.join(queue, "g")
        await group.seek(3)
        queue.update_floor()

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
        await group.delete()
        assert await look(count=4) == ([0, 1, 2, 3], False)
        answer = await transfers.peek(control, "orders", start=0, group=None, count=1, most_bytes=2)
        (message,) = answer["messages"]
        assert (message["key"], message["payload"], message["size"], message["payload_truncated"]) == (
            "eu/1",
            "eu",
            4,
            True,
        )
        assert (message["message_id"], message["published"]) == ("orders:0", "2023-11-14T22:13:20.000+00:00")

    in_world(work)


def test_what_is_appended_is_a_message_like_others():
    async def work(world):
        control = world.control
        queue = await world.fill("orders", limits=Limits(message_ttl=60.0))
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

    in_world(work)


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
        ({"response_topic": "a/+"}, "no message that MQTT could have"),
    ],
)
def test_what_cannot_be_appended(document, error):
    async def work(world):
        control = world.control
        await world.fill("orders", limits=Limits(max_message_size=10))
        with pytest.raises(UsageError, match=error):
            await transfers.append(control, "orders", document)

    in_world(work)


def test_a_full_queue_takes_nothing():
    async def work(world):
        control = world.control
        await world.fill("orders", KEYS, limits=Limits(max_depth=4))
        with pytest.raises(ConflictError, match=r"limits\.max_depth = 4"):
            await transfers.append(control, "orders", {"payload": "x"})
        await world.fill("source", KEYS)
        with pytest.raises(ConflictError, match=r"limits\.max_depth = 4"):
            await transfers.move(control, "source", "orders", count=None)
        assert len(await payloads(control, "source")) == 4

    in_world(work)


def test_messages_move_in_order_and_as_they_are():
    async def work(world):
        control = world.control
        source, target = await world.fill("orders", KEYS), await world.fill("target", ["old"])
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

    in_world(work)


def test_a_filter_moves_from_the_middle():
    async def work(world):
        control = world.control
        await world.fill("orders", KEYS)
        await world.fill("target")
        assert (await transfers.move(control, "orders", "target", count=None, topic_filter="eu/#"))["moved"] == 2
        assert await payloads(control, "orders") == ["us/1", "us/2"]
        assert (await transfers.move(control, "orders", "target", count=1, topic_filter="+/2"))["moved"] == 1
        assert await payloads(control, "target") == ["eu/1", "eu/2", "us/2"]
        assert (await transfers.move(control, "orders", "target", count=None, topic_filter="#"))["moved"] == 1
        with pytest.raises(UsageError, match="# stands alone"):
            await transfers.move(control, "orders", "target", count=None, topic_filter="a#")

    in_world(work)


def test_what_is_settled_does_not_move_what_is_pending_does():
    async def work(world):
        control = world.control
        queue = await world.fill("orders", KEYS)
        await world.fill("target")
        group = await world.join(queue, "g", "w")
        world.claim(group, 3)
        group.core.settle(1)  # acknowledged, while 0 is not
        assert (await transfers.move(control, "orders", "target", count=None))["moved"] == 3
        assert await payloads(control, "target") == ["eu/1", "eu/2", "us/2"]
        assert group.pending == 0

    in_world(work)


def test_a_failure_leaves_everything_where_it_was():
    async def work(world):
        control = world.control
        await world.fill("orders", KEYS)
        target = await world.fill("target")

        async def fail(pack):
            raise LogUnavailable("the disk is full")

        target.append = fail
        with pytest.raises(LogUnavailable):
            await transfers.move(control, "orders", "target", count=None)
        assert len(await payloads(control, "orders")) == 4

    in_world(work)


def test_many_messages_go_in_steps(monkeypatch):
    monkeypatch.setattr(transfers, "MOST_MOVED", 7)
    monkeypatch.setattr(transfers, "READ_AT_ONCE", 3)

    async def work(world):
        control = world.control
        await world.fill("orders", [str(number) for number in range(10)])
        await world.fill("target")
        answer = await transfers.move(control, "orders", "target", count=None)
        assert (answer["moved"], answer["left"], answer["truncated"]) == (7, 3, True)
        answer = await transfers.move(control, "orders", "target", count=None)
        assert (answer["moved"], answer["left"], answer["truncated"]) == (3, 0, False)
        assert await payloads(control, "target") == [str(number) for number in range(10)]

    in_world(work)


def test_nothing_is_left_out_of_many():
    async def work(world):
        keys = [str(number) for number in range(1_200)]
        await world.fill("orders", keys)
        await world.fill("target")
        assert (await transfers.move(world.control, "orders", "target", count=None))["moved"] == 1_200
        answer = await transfers.peek(world.control, "target", start=200, group=None, count=1_000, most_bytes=100)
        assert [message["payload"] for message in answer["messages"]] == keys[200:]
        assert await payloads(world.control, "orders") == []

    in_world(work)


def test_dead_letters_go_back_as_they_were():
    async def work(world):
        control = world.control
        orders = await world.fill("orders", limits=Limits(message_ttl=60.0))
        dead = await world.fill("$dlq/orders")

        async def bury(key, queue, payload):
            pairs = [("own", "1"), ("_dlq_original_queue", queue), ("_dlq_original_topic", f"$queue/{queue}/{key}")]
            pairs += [("_dlq_delivery_count", "11"), ("_dlq_reason", "rejected"), ("reason", "bad")]
            await dead.append(record_of(f"$queue/$dlq/orders/{key}", payload, pairs=pairs))

        await bury("eu/1", "orders", b"one")
        await bury("us/1", "orders", b"two")
        await bury("us/1", "gone", b"three")
        answer = await transfers.replay(control, "$dlq/orders", count=None, topic_filter="us/#")
        assert (answer["moved"], answer["skipped"], answer["left"]) == (1, 1, 2)
        (record,) = [record for pack in await orders.read(0, 10) for record in pack]
        publish = decode(record.value)
        assert (publish.topic, publish.payload, publish.user_properties) == (
            "$queue/orders/us/1",
            b"two",
            [("own", "1")],
        )
        assert publish.expires_at == int(NOW * 1000) + 60_000
        assert await payloads(control, "$dlq/orders") == ["one", "three"]

    in_world(work)
