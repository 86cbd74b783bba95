"""`penstock app`: finds the broker, says what it says, asks before something is lost, and ends with an honest code."""

import json
import os
import sys
from datetime import UTC, datetime, timedelta

import pytest

from penstock.__main__ import main
from penstock.core.errors import UsageError
from penstock.operate.client import AdminClient
from tests.support.clients.admin_api import TOKEN, MemoryApplications, entry, serving

SHARED = {
    "share": "workers",
    "filter": "jobs/#",
    "topic": "tbmq.msg.app.shared.jobs.mlw",
    "group": "application-shared-msg-consumer-group-workers-tbmq.msg.app.shared.jobs.mlw",
    "partitions": 16,
    "lag": 1_000,
}


@pytest.fixture(autouse=True)
def nothing_from_outside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("PENSTOCK_"):
            monkeypatch.delenv(name)


@pytest.fixture
def control():
    return MemoryApplications(
        entry("billing", lag=40, connected=True, shared=[SHARED]),
        entry("reports", lag=7, shared=[SHARED], packet_ids=[[number, 100 + number] for number in range(1, 25)]),
        entry("odd/\x1b[31m ü", lag=0),
    )


@pytest.fixture
def broker(tmp_path, control):
    (tmp_path / "data").mkdir()
    with serving(tmp_path / "data", control) as server:
        yield server


