"""The counters under the names operators see."""

from __future__ import annotations

from penstock.core.metrics import BY_BEGINNING, EXACT, describe


def shown(counters: dict[str, int]) -> dict[str, tuple[str, list[tuple[str, int | float]]]]:
    return {family.meaning.name: (family.meaning.kind, family.samples) for family in describe(counters)}


def test_qos_and_causes_become_labels_of_one_family():
    counters = {
        "messages_received_qos2": 3,
        "messages_received_qos0": 1,
        "messages_dropped_queue_full": 5,
        "messages_dropped_expired": 0,
        "connections_refused_rate": 7,
        "connections_refused_total_tls_handshake": 8,
    }
    assert shown(counters) == {
        "messages_received": ("counter", [("0", 1), ("2", 3)]),
        "messages_dropped": ("counter", [("expired", 0), ("queue_full", 5)]),
        "connections_refused": ("counter", [("rate", 7), ("tls_handshake", 8)]),
    }


def test_a_key_nobody_described_is_shown_all_the_same():
    assert shown({"wills.sent_total": 4, "match-cache": 9}) == {
        "wills_sent": ("counter", [("", 4)]),
        "match_cache": ("gauge", [("", 9)]),
    }


def test_no_two_keys_share_a_name():
    names = [meaning.name for meaning in [*EXACT.values(), *BY_BEGINNING.values()]]
    assert len(names) == len(set(names))
    assert len(shown(dict.fromkeys(EXACT, 1))) == len(EXACT)
