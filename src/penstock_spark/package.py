"""Writes what a Spark cluster needs to run the jobs: no broker has to be installed there."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import penstock_schema
import penstock_spark
from penstock_schema import publish_pb2
from penstock_spark.connector import PACKAGES, SPARK

ARCHIVE = "penstock_spark.zip"
DESCRIPTOR = "publish.desc"
DRIVER = "penstock_job.py"
SUBMIT = "submit.sh"


def _submit() -> str:
    packages = ",".join(PACKAGES)
    return f"""#!/bin/sh
# Runs a job on a cluster of Spark {SPARK}; the workers need Python with pyarrow, nothing of Penstock.
#   ./submit.sh --master yarn -- lake '{{"kafka": "host:9092"}}' hdfs:///lake '{{"levels": 2}}'
here=$(cd "$(dirname "$0")" && pwd) || exit 1
left=$# seen=
# the driver takes the place of the --; every other word stays as it is
while [ "$left" -gt 0 ]; do
    word=$1
    shift
    left=$((left - 1))
    if [ -z "$seen" ] && [ "$word" = "--" ]; then seen=1 word=$here/{DRIVER}; fi
    set -- "$@" "$word"
done
if [ -z "$seen" ]; then
    echo "usage: $0 [OPTION OF SPARK-SUBMIT ...] -- JOB SOURCE-JSON OUTPUT [OPTIONS-JSON]" >&2
    exit 2
fi
exec spark-submit --packages {packages} --py-files "$here/{ARCHIVE}" "$@"
"""


def write(directory: Path) -> dict[str, str]:
    """Names of the files, and what each is."""
    directory.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(directory / ARCHIVE, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in (penstock_schema, penstock_spark):
            root = Path(str(package.__file__)).parent
            for path in sorted(root.rglob("*")):
                if path.suffix in {".py", ".proto", ".properties"} or path.name == "py.typed":
                    archive.write(path, str(path.relative_to(root.parent)))
    shutil.copyfile(Path(str(penstock_spark.__file__)).with_name("cluster_job.py"), directory / DRIVER)
    (directory / "packages.txt").write_text("".join(f"{name}\n" for name in PACKAGES))
    (directory / SUBMIT).write_text(_submit())
    (directory / SUBMIT).chmod(0o755)
    (directory / DESCRIPTOR).write_bytes(publish_pb2.describe())
    return {
        ARCHIVE: "penstock_spark and penstock_schema in Python: --py-files",
        DRIVER: "the program that runs a job",
        "packages.txt": "coordinates of the jars: --packages",
        DESCRIPTOR: "the record for from_protobuf, where nothing of Penstock is wanted",
        SUBMIT: "calls spark-submit with all of it",
    }
