"""Can a connection of somebody else have the port of a server that a test starts, or starts again?"""

from pathlib import Path

from tests.support.machine.ports import free_pair, free_port
from tests.support.servers.kafka_cluster import KafkaCluster
from tests.support.servers.redis_server import RedisServer


def first_of_connections():
    return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])


def test_servers_are_where_no_connection_begins(tmp_path):
    nodes = KafkaCluster(3, tmp_path).nodes
    ports = [port for node in nodes for port in (node.port, node.controller_port)]
    ports += [free_port(), free_pair(10_000) + 10_000, RedisServer().port]
    assert max(ports) < first_of_connections()
    assert len(set(ports)) == len(ports)
