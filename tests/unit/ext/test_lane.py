"""Lanes one case at a time: packet ids of several lanes, the end of packet ids, acknowledgements nobody waits for."""

from __future__ import annotations

import pytest

from penstock._ext.application.context import read_context, split_context, write_context
from penstock._ext.application.lane import ApplicationDesk, Lane
from penstock._ext.hub.connection import Hub, Session
from penstock._ext.record.segment import RecordPack
from tests.support.worlds.lanes import (
    PAST,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    TOPIC,
    LaneClient,
    Packet,
    StepLoop,
    make_pack,
    numbered,
    record,
)

SHARED = "tbmq.msg.app.shared.t"


class Stage:
    """A hub, a session and a connected client."""

    def __init__(self, version: int = 4, *, packs_in_flight: int = 4, receive_maximum: int = 65_535) -> None:
        self.loop = StepLoop()
        self.hub = Hub(self.loop, max_inflight=65_535)
        self.desk = ApplicationDesk(self.hub, lambda lanes: None, lambda session: None, packs_in_flight=packs_in_flight)
        self.session = Session(self.hub, "client")
        self.version, self.receive_maximum, self.maximum_packet_size = version, receive_maximum, 0
        self.connect()

    def connect(self) -> LaneClient:
        self.client = LaneClient(
            self.hub,
            self.session,
            version=self.version,
            receive_maximum=self.receive_maximum,
            maximum_packet_size=self.maximum_packet_size,
            turn=self.loop.turn,
        )
        return self.client

    def open(self, lane: Lane, context: bytes | None = None) -> Lane:
        if context is not None:
            lane.restore(context)
        self.desk.open(lane)
        lane.resume()
        return lane

    def own(self, context: bytes | None = None, pack_size: int = 200) -> Lane:
        return self.open(Lane(self.session, TOPIC, pack_size=pack_size), context)

    def shared(self, context: bytes | None = None, partition: int = 0) -> Lane:
        return self.open(Lane(self.session, SHARED, partition, is_shared=True), context)


def save(lane: Lane) -> bytes:
    context = lane.snapshot()
    lane.saved(lane.last_mark)
    return context


def publishes(packets: list[Packet]) -> list[tuple[int, int, bool]]:
    """Packet id, number and DUP of each PUBLISH."""
    return [(packet.packet_id, int(packet.payload), packet.dup) for packet in packets if packet.kind == PUBLISH]


def context_of(runs: list[tuple[int, int, int, str]], *, end: int, committed: int = 0, last: int = 0) -> bytes:
    return write_context({"committed": committed, "end": end, "last_packet_id": last, "seen": {}, "in_flight": runs})


# Packet ids


def test_ids_of_two_lanes_never_meet() -> None:
    """[MQTT-2.2.1-3]: a client has one sequence, however many logs are delivered to it."""
    stage = Stage()
    lanes = [stage.own(), stage.shared(), stage.shared(partition=1)]
    for turn in range(5):
        for lane in lanes:
            lane.offer([numbered(turn * 4, 4)])
            save(lane)
    ids = [packet_id for packet_id, _, _ in publishes(stage.client.take())]
    assert sorted(ids) == list(range(1, 61))
    for packet_id in ids:
        stage.client.say(PUBACK, packet_id)
    assert [lane.committed for lane in lanes] == [20, 20, 20]


def test_records_that_get_new_ids_take_none_of_those_in_flight() -> None:
    """A run without packet ids, as split_context makes it for the next client, is a run without packet ids."""
    stage = Stage()
    lane = Lane(stage.session, SHARED, is_shared=True)
    lane.restore(context_of([(0, 0, 5, "planned")], end=5))
    assert stage.session.inflight == 0
    # what the client has in flight from its own log keeps its ids
    own = stage.own(context_of([(0, 1, 4, "sent")], end=4, last=4))
    assert read_context(own.peek())["in_flight"] == [(0, 1, 4, "sent")]


def test_a_shared_partition_goes_on_with_ids_of_the_next_client() -> None:
    first, second = Stage(), Stage()
    lane = first.shared()
    lane.offer([numbered(0, 6)])
    save(lane)
    first.client.say(PUBACK, 2)
    first.client.lose()
    rest, claims = split_context(lane.context)
    assert claims is None
    own = second.own()
    own.offer([numbered(100, 3)])
    save(own)
    second.client.take()
    taken = second.shared(rest)
    taken.offer([numbered(0, 6)])
    save(taken)
    assert publishes(second.client.take()) == [
        (4, 0, False),
        (5, 2, False),
        (6, 3, False),
        (7, 4, False),
        (8, 5, False),
    ]


