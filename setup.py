"""Builds the compiled hot path. All other metadata is in pyproject.toml."""

import itertools
import os
import time
from pathlib import Path

import Cython.Compiler.Options
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

EXT = Path("ext")
PACKAGE = "penstock._ext"
# One line per compiled module, leaves first.
MODULES = (
    "match.partition",
    "wire.buffer",
    "hub.message",
    "wire.codec",
    "wire.fields",
    "wire.packets_build",
    "wire.packets",
    "match.acl",
    "match.topic_tree",
    "match.trie",
    "match.retained",
    "hub.inflight",
    "wire.websocket",
    "record.segment",
    "device.rows",
    "device.commands",
    "query.block",
    "query.evaluator",
    "kafka.client",
    "record.envelope",
    "record.columns",
    "application.pack",
    "queue.pending",
    "services.calls",
    "hub.connection",
    "application.context",
    "application.feed",
    "application.lane",
    "device.outlet",
    "dispatch.desk",
    "local.outlet",
    "load.generator",
)
COVERAGE = bool(os.environ.get("PENSTOCK_COVERAGE"))
ANNOTATE = bool(os.environ.get("PENSTOCK_ANNOTATE"))
# Checks that the hot path does without: None where an object is needed, indices out of range, and C's own assertions.
DEBUG = bool(os.environ.get("PENSTOCK_DEBUG"))
WITHOUT_GIL = ("load.generator",)
# AddressSanitizer and UndefinedBehaviorSanitizer: `make asan`.
SANITIZE = bool(os.environ.get("PENSTOCK_SANITIZE"))
# A subset for quick rebuilds: PENSTOCK_MODULES=match.trie,hub.connection python setup.py build_ext --inplace
# `none` installs without compiling.
WANTED = os.environ.get("PENSTOCK_MODULES", "")
SELECTED = () if WANTED == "none" else tuple(filter(None, WANTED.split(","))) or MODULES

Cython.Compiler.Options.warning_errors = True


def extension(name: str) -> Extension:
    source = EXT.joinpath(*PACKAGE.split("."), *name.split(".")).with_suffix(".pyx")
    macros = []
    if COVERAGE:
        macros = [("CYTHON_TRACE", "1"), ("CYTHON_TRACE_NOGIL", "1"), ("CYTHON_USE_SYS_MONITORING", "0")]
    flags = ["-O1", "-g", "-fno-omit-frame-pointer"] if DEBUG or SANITIZE else ["-O2", "-g1"]
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"] if SANITIZE else []
    made = Extension(
        f"{PACKAGE}.{name}",
        [str(source)],
        include_dirs=[str(EXT / "include")],
        depends=[str(header) for header in sorted((EXT / "include").glob("*.h"))],
        define_macros=macros,
        extra_compile_args=[*flags, *sanitizers, "-Wall", "-Wsign-compare", "-Wno-unused-function"],
        extra_link_args=sanitizers,
    )
    # Code that runs without the GIL could not raise.
    made.cython_directives = {"nonecheck": DEBUG and name not in WITHOUT_GIL}
    return made


class BuildWithProgress(build_ext):
    """Reports each compiled module to the descriptor PENSTOCK_PROGRESS: the Makefile shows these lines and keeps the
    compilers' output in a file."""

    def build_extensions(self) -> None:
        self._numbers = itertools.count(1)
        super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        began = time.monotonic()
        super().build_extension(ext)
        number, seconds = next(self._numbers), time.monotonic() - began
        descriptor = os.environ.get("PENSTOCK_PROGRESS")
        if descriptor:
            line = f"  {number} of {len(self.extensions)}  {ext.name.removeprefix(PACKAGE + '.')}  {seconds:.0f} s\n"
            os.write(int(descriptor), line.encode())


setup(
    cmdclass={"build_ext": BuildWithProgress},
    ext_modules=cythonize(
        [extension(name) for name in SELECTED],
        include_path=[str(EXT)],
        build_dir=None if COVERAGE else "build/cython",  # Cython.Coverage needs the .c beside the .pyx
        annotate=ANNOTATE,
        compiler_directives={
            "language_level": "3",
            "linetrace": COVERAGE,
            "boundscheck": DEBUG,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": DEBUG,
        },
    ),
)
