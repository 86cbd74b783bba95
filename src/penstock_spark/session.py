"""A SparkSession as the jobs want it: this Python, UTC, and on one machine no more than it needs."""

from __future__ import annotations

import hashlib
import logging
import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import pyspark
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from penstock_spark.source import register

LOCAL = "local[*]"


def make_session(
    name: str = "penstock",
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    jars: Iterable[str] = (),
    quiet: bool = True,
) -> SparkSession:
    """A session with the data source registered. `conf` wins over everything here."""
    chosen = master or os.environ.get("SPARK_MASTER") or LOCAL
    settings = {
        "spark.app.name": name,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        # payloads may have megabytes
        "spark.sql.execution.arrow.maxBytesPerBatch": "16m",
        # Parquet by directories without sorting all rows first, as long as there are not more directories than this
        "spark.sql.maxConcurrentOutputFileWriters": "64",
    }
    if chosen.startswith("local"):
        # the workers are of this very Python, wherever it is installed
        os.environ.setdefault("PYSPARK_PYTHON", worker_python())
        use_utf8()
        settings |= {
            "spark.driver.memory": "2g",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
        }
    found = [str(jar) for jar in jars]
    if found:
        settings["spark.jars"] = ",".join(found)
    builder = SparkSession.builder.master(chosen)
    for key, value in {**settings, **(conf or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    if quiet:
        spark.sparkContext.setLogLevel("ERROR")
        # what is raised need not be printed as well, with the stack of Java in one line
        for logger in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
            PySparkLogger.getLogger(logger).disabled = True
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
    register(spark)
    return spark


def use_utf8() -> None:
    """Java writes the names of files as the locale says: in that of `cron`, topics with an umlaut would be lost."""
    named = next((os.environ[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if os.environ.get(name)), "")
    if "utf" not in named.lower():
        os.environ["LC_ALL"] = "C.UTF-8"


# Leaves Spark's archives out of the path, so that Python finds the packages that are installed.
_WRAPPER = """#!/bin/sh
kept=
IFS=:
for entry in $PYTHONPATH; do
    case $entry in */pyspark.zip | */py4j-*-src.zip) ;; *) kept=$kept${kept:+:}$entry ;; esac
done
export PYTHONPATH="$kept"
exec %s "$@"
"""


def worker_python() -> str:
    """This Python for Spark's workers, started so that it finds the pyspark that is installed.

    Spark lets them import its pyspark.zip, which Python has to compile at each start: 1.4 s instead of 0.5 s for each
    of the five processes of a job, and ten seconds are all that Spark waits for some of them.
    """
    packages = str(Path(pyspark.__file__).parents[1])
    if packages not in sys.path or packages in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        return sys.executable  # it would not find pyspark without being told
    text = _WRAPPER % shlex.quote(sys.executable)
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    path = Path(root) / "penstock" / f"python-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if not path.exists():
        partly = path.with_suffix(f".{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partly.write_text(text)
            partly.chmod(0o700)
            partly.rename(path)
        except OSError:
            return sys.executable  # nowhere to keep it: the slower way works too
    return str(path)