def test_planned_records_never_use_up_the_packet_ids() -> None:
    """application.packs_in_flight may be 1,000 packs of 200: more records than there are packet ids."""
    stage = Stage(packs_in_flight=1_000)
    lane = stage.own()
    offset = 0
    while lane.has_room and offset < 400_000:
        lane.offer([numbered(offset, 200)])
        offset += 200
    assert stage.session.inflight <= 65_535
    save(lane)
    sent = publishes(stage.client.take())
    assert [number for _, number, _ in sent] == list(range(len(sent)))
    assert len(sent) > 1_000


def test_sixteen_shared_partitions_never_use_up_the_packet_ids() -> None:
    """The default settings: sixteen partitions, packs of 500, four in flight and as many made ready."""
    stage = Stage()
    lanes = [stage.open(Lane(stage.session, SHARED, number, is_shared=True, pack_size=500)) for number in range(16)]
    for turn in range(10):
        for lane in lanes:
            if lane.has_room:
                lane.offer([numbered(turn * 490, 490)])
    own = stage.own()
    for turn in range(10):
        if own.has_room:
            own.offer([numbered(turn * 200, 200)])
    for lane in [*lanes, own]:
        save(lane)
    assert publishes(stage.client.take())


# Acknowledgements


@pytest.mark.parametrize("version", [4, 5])
def test_answers_nobody_waits_for(version: int) -> None:
    stage = Stage(version)
    lane = stage.own()
    lane.offer([numbered(0, 2), numbered(2, 2, qos=2)])
    for kind in (PUBACK, PUBCOMP):
        for packet_id in (1, 3, 9, 65_535):
            stage.client.say(kind, packet_id)  # planned, but not sent; or not in flight at all
    assert lane.in_flight == 4
    save(lane)
    assert publishes(stage.client.take()) == [(1, 0, False), (2, 1, False), (3, 2, False), (4, 3, False)]
    stage.client.say(PUBACK, 3)  # QoS 2
    stage.client.say(PUBCOMP, 3)  # before PUBREC
    stage.client.say(PUBCOMP, 1)
    assert (lane.in_flight, lane.committed) == (4, 0)


@pytest.mark.parametrize("version", [4, 5])
def test_pubrec_of_a_message_that_waits_to_be_sent_again(version: int) -> None:
    """It was sent on an earlier connection and is in flight: the client has it and need not get it again, but PUBREL
    waits until that is durable."""
    stage = Stage(version)
    lane = stage.own(context_of([(0, 1, 1, "sent qos 2")], end=1, last=1))
    stage.client.say(PUBREC, 1)
    lane.offer([numbered(0, 1, qos=2)])
    stage.client.say(PUBREC, 1)
    assert [packet.kind for packet in stage.client.take()] == []
    save(lane)
    assert [(packet.kind, packet.packet_id) for packet in stage.client.take()] == [(PUBREL, 1)]


def test_an_acknowledgement_that_comes_before_the_message_is_read_again() -> None:
    stage = Stage()
    lane = stage.own(context_of([(0, 1, 2, "sent"), (2, 3, 1, "received")], end=3, last=3))
    save(lane)
    assert [(packet.kind, packet.packet_id) for packet in stage.client.take()] == [(PUBREL, 3)]
    stage.client.say(PUBACK, 2)
    stage.client.say(PUBCOMP, 3)
    assert read_context(lane.peek())["in_flight"] == [(0, 1, 1, "sent")]
    lane.offer([make_pack([record(b"0"), record(b"1"), record(b"2", qos=2)])])
    save(lane)
    assert publishes(stage.client.take()) == [(1, 0, True)]
    stage.client.say(PUBACK, 1)
    assert lane.committed == 3
    assert stage.session.inflight == 0


