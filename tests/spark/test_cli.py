"""`penstock spark`: real commands in real processes, their exit codes, and what they say."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.__main__ import main
from penstock.cli.spark import progress as spark_progress
from penstock_spark import package
from tests.spark.support.records import Sent, telemetry, write_embedded
from tests.spark.test_lake import expected, places
from tests.support.brokers.broker import REPOSITORY

# seconds for a command that takes ten on a machine that has nothing else to do
PATIENCE = 280
LOCAL = ("--master", "local[2]", "--conf", "spark.driver.memory=1g")


def start(*words: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", "spark", *words],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def penstock(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    process = start(*words, **environment)
    out, err = process.communicate(timeout=PATIENCE)
    return subprocess.CompletedProcess(words, process.returncode, out, err)


# What a run of `lake` leaves, in its order: a kill comes shortly after one of them, however fast the machine is.
SIGNS = ("_penstock/job.json", "_penstock/checkpoint/offsets/0", "_penstock/staging", "_penstock/ledger")


@pytest.mark.timeout(600)  # Spark starts twice, and the machine may be busy
def test_lake_killed_and_run_again(data_dir: Path, tmp_path: Path) -> None:
    """kill -9 at a random point of the work, of the driver and all that it started; then once more until it is done.

    Several kills of one job, at many points, are in test_lake.py: there Spark need not start again for each.
    """
    output = tmp_path / "lake"
    write_embedded(data_dir, telemetry(20_000, step_ms=1), properties={"segment.bytes": "1048576"}, pack=200)
    words = ("run", "lake", "-o", str(output), "--data-dir", str(data_dir), "--json", *LOCAL)
    pick = random.Random()
    sign = output / pick.choice(SIGNS)
    process = start(*words)
    while not sign.exists() and process.poll() is None:
        time.sleep(0.01)
    time.sleep(pick.uniform(0.0, 0.5))
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    _, said = process.communicate()
    # one that was done before the blow is as good as killed; one that failed by itself is not
    assert process.returncode in (-signal.SIGKILL, 0), said
    done = penstock(*words)
    assert done.returncode == 0, done.stderr
    assert places(output) == expected(data_dir, 20_000)
    assert json.loads(done.stdout.splitlines()[-1])["job"] == "lake"


def test_sql(spark: SparkSession, data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In this process: the commands take the Spark that is there."""
    write_embedded(data_dir, [*telemetry(30), Sent(raw=b"junk")])
    query = "SELECT client_id, count(*) AS n FROM messages WHERE topic LIKE 'plant/%' GROUP BY 1 ORDER BY 1"
    here = ("--data-dir", str(data_dir), "--master", "local[2]")
    assert main(["spark", "sql", query, "--filter", "plant/d1/#", *here]) == 0
    assert capsys.readouterr().out.split() == ["client_id", "n", "d1", "6"]
    assert (
        main(["spark", "sql", "SELECT qos, payload FROM messages WHERE log_offset = 0 LIMIT 1", "--json", *here]) == 0
    )
    assert json.loads(capsys.readouterr().out)["qos"] == 1
    assert main(["spark", "sql", "SELECT nothing FROM messages", *here]) == 1
    said = capsys.readouterr().err
    assert said.startswith("penstock: [UNRESOLVED_COLUMN")
    assert said.count("\n") == 1


def test_exit_codes(
    spark: SparkSession,
    data_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spark_progress, "LINE_SECONDS", 0.01)
    write_embedded(data_dir, [Sent(), Sent(raw=b"junk")])
    here = ("--data-dir", str(data_dir), "--master", "local[2]")
    assert main(["spark", "run", "lake", "-o", str(tmp_path / "lake"), "--fail-on-bad", *here]) == 1
    said = capsys.readouterr().err
    assert "1 records could not be read" in said
    # and how far it was while it ran
    assert re.search(r"spark lake: \d+ s, writing messages, \d of \d tasks", said)
    assert main(["spark", "run", "lake", "-o", str(tmp_path / "lake"), "--quiet", *here]) == 0
    assert capsys.readouterr().err == ""
    assert main(["spark", "run", "traffic", "-o", str(tmp_path / "t"), "--topics", "nothing", *here]) == 1
    assert "there is no topic 'nothing'" in capsys.readouterr().err
    assert main(["spark", "run", "traffic", "-o", f"{__file__}/out", *here]) == 1
    assert f"{__file__}/out cannot be written: Not a directory" in capsys.readouterr().err
    assert main(["spark", "run", "replay", "nowhere", *here]) == 2
    assert "is not a target" in capsys.readouterr().err
    assert main(["spark", "run", "lake", "-o", str(tmp_path / "l"), "--payload-json", "t BANANA", *here]) == 2


