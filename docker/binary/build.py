"""What `make dist` makes, from modules that are compiled already: the executable, the same unpacked, wheel and sdist.

    python docker/binary/build.py [binary] [archive] [wheel] [sdist]

The wheel takes the compiled modules as they are, without their debugging symbols: nothing is compiled twice.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "dist"
WORK = ROOT / "build" / "dist"
MADE = WORK / "made"


def main(wanted: list[str]) -> int:
    unknown = set(wanted) - set(BUILDERS)
    if unknown:
        print(f"{', '.join(sorted(unknown))}: there are {', '.join(BUILDERS)}", file=sys.stderr)
        return 2
    DIST.mkdir(exist_ok=True)
    for part in wanted or BUILDERS:
        BUILDERS[part]()
    for path in sorted(DIST.iterdir()):
        size = f"{path.stat().st_size / 1e6:.1f} MB" if path.is_file() else "directory"
        print(f"{path.relative_to(ROOT)}\t{size}")
    return 0


def build_binary() -> None:
    """dist/penstock."""
    run(
        "PyInstaller",
        "--noconfirm",
        "--log-level=ERROR",
        f"--distpath={MADE}",
        f"--workpath={WORK / 'pyinstaller'}",
        "docker/binary/penstock.spec",
        PYINSTALLER_CONFIG_DIR=str(WORK / "cache"),  # not in the home directory
        PYINSTALLER_ZLIB_COMPRESSION_LEVEL="5",  # 9 takes three times as long and saves three percent
    )
    # Moved there at the end: who finds it finds all of it.
    (MADE / "penstock").replace(DIST / "penstock")


def build_archive() -> None:
    """The same as a directory in dist/penstock-VERSION-PLATFORM.tar.gz."""
    name = f"penstock-{version()}-{sysconfig.get_platform()}"
    shutil.rmtree(MADE / name, ignore_errors=True)
    shutil.copytree(MADE / "penstock-unpacked", MADE / name, symlinks=True)
    packed = shutil.make_archive(str(WORK / name), "gztar", MADE, name, owner="root", group="root")
    Path(packed).replace(DIST / f"{name}.tar.gz")


def build_wheel() -> None:
    tree = copy_tree()
    # Modules that are newer than their sources are not compiled again.
    tag = f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    target = tree / "build" / f"lib.{tag}" / "penstock" / "_ext"
    built = ROOT / "src/penstock/_ext"
    for module in built.glob("*/*.so"):
        stripped = target / module.relative_to(built)
        stripped.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["strip", "--strip-unneeded", "-o", str(stripped), str(module)], check=True)
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    run("pip", "wheel", *options, f"--wheel-dir={DIST}", str(tree))


def build_sdist() -> None:
    script = f"from setuptools import build_meta; build_meta.build_sdist({str(DIST)!r})"
    subprocess.run([sys.executable, "-c", script], cwd=copy_tree(), check=True, capture_output=True)


def copy_tree() -> Path:
    """The sources in a place of their own, since building leaves files beside them that would be taken for an
    installation; with the C that was made of them, so that it is not made again."""
    tree = WORK / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    for name in ("src", "ext"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info"))
    for name in (
        "pyproject.toml",
        "setup.py",
        "MANIFEST.in",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "constraints.txt",
    ):
        shutil.copy2(ROOT / name, tree)
    (tree / "build").mkdir()
    (tree / "build" / "cython").symlink_to(ROOT / "build" / "cython")
    return tree


def run(module: str, *arguments: str, **environment: str) -> None:
    subprocess.run([sys.executable, "-m", module, *arguments], cwd=ROOT, env={**os.environ, **environment}, check=True)


def version() -> str:
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


BUILDERS = {"binary": build_binary, "archive": build_archive, "wheel": build_wheel, "sdist": build_sdist}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
