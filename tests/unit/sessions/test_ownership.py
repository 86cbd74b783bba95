"""Whose session it is, and which one a client of another user may end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.sessions.ownership import Ownership
from penstock.settings.model import AccessSettings, ListenerSettings, Settings


def session(username: str | None, expiry: int = 60) -> Any:
    return SimpleNamespace(username=username, expiry_interval=expiry)


@pytest.mark.parametrize(
    ("owner", "expiry", "newcomer", "is_foreign", "is_protected"),
    [
        ("alice", 60, "alice", False, False),
        ("alice", 60, "bob", True, True),
        ("alice", 60, None, True, True),
        (None, 60, "bob", True, True),
        (None, 60, None, False, False),
        ("", 60, None, True, True),
        ("alice", 0, "bob", True, False),
    ],
)
def test_other_identities(
    *, owner: str | None, expiry: int, newcomer: str | None, is_foreign: bool, is_protected: bool
) -> None:
    """A session that ends with its connection has nothing to protect."""
    ownership = Ownership("deny", admits_anonymous=True)
    found = session(owner, expiry)
    assert ownership.is_foreign(found, newcomer) is is_foreign
    assert ownership.is_protected(found, newcomer) is is_protected
    assert not Ownership("allow", admits_anonymous=True).is_protected(found, newcomer)


def test_no_session_is_nobody_s() -> None:
    ownership = Ownership("deny", admits_anonymous=True)
    assert not ownership.is_foreign(None, "bob")
    assert not ownership.is_protected(None, "bob")


@pytest.mark.parametrize(
    ("listeners", "is_protected"),
    [
        ([ListenerSettings()], False),
        ([ListenerSettings(), ListenerSettings(name="local", anonymous="allow")], True),
    ],
)
def test_anonymous_sessions_where_everybody_needs_a_name(
    listeners: list[ListenerSettings], *, is_protected: bool
) -> None:
    """Their owners cannot come back, once passwords are needed: they must not keep those owners out for days."""
    ownership = Ownership.of(Settings(listeners=listeners, access=AccessSettings(anonymous="deny")))
    assert ownership.is_protected(session(None), "bob") is is_protected
    assert ownership.is_protected(session("alice"), "bob")
