"""The jars of Spark's Kafka connector for tests and benchmarks: fetched once by Maven into the user's cache.

python -m tests.spark.support.jars     downloads them and prints the directory
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

POM = Path(__file__).with_name("pom.xml")


def directory() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "penstock" / "spark-4.0.0-jars"


def fetch() -> list[Path]:
    """The jars; downloaded when they are not there yet. Half a download is never left under its name."""
    target = directory()
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as partly:
            fresh = Path(partly) / "jars"
            subprocess.run(
                ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies", f"-DoutputDirectory={fresh}"],
                check=True,
                timeout=600,
            )
            if not target.is_dir():
                fresh.rename(target)
    return sorted(target.glob("*.jar"))


if __name__ == "__main__":
    for jar in fetch():
        print(jar)
