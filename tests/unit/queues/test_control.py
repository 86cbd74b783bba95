"""What an operator sees of queues and does to them."""

import asyncio

import pytest

from penstock.core.errors import ConflictError, NotFoundError, UsageError
from penstock.logs.base import TopicPartition
from penstock.queues.control import QueueControl
from penstock.queues.definitions import BadDefinitionError, QueueDefinition
from tests.support.memory_queues import MemoryMember, MemoryQueues, publish_record


@pytest.fixture
def manager():
    return MemoryQueues()


@pytest.fixture
def control(manager):
    return QueueControl(manager)


async def filled(manager, name="orders", count=5, **given):
    queue = await manager.create(QueueDefinition(name=name, **given))
    for number in range(count):
        await queue.append(publish_record(f"$queue/{name}/k/{number}", b"%d" % number))
    return queue


def test_a_list_comes_in_pages(manager, control):
    async def run():
        for number in range(10):
            await manager.create(QueueDefinition(name=f"q{9 - number}"))
        page = await control.list(limit=3, offset=6)
        assert [entry["name"] for entry in page["queues"]] == ["q6", "q7", "q8"]
        assert (page["total"], page["matched"], page["offset"], page["truncated"]) == (10, 10, 6, True)
        assert (await control.list(limit=3, offset=7))["truncated"] is False
        found = await control.list("q[12]")
        assert ([entry["name"] for entry in found["queues"]], found["matched"]) == (["q1", "q2"], 2)
        with pytest.raises(UsageError):
            await control.list("q" * 2_000)

    asyncio.run(run())


def test_one_is_shown_with_its_settings_and_groups(manager, control):
    async def run():
        queue = await filled(manager, topics=("$queue/other/#",))
        workers = queue.group("workers", consumers=[MemoryMember("w1", unsettled=2)])
        workers.claim(2, "w1")
        entry = await control.show("orders")
        assert (entry["depth"], entry["messages"], entry["head"], entry["tail"]) == (5, 5, 0, 5)
        assert (entry["consumers"], entry["pending"], entry["group_count"]) == (1, 2, 1)
        assert entry["bindings"] == ["$queue/orders/#", "$queue/other/#"]
        assert entry["definition"]["retry"]["max_retries"] == 10
        (group,) = entry["groups"]
        assert (group["id"], group["lag"], group["committed"], group["cursor"]) == ("workers", 5, 0, 2)
        with pytest.raises(NotFoundError, match="there is no queue 'nobody'"):
            await control.show("nobody")

    asyncio.run(run())


def test_made_once_and_only_with_good_settings(manager, control):
    async def run():
        table = {"name": "orders", "limits": {"max_depth": 5}, "retry.initial_backoff": "250ms"}
        entry = await control.create(table)
        assert (entry["origin"], entry["definition"]["retry"]["initial_backoff"]) == ("admin", 0.25)
        assert await control.create(table) == entry
        with pytest.raises(ConflictError, match="with other settings"):
            await control.create({**table, "type": "stream"})
        with pytest.raises(BadDefinitionError):
            await control.create({"name": "a/b"})
        await manager.create(QueueDefinition(name="auto", durable=False, origin="auto"))
        with pytest.raises(ConflictError, match="ephemeral queue"):
            await control.create({"name": "auto"})
        assert set(manager.queues) == {"orders", "auto"}

    asyncio.run(run())


def test_a_change_keeps_the_rest(manager, control):
    async def run():
        await control.create({"name": "orders", "limits": {"max_depth": 5, "message_ttl": 60}})
        entry = await control.update("orders", {"limits.max_depth": "7", "retry": {"max_retries": 2}})
        limits = entry["definition"]["limits"]
        assert (limits["max_depth"], limits["message_ttl"], entry["definition"]["retry"]["max_retries"]) == (7, 60.0, 2)
        for table, error in (
            ({"type": "stream"}, "cannot become stream"),
            ({"name": "other"}, "keeps its name"),
            ({"limits.max_deep": 1}, "no setting of a queue"),
            ({"origin": "auto"}, "no setting of a queue"),
        ):
            with pytest.raises(UsageError, match=error):
                await control.update("orders", table)
        await control.pause("orders", paused=True)
        await control.update("orders", {"limits.max_depth": 8})
        assert manager.queues["orders"].definition.paused is True

    asyncio.run(run())


def test_delete_can_be_careful(manager, control):
    async def run():
        queue = await filled(manager)
        queue.group("workers", consumers=[MemoryMember("w1")])
        with pytest.raises(ConflictError, match="5 messages wait"):
            await control.delete("orders", if_empty=True)
        with pytest.raises(ConflictError, match="1 consumers"):
            await control.delete("orders", if_unused=True)
        assert (await control.purge("orders"))["purged"] == 5
        assert (await control.delete("orders", if_empty=True))["name"] == "orders"
        assert manager.queues == {}

    asyncio.run(run())


def test_groups_are_found_by_name_while_that_is_enough(manager, control):
    async def run():
        queue = await filled(manager)
        queue.group("workers", consumers=[MemoryMember("w1", unsettled=1)]).claim(1, "w1")
        answer = await control.groups("orders")
        assert answer["groups"][0]["members"][0]["client_id"] == "w1"
        assert (await control.pending("orders", "workers", 10))["entries"][0]["consumer"] == "w1"
        queue.group("readers", filter="a/#")
        assert control.find_group("orders", "readers").filter == "a/#"
        queue.group("readers", filter="b/#")
        with pytest.raises(ConflictError, match=r"2 groups 'readers'.*\n.*readers@a/#, readers@b/#"):
            control.find_group("orders", "readers")
        assert control.find_group("orders", "readers@b/#").filter == "b/#"
        with pytest.raises(NotFoundError, match="has no group 'x'"):
            await control.pending("orders", "x", 10)
        with pytest.raises(ConflictError, match="1 consumers"):
            await control.delete_group("orders", "workers")
        await control.delete_group("orders", "readers@a/#")
        assert set(queue.groups) == {"workers", "readers@b/#"}

    asyncio.run(run())


@pytest.mark.parametrize(
    ("to", "offset"),
    [
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
    ],
)
def test_a_group_goes_on_elsewhere(manager, control, to, offset):
    async def run():
        queue = await filled(manager)
        await manager.log.admin.truncate(TopicPartition(queue.topic, 0), 1)
        group = queue.group("g", cursor=2)
        assert (await control.seek("orders", "g", to))["cursor"] == offset
        assert group.cursor == offset

    asyncio.run(run())


@pytest.mark.parametrize("to", ["", "soon", "1.5", "offset=", "timestamp=-5", "timestamp=x", "9" * 19, "²"])
def test_an_unknown_place_is_refused(manager, control, to):
    async def run():
        (await filled(manager)).group("g")
        with pytest.raises(UsageError, match="no position in a queue: use first, last"):
            await control.seek("orders", "g", to)

    asyncio.run(run())
