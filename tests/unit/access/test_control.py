"""Password and ACL file together, and reloaded together."""

import asyncio

import pytest

from penstock.access import AccessControl, PasswordFile
from penstock.access.passwords import hash_password
from penstock.core.errors import AccessFileError
from penstock.settings import AccessSettings


@pytest.fixture
def files(tmp_path):
    PasswordFile({"alice": hash_password(b"secret")}).save(tmp_path / "passwords")
    (tmp_path / "acl.toml").write_text('[[rules]]\neffect = "allow"\ntopics = ["a"]\n')
    return AccessSettings(password_file=str(tmp_path / "passwords"), acl_file=str(tmp_path / "acl.toml"))


def test_without_files_nobody_has_a_password_and_everything_is_allowed():
    control = AccessControl(AccessSettings())
    assert not control.has_passwords
    assert asyncio.run(control.authenticate("alice", b"secret")) is False
    assert not control.try_remembered("alice", b"secret")
    assert control.program_for("c", "u") is None
    control.close()


def test_with_files(files):
    async def scenario():
        control = AccessControl(files)
        assert control.has_passwords
        assert await control.authenticate("alice", b"secret")
        assert control.try_remembered("alice", b"secret")
        assert control.program_for("c", "alice").may_publish(b"a")
        control.close()

    asyncio.run(scenario())


def test_a_bad_reload_keeps_the_old_files(files, tmp_path):
    async def scenario():
        control = AccessControl(files)
        PasswordFile({"alice": hash_password(b"new")}).save(files.password_file)
        (tmp_path / "acl.toml").write_text("nonsense")
        with pytest.raises(AccessFileError):
            control.reload(files)
        assert await control.authenticate("alice", b"secret")
        assert control.program_for("c", "alice").may_publish(b"a")
        (tmp_path / "acl.toml").write_text("")
        control.reload(files)
        assert not await control.authenticate("alice", b"secret")
        assert await control.authenticate("alice", b"new")
        assert not control.program_for("c", "alice").may_publish(b"a")
        control.reload(AccessSettings())
        assert not control.has_passwords
        assert control.program_for("c", "alice") is None
        control.reload(files)
        assert await control.authenticate("alice", b"new")
        control.close()

    asyncio.run(scenario())


def test_bad_files_are_reported():
    with pytest.raises(AccessFileError):
        AccessControl(AccessSettings(password_file="/nowhere"))
