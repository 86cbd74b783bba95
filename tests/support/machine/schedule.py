"""In which order a run takes the files of tests, and which of them one process of a parallel run takes together.

Together: the files that share what is expensive to start, such as Spark, a Kafka of three brokers, or a broker with the
queues of a whole directory. First what takes long, so that at the end nobody waits for one that has just begun; the
directories stay together, as their files share brokers.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

TOGETHER = ("tests/spark", "tests/contract", "tests/wire/cluster", "tests/wire/datasub", "tests/wire/queues")
OF_UNITS = {
    # A Kafka of three brokers, beside tests/contract.
    "tests/unit/storage/log/test_kafka_cluster.py": "tests/contract",
    # Those with the executable, which the first of them makes.
    "tests/dist/test_binary_cluster.py": "tests/dist/test_binary.py",
    "tests/dist/test_service.py": "tests/dist/test_binary.py",
}
# What is not named comes behind them, long files first.
ORDER = (
    "tests/spark",
    "tests/wire/queues",
    "tests/adversity",
    "tests/dist",
    "tests/unit/docs",
    "tests/contract",
    "tests/wire/cluster",
    "tests/wire/application",
    "tests/wire/device",
    "tests/wire/datasub",
    "tests/unit/cli",
    "tests/unit/logs",
    "tests/unit/bench",
    "tests/model",
)
# Seconds, where it is more than a few.
LONG = {
    "tests/adversity/test_application_crash.py": 148,
    "tests/adversity/test_application_many.py": 81,
    "tests/adversity/test_application_slow_reader.py": 98,
    "tests/adversity/test_device_crash.py": 68,
    "tests/adversity/test_memory.py": 47,
    "tests/adversity/test_queue_crash.py": 127,
    "tests/adversity/test_share_crash.py": 30,
    "tests/dist/test_binary.py": 90,
    "tests/dist/test_binary_cluster.py": 15,
    "tests/dist/test_packages.py": 25,
    "tests/unit/docs/test_commands.py": 40,
    "tests/unit/docs/test_tree.py": 60,
    "tests/unit/ext/test_envelope.py": 20,
    "tests/unit/source/test_style.py": 50,
    "tests/wire/test_access_reload.py": 34,
    "tests/wire/test_app_command.py": 12,
    "tests/wire/test_backup.py": 12,
    "tests/wire/test_durable_messages.py": 27,
    "tests/wire/test_durable_sessions.py": 105,
    "tests/wire/test_durable_sessions_kafka.py": 45,
    "tests/wire/test_ingest.py": 27,
    "tests/wire/test_ingest_crash.py": 28,
    "tests/wire/test_ingest_kafka.py": 67,
    "tests/wire/test_ingest_slow_disk.py": 30,
    "tests/wire/test_kafka_secure.py": 110,
    "tests/wire/test_session_store_failures.py": 10,
    "tests/wire/test_stop_without_kafka.py": 65,
    "tests/wire/test_stored_data.py": 35,
}


def unit_of(file: str) -> str:
    """What one process takes: a file, or all those of a directory."""
    directory = str(PurePosixPath(file).parent)
    return OF_UNITS.get(file) or (directory if directory in TOGETHER else file)


def file_of(node_id: str) -> str:
    return node_id.partition("::")[0]


def place_of(item: pytest.Item) -> tuple[int, str, float, str]:
    """For sorting. Within a file the order stays."""
    file = file_of(item.nodeid)
    unit = unit_of(file)
    directory = unit if unit in TOGETHER else str(PurePosixPath(file).parent)
    rank = ORDER.index(directory) if directory in ORDER else len(ORDER)
    return rank, directory if rank < len(ORDER) else "", -LONG.get(file, 0), file
