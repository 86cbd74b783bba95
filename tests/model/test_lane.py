"""The compiled Lane against a naive client and a naive book of what is durable: crashes, reconnects, late contexts."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock._ext.application.context import read_context, write_context
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
    record,
)

FUTURE = int(time.time() * 1000) + 3_600_000
REFUSED = 0x83
NORMAL, DUPLICATE, EXPIRED, DAMAGED = "normal", "duplicate", "expired", "damaged"
KINDS = st.sampled_from([NORMAL] * 6 + [DUPLICATE, EXPIRED, DAMAGED])
RECORDS = st.lists(st.tuples(KINDS, st.sampled_from([0, 1, 1, 2, 2]), st.integers(0, 2)), min_size=1, max_size=12)


@dataclass
class Written:
    """A record of the client's topic."""

    value: bytes
    qos: int
    is_wanted: bool


@dataclass
class PerfectClient:
    """Keeps its part of the session as the specification says, over all connections."""

    sent: dict[int, int] = field(default_factory=dict)  # offset → packet id, of everything with QoS > 0 that ever came
    open: dict[int, int] = field(default_factory=dict)  # packet id → offset, PUBLISH came and it has not finished
    held: dict[int, int] = field(default_factory=dict)  # QoS 2: packet id → offset, awaits PUBREL
    taken: list[int] = field(default_factory=list)  # what the application got, in order
    completed: set[int] = field(default_factory=set)  # QoS 2: PUBREL came
    refused: set[int] = field(default_factory=set)
    answers: list[tuple[int, int, int]] = field(default_factory=list)  # (kind, packet id, offset) not said yet
    here: set[int] = field(default_factory=set)  # offsets sent on this connection and not acknowledged


