"""A SparkSession as the jobs want it: this Python, UTC, and on one machine no more than it needs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping

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
    }
    if chosen.startswith("local"):
        # the workers are of this very Python, wherever it is installed
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
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
    register(spark)
    return spark
