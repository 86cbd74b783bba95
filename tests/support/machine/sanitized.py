"""`make asan`: storms against modules with AddressSanitizer, UndefinedBehaviorSanitizer and the debug checks.

A copy of the tree is built in build/asan, so that the modules in use stay as they are. Arguments replace the suites
below. A report of a sanitizer ends the broker, and so fails the test. The beginning of every distinct report is printed
at the end.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
COPY = ROOT / "build" / "asan"
SUITES = (
    "tests/adversity/test_take_over_storm.py",
    "tests/wire/cluster/test_storm.py",
    "tests/wire/cluster/test_take_over.py",
    "tests/adversity/test_random_clients.py",
    "tests/wire/test_take_over.py",
    "tests/wire/test_malformed.py",
    "tests/unit/ext/test_connection.py",
)
LOGS = COPY / "logs"  # directories of the tests, with the logs of their brokers
REPORT = re.compile(r"^.*(?:runtime error: |ERROR: AddressSanitizer).*$", re.MULTILINE)
STACK = 12  # lines of a report that are printed
OPTIONS = {
    # Python and librdkafka keep what they have allocated until the end.
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:handle_segv=1:allocator_may_return_null=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "PYTHONMALLOC": "malloc",
}


def main() -> int:
    copy_tree()
    built = {**os.environ, "PENSTOCK_SANITIZE": "1", "PENSTOCK_DEBUG": "1"}
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "-j", str(os.cpu_count())],
        cwd=COPY,
        env=built,
        check=True,
    )
    runtime = subprocess.run(["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    environment = {
        **os.environ,
        **OPTIONS,
        "LD_PRELOAD": str(Path(runtime.stdout.strip()).resolve()),
        "PYTHONPATH": str(COPY / "src"),
    }
    # Processes are forked while the sanitizer's threads run: every broker starts from scratch.
    environment["PENSTOCK_TEST_FORK"] = "no"
    shutil.rmtree(LOGS, ignore_errors=True)
    command = [sys.executable, "-m", "pytest", "--timeout", "900", "--basetemp", str(LOGS), *(sys.argv[1:] or SUITES)]
    ran = subprocess.run(
        command, cwd=COPY, env=environment, stdout=sys.stdout, stderr=subprocess.PIPE, text=True, check=False
    )
    return print_reports(ran.stderr) or ran.returncode


def print_reports(own: str) -> int:
    """Print every distinct report in the brokers' logs and in the tests' own output; return 1 when there is one."""
    print(own, file=sys.stderr)
    texts = [own, *(path.read_text(errors="replace") for path in LOGS.rglob("*.log"))]
    reports: dict[str, str] = {}
    for text in texts:
        for match in REPORT.finditer(text):
            lines = text[match.start() :].splitlines()[:STACK]
            reports.setdefault(re.sub(r"==\d+==|0x[0-9a-f]+", "", lines[0]), "\n".join(lines))
    for report in reports.values():
        print(report, end="\n\n")
    print(f"{len(reports)} reports of the sanitizers")
    return 1 if reports else 0


def copy_tree() -> None:
    """Everything git knows or would add, newer files only: what is unchanged is not compiled again."""
    COPY.mkdir(parents=True, exist_ok=True)
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    for name in listed:
        source, target = ROOT / name, COPY / name
        if not source.is_file():
            target.unlink(missing_ok=True)
        elif not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
            target.chmod(source.stat().st_mode)


if __name__ == "__main__":
    sys.exit(main())
