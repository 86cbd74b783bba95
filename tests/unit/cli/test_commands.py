"""The other commands: help, version, check-config, passwd, acl, serve's errors."""

import json
import os
import resource
import signal
import subprocess
import sys

import pytest

from penstock.__main__ import main
from penstock.access import PasswordFile
from penstock.cli.banner import render_banner
from penstock.settings import AccessSettings, ListenerSettings
from tests.support.machine.ports import free_port
from tests.unit.cli.conftest import clean_environment


@pytest.fixture(autouse=True)
def nothing_from_outside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("PENSTOCK_"):
            monkeypatch.delenv(name)


def test_help_lists_every_command(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for command in ("serve", "pub", "sub", "passwd", "acl", "log", "app", "check-config", "--version"):
        assert command in text
    assert "--install-completion" in text


@pytest.mark.parametrize("command", ["serve", "pub", "sub", "passwd", "acl", "log", "app", "check-config"])
def test_every_command_has_help(capsys, command):
    assert main([command, "--help"]) == 0
    assert f"penstock {command}" in capsys.readouterr().out


@pytest.mark.parametrize("group", ["bench", "log", "queue", "acl", "spark", "session", "app", "retained"])
def test_help_of_a_group_says_what_each_command_does_to_the_end(capsys, group):
    assert main([group, "--help"]) == 0
    lines = capsys.readouterr().out.partition("\nCommands:\n")[2].splitlines()
    assert lines
    assert not [line for line in lines if line.endswith("...")]


def test_help_of_serve_names_every_form_of_an_address(capsys):
    assert main(["serve", "--help"]) == 0
    shown = capsys.readouterr().out
    for form in ("host:port,", "tls://host:port", "ws://host:port/path", "wss://host:port/path", "unix:/path"):
        assert form in shown


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("penstock ")


def test_help_starts_quickly():
    """By the processor's time: a busy machine makes everything late."""
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "penstock", "--help"], check=True, capture_output=True, env=clean_environment()
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times) < 0.3


def test_help_imports_no_command():
    code = "import sys; from penstock.__main__ import main; main(['--help']); print(*sys.modules)"
    out = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=clean_environment()
    ).stdout
    for heavy in ("rich", "msgspec", "argon2", "asyncio", "ssl", "penstock.cli.pub", "penstock._ext"):
        assert heavy not in out.split(), heavy


@pytest.mark.parametrize("buffered", ["", "1"])
def test_a_full_standard_output_is_said_in_a_line(buffered):
    """Where Python writes at once the command meets it, otherwise its end does."""
    environment = clean_environment() | {"PYTHONUNBUFFERED": buffered}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "penstock", "check-config"],
            env=environment,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "No space left on device" in done.stderr


def test_unknown_command_and_option(capsys):
    assert main(["frobnicate"]) == 2
    assert main(["serve", "--frobnicate"]) == 2
    assert "No such" in capsys.readouterr().err


def test_completion_script(cli):
    _, out, _ = cli.run(_PENSTOCK_COMPLETE="complete_bash", COMP_WORDS="penstock s", COMP_CWORD="1")
    assert out.split() == [b"serve", b"sub", b"session", b"sql", b"subscribe", b"spark"]


def test_check_config_shows_value_and_origin(capsys, monkeypatch, tmp_path):
    (tmp_path / "penstock.toml").write_text("[limits]\nmax_inflight = 5\n")
    monkeypatch.setenv("PENSTOCK_SYS__INTERVAL", "3")
    assert main(["check-config", "--set", "limits.max_subscriptions=7", "--log-level", "debug", "-p", "1884"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "limits.max_inflight = 5\t# file penstock.toml" in lines
    assert "sys.interval = 3\t# environment PENSTOCK_SYS__INTERVAL" in lines
    assert "limits.max_subscriptions = 7\t# flag --set" in lines
    assert 'logging.level = "debug"\t# flag --log-level' in lines
    assert 'listeners.0.address = "127.0.0.1:1884"\t# flag --port' in lines
    assert "limits.receive_maximum = 100\t# default" in lines


def test_check_config_as_json(capsys):
    assert main(["check-config", "--json", "--admin", ""]) == 0
    settings = json.loads(capsys.readouterr().out)
    assert settings["admin.address"] == {"value": "", "origin": "flag --admin"}
    assert settings["limits.max_packet_size"] == {"value": 1048576, "origin": "default"}


def test_check_config_as_a_table(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["check-config"]) == 0
    out = capsys.readouterr().out
    assert "setting" in out.splitlines()[0]
    assert "limits.max_packet_size" in out


@pytest.mark.parametrize("command", ["check-config", "serve"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "limits.max_packet_size=1"], "--set limits.max_packet_size = '1' is not allowed"),
        (["--set", "limits.max_packet_siz=1"], "did you mean limits.max_packet_size?"),
        (["--listen", "0.0.0.0:1883"], "open to the network without authentication"),
        (["--log-level", "loud"], "--log-level (setting logging.level) = 'loud' is not allowed"),
        (["--config", "nowhere.toml"], "cannot read the settings file nowhere.toml"),
    ],
)
def test_bad_settings_are_one_error_and_78(capsys, command, arguments, message):
    assert main([command, *arguments]) == 78
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("penstock: ")
    assert message in captured.err


