"""Where and with what a result was measured: processor, kernel and the versions of everything that takes part."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

from penstock_bench.system import program_path

HERE = Path(__file__).resolve().parent


def output_of(*command: str, directory: Path | None = None) -> str:
    """Return the output of a program, "" if it is not installed."""
    program = shutil.which(command[0], path=program_path())
    if program is None:
        return ""
    done = subprocess.run(
        [program, *command[1:]], capture_output=True, text=True, timeout=20, check=False, cwd=directory
    )
    return (done.stdout + done.stderr).strip()


def cpu_model() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def memory_gib() -> float:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)


def distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""


def package_version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def penstock_version() -> str:
    """The version that is installed, with the commit where it runs from its source tree."""
    version = package_version("penstock") or "(not installed)"
    # The single-file executable has no such directory, not even the one that it was made in.
    is_source = HERE.is_dir() and (HERE.parents[2] / ".git").exists()
    commit = output_of("git", "rev-parse", "--short", "HEAD", directory=HERE) if is_source else ""
    return f"{version} ({commit})" if re.fullmatch(r"[0-9a-f]{7,40}", commit) else version


def mosquitto_version(program: str = "mosquitto") -> str:
    found = re.search(r"mosquitto version (\S+)", output_of(program, "-h"))
    return found[1] if found else ""


def describe_machine() -> dict[str, str | int | float]:
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count() or 0,
        "memory_gib": memory_gib(),
        "os": distribution() or platform.system(),
        "kernel": platform.release(),
    }


def describe_versions() -> dict[str, str]:
    versions = {
        "penstock": penstock_version(),
        "mosquitto": mosquitto_version(),
        "python": platform.python_version(),
        "cython": package_version("cython"),
        "uvloop": package_version("uvloop"),
        "compiler": output_of("cc", "--version").partition("\n")[0],
    }
    return {name: version for name, version in versions.items() if version}
