"""One Spark for all tests of this directory: its start costs seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock_spark.session import make_session
from tests.spark.support import jars
from tests.support.servers.kafka_fixtures import kafka, topic

__all__ = ["kafka", "topic"]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = make_session(
        "penstock-tests",
        master="local[2]",
        jars=map(str, [*jars.fetch(), *jars.protobuf()]),
        conf={
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            "spark.sql.streaming.stopTimeout": "20s",
            # a few rows each: compiling a query would take longer than to run it
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.adaptive.enabled": "false",
            "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        },
    )
    yield session
    session.stop()


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A broker's data directory that is not there yet."""
    return tmp_path / "data"
