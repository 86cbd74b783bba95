"""Every provider of the session store keeps sessions by client id, replaces, forgets and lists them."""

from __future__ import annotations

import pytest

from penstock.core.ports import SessionStore
from penstock.sessions.memory_store import MemorySessionStore


@pytest.fixture(params=["memory"])
def store() -> SessionStore[str]:
    return MemorySessionStore[str]()


def test_what_was_put_is_found(store: SessionStore[str]) -> None:
    store.put("a", "session a")
    assert store.get("a") == "session a"
    assert store.get("b") is None
    assert len(store) == 1


def test_putting_again_replaces(store: SessionStore[str]) -> None:
    store.put("a", "old")
    store.put("a", "new")
    assert store.get("a") == "new"
    assert len(store) == 1


def test_removing(store: SessionStore[str]) -> None:
    store.put("a", "session a")
    store.remove("a")
    store.remove("never there")
    assert store.get("a") is None
    assert len(store) == 0


def test_the_list_may_change_while_it_is_walked(store: SessionStore[str]) -> None:
    for name in "abc":
        store.put(name, name)
    for session in store:
        store.remove(session)
    assert len(store) == 0


@pytest.mark.parametrize("client_id", ["", " ", "a/b", "ü", "{x}", "a" * 65_535])
def test_any_client_id_is_a_name_of_its_own(store: SessionStore[str], client_id: str) -> None:
    store.put(client_id, "mine")
    store.put(f"{client_id}_", "other")
    assert store.get(client_id) == "mine"
