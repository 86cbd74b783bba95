"""What feeds keep, and that keeping track of it costs no more than what is kept."""

from __future__ import annotations

from typing import Any

from penstock.subscribers.query.feeds import Feed, FeedMemory
from tests.support.worlds.query_stand_in import Block, Row, plan_of


def block_at(offset: int, rows: int = 1) -> Any:
    return Block(("v",), [Row(offset + number, 0, (number,)) for number in range(rows)])


def new_feed(partitions: int = 1) -> Feed:
    return Feed(plan_of(), 1, [0] * partitions)


def test_a_lane_gives_what_is_asked_for_and_says_whether_there_is_more() -> None:
    memory, feed = FeedMemory(1_000_000, 1_000_000), new_feed()
    lane = feed.lanes[0]
    for offset in (0, 10, 20):
        memory.add(lane, block_at(offset, 3))
    found, is_cut = lane.find(11, 1_000, 1_000_000)
    assert ([block.offsets() for block in found], is_cut) == ([[11, 12], [20, 21, 22]], False)
    found, is_cut = lane.find(0, 4, 1_000_000)
    assert ([block.offsets() for block in found], is_cut) == ([[0, 1, 2], [10, 11, 12]], True)
    assert lane.find(23, 1, 1) == ([], False)


def test_a_row_that_stays_does_not_keep_those_that_have_come_and_gone() -> None:
    memory, quiet, busy = FeedMemory(10_000, 1_000_000), new_feed(), new_feed(2)
    memory.add(quiet.lanes[0], block_at(0))
    for offset in range(20_000):
        memory.add(busy.lanes[offset % 2], block_at(offset))
    assert len(quiet.lanes[0].blocks) == 1
    assert memory.bytes == quiet.bytes + busy.bytes <= 20_000
    assert len(memory._order) < 3_000


def test_the_oldest_of_all_go_first_also_after_a_feed_has_gone() -> None:
    memory = FeedMemory(1_000_000, 6_000)
    first, second, third = new_feed(), new_feed(), new_feed()
    for offset in range(3):
        for feed in (first, second):
            memory.add(feed.lanes[0], block_at(offset))
    memory.remove(first)
    for offset in range(8):
        memory.add(third.lanes[0], block_at(offset))
    # nine fit: one of the second was older than all of the third
    assert (len(second.lanes[0].blocks), len(third.lanes[0].blocks)) == (1, 8)
    assert second.lanes[0].start == 2
    assert memory.bytes == second.bytes + third.bytes
