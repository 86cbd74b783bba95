"""Members of a share that live through the ends of their broker, and the check of what they got together."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence

from tests.support.checkers.app_checker import Subscriber
from tests.support.clients.packets import Packet
from tests.support.clients.publishers import Publisher
from tests.support.worlds.application import AppBroker

INGEST_TOPIC = "tbmq.msg.all"


class ShareMember(Subscriber):
    """Reconnects after a random pause, so that another member may take its partitions first.

    A QoS 1 message may reach any member again, under any packet id. A QoS 2 message belongs to the member it was sent
    to: it is repeated with DUP and its packet id, and that id carries nothing else until PUBREL.
    """

    longest_pause = 0.4

    def _rest(self) -> None:
        time.sleep(self._chance.uniform(0.0, self.longest_pause))

    def _on_publish(self, packet: Packet) -> None:
        if packet.qos == 2:
            super()._on_publish(packet)
            return
        packet_id, payload = packet.packet_id or 0, packet.payload or b""
        if packet_id in self._open:
            self.errors.append(f"id {packet_id} of {self._open[packet_id][:20]!r} was given to {payload[:20]!r}")
        if payload in self._ids:
            self.repeated += 1
        else:
            self._ids[payload] = packet_id
            self.delivered.append(payload)


def await_together(members: Sequence[ShareMember], payloads: set[bytes], seconds: float) -> set[bytes]:
    """Wait until the members have all of these; return what is missing."""
    deadline = time.monotonic() + seconds
    while True:
        missing = payloads - {payload for member in members for payload in list(member.delivered)}
        if not missing or time.monotonic() > deadline or any(member.errors for member in members):
            return missing
        time.sleep(0.05)


def find_faults(members: Sequence[ShareMember], publishers: Iterable[Publisher]) -> dict[str, list[str]]:
    """Everything acknowledged reached a member, and QoS 2 reached one member once."""
    faults = {"wrong packets": [f"{one.client_id}: {error}" for one in members for error in one.errors]}
    received = Counter(payload for member in members for payload in member.delivered)
    lost: list[str] = []
    doubled: list[str] = []
    for publisher in publishers:
        assert not publisher.order_errors
        lost += [payload[:20].decode() for payload in sorted(publisher.acknowledged - received.keys())]
        if publisher.qos == 2:
            own = f"{publisher.name} ".encode()
            doubled += [
                f"{payload[:20].decode()} {[(one.client_id, one.id_of(payload)) for one in members]}"
                for payload, count in received.items()
                if count > 1 and payload.startswith(own)
            ]
    faults |= {"lost": lost, "doubled": doubled}
    return {name: found for name, found in faults.items() if found}


def explain_missing(broker: AppBroker, members: Sequence[ShareMember], missing: set[bytes]) -> str:
    """Say of messages that reached no member how far they came, while the broker still runs."""
    lines = [f"{len(missing)} messages reached no member"]
    names = sorted({share["topic"] for one in members for share in broker.application(one.client_id)["shared"]})
    for topic in (INGEST_TOPIC, *names):
        places: dict[int, list[int]] = {}
        for partition, offset, record in broker.placed_records(topic):
            if record.payload in missing:
                places.setdefault(partition, []).append(offset)
        found = {partition: f"{len(each)} at {each[0]} to {each[-1]}" for partition, each in places.items()}
        lines.append(f"{topic} has {sum(map(len, places.values()))} of them: {found}")
    shown = ("connected", "in_flight", "packs_in_flight", "delivered", "acknowledged", "shared")
    for one in members:
        state = broker.application(one.client_id)
        lines.append(f"{one.client_id}: { {name: state[name] for name in shown} }")
    return "\n".join([*lines, broker.command("log", "lag", fails=None)])
