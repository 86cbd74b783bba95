"""Commands of a user who may not look into the broker's directories: a line that names the file, no traceback."""

import contextlib
import io
import os
import pkgutil
from importlib import import_module

import pytest

from penstock import cli
from penstock.__main__ import main

NOBODY = 65_534


@pytest.fixture
def nobody(tmp_path, monkeypatch):
    """nobody(*arguments): exit code and output of a command that nobody runs, with modules that root has loaded."""
    if os.geteuid() != 0:
        pytest.skip("only root can become nobody")
    monkeypatch.chdir("/")
    for name in list(os.environ):
        if name.startswith("PENSTOCK_"):
            monkeypatch.delenv(name)
    for path in (tmp_path, *tmp_path.parents[:-2]):
        path.chmod(path.stat().st_mode | 0o011)

    def run(*arguments):
        # Nobody may not read the modules of who tests, and commands import theirs when they are called.
        _run(("doctor",))
        for module in pkgutil.iter_modules(cli.__path__):
            import_module(f"penstock.cli.{module.name}")
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            code = 99
            try:
                code, text = _run(arguments)
                os.write(writing, text.encode())
            finally:
                os._exit(code)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            text = pipe.read()
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text

    return run


def _run(arguments):
    with io.StringIO() as printed:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            try:
                code = main([str(argument) for argument in arguments])
            except Exception as error:
                code = 98
                print(repr(error), file=printed)
        return code, printed.getvalue()


@pytest.fixture
def hidden(tmp_path):
    (tmp_path / "hidden" / "data").mkdir(parents=True)
    (tmp_path / "hidden").chmod(0o700)
    return tmp_path / "hidden"


def test_doctor(nobody, hidden, tmp_path):
    config = tmp_path / "doctor.toml"
    config.write_text(f'[[listeners]]\nname = "local"\ntransport = "unix"\naddress = "{hidden}/data/socket"\n')
    code, said = nobody("doctor", "--quiet", "--data-dir", hidden / "data", "--config", config)
    assert code == 1, said
    assert f"disk: {hidden} cannot be written by this user" in said
    assert f"listener local: {hidden}/data cannot be written by this user" in said


def test_backup_and_restore(nobody, hidden, tmp_path):
    code, said = nobody("backup", tmp_path / "backup.tar", "--data-dir", hidden / "data")
    assert code == 1, said
    assert said == f"penstock: {hidden}/data: Permission denied\nRun the command as the user the broker runs as.\n"
    code, said = nobody("restore", tmp_path / "backup.tar", "--data-dir", hidden / "data")
    assert code == 1, said
    assert said == f"penstock: {hidden}/data: Permission denied\nRun the command as the user the broker runs as.\n"


def test_settings_in_a_directory_that_may_not_be_entered(nobody, hidden, monkeypatch):
    """Who would start without them would start another broker."""
    (hidden / "penstock.toml").touch()
    monkeypatch.setattr("penstock.settings.toml_file.DEFAULT_PATHS", (hidden / "penstock.toml",))
    said = f"cannot read the settings file {hidden}/penstock.toml: Permission denied"
    assert nobody("check-config") == (78, f"penstock: {said}\n")
    code, text = nobody("doctor", "--quiet")
    assert code == 78
    assert said in text


def test_other_commands(nobody, hidden):
    code, said = nobody("log", "topics", "--data-dir", hidden / "data")
    assert code == 1, said
    assert said.startswith(f"penstock: {hidden}/data: Permission denied\nRun the command as the file's owner")


def test_files_of_a_broker_that_root_had_started(nobody, tmp_path):
    data = tmp_path / "data"
    (data / "state").mkdir(parents=True)
    (data / "state" / "data.mdb").touch(mode=0o640)
    os.chown(data, NOBODY, NOBODY)
    code, said = nobody("doctor", "--quiet", "--data-dir", data)
    assert code == 1, said
    assert f"disk: {data}/state and 1 more cannot be read and written by this user" in said
    assert f"chown -R USER: {data}" in said
    code, said = nobody("serve", "--data-dir", data, "--port", "1")
    assert code == 1, said
    assert (
        f"penstock: the store cannot be opened: {data}/state: Permission denied\nIf it belongs to another user" in said
    )
    (data / "state").chmod(0o700)
    code, said = nobody("serve", "--data-dir", data, "--port", "1")
    assert code == 1, said
    assert f"penstock: {data}/state/data.mdb: Permission denied\nRun the command as the file's owner" in said
