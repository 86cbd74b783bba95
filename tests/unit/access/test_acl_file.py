"""Allow and deny rules: first match decides, and a client's name never widens a pattern."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.access import AclFile
from penstock.core.errors import AccessFileError


def parse(text):
    return AclFile.parse(tomllib.loads(text), "acl.toml")


def allow(*topics, **conditions):
    return {"effect": "allow", "topics": list(topics), **conditions}


def deny(*topics, **conditions):
    return {"effect": "deny", "topics": list(topics), **conditions}


def rules(*entries):
    return AclFile.parse({"rules": list(entries)}, "acl.toml")


def test_nothing_matches_is_denied():
    program = rules().compile_for("c", "u")
    assert not program.may_publish(b"a")
    assert not program.may_subscribe(b"a")
    assert not program.may_receive(b"a")


def test_the_first_matching_rule_decides():
    program = rules(deny("a/secret"), allow("a/#"), deny("#"), allow("b")).compile_for("c", None)
    assert not program.may_publish(b"a/secret")
    assert program.may_publish(b"a/other")
    assert not program.may_publish(b"b")


def test_actions():
    program = rules(allow("p", actions=["publish"]), allow("s", actions=["subscribe"]), allow("b")).compile_for(
        "c", None
    )
    assert [program.may_publish(topic) for topic in (b"p", b"s", b"b")] == [True, False, True]
    assert [program.may_subscribe(topic) for topic in (b"p", b"s", b"b")] == [False, True, True]
    assert [program.may_receive(topic) for topic in (b"p", b"s", b"b")] == [False, True, True]


def test_users_clients_and_anonymous():
    acl = rules(
        allow("users", users=["alice", "bob"]),
        allow("clients", clients=["sensor-7"]),
        allow("both", users=["alice"], clients=["sensor-7"]),
        allow("nameless", anonymous=True),
        allow("named", anonymous=False),
    )

    def publishable(client, user):
        program = acl.compile_for(client, user)
        topics = ("users", "clients", "both", "nameless", "named")
        return [topic for topic in topics if program.may_publish(topic.encode())]

    assert publishable("sensor-7", "alice") == ["users", "clients", "both", "named"]
    assert publishable("x", "bob") == ["users", "named"]
    assert publishable("sensor-7", None) == ["clients", "nameless"]
    assert publishable("alice", "carol") == ["named"]
    assert publishable("x", "") == ["named"]


def test_placeholders():
    acl = rules(allow("devices/%c/#"), allow("users/%u/+"), allow("mix/%u-%c"), allow("100%%/%x"))
    program = acl.compile_for("c1", "bob")
    assert program.may_publish(b"devices/c1/a/b")
    assert not program.may_publish(b"devices/c2/a")
    assert program.may_publish(b"users/bob/x")
    assert not program.may_publish(b"users/alice/x")
    assert program.may_publish(b"mix/bob-c1")
    assert program.may_publish(b"100%/%x")


def test_a_rule_with_a_user_name_does_not_apply_to_the_nameless():
    program = rules(deny("users/%u"), allow("users/#")).compile_for("c", None)
    assert program.may_publish(b"users/")
    assert not rules(allow("users/%u")).compile_for("c", None).may_publish(b"users/")
    program = rules(deny("users/%u", "secret"), allow("#")).compile_for("c", None)
    assert not program.may_publish(b"secret")


@pytest.mark.parametrize("name", ["+", "#", "a/b", "a/#", "+/+", "/", "%u", "%c", "$SYS"])
def test_a_name_never_widens_a_pattern(name):
    for program in (
        rules(allow("d/%c/x")).compile_for(name, None),
        rules(allow("d/%u/x")).compile_for("client", name),
        rules(allow("d/%c/#")).compile_for(name, None),
        rules(allow("%c/#")).compile_for(name, None),
    ):
        for topic in (b"d/other/x", b"d/a/b/x", b"d/a/x", b"d/x", b"other/x", b"a/x", b"a/b/x", b"d//x"):
            assert not program.may_publish(topic)
            assert not program.may_subscribe(topic)
            assert not program.may_receive(topic)
        for asked in (b"d/+/x", b"d/#", b"#", b"+/+/x"):
            if name in "+#" or "/" in name:
                assert not program.may_subscribe(asked)


@given(st.text(min_size=1, max_size=12), st.text(max_size=12))
def test_only_the_own_level_is_opened(client, level):
    """Whatever a client calls itself, %c opens the level that is equal to its name and no other."""
    if "\0" in client + level or any(0xD800 <= ord(c) <= 0xDFFF for c in client + level):
        return
    program = rules(allow("d/%c")).compile_for(client, None)
    is_plain = not set(client) & set("+#/")
    assert program.may_publish(b"d/" + level.encode()) == (level == client and is_plain)


def test_clients_with_the_same_rules_share_a_program():
    acl = rules(allow("a/#"), allow("b", users=["alice"]), allow("c", clients=["special"]))
    assert acl.compile_for("1", "bob") is acl.compile_for("2", "carol")
    assert acl.compile_for("1", None) is acl.compile_for("2", "carol")
    assert acl.compile_for("1", "alice") is acl.compile_for("2", "alice")
    assert acl.compile_for("1", "alice") is not acl.compile_for("1", "bob")
    assert acl.compile_for("special", "bob") is not acl.compile_for("1", "bob")


def test_programs_with_names_in_them_are_not_shared():
    by_client = rules(allow("a/%c"))
    assert by_client.compile_for("1", "bob") is not by_client.compile_for("2", "bob")
    by_user = rules(allow("a/%u"))
    assert by_user.compile_for("1", "bob") is by_user.compile_for("2", "bob")
    assert by_user.compile_for("1", "bob") is not by_user.compile_for("1", "carol")
    only_alice = rules(allow("a/%c", users=["alice"]), allow("b"))
    assert only_alice.compile_for("1", "bob") is only_alice.compile_for("2", "bob")


def test_the_shared_programs_are_bounded():
    acl = rules(allow("a/%u"))
    for number in range(1_100):
        acl.compile_for("c", f"user-{number}")
    assert len(acl._shared) == 1_024


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", r"has \[\[rules\]\], \[\[types\]\], \[\[data\]\] and \[\[client_ids\]\] entries, nothing else"),
        ("rules = 1\n", r"has \[\[rules\]\], \[\[types\]\], \[\[data\]\] and \[\[client_ids\]\] entries"),
        ("[[rules]]\ntopics = ['a']\n", r"rule 1: effect = None is not allowed: use \"allow\" or \"deny\""),
        ("[[rules]]\neffect = 'permit'\ntopics = ['a']\n", r"rule 1: effect = 'permit' is not allowed"),
        ("[[rules]]\neffect = 'allow'\n", r"rule 1: topics is missing"),
        ("[[rules]]\neffect = 'allow'\ntopics = []\n", r"rule 1: topics is missing"),
        ("[[rules]]\neffect = 'allow'\ntopics = 'a'\n", r"rule 1: topics = 'a' is not allowed: use a list of texts"),
        ("[[rules]]\neffect = 'allow'\ntopics = ['']\n", r"rule 1: topic '' is not allowed"),
        ("[[rules]]\neffect = 'allow'\ntopics = ['a/#/b']\n", r"# is only allowed as the last level"),
        ("[[rules]]\neffect = 'allow'\ntopics = ['a+']\n", r"\+ and # stand alone"),
        ("[[rules]]\neffect = 'allow'\ntopics = ['a']\nactions = ['read']\n", r"action 'read' is not allowed: use"),
        ("[[rules]]\neffect = 'allow'\ntopics = ['a']\nactions = []\n", r"actions is empty"),
        (
            "[[rules]]\neffect = 'allow'\ntopics = ['a']\nuser = ['b']\n",
            r"rule 1: user is unknown: did you mean users\?",
        ),
        ("[[rules]]\neffect = 'allow'\ntopics = ['a']\nanonymous = 'x'\n", r"anonymous = 'x' is not allowed"),
        (
            "[[rules]]\neffect = 'allow'\ntopics = ['a']\n[[rules]]\neffect = 'allow'\ntopics = ['a']\n"
            "anonymous = true\nusers = ['b']\n",
            r"rule 2: a client without a user name is none of users",
        ),
    ],
)
def test_mistakes_name_the_rule(text, message):
    with pytest.raises(AccessFileError, match=message) as caught:
        parse(text)
    assert caught.value.message.startswith("acl.toml: ")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(AccessFileError, match="No such file"):
        AclFile.load(tmp_path / "nowhere")
    (tmp_path / "bad").write_text("[[rules]\n")
    with pytest.raises(AccessFileError, match="not valid TOML"):
        AclFile.load(tmp_path / "bad")
    (tmp_path / "binary").write_bytes(b"\xff")
    with pytest.raises(AccessFileError, match="not UTF-8"):
        AclFile.load(tmp_path / "binary")
