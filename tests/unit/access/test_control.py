"""The providers of the settings together, and reloaded together."""

import asyncio

import pytest

from penstock.access import AccessControl, PasswordFile
from penstock.access.base import Credentials, Entrance, Identity, Subject
from penstock.access.passwords import hash_password
from penstock.core.errors import AccessFileError
from penstock.core.refusal import Refusal, Refused
from penstock.settings import AccessSettings

SHUT = Entrance("shut", "mqtt", admits_anonymous=False)
OPEN = Entrance("open", "mqtt", admits_anonymous=True)
ALICE = Subject(Identity("alice"), "c")


@pytest.fixture
def files(tmp_path):
    PasswordFile({"alice": hash_password(b"secret")}).save(tmp_path / "passwords")
    (tmp_path / "acl.toml").write_text('[[rules]]\neffect = "allow"\ntopics = ["a"]\n')
    return AccessSettings(password_file=str(tmp_path / "passwords"), acl_file=str(tmp_path / "acl.toml"))


async def log_in(control, user, password, entrance=SHUT):
    """Return the identity, or the refusal."""
    try:
        return await control.chain.authenticate(Credentials(entrance, "c", user, password))
    except Refused as refused:
        return refused.refusal


def test_without_files_nobody_has_a_password_and_everything_is_allowed():
    control = AccessControl(AccessSettings())
    assert asyncio.run(log_in(control, "alice", b"secret")) is Refusal.NOT_AUTHORISED
    with pytest.raises(Refused):
        control.chain.try_now(Credentials(SHUT, "c", "alice", b"secret"))
    assert control.program_for(ALICE) is None
    assert control.is_open_to(ALICE)
    assert not control.has_rules
    assert control.explain(ALICE, "publish", b"a") == "no ACL file is loaded"


def test_with_files(files):
    async def scenario():
        control = AccessControl(files)
        assert await log_in(control, "alice", b"secret") == Identity("alice", "password_file")
        assert control.chain.try_now(Credentials(SHUT, "c", "alice", b"secret")) == Identity("alice", "password_file")
        assert control.program_for(ALICE).may_publish(b"a")
        assert control.explain(ALICE, "publish", b"b") == "no rule allows it"
        assert control.has_rules
        assert not control.is_open_to(ALICE)
        await control.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("entrance", [SHUT, OPEN])
def test_a_wrong_name_or_password_opens_nothing_where_anonymous_clients_are_admitted_either(files, entrance):
    async def scenario():
        control = AccessControl(files)
        for user in ("alice", "bob"):
            assert await log_in(control, user, b"wrong", entrance) is Refusal.BAD_CREDENTIALS
        await control.stop()

    asyncio.run(scenario())


def test_a_user_name_that_nobody_checks_is_no_proof():
    assert asyncio.run(log_in(AccessControl(AccessSettings()), "alice", b"secret", OPEN)) == Identity(None, "anonymous")


def test_a_bad_reload_keeps_the_old_files(files, tmp_path):
    async def scenario():
        control = AccessControl(files)
        PasswordFile({"alice": hash_password(b"new")}).save(files.password_file)
        (tmp_path / "acl.toml").write_text("nonsense")
        with pytest.raises(AccessFileError):
            control.reload(files)
        assert await log_in(control, "alice", b"secret") == Identity("alice", "password_file")
        assert control.program_for(ALICE).may_publish(b"a")
        (tmp_path / "acl.toml").write_text("")
        control.reload(files)
        assert await log_in(control, "alice", b"secret") is Refusal.BAD_CREDENTIALS
        assert await log_in(control, "alice", b"new") == Identity("alice", "password_file")
        assert not control.program_for(ALICE).may_publish(b"a")
        control.reload(AccessSettings())
        assert await log_in(control, "alice", b"new") is Refusal.NOT_AUTHORISED
        assert control.program_for(ALICE) is None
        control.reload(files)
        assert await log_in(control, "alice", b"new") == Identity("alice", "password_file")
        await control.stop()

    asyncio.run(scenario())


def test_users_who_are_removed_are_known_no_more(files):
    control = AccessControl(files)
    assert control.chain.knows(Identity("alice", "password_file"))
    assert not control.chain.knows(Identity("bob", "password_file"))
    PasswordFile({}).save(files.password_file)
    control.reload(files)
    assert not control.chain.knows(Identity("alice", "password_file"))
    # Whoever came in by other means, or before sources were recorded, is not the password file's to judge.
    for source in ("certificate", "enhanced", "anonymous", ""):
        assert control.chain.knows(Identity("alice", source))


def test_bad_files_are_reported():
    with pytest.raises(AccessFileError):
        AccessControl(AccessSettings(password_file="/nowhere"))
