"""Does the unit start what is there, the way the broker wants to be started?"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from penstock.core import exit_codes
from penstock.settings import Settings, load_settings
from tests.support.brokers.deployment import DOCKER, parse_penstock, run_tool

UNIT = DOCKER / "systemd/penstock.service"
ENTRIES = re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.M)
LAST = dict(ENTRIES)
OLDEST_JUDGE = 252  # of Debian 12; earlier ones cannot judge a file


def systemd_version() -> int:
    return int(run_tool("systemd-analyze", "--version").stdout.split()[1])


def test_it_waits_until_the_broker_is_ready() -> None:
    assert LAST["Type"] == "notify"
    # The single file is a child of what systemd starts: only `all` hears it.
    assert LAST["NotifyAccess"] == "all"
    assert int(LAST["WatchdogSec"]) >= 10
    assert int(LAST["TimeoutStopSec"]) > Settings().server.drain_seconds + 10


def test_command_is_one_of_ours() -> None:
    program, *words = shlex.split(LAST["ExecStart"])
    assert program.endswith("/penstock")
    given = parse_penstock(words)
    assert str(given["config"]) == "/etc/penstock/penstock.toml"
    # What is only in the unit is not known to `penstock doctor --config …`, `top` and `backup`.
    assert {name for name, value in given.items() if value} == {"config"}
    settings = load_settings(UNIT.with_name("penstock.toml"), {}).settings
    assert settings.server.data_dir == f"/var/lib/{LAST['StateDirectory']}"
    assert LAST["ExecReload"] == "/bin/kill -HUP $MAINPID"


def test_what_will_not_get_better_is_not_started_again() -> None:
    never = {int(code) for code in LAST["RestartPreventExitStatus"].split()}
    assert never == {exit_codes.USAGE, exit_codes.CONFIGURATION}


def test_systemd_agrees(tmp_path: Path) -> None:
    """Where it is installed: no unknown entry, and little that an intruder could do."""
    if shutil.which("systemd-analyze") is None or systemd_version() < OLDEST_JUDGE:
        pytest.skip("systemd is not installed, or too old")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/penstock/penstock", "/bin/true"))
    verified = run_tool("systemd-analyze", "verify", str(unit))
    assert verified.returncode == 0, verified.stderr
    assert UNIT.name not in verified.stderr  # an entry it does not know
    judged = run_tool("systemd-analyze", "security", "--offline=true", "--threshold=20", str(unit))
    assert judged.returncode == 0, judged.stdout[-400:] + judged.stderr
