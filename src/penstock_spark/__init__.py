"""Spark reads what the broker logged: the data source `penstock`, transforms and jobs.

Imports penstock_schema only; penstock's compiled modules make it fast where they are installed.
"""

from penstock_spark.errors import PenstockSparkError
from penstock_spark.reading import read_messages, sql_over_messages
from penstock_spark.schema import MESSAGES
from penstock_spark.source import PenstockSource, register

__all__ = ["MESSAGES", "PenstockSource", "PenstockSparkError", "read_messages", "register", "sql_over_messages"]
