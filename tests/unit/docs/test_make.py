"""`make` as the README tells to call it, in the tree that `make test` has built."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.brokers.broker import REPOSITORY, free_port
from tests.support.clients.raw_client import RawClient
from tests.support.clients.streams import open_tcp
from tests.support.documents.pages import commands_of

SECONDS = 60


def test_these_are_the_commands_of_the_documents() -> None:
    """Below; test_tree.py gives the others, in a copy of the tree."""
    assert {tuple(command.words) for command in commands_of(__file__)} == {("make", "run"), ("make", "help")}


def test_make_run_starts_a_broker(tmp_path: Path) -> None:
    """The first command of the README, with other addresses than the usual ones; Ctrl-C ends it."""
    if subprocess.run(["make", "-q", ".stamps/build"], cwd=REPOSITORY, capture_output=True, check=False).returncode:
        pytest.skip("nothing is built by make here, or it is out of date")
    port = free_port()
    arguments = f"--port {port} --admin '' --data-dir {tmp_path}/data --set data_subscription.address=127.0.0.1:0"
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            ["make", "run", f"ARGS={arguments}"],
            cwd=REPOSITORY,
            env={**os.environ, "MAKEFLAGS": ""},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + SECONDS
        while "Penstock is running." not in (said := (tmp_path / "log").read_text()):
            assert process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.05)
        client = RawClient(open_tcp(("127.0.0.1", port), SECONDS))
        client.connect("reader-of-the-readme")
        client.close()
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(SECONDS)
    assert '"stopped"' in (tmp_path / "log").read_text()


def test_make_lists_its_targets() -> None:
    """And is what it says without a target."""
    lists = [
        subprocess.run(["make", *target], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
        for target in ([], ["help"])
    ]
    assert lists[0] == lists[1]
    told = re.findall(r"^([a-z-]+) ", lists[0], re.M)
    assert {"run", "test", "dist", "bench", "bench-check", "lint"} <= set(told)
