"""A short fuzzing session of the codec as part of the test run; PENSTOCK_FUZZ_SECONDS sets its length."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = int(os.environ.get("PENSTOCK_FUZZ_SECONDS", "8"))


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 120)
def test_codec_survives(tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="atheris has no wheel for this Python")
    command = [
        sys.executable,
        "-m",
        "tests.fuzz.fuzz_codec",
        "--seconds",
        str(SECONDS),
        "--corpus",
        str(tmp_path / "c"),
    ]
    session = subprocess.run(
        command, cwd=ROOT, env=with_sources(), capture_output=True, text=True, errors="replace", check=False
    )
    assert session.returncode == 0, session.stderr[-4000:]
    done = re.search(r"Done (\d+) runs", session.stderr)
    assert done is not None
    assert int(done[1]) > 1000


def test_reading_too_far_is_noticed() -> None:
    """The memory the fuzzer parses in does what it is for."""
    read_behind = "import ctypes; from tests.support.clients.parse_any import GuardedMemory; memory = GuardedMemory(); "
    read_behind += "ctypes.string_at(memory.address_of_end(), 1)"
    process = subprocess.run([sys.executable, "-c", read_behind], cwd=ROOT, env=with_sources(), check=False)
    assert process.returncode == -signal.SIGSEGV


def with_sources() -> dict[str, str]:
    """The environment with the packages of this tree importable."""
    return os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
