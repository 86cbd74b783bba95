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


WITHOUT_COMPILED = """
import importlib, pkgutil, sys
sys.modules["penstock._ext"] = None  # importing anything of it fails
import penstock_client
for module in pkgutil.walk_packages(penstock_client.__path__, "penstock_client."):
    importlib.import_module(module.name)
for name in penstock_client.__all__:
    getattr(penstock_client, name)
from penstock_client.messages import Rows
assert Rows.__module__ == "penstock_client.rows"
"""


def test_the_client_needs_no_compiled_code() -> None:
    command = [sys.executable, "-c", WITHOUT_COMPILED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
