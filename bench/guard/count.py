"""Runs under callgrind: every job once to warm up, once counted. Started by bench/check.py."""

from __future__ import annotations

import ctypes
import gc
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from bench.guard.jobs import Job, all_jobs

NOTHING = "nothing"


def main(library: str, wanted: list[str]) -> int:
    counter = ctypes.CDLL(library)
    if not counter.count_is_possible():
        print("this has to run under valgrind", file=sys.stderr)
        return 1
    jobs = {NOTHING: Job(lambda: None, 1), **all_jobs(wanted)}
    gc.disable()
    for name, job in jobs.items():
        job.run()
        counter.count_begin()
        job.run()
        counter.count_end(name.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