class LaneModel(RuleBasedStateMachine):
    @initialize(
        version=st.sampled_from([4, 5]),
        packs=st.integers(1, 3),
        pack_size=st.integers(1, 6),
        last_id=st.sampled_from([0, 7, 65_520]),
    )
    def begin(self, version: int, packs: int, pack_size: int, last_id: int) -> None:
        self.version, self.packs, self.pack_size = version, packs, pack_size
        self.log: list[Written] = []
        self.wanted_ids: dict[int, int] = {}  # offset → the packet id it has to have
        self.last_id = last_id
        self.source_ends: dict[int, int] = {}
        self.client = PerfectClient()
        self.crashed = False
        self.is_sound = True
        self.done: set[int] = set()
        self.done_before: set[int] = set()  # on earlier connections
        first = {"committed": 0, "end": 0, "last_packet_id": last_id, "seen": {}, "in_flight": []}
        self.latest = self.durable = write_context(first)
        self.pending: list[tuple[Lane, int, bytes]] = []
        self.wire: LaneClient | None = None
        self.start_broker()
        self.connect(limit=10)

    # ---- the broker ----

    def start_broker(self) -> None:
        self.loop = StepLoop()
        self.hub = Hub(self.loop)
        self.desk = ApplicationDesk(
            self.hub, lambda lanes: None, lambda session: None, packs_in_flight=self.packs, flush_after=3
        )
        self.session = Session(self.hub, "client")

    def connect(self, limit: int) -> None:
        self.limit = limit
        self.client.answers, self.client.here = [], set()
        self.wire = LaneClient(self.hub, self.session, version=self.version, receive_maximum=limit, turn=self.loop.turn)
        self.finish_saves(len(self.pending))  # LaneBook: PUBRELs go out again when the context they are of is durable
        self.lane = Lane(self.session, TOPIC, pack_size=self.pack_size)
        self.lane.restore(self.latest)
        found = read_context(self.latest)
        open_now = {offset + i for offset, _, length, _ in found["in_flight"] for i in range(length)}
        self.done = set(range(found["end"])) - open_now
        self.done_before = set(self.done)
        self.desk.open(self.lane)
        self.lane.resume()
        self.receive()

    def finish_saves(self, count: int) -> None:
        for lane, mark, context in self.pending[:count]:
            self.durable = context
            lane.saved(mark)
            self.receive()
        del self.pending[:count]

    # ---- the client's side ----

    def receive(self) -> None:
        if self.wire is None:
            return
        self.is_sound = False  # until all of it was right: teardown must not hide what was not
        for packet in self.wire.take():
            assert packet.reason == 0, "a packet id that is not known"
            if packet.kind == PUBLISH:
                self.on_publish(packet)
            else:
                assert packet.kind == PUBREL
                self.on_pubrel(packet.packet_id)
        self.is_sound = True

    def durable_runs(self) -> dict[int, tuple[int, str]]:
        """Packet id → offset and state, as a broker would find it after a crash now."""
        return {
            packet_id + i: (offset + i, state)
            for offset, packet_id, length, state in read_context(self.durable)["in_flight"]
            for i in range(length)
            if packet_id
        }

    def on_publish(self, packet: Packet) -> None:
        offset = int(packet.payload)
        written, client = self.log[offset], self.client
        assert written.is_wanted, "expired, damaged or twice in the log"
        assert packet.qos == written.qos
        if packet.qos == 0:
            assert offset not in client.taken
            client.taken.append(offset)
            self.done.add(offset)
            return
        assert packet.packet_id == self.wanted_ids[offset]  # also the second time [MQTT-4.4.0-1] [MQTT3-4.4.0-1]
        assert client.open.get(packet.packet_id, offset) == offset  # [MQTT-2.2.1-3] [MQTT3-2.3.1-2]
        assert self.durable_runs()[packet.packet_id][0] == offset, "sent before its packet id was durable"
        if offset in client.sent:
            assert packet.dup  # [MQTT-3.3.1-1] [MQTT3-3.3.1-1]
        else:
            assert not packet.dup or self.crashed  # [MQTT-3.3.1-2] [MQTT3-3.3.1-2]
            assert all(earlier < offset for earlier in client.sent)  # [MQTT-4.6.0-5] [MQTT3-4.6.0-5]
        assert offset not in client.completed, "QoS 2 again, after its handshake was complete"
        client.sent[offset] = packet.packet_id
        client.open[packet.packet_id] = offset
        client.here.add(offset)
        assert len(client.here) <= self.limit  # [MQTT-3.3.4-9]
        if packet.qos == 1:
            client.taken.append(offset)
            client.answers.append((PUBACK, packet.packet_id, offset))
            return
        if packet.packet_id not in client.held:
            client.held[packet.packet_id] = offset
            client.taken.append(offset)
        assert client.held[packet.packet_id] == offset
        client.answers.append((PUBREC, packet.packet_id, offset))

    def on_pubrel(self, packet_id: int) -> None:
        held = self.client.held.pop(packet_id, None)
        if held is None and packet_id not in self.durable_runs():
            return  # the answer to a PUBREC that was said twice, after everything was done
        offset, state = self.durable_runs()[packet_id]
        assert state == "received", "PUBREL before it is durable that PUBREC came"
        if held is not None:
            assert held == offset
            self.client.completed.add(offset)
        self.client.answers.append((PUBCOMP, packet_id, offset))

    # ---- rules ----

    @rule(records=RECORDS)
    def publish(self, records: list[tuple[str, int, int]]) -> None:
        for kind, qos, partition in records:
            offset = len(self.log)
            end = self.source_ends.get(partition, 0)
            is_known = kind == DUPLICATE and end > 0
            source = (partition, end - 1 if is_known else end)
            self.source_ends[partition] = max(end, source[1] + 1)
            expires_at = PAST if kind == EXPIRED else FUTURE if offset % 3 == 0 else 0
            value = record(str(offset).encode(), qos=qos, source=source, expires_at=expires_at)
            if kind == DAMAGED:
                value = b"\xff" * 9
                self.source_ends[partition] = end
            is_wanted = kind not in (EXPIRED, DAMAGED) and not is_known
            self.log.append(Written(value, qos, is_wanted))
            if is_wanted and qos:
                self.last_id = self.last_id % 65_535 + 1
                self.wanted_ids[offset] = self.last_id

    def read(self, start: int, count: int) -> RecordPack:
        pack = RecordPack()
        for written in self.log[start : start + count]:
            pack.append(written.value)
        pack.place(start)
        return pack

    @precondition(lambda self: self.wire is not None and self.lane.position < len(self.log) and self.lane.has_room)
    @rule(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=3), again=st.integers(0, 2))
    def offer(self, sizes: list[int], again: int) -> None:
        """What was read at once; `again`: records that the lane has planned already come first."""
        start = max(0, self.lane.position - again)
        parts = []
        for size in sizes:
            if start < len(self.log):
                parts.append(self.read(start, size))
                start = parts[-1].next_offset
        self.lane.offer(parts)
        self.receive()

    @precondition(lambda self: self.wire is not None)
    @rule()
    def save(self) -> None:
        self.latest = self.lane.snapshot()
        self.pending.append((self.lane, self.lane.last_mark, self.latest))

    @precondition(lambda self: self.wire is not None)
    @rule(records=RECORDS, size=st.integers(1, 12))
    def deliver(self, records: list[tuple[str, int, int]], size: int) -> None:
        """All the steps of a pack at once."""
        self.publish(records)
        if self.lane.has_room:
            self.offer([size], 0)
        self.save()
        self.finish_saves(len(self.pending))

    @precondition(lambda self: self.pending)
    @rule(count=st.integers(1, 3))
    def store(self, count: int) -> None:
        self.finish_saves(count)

    @precondition(lambda self: self.wire is not None and self.client.answers)
    @rule(data=st.data(), count=st.integers(1, 6))
    def answer(self, data: st.DataObject, count: int) -> None:
        for _ in range(min(count, len(self.client.answers))):
            at = data.draw(st.integers(0, len(self.client.answers) - 1))
            refuses = self.version == 5 and data.draw(st.integers(0, 9)) == 0
            self.say(at, refuses=refuses)

    def say(self, at: int, *, refuses: bool = False) -> None:
        client = self.client
        kind, packet_id, offset = client.answers.pop(at)
        refuses = refuses and kind != PUBCOMP and (PUBREC, packet_id, offset) not in client.answers
        if kind == PUBREC and (offset not in client.here or self.is_received(packet_id, offset)):
            refuses = False  # it has said yes before
        if kind in (PUBACK, PUBCOMP) or refuses:
            self.done.add(offset)
            client.here.discard(offset)
            if client.open.get(packet_id) == offset:
                del client.open[packet_id]
        if refuses and kind == PUBREC:
            client.held.pop(packet_id, None)
            client.refused.add(offset)
        assert self.wire is not None
        self.wire.say(kind, packet_id, REFUSED if refuses else 0)
        self.receive()

    def is_received(self, packet_id: int, offset: int) -> bool:
        runs = read_context(self.lane.peek())["in_flight"]
        return any(
            first <= offset < first + length and state == "received" for first, _, length, state in runs if packet_id
        )

    @precondition(lambda self: self.wire is not None and self.version == 4)
    @rule()
    def time_is_up(self) -> None:
        """MQTT 3: everything that was sent is sent again."""
        self.lane.sweep(0, 0, 0, False)
        self.receive()

    @precondition(lambda self: self.wire is not None)
    @rule(limit=st.integers(1, 10), reconnects=st.booleans())
    def disconnect(self, limit: int, reconnects: bool) -> None:
        self.leave()
        if reconnects:
            self.connect(limit)

    def leave(self) -> None:
        assert self.wire is not None
        unsent = self.planned_qos_0()
        self.wire.lose()
        self.wire = None
        assert self.lane.is_closed
        self.latest = self.lane.context
        self.pending.append((self.lane, self.lane.last_mark, self.latest))
        self.done |= unsent
        assert self.session.inflight == 0

    def planned_qos_0(self) -> set[int]:
        """QoS 0 is at most once: what was read and not sent when the connection broke does not come again."""
        return {n for n in range(self.lane.position) if self.log[n].is_wanted and self.log[n].qos == 0}

    @precondition(lambda self: self.wire is None)
    @rule(limit=st.integers(1, 10))
    def reconnect(self, limit: int) -> None:
        self.connect(limit)

    @rule(stored=st.integers(0, 3), limit=st.integers(1, 10), fortune=st.integers(0, 3))
    def crash(self, stored: int, limit: int, fortune: int) -> None:
        """kill -9: what was durable is all there is, which may be older than what the client was sent."""
        if fortune:
            return  # most runs are to go far without one
        for _, _, context in self.pending[:stored]:
            self.durable = context
        self.pending = []
        self.latest = self.durable
        self.crashed = True
        self.start_broker()
        self.connect(limit)

    # ---- what always holds ----

    @invariant()
    def commits_up_to_the_lowest_open_offset(self) -> None:
        if not hasattr(self, "lane") or self.wire is None:
            return
        read = range(self.lane.position)
        lowest = next((n for n in read if self.log[n].is_wanted and n not in self.done), self.lane.position)
        assert self.lane.committed <= lowest
        passed = [n for n in range(self.lane.committed, lowest) if self.log[n].is_wanted]
        # what is done in front of it was committed at once, unless it was done before this connection
        assert not [n for n in passed if n in self.client.sent and n >= read_context(self.latest)["end"]]

    @invariant()
    def keeps_to_the_packs_in_flight(self) -> None:
        if not hasattr(self, "lane") or self.wire is None or not self.client.here or self.packs == 1:
            return
        lowest, highest = min(self.client.here), max(self.client.here)
        sent = [n for n in range(lowest, highest) if self.log[n].is_wanted and n not in self.done_before]
        assert len(sent) < self.packs * self.pack_size

    def teardown(self) -> None:
        """Nothing is lost: whatever happened, a client that goes on gets the rest."""
        if not hasattr(self, "lane") or not self.is_sound:
            return
        if self.wire is None:
            self.connect(10)
        for _ in range(20 * len(self.log) + 40):
            if self.lane.position < len(self.log) and self.lane.has_room:
                self.offer([3], 0)
            self.save()
            self.finish_saves(len(self.pending))
            while self.client.answers:
                self.say(0)
            if self.lane.committed == len(self.log):
                break
        assert self.lane.committed == len(self.log)
        assert self.lane.in_flight == self.lane.packs == self.session.inflight == 0
        wanted = {offset for offset, written in enumerate(self.log) if written.is_wanted and written.qos}
        assert wanted <= set(self.client.taken)
        exactly_once = [n for n in self.client.taken if self.log[n].qos == 2 and n not in self.client.refused]
        assert len(exactly_once) == len(set(exactly_once))
        assert not self.loop.failures


TestLane = LaneModel.TestCase
# Shrinking a run of so many steps takes minutes: who needs it adds Phase.shrink.
TestLane.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, phases=[Phase.explicit, Phase.generate]
)
