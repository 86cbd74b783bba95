"""How many messages are over the limit of a queue, and which."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.subscribers.queue.definitions import Limits
from penstock.subscribers.queue.overflow import count, first_of_last, unsettled_before, without
from penstock.subscribers.queue.removed import RemovedOffsets
from tests.support.worlds.queue_world import QueueWorld, in_world

KEYS = [f"k{number}" for number in range(10)]
OFFSETS = st.lists(st.integers(0, 40), max_size=20)


def removed_of(offsets: list[int]) -> RemovedOffsets:
    removed = RemovedOffsets()
    removed.add(offsets)
    return removed


@given(gone=OFFSETS, end=st.integers(0, 40), wanted=st.integers(0, 40))
def test_the_last_messages_are_found_around_removed_ones(gone, end, wanted):
    """In a log that ends there; what is removed lies before the end."""
    gone = [offset for offset in gone if offset < end]
    first = first_of_last(removed_of(gone), end, wanted)
    kept = [offset for offset in range(end) if offset not in gone]
    assert [offset for offset in range(first, end) if offset not in gone] == kept[-wanted:] * bool(wanted)


@given(gone=OFFSETS, start=st.integers(0, 40), end=st.integers(0, 40))
def test_what_is_left_of_a_span(gone, start, end):
    spans = without(removed_of(gone), start, end)
    left = [offset for offset in range(start, end) if offset not in gone]
    assert [offset for low, high in spans for offset in range(low, high)] == left
    assert count(spans) == len(left)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40))))
def test_an_offset_in_several_spans_is_counted_once(spans):
    assert count(spans) == len({offset for low, high in spans for offset in range(low, high)})


def test_what_a_cut_takes_from_the_slowest_group():
    """Settled messages after one that is held are not among them."""

    async def work(world: QueueWorld) -> None:
        queue = await world.fill("orders", KEYS, limits=Limits(max_depth=5))
        group = await world.join(queue, "workers", "client")
        world.claim(group, 8)
        for offset in range(1, 8):
            group.core.settle(offset)
        assert queue.depth == 3
        assert unsettled_before(queue, 5) == 1
        assert unsettled_before(queue, 10) == 3
        assert await queue.cut(9) == 2
        assert queue.depth == 1

    in_world(work)


def test_removed_messages_do_not_count():
    async def work(world: QueueWorld) -> None:
        queue = await world.fill("orders", KEYS)
        await queue.remove([1, 2, 7])
        assert queue.depth == 7
        group = await world.join(queue, "workers", "client")
        world.claim(group, 1)
        assert queue.depth == 7
        group.core.settle(0)
        assert queue.depth == 6

    in_world(work)
