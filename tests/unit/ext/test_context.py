"""The stored form of a lane's context: round trips, hand-over of shared partitions, and bytes that are none."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._ext.application.context import read_context, split_context, write_context
from penstock._ext.application.lane import Lane
from penstock._ext.hub.connection import Hub, Session
from tests.support.worlds.lanes import TOPIC, StepLoop

STATES = ["planned", "sent", "received", "sent qos 2", "ready", "ready qos 2"]
OF_QOS_2 = {"received", "sent qos 2", "ready qos 2"}
LARGEST = 2**62
MOST_RUNS, LONGEST = 8, 9


@st.composite
def contexts(draw: st.DrawFn, *, unique_ids: bool = False) -> dict[str, Any]:
    """What a lane may write: runs rise, lie between committed and end, and no two are one."""
    # No offset of it is larger than there may be: what is split off begins with one from the middle.
    committed = draw(st.integers(0, 1_000) | st.integers(0, LARGEST - (2 * MOST_RUNS + 1) * LONGEST))
    at, runs, used = committed, [], 1
    sizes = st.integers(1, LONGEST)
    for gap, length, state in draw(st.lists(st.tuples(sizes, sizes, st.sampled_from(STATES)), max_size=MOST_RUNS)):
        has_id = state != "planned" or draw(st.booleans())
        packet_id = 0
        if has_id:
            packet_id = used if unique_ids else draw(st.integers(1, 65_000))
            used += length
        runs.append((at + gap, packet_id, length, state))
        at += gap + length
    seen = draw(st.dictionaries(st.integers(0, 300), st.integers(0, LARGEST), max_size=5))
    ids = {"last_packet_id": draw(st.integers(0, 65_535)), "laps": draw(st.integers(0, 2**32 - 1))}
    end = at + draw(st.integers(0, LONGEST))
    return {"committed": committed, "end": end, **ids, "in_flight": runs, "seen": seen}


def lane() -> Lane:
    return Lane(Session(Hub(StepLoop()), "client"), TOPIC)


@given(contexts())
@settings(max_examples=60, deadline=None)
def test_written_and_read(context: dict[str, Any]) -> None:
    assert read_context(write_context(context)) == context


@given(contexts(unique_ids=True))
@settings(max_examples=60, deadline=None)
def test_restored_and_written_by_the_lane(context: dict[str, Any]) -> None:
    """What nobody has touched is stored again as it was: a client that comes and goes changes nothing."""
    restored = lane()
    restored.restore(write_context(context))
    assert restored.committed == restored.position == context["committed"]
    assert restored.session.inflight == sum(length for _, packet_id, length, _ in context["in_flight"] if packet_id)
    assert read_context(restored.peek()) == context
    assert read_context(restored.close()) == context
    assert restored.session.inflight == 0


def offsets_of(runs: list[tuple[int, int, int, str]]) -> dict[int, tuple[int, str]]:
    return {
        offset + i: (packet_id + i if packet_id else 0, state)
        for offset, packet_id, length, state in runs
        for i in range(length)
    }


@given(contexts())
@settings(max_examples=80, deadline=None)
def test_split_for_another_client(context: dict[str, Any]) -> None:
    """[MQTT-4.8.2-4] [MQTT-4.8.2-5]: QoS 2 under way stays, the rest gets new packet ids, nothing is in both."""
    rest, claims = split_context(write_context(context))
    whole = offsets_of(context["in_flight"])
    stays = {offset: run for offset, run in whole.items() if run[0] and run[1] in OF_QOS_2}
    others = read_context(rest)
    assert {name: others[name] for name in ("committed", "end", "seen")} == {
        name: context[name] for name in ("committed", "end", "seen")
    }
    assert offsets_of(others["in_flight"]) == {offset: (0, "planned") for offset in whole if offset not in stays}
    assert others["last_packet_id"] == others["laps"] == 0  # the other client has a sequence of its own
    if not stays:
        assert claims is None
        return
    assert claims is not None
    own = read_context(claims)
    assert offsets_of(own["in_flight"]) == stays
    assert own["committed"] == min(stays)
    assert own["end"] == max(stays) + 1


@given(contexts(), st.integers(0, 200))
@settings(max_examples=60, deadline=None)
def test_cut_off(context: dict[str, Any], left: int) -> None:
    whole = write_context(context)
    cut = whole[: left % len(whole)]
    with pytest.raises(ValueError, match="context"):
        read_context(cut)
    with pytest.raises(ValueError, match="context"):
        split_context(cut)
    with pytest.raises(ValueError, match="context"):
        lane().restore(cut)


def test_another_version() -> None:
    for context in (b"", b"\0", b"\2" + bytes(5), b"\xff"):
        with pytest.raises(ValueError, match="version"):
            read_context(context)
        with pytest.raises(ValueError, match="version"):
            lane().restore(context)


def test_a_context_that_was_not_readable_leaves_the_lane_as_it_was() -> None:
    """Otherwise the offsets it does not mention any more would count as done: they would never be delivered."""
    whole = write_context(
        {"committed": 5, "end": 9, "last_packet_id": 12, "seen": {3: 70}, "in_flight": [(5, 9, 4, "sent")]}
    )
    for size in range(1, len(whole)):
        damaged = lane()
        with contextlib.suppress(ValueError):
            damaged.restore(whole[:size])
            pytest.fail("a context that is cut off was taken")
        assert damaged.session.inflight == 0
        assert read_context(damaged.peek()) == read_context(lane().peek())


# A damaged context is looked at in a process of its own: what must not happen is that it ends.
LOOK = """
import sys
from penstock._ext.application.context import read_context, split_context
from penstock._ext.application.lane import Lane
from penstock._ext.hub.connection import Hub, Session
from tests.support.worlds.lanes import StepLoop
for line in sys.stdin:
    context = bytes.fromhex(line)
    for look in (read_context, split_context, Lane(Session(Hub(StepLoop()), "c"), "t").restore):
        try:
            look(context)
        except ValueError:
            pass
