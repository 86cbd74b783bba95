"""A client needs little of the package: no broker, no SQL parser, no data frames."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
from penstock_client import Admin, AsyncConsumer, Consumer, TopicPartition, connect
heavy = {"uvloop", "sqlglot", "confluent_kafka", "lmdb", "pyarrow", "pandas", "numpy", "typer", "starlette", "hiredis"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
parts = {"penstock.broker", "penstock.storage", "penstock.subscribers"}
parts |= {"penstock._ext.query.evaluator", "penstock._ext.hub.connection"}
assert not parts & set(sys.modules), parts & set(sys.modules)
"""


def test_importing_the_client_loads_nothing_of_the_broker() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
