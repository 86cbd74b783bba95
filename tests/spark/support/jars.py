"""The jars of Spark's Kafka connector for tests and benchmarks: fetched once by Maven into the user's cache.

python -m tests.spark.support.jars             downloads them and prints their names
python -m tests.spark.support.jars protobuf    the same for spark-protobuf, which only one test needs
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
POMS = {"kafka": HERE / "pom.xml", "protobuf": HERE / "protobuf-pom.xml"}
DIRECTORIES = {"kafka": "spark-4.0.0-jars", "protobuf": "spark-4.0.0-protobuf-jars"}


def directory(which: str = "kafka") -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "penstock" / DIRECTORIES[which]


def protobuf() -> list[Path]:
    """The jars of spark-protobuf; none when nobody has fetched them."""
    return sorted(directory("protobuf").glob("*.jar"))


def fetch(which: str = "kafka") -> list[Path]:
    """The jars; downloaded when they are not there yet. Half a download is never left under its name."""
    target = directory(which)
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as partly:
            fresh = Path(partly) / "jars"
            pom = str(POMS[which])
            subprocess.run(
                ["mvn", "-q", "-B", "-f", pom, "dependency:copy-dependencies", f"-DoutputDirectory={fresh}"],
                check=True,
                timeout=600,
            )
            if not target.is_dir():
                fresh.rename(target)
    return sorted(target.glob("*.jar"))


if __name__ == "__main__":
    for jar in fetch(*sys.argv[1:2]):
        print(jar)
