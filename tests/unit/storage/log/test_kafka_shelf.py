"""What waits between librdkafka and the polls: turns, limits, and when reading on is stopped."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._ext.record.segment import RecordPack
from penstock.storage.log.base import Fetched, TopicPartition
from penstock.storage.log.kafka import shelf as shelf_module
from penstock.storage.log.kafka.shelf import GO_ON_BELOW, HOLD_ABOVE, LARGEST_FETCH, Shelf

PLACES = [TopicPartition("t", number) for number in range(3)]


def pack_of(first: int, count: int, size: int = 10) -> RecordPack:
    pack = RecordPack()
    for offset in range(first, first + count):
        pack.append(bytes(size), offset=offset)
    return pack


def counts(fetched: list[Fetched]) -> dict[int, int]:
    found: dict[int, int] = {}
    for each in fetched:
        found[each.partition] = found.get(each.partition, 0) + each.pack.count
    return found


def new_shelf() -> Shelf:
    shelf = Shelf()
    for place in PLACES:
        shelf.add(place, 0, 1)
    return shelf


def test_partitions_take_turns() -> None:
    shelf = new_shelf()
    shelf.put(1, PLACES[0], pack_of(0, 100))
    shelf.put(1, PLACES[1], pack_of(0, 5))
    assert counts(shelf.take(20, 10)) == {0: 10, 1: 5}
    shelf.put(1, PLACES[2], pack_of(0, 30))
    assert counts(shelf.take(25, 10)) == {0: 10, 2: 10}
    assert counts(shelf.take(8, 10)) == {0: 8}
    assert counts(shelf.take(8, 10)) == {2: 8}
    assert shelf.places[PLACES[0]].position == 28


def test_what_was_read_before_a_move_is_not_wanted() -> None:
    shelf = new_shelf()
    shelf.put(None, PLACES[0], pack_of(0, 5))
    shelf.put(2, PLACES[0], pack_of(0, 5))
    shelf.put(1, TopicPartition("other", 0), pack_of(0, 5))
    assert not shelf.has_records
    shelf.put(1, PLACES[1], pack_of(0, 5))
    shelf.drop(PLACES[1])
    shelf.add(PLACES[1], 0, 9)
    assert not shelf.has_records
    assert shelf.take(100, 100) == []


def test_a_busy_or_paused_partition_is_not_read_on_for_ever() -> None:
    shelf = new_shelf()
    size = LARGEST_FETCH // 2
    most = HOLD_ABOVE // size
    shelf.pause(shelf.places[PLACES[0]])
    for number in range(most - 1):
        shelf.put(1, PLACES[0], pack_of(number, 1, size))
        assert shelf.take(100, 100) == []
        assert shelf.orders() == ([], [])
    shelf.put(1, PLACES[0], pack_of(most - 1, 1, size))
    assert shelf.orders() == ([PLACES[0]], [])
    shelf.put(1, PLACES[0], pack_of(most, 1, size))
    assert shelf.orders() == ([], [])
    assert shelf.resume(shelf.places[PLACES[0]])
    taken = shelf.take(100, 100)
    assert sum(each.pack.size for each in taken) <= LARGEST_FETCH
    while shelf.places[PLACES[0]].bytes > GO_ON_BELOW:
        assert shelf.orders() == ([], [])
        assert shelf.take(1, 1)
    assert shelf.orders() == ([], [PLACES[0]])


def test_all_together_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf_module, "MOST_KEPT", LARGEST_FETCH)
    shelf = new_shelf()
    for place in PLACES:
        shelf.pause(shelf.places[place])
        shelf.put(1, place, pack_of(0, 1, LARGEST_FETCH // 2))
    assert shelf.orders() == (PLACES[1:], [])
    for place in PLACES:
        shelf.drop(place)
    shelf.add(PLACES[0], 0, 5)
    shelf.put(5, PLACES[0], pack_of(0, 1, LARGEST_FETCH // 2))
    assert shelf.orders() == ([], [])


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 2), st.integers(1, 30)),
        st.tuples(st.just("take"), st.integers(1, 40), st.integers(1, 15)),
        st.tuples(st.just("pause"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("resume"), st.integers(0, 2), st.just(0)),
    ),
    max_size=60,
)


@given(STEPS)
def test_every_record_comes_once_and_in_order(steps: list[tuple[str, int, int]]) -> None:
    shelf = new_shelf()
    put, given_out = [0, 0, 0], [0, 0, 0]
    paused: set[int] = set()

    def take(most: int, share: int) -> bool:
        fetched = shelf.take(most, share)
        found = counts(fetched)
        assert sum(found.values()) <= most
        assert all(count <= share for count in found.values())
        assert not paused & found.keys()
        for each in fetched:
            assert each.pack.offsets().tolist() == list(range(given_out[each.partition], each.next_offset))
            given_out[each.partition] = each.next_offset
        return bool(fetched)

    for step, first, second in steps:
        if step == "put":
            shelf.put(1, PLACES[first], pack_of(put[first], second))
            put[first] += second
        elif step == "take":
            has_any = any(put[number] > given_out[number] for number in range(3) if number not in paused)
            assert shelf.has_records == has_any
            assert take(first, second) == has_any
        elif step == "pause":
            shelf.pause(shelf.places[PLACES[first]])
            paused.add(first)
        else:
            shelf.resume(shelf.places[PLACES[first]])
            paused.discard(first)
    for number in range(3):
        shelf.resume(shelf.places[PLACES[number]])
    paused.clear()
    while take(50, 20):
        pass
    assert given_out == put