def test_pubrel_of_a_message_that_is_given_up_waits_for_its_context() -> None:
    """PUBREC came: the client holds the id until PUBREL, and would take the next message with it for a repetition."""
    stage = Stage()
    lane = stage.own(context_of([], end=0, last=65_534))
    lane.offer([numbered(0, 1, qos=2)])
    save(lane)
    (sent,) = stage.client.take()
    assert sent.packet_id == 65_535
    stage.client.say(PUBREC, 65_535)
    early = lane.snapshot()
    mark = lane.last_mark
    assert read_context(early)["in_flight"] == [(0, 65_535, 1, "received")]
    assert lane.sweep(0, 0, 0, True) == (0, 1)
    assert stage.client.take() == []
    lane.offer([numbered(1, 1, qos=2)])
    assert read_context(lane.peek())["in_flight"] == [(1, 1, 1, "ready qos 2")]
    lane.saved(mark)
    assert [(packet.kind, packet.packet_id) for packet in stage.client.take()] == [(PUBREL, 65_535)]
    assert stage.session.inflight == 2
    stage.client.say(PUBCOMP, 65_535)
    assert stage.session.inflight == 1


@pytest.mark.parametrize("version", [4, 5])
def test_the_id_of_a_message_that_is_given_up_is_free_after_pubcomp(version: int) -> None:
    """PUBREC has not come, but the client may have the message."""
    stage = Stage(version)
    lane = stage.own()
    lane.offer([make_pack([record(b"0", qos=2), record(b"1")])])
    save(lane)
    stage.client.take()
    assert lane.sweep(0, 0, 0, True) == (0, 2)
    assert (lane.committed, lane.in_flight) == (2, 0)
    assert stage.session.inflight == 1
    assert stage.client.take() == []
    stage.client.say(PUBREC, 1)
    assert stage.client.take() == []  # a context that says "sent" is durable: it would be sent again after a crash
    save(lane)
    assert [(packet.kind, packet.packet_id) for packet in stage.client.take()] == [(PUBREL, 1)]
    stage.client.say(PUBREC, 1)
    assert [(packet.kind, packet.packet_id) for packet in stage.client.take()] == [(PUBREL, 1)]
    stage.client.say(PUBCOMP, 1)
    assert stage.session.inflight == 0
    assert stage.hub.counters_now()["inflight"] == 0


def test_a_message_that_is_given_up_is_released_on_the_next_connection() -> None:
    stage = Stage()
    lane = stage.own()
    lane.offer([numbered(0, 1, qos=2)])
    save(lane)
    assert lane.sweep(0, 0, 0, True) == (0, 1)
    stage.session.detach()
    stage.connect()
    stage.session.resume()
    assert [(packet.kind, packet.packet_id) for packet in stage.client.take()] == [(PUBREL, 1)]
    stage.client.say(PUBCOMP, 1)
    assert stage.session.inflight == 0


def test_a_client_that_never_answers_does_not_run_out_of_ids() -> None:
    stage = Stage()
    lane = stage.own(pack_size=10_000)
    for start in range(0, 70_000, 10_000):
        lane.offer([numbered(start, 10_000, qos=2)])
        save(lane)
        assert lane.sweep(0, 0, 0, True)[1] == 10_000
        stage.client.take()
    assert lane.committed == 70_000


# The log


def test_records_that_are_gone_give_their_ids_back() -> None:
    """Retention took what a client had in flight while it was away."""
    stage = Stage()
    lane = stage.own(context_of([(0, 1, 4, "sent"), (4, 5, 2, "sent qos 2")], end=8, last=6))
    assert stage.session.inflight == 6
    lane.offer([numbered(5, 5, qos=2)])
    # Offset 5 as it was, 8 and 9 new; 6 and 7 are done. The client may hold the id of offset 4 until PUBREL.
    assert stage.session.inflight == 4
    save(lane)
    packets = stage.client.take()
    assert publishes(packets) == [(6, 5, True), (7, 8, False), (8, 9, False)]
    assert [packet.packet_id for packet in packets if packet.kind == PUBREL] == [5]
    stage.client.say(PUBCOMP, 5)
    assert stage.session.inflight == 3


