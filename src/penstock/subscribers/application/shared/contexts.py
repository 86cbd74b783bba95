"""What is stored of deliveries from shares: keys and values beside those of contexts.py."""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterable
from typing import Any

from penstock._ext.application.context import read_context, write_context
from penstock.subscribers.application.contexts import (
    CLAIMED,
    OFFERED,
    OWN,
    SHARED,
    Contexts,
    make_key,
    split_key,
)

IN_GROUP = "\1"  # between topic and group in the key of a claim
MOST_IDS = 65_535
SENT_STATES = ("received", "sent qos 2")  # a client was sent the message with QoS 2

Run = tuple[int, int, int, str]
"""First offset, first packet id or 0, how many, and their state."""
IdsGiven = tuple[int, int]
"""How often the packet ids of a client began again at 1, and the last one it was given."""


def claim_key(kind: str, client_id: str, group: str, topic: str, partition: int) -> bytes:
    return make_key(kind, client_id, f"{topic}{IN_GROUP}{group}", partition)


def share_key_of(claim: bytes) -> bytes:
    """The key of the share's partition that a claim or an offer belongs to."""
    _, _, name, partition = split_key(claim)
    topic, _, group = name.partition(IN_GROUP)
    return make_key(SHARED, group, topic, partition)


def make_offer(offset: int) -> bytes:
    """One message that was not sent to anybody yet."""
    return make_offers([(offset, 0, 1, "planned")])


def make_offers(runs: Iterable[Run]) -> bytes:
    """Return the context of messages that get new packet ids."""
    offers = [(offset, 0, length, "planned") for offset, _, length, _ in runs]
    first, end = offers[0][0], offers[-1][0] + offers[-1][2]
    return write_context({"committed": first, "end": end, "last_packet_id": 0, "seen": {}, "in_flight": offers})


def merge_claims(first: bytes, second: bytes) -> bytes:
    """Both of a client's claims on one partition."""
    one, other = read_context(first), read_context(second)
    runs = {run[0]: run for run in (*one["in_flight"], *other["in_flight"])}
    laps, last = max(_ids_given(one), _ids_given(other))
    return write_context(
        {
            "committed": min(one["committed"], other["committed"]),
            "end": max(one["end"], other["end"]),
            "last_packet_id": last,
            "laps": laps,
            "seen": {},
            "in_flight": [runs[offset] for offset in sorted(runs)],
        }
    )


def merge_offers(first: bytes, second: bytes) -> bytes:
    """Return what either has, both being of `make_offers`."""
    runs = [run for context in (first, second) for run in read_context(context)["in_flight"]]
    offsets = sorted({offset + i for offset, _, length, _ in runs for i in range(length)})
    return make_offers(_join((offset, 0, 1, "planned") for offset in offsets))


def begin_at(context: bytes, start: int) -> bytes:
    """Return the context without messages before `start`, which the group has committed."""
    whole = read_context(context)
    if whole["committed"] >= start:
        return context
    runs = [
        (offset + gone, _later_id(packet_id, gone), length - gone, state)
        for offset, packet_id, length, state in whole["in_flight"]
        if (gone := max(start - offset, 0)) < length
    ]
    return write_context({**whole, "committed": start, "end": max(start, whole["end"]), "in_flight": runs})


def abandon(context: bytes) -> bytes:
    """Return the context with which the group continues after the client's session has ended. QoS 2 messages that were
    sent to the client go to no other client [MQTT-4.8.2-5]; those that may not have been sent do."""
    whole = read_context(context)
    runs = [
        (offset, 0, length, "planned")
        for offset, packet_id, length, state in whole["in_flight"]
        if not packet_id or state not in SENT_STATES
    ]
    return write_context({**whole, "last_packet_id": 0, "laps": 0, "in_flight": runs})


def unsent_runs(claims: bytes) -> list[Run]:
    """Return the messages of a client's claims or offers that another client may get: see `abandon`."""
    return [run for run in read_context(claims)["in_flight"] if run[3] not in SENT_STATES]


def put_back(context: bytes, runs: Iterable[Run]) -> bytes:
    """Return the context of a share's partition with these messages to be sent by its owner."""
    whole = read_context(context)
    back = {offset + i for offset, _, length, _ in runs for i in range(length) if offset + i < whole["end"]}
    back.difference_update(offset + i for offset, _, length, _ in whole["in_flight"] for i in range(length))
    if not back:
        return context
    added = [(offset, 0, 1, "planned") for offset in back]
    joined = _join(sorted([*whole["in_flight"], *added]))
    return write_context({**whole, "committed": min(whole["committed"], *back), "in_flight": joined})


