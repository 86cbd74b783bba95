"""mosquitto's files turned into ours."""

import tomllib

import pytest

from penstock.access import AclFile
from penstock.access.mosquitto import convert_acl, parse_plain_passwords
from penstock.core.errors import AccessFileError

EXAMPLE = """\
# anonymous clients
topic read $SYS/#

user roger
topic foo/bar
topic write only/write
topic deny foo/secret
topic foo/#
topic read with space/and 50%c

pattern write $SYS/broker/connection/%c/state
pattern deny devices/%u/private
pattern readwrite devices/%u/#
"""


@pytest.fixture
def acl():
    return AclFile.parse(tomllib.loads(convert_acl(EXAMPLE)), "converted")


def test_topics_before_the_first_user_are_for_anonymous_clients(acl):
    assert acl.compile_for("c", None).may_subscribe(b"$SYS/broker")
    assert not acl.compile_for("c", "roger").may_subscribe(b"$SYS/broker")


def test_topics_of_a_user(acl):
    roger, other = acl.compile_for("c", "roger"), acl.compile_for("c", "other")
    assert roger.may_publish(b"foo/bar")
    assert roger.may_publish(b"only/write")
    assert not roger.may_receive(b"only/write")
    assert roger.may_receive(b"with space/and 50%c")
    assert not other.may_publish(b"foo/bar")


def test_deny_comes_before_the_other_lines_of_its_group(acl):
    roger = acl.compile_for("c", "roger")
    assert not roger.may_publish(b"foo/secret")
    assert roger.may_publish(b"foo/other")
    assert not roger.may_publish(b"devices/roger/private")


def test_patterns_are_for_everybody(acl):
    assert acl.compile_for("bridge", "x").may_publish(b"$SYS/broker/connection/bridge/state")
    assert acl.compile_for("c", "bob").may_publish(b"devices/bob/x")
    assert not acl.compile_for("c", "bob").may_publish(b"devices/roger/x")


@pytest.mark.parametrize("line", ["nonsense", "user", "topic", "listener 1883"])
def test_unknown_lines_are_named(line):
    with pytest.raises(AccessFileError, match=r"acl_file:2: "):
        convert_acl(f"# fine\n{line}\n")


def test_names_with_quotes_stay_what_they_are():
    acl = AclFile.parse(tomllib.loads(convert_acl('user a"b\\c\ntopic "x\\y"\n')), "converted")
    assert acl.compile_for("c", 'a"b\\c').may_publish(b'"x\\y"')


def test_plain_passwords():
    assert parse_plain_passwords("# x\na:b:c\n\n", "f") == {"a": "b:c"}
    with pytest.raises(AccessFileError, match="hashed by mosquitto and cannot be converted"):
        parse_plain_passwords("a:$7$101$x$y\n", "f")
    with pytest.raises(AccessFileError, match="f:1: a line is user:password"):
        parse_plain_passwords("a\n", "f")
