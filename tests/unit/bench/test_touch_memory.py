"""Memory is written to before the benchmarks, and not more than is free."""

import re
from pathlib import Path

import pytest

from bench.touch_memory import LEFT_FREE, free_gib, main, touch


def resident_kb() -> int:
    found = re.search(r"^VmRSS:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def test_free_memory_is_what_not_even_files_use() -> None:
    assert free_gib("MemTotal:  24683520 kB\nMemFree:  7340032 kB\nMemAvailable:  23000000 kB\n") == 7
    assert free_gib("") == 0


def test_what_is_asked_is_written_to() -> None:
    if free_gib(Path("/proc/meminfo").read_text()) <= LEFT_FREE:
        pytest.skip("not so much is free")
    before = resident_kb()
    assert [resident_kb() - before > 900 << 10 for _ in touch(1)] == [True]


def test_it_says_how_much(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--gib", "0"]) == 0
    assert "0 GiB of memory" in capsys.readouterr().err


def test_it_does_not_take_more_than_is_free(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--gib", "100000"])
    assert "is free" in capsys.readouterr().err