def test_check_config_reads_the_access_files(capsys, tmp_path, password_file):
    assert main(["check-config", "--set", f"access.password_file={password_file}"]) == 0
    bad = tmp_path / "acl.toml"
    bad.write_text("[[rules]]\n")
    capsys.readouterr()
    assert main(["check-config", "--set", f"access.acl_file={bad}"]) == 78
    assert "rule 1: effect = None is not allowed" in capsys.readouterr().err


def test_set_needs_a_value(capsys):
    assert main(["check-config", "--set", "limits"]) == 2
    assert "write KEY=VALUE" in capsys.readouterr().err


def test_insecure_is_a_warning(capsys, monkeypatch):
    monkeypatch.setenv("PENSTOCK_INSECURE", "1")
    assert main(["check-config", "--listen", "0.0.0.0:1883"]) == 0
    captured = capsys.readouterr()
    assert "warning: PENSTOCK_INSECURE=1" in captured.err
    assert 'listeners.0.anonymous = "allow"\t# environment PENSTOCK_INSECURE' in captured.out


def test_passwd_life(tmp_path, cli):
    file = tmp_path / "passwords"
    assert cli.run("passwd", "-c", file, "alice", input=b"secret\n")[0] == 0
    assert file.stat().st_mode & 0o777 == 0o600
    assert main(["passwd", "-b", str(file), "bob", "other"]) == 0
    users = PasswordFile.load(file)
    assert users.verify("alice", b"secret")
    assert users.verify("bob", b"other")
    assert main(["passwd", "-b", str(file), "bob", "changed"]) == 0
    assert PasswordFile.load(file).verify("bob", b"changed")
    assert main(["passwd", "-D", str(file), "alice"]) == 0
    assert "alice" not in PasswordFile.load(file)
    assert main(["passwd", "-c", "-b", str(file), "carol", "x"]) == 0
    assert len(PasswordFile.load(file)) == 1


def test_passwd_asks_twice_on_a_terminal(tmp_path, monkeypatch, capsys):
    file = tmp_path / "passwords"
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    answers = iter(["one", "other", "same", "same"])
    monkeypatch.setattr("getpass.getpass", lambda prompt: next(answers))
    assert main(["passwd", "-c", str(file), "alice"]) == 1
    assert "not the same" in capsys.readouterr().err
    assert not file.exists()
    assert main(["passwd", "-c", str(file), "alice"]) == 0
    assert PasswordFile.load(file).verify("alice", b"same")


def test_passwd_hashes_a_plain_file(tmp_path, capsys):
    file = tmp_path / "plain"
    file.write_text("alice:secret\nbob:a:b\n")
    assert main(["passwd", "-U", str(file)]) == 0
    users = PasswordFile.load(file)
    assert users.verify("alice", b"secret")
    assert users.verify("bob", b"a:b")
    assert "secret" not in file.read_text()
    assert capsys.readouterr().out == f"{file}: 2 users hashed\n"


def test_passwd_leaves_alone_what_is_hashed(tmp_path, capsys):
    file = tmp_path / "plain"
    file.write_text("alice:secret\n")
    assert main(["passwd", "-U", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: 1 user hashed\n"
    with file.open("a") as more:
        more.write("bob:other\n")
    hashed_once = file.read_text().splitlines()[0]
    for count in ("1 user", "0 users"):
        assert main(["passwd", "-U", str(file)]) == 0
        assert capsys.readouterr().out == f"{file}: {count} hashed\n"
        assert file.read_text().splitlines()[0] == hashed_once
    users = PasswordFile.load(file)
    assert users.verify("alice", b"secret")
    assert users.verify("bob", b"other")


def test_passwd_does_not_hash_half_of_a_hash(tmp_path, capsys):
    file = tmp_path / "plain"
    file.write_text("alice:$argon2id$v=19$cut\nbob:other\n")
    assert main(["passwd", "-U", str(file)]) == 78
    assert "is not an argon2id hash" in capsys.readouterr().err
    assert file.read_text() == "alice:$argon2id$v=19$cut\nbob:other\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere", "alice"], 2, "does not exist: use -c"),
        (["-b", "file", "alice"], 2, "-b and PASSWORD go together"),
        (["file"], 2, "USER is missing"),
        (["-c", "-b", "file", "a:b", "x"], 2, "cannot be a user name"),
        (["-c", "-b", "file", "a", ""], 2, "a password has 1 to"),
        (["-D", "passwords", "nobody"], 1, "is not in"),
        (["-U", "file", "alice"], 2, "-U takes FILE and nothing else"),
    ],
)
def test_passwd_mistakes(capsys, password_file, arguments, code, message):
    assert main(["passwd", *arguments]) == code
    assert message in capsys.readouterr().err


