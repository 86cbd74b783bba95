"""Counters of all queues never go back, whatever becomes of one."""

from tests.support.worlds.queue_world import in_world


def test_what_is_gone_still_counts():
    async def work(world):
        queue = await world.fill("orders", ["a", "b", "c"])
        assert world.manager.counters()["queue_delivered"] == 0
        queue.dropped, queue.dead = 5, 2
        await world.join(queue, "workers", "w1")
        await world.join(queue, "others")
        before = world.manager.counters()
        assert (before["queues"], before["queue_groups"], before["queue_consumers"]) == (1, 2, 1)
        assert (before["queue_dropped"], before["queue_dead_letters"]) == (5, 2)
        await world.control.delete_group("orders", "others")
        await world.manager.delete("orders")
        after = world.manager.counters()
        assert (after["queues"], after["queue_groups"], after["queue_pending"]) == (0, 0, 0)
        gauges = ("queues", "queues_held_back", "queue_groups", "queue_consumers", "queue_pending")
        assert {name: value for name, value in after.items() if name not in gauges} == {
            name: value for name, value in before.items() if name not in gauges
        }
        await world.fill("orders")
        assert world.manager.counters()["queue_dropped"] == 5

    in_world(work)
