"""Builds the compiled hot path. All other metadata is in pyproject.toml."""

import os
from pathlib import Path

import Cython.Compiler.Options
from Cython.Build import cythonize
from setuptools import Extension, setup

EXT = Path("ext")
PACKAGE = "penstock._ext"
# One line per compiled module, leaves first.
MODULES = (
    "partition",
    "buffer",
    "message",
    "codec",
    "fields",
    "packets_build",
    "packets",
    "acl",
    "topic_tree",
    "trie",
    "retained",
    "inflight",
    "websocket",
    "segment",
    "queue_rows",
    "queue_words",
    "block",
    "query",
    "kafka",
    "envelope",
    "columns",
    "pack",
    "pending",
    "calls",
    "connection",
    "load",
)
COVERAGE = bool(os.environ.get("PENSTOCK_COVERAGE"))
ANNOTATE = bool(os.environ.get("PENSTOCK_ANNOTATE"))
# A subset for quick rebuilds: PENSTOCK_MODULES=trie,acl python setup.py build_ext --inplace
# `none` installs without compiling.
WANTED = os.environ.get("PENSTOCK_MODULES", "")
SELECTED = () if WANTED == "none" else tuple(filter(None, WANTED.split(","))) or MODULES

Cython.Compiler.Options.warning_errors = True


def extension(name: str) -> Extension:
    source = EXT.joinpath(*PACKAGE.split("."), f"{name}.pyx")
    macros = []
    if COVERAGE:
        macros = [("CYTHON_TRACE", "1"), ("CYTHON_TRACE_NOGIL", "1"), ("CYTHON_USE_SYS_MONITORING", "0")]
    return Extension(
        f"{PACKAGE}.{name}",
        [str(source)],
        include_dirs=[str(EXT / "include")],
        depends=[str(header) for header in sorted((EXT / "include").glob("*.h"))],
        define_macros=macros,
        extra_compile_args=["-O2", "-g1", "-Wall", "-Wsign-compare", "-Wno-unused-function"],
    )


setup(
    ext_modules=cythonize(
        [extension(name) for name in SELECTED],
        include_path=[str(EXT)],
        build_dir=None if COVERAGE else "build/cython",  # Cython.Coverage needs the .c beside the .pyx
        annotate=ANNOTATE,
        compiler_directives={
            "language_level": "3",
            "linetrace": COVERAGE,
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
        },
    )
)