def read_to(offset: int) -> bytes:
    """Return the context of a partition of which everything before the offset is done."""
    return write_context({"committed": offset, "end": offset, "last_packet_id": 0, "seen": {}, "in_flight": []})


def without(context: bytes, offsets: Container[int]) -> bytes:
    """Return the context with these offsets done."""
    whole = read_context(context)
    left = [
        (offset + i, _later_id(packet_id, i), 1, state)
        for offset, packet_id, length, state in whole["in_flight"]
        for i in range(length)
        if offset + i not in offsets
    ]
    return write_context({**whole, "in_flight": _join(left)})


def settle_overlaps(contexts: Contexts) -> None:
    """Remove messages from the context of their partition that are in a claim or offer, too: they must not be sent from
    both. After a crash the context may be the older one, because on Kafka the two are separate records."""
    taken: dict[bytes, set[int]] = {}
    for kind in (CLAIMED, OFFERED):
        for key, value in contexts.of_kind(kind):
            offsets = taken.setdefault(share_key_of(key), set())
            for offset, _, length, _ in _read(value)["in_flight"]:
                offsets.update(range(offset, offset + length))
    for key, offsets in taken.items():
        owner, _, context = (contexts.get(key) or b"").partition(b"\0")
        if any(offset + i in offsets for offset, _, length, _ in _read(context)["in_flight"] for i in range(length)):
            contexts.put(key, owner + b"\0" + without(context, offsets))


def _read(context: bytes | None) -> dict[str, Any]:
    """Return an empty context if there is none or it is damaged; opening its lane reports the damage."""
    with contextlib.suppress(ValueError):
        return read_context(context or b"")
    return {"committed": 0, "end": 0, "last_packet_id": 0, "laps": 0, "seen": {}, "in_flight": []}


def _later_id(packet_id: int, count: int) -> int:
    return 1 + (packet_id - 1 + count) % MOST_IDS if packet_id else 0


def _join(runs: Iterable[Run]) -> list[Run]:
    """Join neighbours that continue each other; the runs are in the order of their offsets."""
    joined: list[Run] = []
    for run in runs:
        if joined:
            offset, packet_id, length, state = joined[-1]
            next_id = packet_id + length if packet_id else 0
            if run[0] == offset + length and run[1] == next_id and run[3] == state:
                joined[-1] = (offset, packet_id, length + run[2], state)
                continue
        joined.append(run)
    return joined


# ---- packet ids ----


def _ids_given(context: dict[str, Any]) -> IdsGiven:
    return context["laps"], context["last_packet_id"]


def _stored_of(contexts: Contexts, client_id: str, groups: Iterable[str]) -> list[bytes]:
    """Return the stored contexts of the client's deliveries from these groups and of its claims."""
    stored = [contexts.get(key) or b"" for kind in (CLAIMED, OFFERED) for key in contexts.keys(kind, client_id)]
    for group in groups:
        for key in contexts.keys(SHARED, group):
            owner, _, context = (contexts.get(key) or b"").partition(b"\0")
            if owner == client_id.encode():
                stored.append(context)
    return [value for value in stored if value]


def ids_in(context: bytes) -> set[int]:
    """Packet ids that the context has in flight."""
    runs = read_context(context)["in_flight"]
    return {_later_id(first, i) for _, first, length, _ in runs if first for i in range(length)}


def packet_ids(contexts: Contexts, client_id: str, groups: Iterable[str]) -> tuple[list[int], IdsGiven]:
    """Return the packet ids that the stored contexts of these groups and of the claims have in flight, and the last id
    given."""
    found: list[int] = []
    newest = (0, 0)
    for value in _stored_of(contexts, client_id, groups):
        newest = max(newest, _ids_given(read_context(value)))
        found.extend(ids_in(value))
    return found, newest


def ids_given_to_all(contexts: Contexts) -> dict[str, IdsGiven]:
    """Return the last packet id that each client was given, by all stored contexts."""
    newest: dict[str, IdsGiven] = {}
    for kind in (OWN, CLAIMED, SHARED):
        for key, value in contexts.of_kind(kind):
            owner, _, context = value.partition(b"\0") if kind == SHARED else (split_key(key)[1].encode(), b"", value)
            client_id = owner.decode()
            newest[client_id] = max(newest.get(client_id, (0, 0)), _ids_given(_read(context)))
    return newest


def with_ids_given(context: bytes | None, ids: IdsGiven) -> bytes | None:
    """Return the client's own context with these packet ids as the last ones given; None if it has later ones."""
    whole = _read(context)
    if _ids_given(whole) >= ids:
        return None
    return write_context({**whole, "laps": ids[0], "last_packet_id": ids[1]})