def test_passwd_sets_the_type(capsys, password_file):
    assert main(["passwd", "-b", str(password_file), "alice", "new", "--type", "application"]) == 0
    users = PasswordFile.load(password_file)
    assert (users.client_type("alice"), users.verify("alice", b"new")) == ("application", True)
    assert main(["passwd", "-b", str(password_file), "alice", "newer"]) == 0
    assert PasswordFile.load(password_file).client_type("alice") == "application"
    assert main(["passwd", "-k", str(password_file), "alice", "--type", "device"]) == 0
    users = PasswordFile.load(password_file)
    assert (users.client_type("alice"), users.verify("alice", b"newer")) == ("device", True)
    assert main(["passwd", "-k", str(password_file), "nobody", "--type", "device"]) == 1
    assert main(["passwd", "-k", str(password_file), "alice"]) == 2
    assert main(["passwd", "-b", str(password_file), "alice", "x", "--type", "app"]) == 2


def test_passwd_upgrade_keeps_types(password_file):
    main(["passwd", "-k", str(password_file), "alice", "--type", "application"])
    with password_file.open("a") as file:
        file.write("carol:car:ol\n")
    assert main(["passwd", "-U", str(password_file)]) == 0
    users = PasswordFile.load(password_file)
    assert (users.client_type("alice"), users.verify("alice", b"secret")) == ("application", True)
    assert (users.client_type("carol"), users.verify("carol", b"car:ol")) == (None, True)


def test_acl_check_answers(tmp_path, capsys):
    file = tmp_path / "acl.toml"
    file.write_text('[[rules]]\neffect = "allow"\ntopics = ["d/%c/#"]\n')
    assert main(["acl", "check", str(file)]) == 0
    assert "1 rule, no errors" in capsys.readouterr().out
    assert main(["acl", "check", str(file), "-i", "me", "--publish", "d/me/x", "--subscribe", "d/me/#"]) == 0
    assert main(["acl", "check", str(file), "-i", "me", "--publish", "d/you/x"]) == 1
    assert "denied: publish to d/you/x" in capsys.readouterr().out
    assert main(["acl", "check", "nowhere"]) == 78


