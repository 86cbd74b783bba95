"""Offsets taken out of a queue, kept as spans."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.subscribers.queue.removed import RemovedOffsets

offsets = st.lists(st.integers(0, 60), max_size=30)


@given(st.lists(offsets, max_size=4), st.integers(0, 61))
def test_as_a_set_would(batches, head):
    removed, model = RemovedOffsets(), set()
    for batch in batches:
        removed.add(batch)
        model |= set(batch)
    assert [offset in removed for offset in range(-1, 62)] == [offset in model for offset in range(-1, 62)]
    assert len(removed) == len(model)
    again = RemovedOffsets.decode(removed.encode())
    assert again.spans() == removed.spans()
    assert removed.count_from(head) == len([offset for offset in model if offset >= head])
    kept = removed.first_kept(head)
    assert kept not in model
    assert all(offset in model for offset in range(head, kept))
    again.prune(head)
    assert {offset for offset in range(62) if offset in again} == {offset for offset in model if offset >= head}


def test_a_long_row_is_one_span():
    removed = RemovedOffsets()
    for start in range(0, 10_000, 500):
        removed.add(range(start, start + 500))
    assert removed.spans() == [(0, 10_000)]
    assert len(removed.encode()) < 20
