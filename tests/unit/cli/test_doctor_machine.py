"""`penstock doctor` on machines that lack something. Bounds are moved to where this machine is on their wrong side."""

import os
import time

import pytest

from penstock.operate.doctor import storage, system


def test_a_disk_that_is_nearly_full_and_one_that_the_log_may_fill(examine, monkeypatch):
    code, found = examine("--set", "ingest.properties=retention.bytes:99999999999999")
    assert code == 0
    assert "the log of all messages alone may take" in found["disk", "warning"][0]
    assert "lower retention.bytes in ingest.properties" in found["disk", "warning"][0]
    monkeypatch.setattr(storage, "LITTLE_ROOM", 1 << 60)
    code, found = examine()
    assert code == 1
    assert "publishes will soon be refused | make room" in found["disk", "problem"][0]


def test_little_memory(examine, monkeypatch):
    monkeypatch.setattr(system, "_memory_limit", lambda: 100 << 20)
    said = examine()[1]["memory", "warning"][0]
    assert "the limit of the container or unit is 100 MiB" in said
    assert "limits.max_queued_bytes" in said


def test_a_short_backlog(examine, monkeypatch):
    monkeypatch.setattr(system, "BACKLOG", 1 << 40)
    assert "sysctl -w net.core.somaxconn=" in examine()[1]["backlog", "warning"][0]


def test_one_core(examine):
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert "one core" in examine()[1]["cores", "warning"][0]
    finally:
        os.sched_setaffinity(0, before)


def test_hardly_any_descriptors_are_a_problem(examine, monkeypatch):
    monkeypatch.setattr(system, "OTHER_FILES", 1 << 40)
    code, found = examine()
    assert code == 1
    assert "room for about 0 connections" in found["files", "problem"][0]


@pytest.mark.parametrize(
    ("answer", "state", "said"),
    [
        (False, "warning", "nobody keeps the clock right | run chrony or systemd-timesyncd"),
        (True, "ok", "steady and kept right by NTP"),
        (None, "ok", "steady"),
    ],
)
def test_a_clock_that_is_kept_right_or_not(answer, state, said, examine, monkeypatch):
    assert system._is_synchronised() in (True, False, None)  # the kernel itself is asked
    real = time.time() - time.monotonic()
    monkeypatch.setattr(time, "time", lambda: real + time.monotonic())  # this machine's may jump
    monkeypatch.setattr(system, "_is_synchronised", lambda: answer)
    assert said in examine()[1]["clock", state][0]


def test_a_clock_of_the_last_century(examine, monkeypatch):
    monkeypatch.setattr(system, "EARLIEST_YEAR", 9999)
    code, found = examine()
    assert code == 1
    assert "this machine believes it is" in found["clock", "problem"][0]