def test_list(broker, capsys):
    assert main(["app", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    headings = "client id  connected  lag  in flight  retries  expired  delivered  topic"
    assert lines[0].split() == headings.split()
    assert lines[1].split() == ["billing", "yes", "40", "3", "4", "5", "60", "tbmq.msg.app.billing"]
    assert lines[-1] == "3 APPLICATION clients"
    assert "\x1b" not in "".join(lines)


def test_list_as_json(broker, control, capsys):
    assert main(["app", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == list(control.entries.values())


def test_show(broker, control, capsys):
    assert main(["app", "show", "billing"]) == 0
    shown = capsys.readouterr().out
    for word in ("committed offset  60", "session expiry    never", "connected         yes", "workers", "jobs/#"):
        assert word in shown
    assert main(["app", "show", "billing", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == control.entries["billing"]
    assert main(["app", "show", "reports"]) == 0
    assert "packet ids        1 101, 2 102, " in (shown := capsys.readouterr().out)
    assert "20 120 and 4 more\n" in shown
    assert main(["app", "show", "odd/\x1b[31m ü"]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_lag_counts_a_shared_topic_once(broker, capsys):
    assert main(["app", "lag"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["billing", "reports", "billing"]
    assert lines[-1] == "1,047 messages in all"
    assert main(["app", "lag", "reports", "--json"]) == 0
    assert [row["lag"] for row in json.loads(capsys.readouterr().out)] == [1_000, 7]


@pytest.mark.parametrize(("text", "expected"), [("begin", "begin"), ("end", "end"), ("7", 7), ("@1700000000", None)])
def test_reset(broker, control, capsys, text, expected):
    assert main(["app", "reset", "reports", "--to", text, "--yes"]) == 0
    expected = datetime.fromtimestamp(1_700_000_000, UTC) if expected is None else expected
    assert control.resets == [("reports", expected)]
    assert "reports goes on at offset" in capsys.readouterr().out


def test_reset_to_so_long_ago(broker, control):
    assert main(["app", "reset", "reports", "--to", "10m", "-y"]) == 0
    (_, to), *_ = control.resets
    assert abs(datetime.now(UTC) - timedelta(minutes=10) - to) < timedelta(minutes=1)


def test_delete(broker, control, capsys):
    assert main(["app", "delete", "odd/\x1b[31m ü", "--yes", "--json"]) == 0
    assert "odd/\x1b[31m ü" not in control.entries
    assert json.loads(capsys.readouterr().out)["client_id"] == "odd/\x1b[31m ü"


@pytest.mark.parametrize("arguments", [["delete", "reports"], ["reset", "reports", "--to", "end"]])
def test_nothing_is_lost_unasked(broker, control, capsys, monkeypatch, arguments):
    assert main(["app", *arguments]) == 2  # nobody is there
    assert "Add --yes" in capsys.readouterr().err
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: "n")
    assert main(["app", *arguments]) == 1
    assert "nothing was" in capsys.readouterr().err
    assert (control.resets, "reports" in control.entries) == ([], True)
    monkeypatch.setattr("builtins.input", lambda question: "y")
    assert main(["app", *arguments]) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["show", "nobody"], 1, "there is no APPLICATION client 'nobody'\n`penstock app list` shows them."),
        (["delete", "nobody", "-y"], 1, "there is no APPLICATION client"),
        (["reset", "billing", "--to", "end", "-y"], 1, "'billing' is connected\nDisconnect it first."),
        (["reset", "billing", "--to", "soon"], 2, "--to 'soon' is not a place in a log"),
        (["reset", "billing"], 2, "Missing option '--to'"),
        (["list", "--url", "ftp://127.0.0.1"], 2, "is not the address of a broker"),
        (["list", "--url", "http://127.0.0.1:x"], 2, "is not the address of a broker"),
        (["list", "--token", "wrong-wrong-wrong-wrong"], 1, "refuses the command: this is not the broker's token"),
        (["list", "--url", "http://127.0.0.1:1"], 1, "no broker answers at http://127.0.0.1:1\nIs it running?"),
        (["list", "--data-dir", "elsewhere"], 1, "no admin.token in"),
        (["list", "--data-dir", "elsewhere", "--set", "admin.address="], 1, "takes no commands"),
    ],
)
def test_refusals(broker, capsys, arguments, code, message):
    assert main(["app", *arguments]) == code
    assert message in capsys.readouterr().err


def test_the_broker_is_not_running(control, tmp_path, capsys):
    (tmp_path / "data").mkdir()
    with serving(tmp_path / "data", control):
        kept = {path.name: path.read_text() for path in (tmp_path / "data").iterdir()}
    for name, text in kept.items():  # as a broker that was killed leaves them
        (tmp_path / "data" / name).write_text(text)
    assert main(["app", "list"]) == 1
    assert "no broker answers at" in capsys.readouterr().err


def test_something_else_listens_there(broker, tmp_path, capsys):
    assert main(["app", "list", "--url", f"http://{broker.address}/metrics"]) == 1
    assert "does not answer as a Penstock broker does (HTTP 404)" in capsys.readouterr().err


def test_address_and_token_from_the_settings(control, tmp_path, monkeypatch, capsys):
    (tmp_path / "broker").mkdir()
    with serving(tmp_path / "broker", control, TOKEN) as server:
        assert main(["app", "list", "--url", server.address, "--token", TOKEN]) == 0
        (tmp_path / "penstock.toml").write_text(f'[admin]\naddress = "{server.address}"\ntoken = "{TOKEN}"\n')
        assert main(["app", "list"]) == 0
        (tmp_path / "penstock.toml").unlink()
        (tmp_path / "secret").write_text(f"{TOKEN}\n")
        monkeypatch.setenv("PENSTOCK_ADMIN__TOKEN_FILE", str(tmp_path / "secret"))
        assert main(["app", "list", "--data-dir", "broker"]) == 0


def test_a_token_file_of_somebody_else(broker, tmp_path, capsys):
    token = tmp_path / "data" / "admin.token"
    token.unlink()
    token.mkdir()  # cannot be read by anybody, root included
    assert main(["app", "list"]) == 1
    assert "Run the command as the broker's user, or give --url and --token." in capsys.readouterr().err
    token.rmdir()


def test_a_token_on_its_way_through_the_network_is_a_warning(capsys):
    AdminClient("http://broker.example.org:9883", TOKEN)
    assert "unencrypted" in capsys.readouterr().err
    AdminClient("https://broker.example.org", TOKEN)
    AdminClient("127.0.0.1:9883", TOKEN)
    assert capsys.readouterr().err == ""
    with pytest.raises(UsageError):
        AdminClient("http://", TOKEN)


def test_check_config_does_not_show_the_token(monkeypatch, capsys):
    monkeypatch.setenv("PENSTOCK_ADMIN__TOKEN", TOKEN)
    for arguments in ([], ["--json"]):
        assert main(["check-config", *arguments]) == 0
        shown = capsys.readouterr().out
        assert TOKEN not in shown
        assert "***" in shown