def test_a_handshake_whose_record_is_gone_is_finished() -> None:
    stage = Stage()
    lane = stage.own(context_of([(0, 1, 2, "received"), (2, 3, 1, "ready qos 2")], end=3, last=3))
    assert [(packet.kind, packet.packet_id) for packet in stage.client.take()] == [(PUBREL, 1), (PUBREL, 2)]
    stage.client.say(PUBCOMP, 1)
    lane.offer([numbered(10, 1)])
    assert stage.session.inflight == 3
    save(lane)
    packets = stage.client.take()
    assert [packet.packet_id for packet in packets if packet.kind == PUBREL] == [3]
    for packet_id in (2, 3):
        stage.client.say(PUBCOMP, packet_id)
    assert stage.session.inflight == 1
    stage.client.say(PUBACK, publishes(packets)[0][0])
    assert (lane.committed, stage.session.inflight) == (11, 0)


def test_all_that_was_in_flight_is_gone() -> None:
    stage = Stage()
    lane = stage.own(context_of([(0, 1, 4, "sent")], end=4, last=4))
    lane.offer([numbered(10, 1)])
    save(lane)
    assert publishes(stage.client.take()) == [(5, 10, False)]
    stage.client.say(PUBACK, 5)
    assert (lane.committed, stage.session.inflight) == (11, 0)


def test_a_pack_of_which_nothing_is_sent_is_committed() -> None:
    stage = Stage()
    lane = stage.own()
    lane.offer([make_pack([record(b"0", expires_at=PAST), None, b"garbage"])])
    assert (lane.committed, lane.expired, lane.damaged, lane.packs) == (3, 1, 2, 0)
    lane.offer([make_pack([record(b"3", source=(0, 7))], 3)])
    lane.offer([make_pack([record(b"4", source=(0, 7)), record(b"5", source=(0, 6))], 4)])
    assert lane.duplicates == 2
    save(lane)
    assert publishes(stage.client.take()) == [(1, 3, False)]
    assert lane.committed == 3
    stage.client.say(PUBACK, 1)
    assert lane.committed == 6


def test_only_the_part_of_a_claim() -> None:
    stage = Stage()
    lane = Lane(stage.session, SHARED, is_shared=True)
    lane.until = 3
    stage.open(lane, context_of([(1, 9, 2, "sent qos 2")], end=3, committed=1))
    lane.offer([numbered(1, 9, qos=2)])
    save(lane)
    assert publishes(stage.client.take()) == [(9, 1, True), (10, 2, True)]


def test_the_lower_qos_and_the_identifier_of_the_subscription() -> None:
    """[MQTT-3.8.4-8], [MQTT-3.3.4-3]: of a shared topic only the subscription knows them."""
    stage = Stage(5)
    lane = Lane(stage.session, SHARED, qos=1, identifier=77, is_shared=True)
    stage.open(lane)
    lane.offer([numbered(0, 1, qos=2)])
    save(lane)
    (sent,) = stage.client.take()
    assert (sent.qos, sent.properties["subscription_identifiers"]) == (1, [77])


def test_identifiers_and_retain_of_the_record() -> None:
    stage = Stage(5)
    lane = stage.own()
    lane.offer([make_pack([record(b"0", ids=[3, 300, 268_435_455], retain=True), record(b"1")])])
    save(lane)
    first, second = stage.client.take()
    assert first.properties["subscription_identifiers"] == [3, 300, 268_435_455]
    assert (first.retain, second.retain) == (True, False)


def test_one_pack_in_flight_waits_for_all_of_it() -> None:
    stage = Stage(packs_in_flight=1)
    lane = stage.own(pack_size=3)
    lane.offer([numbered(0, 3)])
    lane.offer([numbered(3, 3)])
    assert not lane.has_room
    save(lane)
    assert [number for _, number, _ in publishes(stage.client.take())] == [0, 1, 2]
    stage.client.say(PUBACK, 1)
    stage.client.say(PUBACK, 3)
    assert stage.client.take() == []
    stage.client.say(PUBACK, 2)
    assert [number for _, number, _ in publishes(stage.client.take())] == [3, 4, 5]


def test_a_client_that_does_not_read_costs_what_is_made_ready() -> None:
    stage = Stage(packs_in_flight=2)
    stage.hub.configure(write_high_watermark=10_000, write_low_watermark=5_000)
    stage.client.transport.is_stuck = True
    lane = stage.own(pack_size=10)
    offset = 0
    while lane.has_room and offset < 10_000:
        lane.offer([make_pack((record(b"x" * 5_000) for _ in range(10)), offset)])
        save(lane)
        offset += 10
    assert offset <= 4 * 2 * 10 + 10
    assert not lane.has_room


