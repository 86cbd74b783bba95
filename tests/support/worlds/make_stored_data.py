"""Make the files of tests/data/stored-79aea34 with the code of the commit before the modules were moved.

git worktree add --detach /tmp/earlier 79aea34 && make -C /tmp/earlier build
python -m tests.support.worlds.make_stored_data /tmp/earlier [embedded | kafka]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.brokers import broker as broker_module
from tests.support.clients.raw_client import RawClient
from tests.support.servers.kafka_cluster import KafkaCluster
from tests.support.servers.redis_server import own_redis
from tests.support.worlds.stored_data import (
    EMBEDDED,
    KAFKA,
    SECRET,
    StoredDataBroker,
    fill,
    pack_directory,
    pack_servers,
)


def write_users(tree: Path, directory: Path) -> None:
    """alice and bob, as the `passwd` command of that code writes them."""
    for number, user in enumerate(("alice", "bob")):
        words = ["passwd", *(["-c"] if number == 0 else []), "-b", str(directory / "users"), user, SECRET]
        environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
        subprocess.run([sys.executable, "-m", "penstock", *words], env=environment, check=True)


def close(clients: list[RawClient]) -> None:
    for client in clients:
        client.close()


def make_embedded(tree: Path) -> None:
    with tempfile.TemporaryDirectory() as directory:
        write_users(tree, Path(directory))
        broker = StoredDataBroker(Path(directory))
        broker.wait_until_listening()
        clients = fill(broker)
        broker.kill()
        pack_directory(broker)
        close(clients)


def make_kafka(tree: Path) -> None:
    cluster = KafkaCluster(1).start()
    try:
        with own_redis() as redis, tempfile.TemporaryDirectory() as directory:
            write_users(tree, Path(directory))
            broker = StoredDataBroker(Path(directory), cluster, redis)
            broker.wait_until_listening()
            clients = fill(broker)
            broker.kill()
            pack_servers(broker, cluster, redis)
            close(clients)
    finally:
        cluster.stop()


def main() -> None:
    tree = Path(sys.argv[1]).resolve()
    os.environ["PENSTOCK_TEST_FORK"] = "no"  # brokers load their modules from that tree
    broker_module.REPOSITORY = tree
    if "kafka" not in sys.argv[2:]:
        make_embedded(tree)
        print(EMBEDDED, EMBEDDED.stat().st_size)
    if "embedded" not in sys.argv[2:]:
        make_kafka(tree)
        print(KAFKA, KAFKA.stat().st_size)


if __name__ == "__main__":
    main()
