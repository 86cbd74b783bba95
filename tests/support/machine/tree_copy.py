"""A copy of the repository as it is after `make build`, for commands that write into it.

Everything is as a reader has it; only what would take long is short: benchmarks get options for a small load behind
those that are given, which `python` adds, `make test` and the like get one test.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.documents.pages import ROOT

STAMPS = ("venv", "runtime", "dev", "services", "build")
ONE_RUN = "--reps 1 --secs 0.2 --warmup 0 --quiet 0"
# What a script is given besides. The last of two values counts.
SHORT = {
    "bench/app_bench.py": f"{ONE_RUN} --scenario fanin --only penstock",
    "bench/check.py": "--only 'trie: cached match'",
    "bench/compare.py": "--reps 1 --secs 0.2 --warm 0 --quiet 0 --scenario p2p-q1",
    "bench/datasub_bench.py": f"{ONE_RUN} --scenario evaluate",
    "bench/datasub_push_bench.py": f"{ONE_RUN} --scenario push --rate 500",
    "bench/device_bench.py": f"{ONE_RUN} --scenario pairs --only penstock",
    "bench/headroom.py": "--reps 1 --secs 0.1 --threads 1 --scenario fan-in",
    "bench/ingest_bench.py": f"{ONE_RUN} --only penstock",
    "bench/kafka_bench.py": "--records 2000 --rounds 1",
    "bench/log_bench.py": "--rate-seconds 0.1 --seconds 0.3",
    "bench/partition_bench.py": "--keys 10000 --rounds 1",
    "bench/queue_bench.py": f"{ONE_RUN} --scenario append --messages 1000",
    "bench/rpc_bench.py": "--seconds 0.3",
    "bench/session_bench.py": "--sessions 100",
    "bench/touch_memory.py": "--gib 0",
}
# One of the tests that a target runs, by its ARGS.
ARGS = {
    "test": "tests/unit/docs/test_make.py -k lists",
    "lint": "-k 'short or stub'",
    "bench-micro": "-k take_and_release --benchmark-max-time 0.01",
}
PYTHON = """#!{python} -SE
import os, shlex, sys
words = sys.argv[1:]
if words and words[0] in {short}:
    more = shlex.split({short}[words[0]])
    if words[0] == "bench/compare.py":
        # Every scenario is one of them here. Mosquitto is in what is kept, and drawn: half the time for the others.
        words = ["p2p-q1" if word == "all" else word for word in words]
        more += [] if "--save" in words else ["--only", "other" if "--peer" in words else "penstock"]
    words += more
os.execv("{python}", ["{python}", *words])
"""
# Where Google's is not installed: that of gRPC, which has no Java in it.
PROTOC = """#!/bin/sh
exec {python} -m grpc_tools.protoc $(printf '%s ' "$@" | sed 's/--java_out/--python_out/')
"""
OTHER_BROKER = """#!/bin/sh
exec {python} -m penstock serve "$@" --admin '' --data-dir "$(mktemp -d -p {directory})"
"""


def tracked() -> list[str]:
    """Files of the repository, those that are not committed yet too."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


class TreeCopy:
    """The copy in `root`, and a shell in it."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "penstock"
        self._bin = directory / "bin"
        self._bin.mkdir()
        for name in tracked():
            self._copy(ROOT / name)
        for module in ROOT.glob("src/**/*.so"):
            self._copy(module)
        for built in [*ROOT.glob("build/cython"), *ROOT.glob("build/lib.*")]:
            shutil.copytree(built, self.root / built.relative_to(ROOT))
        # What was compiled is newer than its sources, also where these have just been checked out.
        for source in self.root.glob("ext/**/*"):
            os.utime(source, (1e9, 1e9))
        self._write_tools(directory)
        subprocess.run(["git", "init", "-q"], cwd=self.root, check=True)
        (self.root / ".stamps").mkdir()
        for stamp in STAMPS:
            (self.root / ".stamps" / stamp).touch()

    def _copy(self, file: Path) -> None:
        copy = self.root / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, copy)

    def _write_tools(self, directory: Path) -> None:
        tools = self.root / ".venv/bin"
        tools.mkdir(parents=True)
        for tool in Path(sys.executable).parent.iterdir():
            if not tool.name.startswith("python"):
                (tools / tool.name).symlink_to(tool)
        here = {"python": sys.executable, "directory": directory, "short": SHORT}
        scripts = {tools / "python": PYTHON, self._bin / "python": PYTHON, self._bin / "other-broker": OTHER_BROKER}
        if shutil.which("protoc") is None:
            scripts[self._bin / "protoc"] = PROTOC
        for path, text in scripts.items():
            path.write_text(text.format(**here))
            path.chmod(0o755)

    def run(self, line: str, seconds: float) -> subprocess.CompletedProcess[str]:
        """Given to a shell at the top of the tree."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("ARGS", "MAKE", "MFLAGS", "PENSTOCK_", "PYTEST", "XDIST"))
        }
        path = [str(self._bin), str(Path(sys.executable).parent), os.environ["PATH"]]
        environment = {**kept, "PATH": os.pathsep.join(path), "PYTHONPATH": str(self.root / "src")}
        return subprocess.run(
            ["bash", "-c", line],
            cwd=self.root,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def files(self) -> dict[str, float]:
        """Everything below `bench/results` and in the open, by the time it was written."""
        found = [*self.root.glob("bench/results/**/*.json"), *self.root.glob("*.*"), *self.root.glob("docs/*.*")]
        return {str(path.relative_to(self.root)): path.stat().st_mtime_ns for path in found}
