"""Which client ids a user may have: patterns with * and %u, entries in their order, and what a file must not say."""

import pytest

from penstock.access.acl_file import AclFile
from penstock.access.client_ids import matches_id
from penstock.core.errors import AccessFileError


@pytest.mark.parametrize(
    ("pattern", "client_id", "username", "matches"),
    [
        ("a", "a", None, True),
        ("a", "ab", None, False),
        ("a*", "a", None, True),
        ("a*", "abc", None, True),
        ("*", "", "alice", True),
        ("a*b*c", "a-b-b-c", None, True),
        ("a*b*c", "acb", None, False),
        ("%u", "alice", "alice", True),
        ("%u", "alice", "Alice", False),
        ("%u", "%u", "alice", False),
        ("%u", "", None, False),
        ("%u*", "anything", None, False),
        ("x-%u-%u", "x-a-a", "a", True),
        ("x-%u-%u", "x-a-b", "a", False),
        ("%u-*", "alice-1", "alice", True),
        ("%u-*", "alice", "alice", False),
        ("%u-*", "bob-1", "*", False),
        ("%u-*", "*-1", "*", True),
        ("%u", "%%", "%%", True),
        ("50%%u", "50%u", "alice", True),
    ],
)
def test_patterns(pattern, client_id, username, matches):
    """Nothing in a user name acts as a pattern."""
    assert matches_id(pattern, client_id, username) is matches


def file_of(*entries):
    return AclFile.parse({"client_ids": list(entries)}, "acl.toml")


def test_without_entries_every_id_is_allowed():
    assert file_of().may_use_client_id("any", None)


def test_first_entry_that_fits_decides_and_nothing_else_is_allowed():
    rules = file_of(
        {"effect": "deny", "clients": ["root*"]},
        {"effect": "allow", "clients": ["%u"], "anonymous": False},
        {"effect": "allow", "users": ["admin"]},
    )
    assert rules.may_use_client_id("alice", "alice")
    assert rules.may_use_client_id("other", "admin")
    assert not rules.may_use_client_id("root-1", "admin")
    assert not rules.may_use_client_id("other", "alice")
    assert not rules.may_use_client_id("alice", None)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({}, 'effect = None is not allowed: use "allow" or "deny"'),
        ({"effect": "allow", "client": ["x"]}, "client is unknown: did you mean clients?"),
        ({"effect": "allow", "clients": "x"}, "use a list of texts"),
        ({"effect": "allow", "clients": ["%c"]}, "write %u for the user name"),
        ({"effect": "allow", "clients": ["50%"]}, "write %u for the user name"),
        ({"effect": "allow", "users": ["a"], "anonymous": True}, "leave out anonymous or users"),
    ],
)
def test_bad_entries(entry, words):
    with pytest.raises(AccessFileError) as raised:
        file_of(entry)
    assert str(raised.value).startswith("acl.toml: client id 1: ")
    assert words in str(raised.value)