print("alive")
"""


def look_at(contexts: list[bytes]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import resource; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n" + LOOK],
        input="\n".join(context.hex() for context in contexts),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "alive\n", (done.returncode, done.stderr[-2000:])


GOOD = write_context(
    {
        "committed": 0,
        "end": 9,
        "last_packet_id": 4,
        "seen": {1: 5},
        "in_flight": [(0, 1, 3, "sent"), (5, 0, 2, "planned")],
    }
)


@pytest.mark.parametrize("state", [7, 8, 100, 127])
def test_a_state_that_does_not_exist(state: int) -> None:
    look_at([GOOD[:-1] + bytes([state])])
    with pytest.raises(ValueError, match="context"):
        read_context(GOOD[:-1] + bytes([state]))


def put(*numbers: int) -> bytes:
    """The numbers as varints."""
    encoded = b""
    for number in numbers:
        rest = number
        while rest > 127:
            encoded += bytes([rest & 127 | 128])
            rest >>= 7
        encoded += bytes([rest])
    return encoded


@pytest.mark.parametrize(
    "context",
    [
        put(1, 0, 3, 3, 0, 1, 0, 1, 2**50, 1),  # a run of more records than there are
        put(1, 0, 3, 3, 0, 1, 0, 1, 70_000, 1),  # than there are packet ids
        put(1, 0, 3, 3, 0, 2**60),  # more runs than bytes
        put(1, 0, 3, 3, 2**60),  # more sources than bytes
        put(1, 0, 3, 3, 0, 1, 0, 70_000, 1, 1),  # no packet id
        put(1, 2**63, 3, 3, 0, 0),  # offsets that are negative
    ],
    ids=["long run", "run of 70,000", "many runs", "many sources", "packet id 70,000", "negative offset"],
)
def test_numbers_that_cannot_be(context: bytes) -> None:
    """Neither memory nor time is spent on what a damaged context announces."""
    look_at([context])
    with pytest.raises(ValueError, match="context"):
        lane().restore(context)


def test_every_byte_of_a_context_changed() -> None:
    changed = [
        GOOD[:at] + bytes([GOOD[at] ^ flip]) + GOOD[at + 1 :] for at in range(1, len(GOOD)) for flip in (1, 2, 4, 8, 64)
    ]
    look_at(changed)


def test_random_bytes() -> None:
    random = Random(7)
    tails = [random.randbytes(random.randrange(40)) for _ in range(400)]
    # numbers of one byte: where they are read as lengths they stay small
    look_at([b"\1" + bytes(byte & 127 for byte in tail) for tail in tails])
    look_at([b"\1" + tail for tail in tails])
