"""The counters under the names operators see."""

from __future__ import annotations

from penstock.core.metrics import (
    BY_BEGINNING,
    BY_CLIENT,
    EXACT,
    LONGEST_LABEL,
    ClientSample,
    describe,
    describe_clients,
)


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
    names = [meaning.name for meaning in [*EXACT.values(), *BY_BEGINNING.values(), *BY_CLIENT.values()]]
    assert len(names) == len(set(names))
    assert len(shown(dict.fromkeys(EXACT, 1))) == len(EXACT)


def test_totals_of_application_clients():
    counters = {"application_lag_total": 7, "application_retries_total": 2, "application_connected": 1}
    assert shown(counters) == {
        "application_lag": ("gauge", [("", 7)]),
        "application_retries": ("counter", [("", 2)]),
        "application_connected": ("gauge", [("", 1)]),
    }


def test_only_the_clients_that_are_furthest_behind_have_metrics_of_their_own():
    clients = [ClientSample(f"c{number:04}", number % 1_000, 1, 2, 3) for number in range(5_000)]
    families = {family.meaning.name: family for family in describe_clients(iter(clients), 3)}
    assert {name: (family.meaning.kind, family.meaning.label) for name, family in families.items()} == {
        "application_client_lag": ("gauge", "client"),
        "application_client_in_flight": ("gauge", "client"),
        "application_client_retries": ("counter", "client"),
        "application_client_expired": ("counter", "client"),
        "application_client_given_up": ("counter", "client"),
    }
    assert families["application_client_lag"].samples == [("c0999", 999), ("c1999", 999), ("c2999", 999)]
    assert families["application_client_expired"].samples == [("c0999", 3), ("c1999", 3), ("c2999", 3)]
    assert describe_clients(clients, 0) == []
    assert describe_clients([], 3) == []


def test_labels_are_short_and_given_once():
    long = "x" * 60_000
    label = describe_clients([ClientSample(long, 1, 0, 0, 0)], 9)[0].samples[0][0]
    assert len(label) == LONGEST_LABEL
    other = describe_clients([ClientSample(f"{long}y", 1, 0, 0, 0)], 9)[0].samples[0][0]
    assert other != label
    # a client that is called like the short form of another
    both = describe_clients([ClientSample(long, 5, 0, 0, 0), ClientSample(label, 1, 0, 0, 0)], 9)
    assert both[0].samples == [(label, 5)]
