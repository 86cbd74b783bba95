"""What an operator sees of queues and does to them."""

import pytest

from penstock.core.errors import ConflictError, NotFoundError, UsageError
from penstock.settings.queues import DurableQueueSettings
from penstock.subscribers.queue.definitions import BadDefinitionError, QueueDefinition, QueueError
from tests.support.worlds.queue_world import in_world

FIVE = [f"k/{number}" for number in range(5)]


def test_the_deepest_come_first_when_that_is_asked_for():
    async def work(world):
        for number in range(4):
            await world.fill(f"q{number}", FIVE[: number % 3])
        page = await world.control.list(limit=3, is_by_depth=True)
        assert [(entry["name"], entry["depth"]) for entry in page["queues"]] == [("q2", 2), ("q1", 1), ("q0", 0)]

    in_world(work)


def test_a_list_comes_in_pages():
    async def work(world):
        for number in range(10):
            await world.fill(f"q{9 - number}")
        page = await world.control.list(limit=3, offset=6)
        assert [entry["name"] for entry in page["queues"]] == ["q6", "q7", "q8"]
        assert (page["total"], page["matched"], page["offset"], page["truncated"]) == (10, 10, 6, True)
        assert (await world.control.list(limit=3, offset=7))["truncated"] is False
        found = await world.control.list("q[12]")
        assert ([entry["name"] for entry in found["queues"]], found["matched"]) == (["q1", "q2"], 2)
        with pytest.raises(UsageError):
            await world.control.list("q" * 2_000)

    in_world(work)


def test_one_is_shown_with_its_settings_and_groups():
    async def work(world):
        queue = await world.fill("orders", FIVE, topics=("$queue/other/#",))
        world.claim(await world.join(queue, "workers", "w1"), 2)
        entry = await world.control.show("orders")
        assert (entry["depth"], entry["messages"], entry["head"], entry["tail"]) == (5, 5, 0, 5)
        assert (entry["consumers"], entry["pending"], entry["group_count"]) == (1, 2, 1)
        assert entry["bindings"] == ["$queue/orders/#", "$queue/other/#"]
        assert entry["definition"]["retry"]["max_retries"] == 10
        (group,) = entry["groups"]
        assert (group["id"], group["pending"], group["committed"], group["cursor"]) == ("workers", 2, 0, 2)
        with pytest.raises(NotFoundError, match="there is no queue 'nobody'"):
            await world.control.show("nobody")

    in_world(work)


def test_made_once_and_only_with_good_settings():
    async def work(world):
        table = {"name": "orders", "limits": {"max_depth": 5}, "retry.initial_backoff": "250ms"}
        entry = await world.control.create(table)
        assert (entry["origin"], entry["definition"]["retry"]["initial_backoff"]) == ("admin", 0.25)
        assert (await world.control.create(table))["definition"] == entry["definition"]
        with pytest.raises(ConflictError, match="with other settings"):
            await world.control.create({**table, "type": "stream"})
        with pytest.raises(BadDefinitionError):
            await world.control.create({"name": "a/b"})
        await world.manager.create(QueueDefinition(name="auto", durable=False, origin="auto"))
        with pytest.raises(ConflictError, match="ephemeral queue"):
            await world.control.create({"name": "auto"})
        with pytest.raises(QueueError, match="max_queues"):
            await world.control.create({"name": "one-too-many"})
        assert set(world.queues) == {"orders", "auto"}

    in_world(work, DurableQueueSettings(max_queues=2))


def test_a_change_keeps_the_rest():
    async def work(world):
        control = world.control
        await control.create({"name": "orders", "limits": {"max_depth": 5, "message_ttl": 60}})
        entry = await control.update("orders", {"limits.max_depth": "7", "retry": {"max_retries": 2}})
        limits = entry["definition"]["limits"]
        assert (limits["max_depth"], limits["message_ttl"], entry["definition"]["retry"]["max_retries"]) == (7, 60.0, 2)
        assert world.queues["orders"].core.max_depth == 7
        for table, error in (
            ({"type": "stream"}, "cannot become stream"),
            ({"name": "other"}, "keeps its name"),
            ({"limits.max_deep": 1}, "no setting of a queue"),
            ({"origin": "auto"}, "no setting of a queue"),
        ):
            with pytest.raises(UsageError, match=error):
                await control.update("orders", table)
        assert (await control.pause("orders", paused=True))["paused"] is True
        await control.update("orders", {"limits.max_depth": 8})
        assert world.queues["orders"].definition.paused is True

    in_world(work)


def test_delete_can_be_careful():
    async def work(world):
        queue = await world.fill("orders", FIVE)
        await world.join(queue, "workers", "w1")
        with pytest.raises(ConflictError, match="5 messages wait"):
            await world.control.delete("orders", if_empty=True)
        with pytest.raises(ConflictError, match="1 consumers"):
            await world.control.delete("orders", if_unused=True)
        assert (await world.control.purge("orders"))["purged"] == 5
        assert (await world.control.show("orders"))["messages"] == 0
        assert (await world.control.delete("orders", if_empty=True))["name"] == "orders"
        assert world.queues == {}
        assert queue.topic not in await world.log.admin.list()

    in_world(work)


def test_groups_are_found_by_name_while_that_is_enough():
    async def work(world):
        control = world.control
        queue = await world.fill("orders", FIVE)
        world.claim(await world.join(queue, "workers", "w1"), 1)
        answer = await control.groups("orders")
        assert answer["groups"][0]["members"][0]["client_id"] == "w1"
        (entry,) = (await control.pending("orders", "workers", 10))["entries"]
        assert (entry["consumer"], entry["deliveries"], entry["offset"]) == ("w1", 1, 0)
        await world.join(queue, "readers", filter="a/#")
        assert control.find_group("orders", "readers").filter == "a/#"
        await world.join(queue, "readers", filter="b/#")
        with pytest.raises(ConflictError, match=r"2 groups 'readers'.*\n.*readers@a/#, readers@b/#"):
            control.find_group("orders", "readers")
        assert control.find_group("orders", "readers@b/#").filter == "b/#"
        with pytest.raises(NotFoundError, match="has no group 'x'"):
            await control.pending("orders", "x", 10)
        with pytest.raises(ConflictError, match="1 consumers"):
            await control.delete_group("orders", "workers")
        await control.delete_group("orders", "readers@a/#")
        assert set(queue.groups) == {"workers", "readers@b/#"}

    in_world(work)


PLACES = [
    ("first", 1),
    ("begin", 1),
    ("last", 5),
    ("next", 5),
    ("3", 3),
    ("offset=3", 3),
    ("0", 1),
    ("99", 5),
    ("-2", 3),
    ("timestamp=0", 1),
    ("timestamp=1700000000000", 1),
    ("timestamp=1700000001", 5),
]


@pytest.mark.parametrize("kind", ["classic", "stream"])
def test_a_group_goes_on_elsewhere(kind):
    async def work(world):
        queue = await world.fill("orders", FIVE, type=kind)
        await queue.truncate(1)
        group = await world.join(queue, "g")
        for to, offset in PLACES:
            assert (await world.control.seek("orders", "g", to))["cursor"] == offset, to
            assert group.cursor == offset

    in_world(work)


def test_an_unknown_place_is_refused():
    async def work(world):
        await world.join(await world.fill("orders", FIVE), "g")
        for to in ("", "soon", "1.5", "offset=", "timestamp=-5", "timestamp=x", "9" * 19, "²"):
            with pytest.raises(UsageError, match="no position in a queue: use first, last"):
                await world.control.seek("orders", "g", to)

    in_world(work)