def test_contexts_are_asked_for_three_windows_ahead() -> None:
    """A store that needs longer than the client's round trip does not slow it down."""
    stage = Stage(packs_in_flight=4)
    lane = stage.own(pack_size=10)
    offset = 0
    while lane.has_room:
        lane.offer([numbered(offset, 10)])
        offset += 10
    assert offset == 4 * 4 * 10
    save(lane)
    assert len(publishes(stage.client.take())) == 4 * 10


def test_large_messages_are_not_made_ready_by_the_thousand() -> None:
    stage = Stage(packs_in_flight=4)
    lane = stage.own()
    offset = 0
    while lane.has_room and offset < 100:
        lane.offer([make_pack([record(bytes(1 << 20))], offset)])
        offset += 1
    assert offset == 2 * 4
    save(lane)
    assert len(stage.client.take()) == 8
    stage.client.say(PUBACK, 1)
    assert lane.has_room


@pytest.mark.parametrize("version", [4, 5])
def test_sent_again_on_the_same_connection(version: int) -> None:
    """[MQTT-4.4.0-1]: only MQTT 3 clients are; after the retries it is given up."""
    stage = Stage(version)
    lane = stage.own()
    lane.offer([numbered(0, 2)])
    save(lane)
    stage.client.take()
    stage.client.say(PUBACK, 1)
    assert lane.sweep(0, 0, 2, False)[1] == 0
    assert publishes(stage.client.take()) == ([(2, 1, True)] if version == 4 else [])
    lane.sweep(0, 0, 2, False)
    stage.client.take()
    assert lane.sweep(0, 0, 2, False) == (0, 1)
    assert (lane.committed, lane.skipped, stage.session.inflight) == (2, 1, 0)


def test_lanes_of_a_session_that_is_dropped_as_it_is() -> None:
    """No reference is lost or given back twice when everything goes at once, lanes open and packs under way."""
    for _ in range(20):
        stage = Stage()
        for lane in (stage.own(), stage.shared()):
            lane.offer([numbered(0, 50)])
            save(lane)
        del stage, lane


def test_a_closed_lane_takes_nothing() -> None:
    stage = Stage()
    lane = stage.own()
    lane.offer([numbered(0, 2)])
    context = lane.close()
    assert lane.close() == context
    lane.offer([numbered(2, 2)])
    lane.saved(lane.last_mark)
    assert stage.client.take() == []
    assert read_context(lane.peek())["end"] == 2
    with pytest.raises(ValueError, match="closed"):
        stage.desk.open(lane)


def test_what_is_not_a_pack_is_refused() -> None:
    stage = Stage()
    lane = stage.own()
    with pytest.raises((TypeError, AttributeError)):
        lane.offer([RecordPack(), b"no pack"])  # what this is about


@pytest.mark.parametrize(("flush_after", "sizes"), [(1, [1] * 25), (10, [10, 10, 5]), (1000, [25])])
def test_messages_are_written_together(flush_after: int, sizes: list[int]) -> None:
    """The seed: each at once (MQTT_APP_MSG_WRITE_AND_FLUSH), or so many together (MQTT_APP_BUFFERED_MSG_COUNT, 10) and
    the rest at the end."""
    stage = Stage()
    stage.desk.flush_after = flush_after
    lane = stage.own()
    written: list[int] = []
    write = stage.client.transport.write

    def count(data: bytes) -> None:
        write(data)
        written.append(len(publishes(stage.client.take())))

    stage.client.take()
    stage.client.transport.write = count  # type: ignore[method-assign]  # what leaves together
    assert lane.offer([numbered(0, 25)])
    save(lane)
    stage.loop.turn()
    assert written == sizes


def test_what_was_dispatched_before_a_lane_began_is_passed_over() -> None:
    """A DEVICE that has become an APPLICATION: after a crash its topic gets what it had from the store, too."""
    stage = Stage()
    lane = Lane(stage.session, TOPIC)
    lane.start_at(3, {7: 10})
    lane = stage.own(lane.snapshot())
    sources = [(7, 9), (7, 10), (7, 11), (8, 2)]
    assert lane.offer([make_pack((record(b"%d" % at, source=source) for at, source in enumerate(sources)), 3)])
    save(lane)
    assert [number for _, number, _ in publishes(stage.client.take())] == [2, 3]
