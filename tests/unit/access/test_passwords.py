"""The password file: argon2id lines, written in one step, read strictly."""

import os
import stat
import time

import pytest
from argon2 import Type, extract_parameters

from penstock.access.passwords import PasswordFile, check_user_name, hash_password
from penstock.core.errors import AccessFileError, UsageError


@pytest.fixture(scope="module")
def stored():
    return hash_password(b"secret")


def test_hashes_are_argon2id_with_the_chosen_cost(stored):
    parameters = extract_parameters(stored)
    assert parameters.type is Type.ID
    assert (parameters.memory_cost, parameters.time_cost, parameters.parallelism) == (19 * 1024, 2, 1)
    assert hash_password(b"secret") != stored


def test_verify(stored):
    users = PasswordFile({"alice": stored})
    assert users.verify("alice", b"secret")
    assert not users.verify("alice", b"Secret")
    assert not users.verify("alice", b"")
    assert not users.verify("bob", b"secret")
    assert not users.verify("", b"secret")


def test_passwords_are_bytes():
    password = bytes(range(256))
    assert PasswordFile({"a": hash_password(password)}).verify("a", password)


def test_an_unknown_user_costs_as_much_as_a_known_one(stored):
    users = PasswordFile({"alice": stored})

    def best(name):
        times = []
        for _ in range(5):
            start = time.perf_counter()
            users.verify(name, b"wrong")
            times.append(time.perf_counter() - start)
        return min(times)

    assert 0.4 < best("nobody") / best("alice") < 2.5


def test_save_and_load(tmp_path, stored):
    path = tmp_path / "passwords"
    PasswordFile({}).with_user("alice", stored).with_user("bob", stored).without_user("alice").save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    users = PasswordFile.load(path)
    assert len(users) == 1
    assert "bob" in users
    assert os.listdir(tmp_path) == ["passwords"]


def test_saving_leaves_the_old_file_when_it_fails(tmp_path, stored):
    with pytest.raises(AccessFileError, match="cannot write beside"):
        PasswordFile({"a": stored}).save(tmp_path / "nowhere" / "passwords")


def test_comments_and_empty_lines(tmp_path, stored):
    path = tmp_path / "passwords"
    path.write_text(f"# comment\n\nalice:{stored}\n")
    assert len(PasswordFile.load(path)) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alice\n", r":1: a line is user:hash"),
        (":x\n", r":1: a line is user:hash"),
        ("\nalice:plain\n", r":2: the hash of user 'alice' is not an argon2id hash"),
        ("alice:$7$101$salt$hash\n", r":1: .*mosquitto's own kind, which cannot be converted"),
        ("alice:$argon2i$v=19$m=8,t=1,p=1$c29tZXNhbHQ$aGFzaGhhc2g\n", r":1: .*not of the kind argon2id"),
    ],
)
def test_mistakes_name_the_line(tmp_path, text, message):
    path = tmp_path / "passwords"
    path.write_text(text)
    with pytest.raises(AccessFileError, match=message) as caught:
        PasswordFile.load(path)
    assert str(path) in caught.value.message
    assert caught.value.exit_code == 78


def test_a_user_is_there_once(tmp_path, stored):
    path = tmp_path / "passwords"
    path.write_text(f"a:{stored}\na:{stored}\n")
    with pytest.raises(AccessFileError, match=r":2: user 'a' is there twice"):
        PasswordFile.load(path)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(AccessFileError, match="No such file"):
        PasswordFile.load(tmp_path / "nowhere")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(AccessFileError, match="not UTF-8"):
        PasswordFile.load(tmp_path / "binary")


@pytest.mark.parametrize("name", ["", "a:b", "#a", "a\nb", " a", "a ", "a\u2028b"])
def test_names_the_file_cannot_hold(name):
    with pytest.raises(UsageError):
        check_user_name(name)


def test_a_third_field_is_the_type_of_client(tmp_path, stored):
    path = tmp_path / "passwords"
    path.write_text(f"a:{stored}:application\nb:{stored}:device\nc:{stored}\n")
    users = PasswordFile.load(path)
    assert [users.client_type(name) for name in ("a", "b", "c", "nobody")] == ["application", "device", None, None]
    assert users.verify("a", b"secret")
    users.save(path)
    assert path.read_text() == f"a:{stored}:application\nb:{stored}:device\nc:{stored}\n"


def test_a_new_password_keeps_the_type_and_a_removed_user_leaves_none(stored):
    users = PasswordFile({"a": stored}, {"a": "application"})
    assert users.with_user("a", stored).client_type("a") == "application"
    assert users.with_user("a", stored, "device").client_type("a") == "device"
    assert users.without_user("a").with_user("a", stored).client_type("a") is None


def test_a_wrong_type_is_named(tmp_path, stored):
    path = tmp_path / "passwords"
    for line in (f"a:{stored}:app", f"a:{stored}:", f"a:{stored}:device:x"):
        path.write_text(f"{line}\n")
        with pytest.raises(AccessFileError, match=r":1: .*user 'a'.*use \"application\" or \"device\""):
            PasswordFile.load(path)