def test_without_pyspark(tmp_path: Path) -> None:
    hidden = tmp_path / "sitecustomize.py"
    hidden.write_text("import sys; sys.modules['pyspark'] = None\n")
    done = penstock("sql", "SELECT 1", PYTHONPATH=f"{tmp_path}{os.pathsep}{REPOSITORY / 'src'}")
    assert done.returncode == 1
    assert ".whl[spark]'" in done.stderr


@pytest.mark.timeout(600)  # as above
def test_submit_package(data_dir: Path, tmp_path: Path) -> None:
    """The zip alone, without compiled code and without this tree, runs a job."""
    write_embedded(data_dir, telemetry(40))
    target = tmp_path / "package"
    assert main(["spark", "submit-package", str(target)]) == 0
    with zipfile.ZipFile(target / "penstock_spark.zip") as archive:
        names = archive.namelist()
    assert "penstock_schema/decode.py" in names
    assert "penstock_spark/jobs/lake.py" in names
    assert not any(name.startswith("penstock/") for name in names)
    assert (target / "packages.txt").read_text() == "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0\n"
    done = subprocess.run(
        [sys.executable, "-S", "-c", RUN_FROM_ZIP, str(target), str(data_dir), str(tmp_path / "lake")],
        env={
            **os.environ,
            "PYTHONPATH": f"{target / 'penstock_spark.zip'}{os.pathsep}{_site()}",
            "PYSPARK_PYTHON": sys.executable,
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1])["messages"] == 40
    assert main(["spark", "submit-package", str(target)]) == 2


def test_submit_script(tmp_path: Path) -> None:
    """Words with blanks stay whole, and paths mean what they mean to the caller."""
    package.write(tmp_path / "package")
    fake = tmp_path / "bin/spark-submit"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\npwd\nfor word; do echo "$word"; done\n')
    fake.chmod(0o755)

    def submit(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PATH": f"{fake.parent}{os.pathsep}{os.environ['PATH']}"}
        command = ["package/submit.sh", *words]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    conf = "spark.driver.extraJavaOptions=-Da=1 -Db=2"
    said = submit("--conf", conf, "--", "lake", '{"path": "a b"}', "out", "--").stdout.splitlines()
    home = tmp_path / "package"
    assert said[0] == str(tmp_path)
    assert said[3:] == [
        "--py-files",
        str(home / "penstock_spark.zip"),
        "--conf",
        conf,
        str(home / "penstock_job.py"),
        "lake",
        '{"path": "a b"}',
        "out",
        "--",
    ]
    wrong = submit("lake", "{}", "out")
    assert (wrong.returncode, wrong.stderr.split()[0]) == (2, "usage:")


RUN_FROM_ZIP = """
import json, runpy, sys
package, data, output = sys.argv[1:]
sys.argv = ["job", "lake", json.dumps({"path": data}), output]
try:
    import penstock
except ImportError:
    pass
else:
    sys.exit("penstock itself must not be needed")
runpy.run_path(package + "/penstock_job.py", run_name="__main__")
"""


def _site() -> str:
    import pyspark  # noqa: PLC0415 - only to find where packages are installed

    return str(Path(pyspark.__file__).parents[1])


@pytest.fixture(autouse=True)
def _small_spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Spark of these processes, like that of the fixture, does not optimise what runs once."""
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    settings = tmp_path / "conf"
    settings.mkdir()
    (settings / "spark-defaults.conf").write_text(
        "spark.sql.codegen.wholeStage false\nspark.sql.codegen.factoryMode NO_CODEGEN\n"
        "spark.sql.adaptive.enabled false\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(settings))