def test_acl_check_answers_every_question_with_the_rule(tmp_path, capsys):
    file = tmp_path / "acl.toml"
    file.write_text(
        "[[rules]]\neffect = 'allow'\nusers = ['eve']\ntopics = ['e']\n"
        "[[rules]]\neffect = 'deny'\ntopics = ['d/secret']\n[[rules]]\neffect = 'allow'\ntopics = ['d/#']\n"
    )
    publishes = ["--publish", "d/x", "--publish", "d/secret", "--publish", "e"]
    assert main(["acl", "check", str(file), *publishes, "--subscribe", "e", "--subscribe", "d/#"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "allowed: publish to d/x",
        "denied: publish to d/secret (rule 2 denies it)",
        "denied: publish to e (no rule allows it)",
        "denied: subscribe to e (no rule allows it)",
        "allowed: subscribe to d/#",
    ]


def test_acl_check_says_the_type(tmp_path, capsys):
    file = tmp_path / "acl.toml"
    file.write_text('[[types]]\ntype = "application"\ncertificates = ["etl-*"]\n')
    assert main(["acl", "check", str(file)]) == 0
    shown = capsys.readouterr()
    assert "0 rules, 1 type, no errors" in shown.out
    assert "without rules no client may publish" in shown.err
    assert main(["acl", "check", str(file), "--type", "-u", "etl-1", "--certificate"]) == 0
    assert capsys.readouterr().out == "type: application\n"
    assert main(["acl", "check", str(file), "--type", "-u", "etl-1"]) == 0
    assert "access.default_type" in capsys.readouterr().out
    assert main(["acl", "check", str(file), "--type"]) == 0
    assert "access.anonymous_type" in capsys.readouterr().out


def test_acl_check_says_what_may_be_done_with_query_topics(tmp_path, capsys):
    file = tmp_path / "acl.toml"
    file.write_text("[[data]]\neffect = 'allow'\nactions = ['subscribe']\ntopics = ['hot*']\n")
    assert main(["acl", "check", str(file)]) == 0
    assert "0 rules, 1 data rule, no errors" in capsys.readouterr().out
    assert main(["acl", "check", str(file), "--data", "subscribe:hotter"]) == 0
    assert "allowed: subscribe to the query topic hotter" in capsys.readouterr().out
    assert main(["acl", "check", str(file), "--data", "drop:hot"]) == 1
    assert "no entry of [[data]] is about this" in capsys.readouterr().err
    assert main(["acl", "check", str(file), "--data", "publish:hot"]) == 2


def test_acl_import(tmp_path, capsys):
    (tmp_path / "mosquitto.acl").write_text("user roger\ntopic read foo/#\n")
    assert main(["acl", "import-mosquitto", "mosquitto.acl"]) == 0
    out = capsys.readouterr().out
    (tmp_path / "ours.toml").write_text(out)
    assert main(["acl", "check", "ours.toml", "-u", "roger", "--subscribe", "foo/bar"]) == 0
    assert main(["acl", "import-mosquitto", "nowhere"]) == 2


def test_serve_says_where_it_listens_and_ends_with_0(cli, tmp_path):
    port = free_port()
    process = cli.start("serve", "--port", port, "--admin", "", "--data-dir", tmp_path / "data")
    lines = []
    while not any("penstock pub" in line for line in lines):
        lines.append(process.stdout.readline().decode())
        assert lines[-1], process.stderr.read()
    assert f"mqtt://127.0.0.1:{port}" in "".join(lines)
    assert cli.run("pub", "-p", port, "-t", "demo/hello", "-m", "hi", "-q", 1)[0] == 0
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert all(json.loads(line)["level"] == "info" for line in err.decode().splitlines())


def test_banner_says_where_and_what_next(tmp_path):
    plain = render_banner([ListenerSettings()], "data", "127.0.0.1:9883")
    assert "mqtt://127.0.0.1:1883" in plain
    assert str(tmp_path / "data") in plain
    assert "http://127.0.0.1:9883/metrics" in plain
    assert "penstock sub -t 'demo/#' -v\n" in plain
    assert "penstock pub -t demo/hello -m hi\n" in plain
    assert "consumers" not in plain
    assert "consumers  127.0.0.1:6030" in render_banner([ListenerSettings()], "data", "", "127.0.0.1:6030")


@pytest.mark.parametrize(
    ("listener", "flags"),
    [
        (ListenerSettings(address="127.0.0.1:1999"), "pub -p 1999 -t"),
        (ListenerSettings(address="*:1883", anonymous="allow"), "pub -t"),
        (ListenerSettings(address="10.0.0.1:1883", anonymous="allow"), "pub -h 10.0.0.1 -t"),
        (ListenerSettings(transport="ws", address="127.0.0.1:80"), "pub --ws -p 80 -t"),
        (ListenerSettings(transport="unix", address="/run/s"), "pub --unix /run/s -t"),
    ],
)
def test_banner_flags(listener, flags):
    assert flags in render_banner([listener], "data", "")


def test_banner_asks_for_a_password_where_the_broker_does():
    closed = ListenerSettings(address="127.0.0.1:1999")
    access = AccessSettings(anonymous="deny", password_file="passwords")
    assert "pub -p 1999 -u NAME -P PASSWORD -t" in render_banner([closed], "data", "", access=access)
    opened = ListenerSettings(address="127.0.0.1:2000", anonymous="allow")
    assert "pub -p 2000 -t" in render_banner([closed, opened], "data", "", access=access)


def test_banner_without_an_easy_listener():
    text = render_banner([ListenerSettings(transport="tls", address="127.0.0.1:8883")], "data", "")
    assert "mqtts://127.0.0.1:8883" in text
    assert "penstock pub" not in text


@pytest.mark.parametrize("host", ["a..example", f"{70 * 'a'}.example"])
def test_what_is_no_host_name_is_said_in_a_line(host, capsys):
    assert main(["pub", "-h", host, "-t", "topic", "-m", "text"]) == 1
    assert capsys.readouterr().err == f"penstock: cannot connect to {host}:1883: {host!r} is not a host name\n"
    assert main(["top", "--once", "--url", f"http://{host}:9883", "--token", "any"]) == 2
    assert "is not the address of a broker: write http://host:port" in capsys.readouterr().err
