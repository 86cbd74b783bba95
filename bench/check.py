#!/usr/bin/env python3
"""Counts the instructions of the hot path with callgrind and compares them with the committed baseline.

  python bench/check.py                       every figure; exit 1 when one is more than 2 % worse
  python bench/check.py --only "trie: cached match"
  python bench/check.py --baseline /tmp/before.json       compare with another baseline, which --renew has written
  python bench/check.py --renew               replace the baseline, after a change that was meant

Instructions do not depend on how busy the machine is. They do depend on compiler and Python: the baseline says with
which it was made, and of which commit. If they differ, the check warns, and allows 15 %.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from bench.guard.count import NOTHING
from bench.guard.jobs import all_jobs
from penstock_bench.machine import output_of

HERE = Path(__file__).resolve().parent
BASELINE = HERE / "baseline.json"
UNIT = "instructions per operation"
LIMIT = 0.02
LIMIT_UNLIKE = 0.15  # if the baseline was made with another compiler, or another release of Python
# By how much some figures differ: nodes of the trie lie elsewhere in memory, or a pack cannot grow where it lies.
NOISE = {"trie: match afresh with wildcards": 0.07, "delivery: to the log of an APPLICATION client": 0.1}
# Figures that miss the limit and have to be brought back below it; until then they must not get worse. A pack of an
# APPLICATION client needs 2.5 % more since lanes are a module of their own. The count is the same in every run.
MISSED = {"delivery: pack of an APPLICATION client": 0.03}
VALGRIND_SECONDS = 600
NAME = re.compile(r"^desc: Trigger: Client Request: (.+)$", re.MULTILINE)
TOTAL = re.compile(r"^totals: (\d+)$", re.MULTILINE)


class CheckError(Exception):
    """The instructions cannot be counted."""


def read_counts(folder: Path) -> dict[str, int]:
    """Instructions by the name under which callgrind wrote them down."""
    counts = {}
    for path in folder.glob("out.*"):
        text = path.read_text()
        name, total = NAME.search(text), TOTAL.search(text)
        if name and total:
            counts[name[1]] = int(total[1])
    return counts


def count_instructions(only: list[str]) -> dict[str, float]:
    """Instructions per operation of each job; what the counting itself costs is taken off."""
    for program in ("valgrind", "cc"):
        if not shutil.which(program):
            raise CheckError(f"{program} is not installed: apt-get install valgrind build-essential")
    with tempfile.TemporaryDirectory(prefix="bench-check-") as folder:
        library = f"{folder}/counter.so"
        subprocess.run(
            ["cc", "-O1", "-shared", "-fPIC", "-o", library, HERE / "guard/counter.c"], check=True, timeout=60
        )
        options = ["-q", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/out"]
        program = [sys.executable, str(HERE / "guard/count.py"), library, *only]
        done = subprocess.run(
            ["valgrind", *options, *program],
            env=os.environ | {"PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
            timeout=VALGRIND_SECONDS,
            check=False,
        )
        counts = read_counts(Path(folder))
    if done.returncode or NOTHING not in counts:
        raise CheckError(f"counting failed: {done.stderr[-2000:]}")
    jobs, overhead = all_jobs(only), counts.pop(NOTHING)
    return {name: round((counts[name] - overhead) / job.operations, 1) for name, job in jobs.items() if name in counts}


def made_with() -> dict[str, str]:
    compiler = output_of("cc", "--version").partition("\n")[0]
    return {"python": platform.python_version(), "compiler": compiler, "machine": platform.machine()}


def is_like(baseline: dict[str, str], now: dict[str, str]) -> bool:
    """Counts of 3.11.2 and 3.11.7 agree within 6 %; another minor version has another core."""
    minor = [each["python"].split(".")[:2] for each in (baseline, now)]
    return minor[0] == minor[1] and all(baseline[name] == now[name] for name in ("compiler", "machine"))


def limit_for(baseline: dict[str, str], now: dict[str, str]) -> float:
    """How much worse a figure may be than one of that baseline."""
    return LIMIT if baseline == now else LIMIT_UNLIKE


def commit_of_tree() -> str:
    """The commit that is checked out, for people."""
    return output_of("git", "-C", str(HERE), "describe", "--always", "--dirty").strip() or "unknown"


def worse_than(baseline: dict[str, float], figures: dict[str, float], limit: float = LIMIT) -> list[str]:
    """Names of the figures that have become too large."""
    allowed = {name: max(limit, NOISE.get(name, 0), MISSED.get(name, 0)) for name in figures}
    return [name for name, value in figures.items() if value > baseline[name] * (1 + allowed[name])]


def compare(baseline: dict[str, float], figures: dict[str, float], limit: float = LIMIT) -> list[str]:
    """The lines of the report."""
    width = max(map(len, figures), default=0)
    slow = worse_than(baseline, figures, limit)
    lines = [f"{'figure':<{width}}  {'baseline':>10}  {'now':>10}  change   ({UNIT})"]
    for name, value in figures.items():
        change = value / baseline[name] - 1
        mark = "  TOO SLOW" if name in slow else ""
        lines.append(f"{name:<{width}}  {baseline[name]:>10,.1f}  {value:>10,.1f}  {change:+6.1%}{mark}")
    return lines


def load_baseline(path: Path, names: list[str]) -> dict[str, Any]:
    """Raises CheckError when baseline and jobs do not have the same names."""
    try:
        document: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CheckError(f"{path}: {error}; make it with --renew") from error
    if document["unit"] != UNIT:
        raise CheckError(f"{path} is in {document['unit']}, not in {UNIT}")
    different = set(document["figures"]) ^ set(names)
    if different:
        raise CheckError(f"not both in {path} and among the benchmarks: {', '.join(sorted(different))}; see --renew")
    return document


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--baseline", type=Path, default=BASELINE, help="compare with this file")
    parser.add_argument("--only", action="append", default=[], metavar="FIGURE", help="only this one; repeatable")
    parser.add_argument("--renew", action="store_true", help="replace the baseline")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse_arguments(argv)
    names = list(all_jobs())
    try:
        unknown = [name for name in args.only if name not in names]
        if unknown:
            raise CheckError(f"there is no figure {unknown[0]!r}; there are: {', '.join(names)}")
        if args.renew:
            figures = count_instructions([])
            document = {"unit": UNIT, "made_of": commit_of_tree(), "made_with": made_with(), "figures": figures}
            args.baseline.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
            print(f"written: {args.baseline}")
            return 0
        document = load_baseline(args.baseline, names)
        figures = count_instructions(args.only)
    except (CheckError, subprocess.SubprocessError) as error:
        print(error, file=sys.stderr)
        return 2
    limit = limit_for(document["made_with"], made_with())
    print(f"baseline: {args.baseline}, of {document.get('made_of', 'unknown')}")
    print("\n".join(compare(document["figures"], figures, limit)))
    if not is_like(document["made_with"], made_with()):
        print(f"the baseline was made with {document['made_with']}: differences may come from there", file=sys.stderr)
    slow = worse_than(document["figures"], figures, limit)
    if slow:
        print(f"more than {limit:.0%} worse than the baseline: {', '.join(slow)}", file=sys.stderr)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
