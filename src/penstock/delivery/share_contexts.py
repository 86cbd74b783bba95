"""What is stored of deliveries from shares: keys and values beside those of contexts.py."""

from __future__ import annotations

from collections.abc import Iterable

from penstock._ext.connection import read_context, write_context
from penstock.delivery.contexts import CLAIMED, OFFERED, SHARED, Contexts, make_key

IN_GROUP = "\1"  # between topic and group in the key of a claim


def claim_key(kind: str, client_id: str, group: str, topic: str, partition: int) -> bytes:
    return make_key(kind, client_id, f"{topic}{IN_GROUP}{group}", partition)


def make_offer(offset: int) -> bytes:
    """One message that was not sent to anybody yet."""
    runs = [(offset, 0, 1, "planned")]
    return write_context({"committed": offset, "end": offset + 1, "last_packet_id": 0, "seen": {}, "in_flight": runs})


def merge_claims(first: bytes, second: bytes) -> bytes:
    """Both of a client's claims on one partition."""
    one, other = read_context(first), read_context(second)
    runs = {run[0]: run for run in (*one["in_flight"], *other["in_flight"])}
    return write_context(
        {
            "committed": min(one["committed"], other["committed"]),
            "end": max(one["end"], other["end"]),
            "last_packet_id": 0,
            "seen": {},
            "in_flight": [runs[offset] for offset in sorted(runs)],
        }
    )


def packet_ids(contexts: Contexts, client_id: str, groups: Iterable[str]) -> list[int]:
    """Those that a client has in flight by what is stored of these groups and of its claims."""
    found: list[int] = []
    stored = [contexts.get(key) for kind in (CLAIMED, OFFERED) for key in contexts.keys(kind, client_id)]
    for group in groups:
        for key in contexts.keys(SHARED, group):
            owner, _, context = (contexts.get(key) or b"").partition(b"\0")
            if owner == client_id.encode():
                stored.append(context)
    for value in stored:
        if value:
            for _, first, length, _ in read_context(value)["in_flight"]:
                found.extend(1 + (first - 1 + i) % 65_535 for i in range(length if first else 0))
    return found
