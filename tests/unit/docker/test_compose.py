"""Do the compose files fit together, with the image, the settings and haproxy; is nothing open that need not be?"""

from __future__ import annotations

import json
import re
import shutil
import sys
from typing import Any

import pytest

from penstock.broker.check import check
from penstock.settings import Settings, load_settings
from tests.support.brokers.deployment import (
    COMPOSITIONS,
    DOCKER,
    ROOT,
    VERSION,
    image_environment,
    load_composition,
    load_dockerfile,
    load_yaml,
    parse_penstock,
    run_tool,
)
from tests.support.machine.compose_plugin import docker, environment_of_v2

# Kafka's image writes its settings into itself when it starts.
WRITES_TO_ITS_ROOT = re.compile(r"kafka(-\d)?")
OURS = re.compile(r"penstock(-\d)?")
SERVICES = [
    pytest.param(name, service, id=f"{name}-{service}")
    for name in ("kafka", "cluster", "single-monitoring", "single-spark")
    for service in load_composition(name)["services"]
]


def settings_of(service: dict[str, Any]) -> Settings:
    """As the broker in that container reads them."""
    image = next(stage for stage in load_dockerfile() if stage.name == "broker")
    environment = {**image_environment(image), **service["environment"]}
    assert all(isinstance(value, str) for value in environment.values()), "a number or a boolean: quote it"
    loaded = load_settings(None, environment)
    check(loaded.settings)
    return loaded.settings


def test_every_file_is_in_a_composition() -> None:
    used = {file for files in COMPOSITIONS.values() for file in files}
    assert used == {path.name for path in DOCKER.glob("compose*.yaml")}


@pytest.mark.parametrize(("name", "service"), SERVICES)
def test_image_is_pinned(name: str, service: str) -> None:
    """A version, never `latest`, and no registry in front: that is the reader's choice."""
    image = load_composition(name)["services"][service]["image"]
    repository, _, tag = image.partition(":")
    assert re.fullmatch(r"v?\d+\.\d+\.\d+(-\w+)?", tag), image
    assert "." not in repository.partition("/")[0], f"{image} names a registry"
    if repository.startswith("penstock"):
        assert tag == VERSION


@pytest.mark.parametrize(("name", "service"), SERVICES)
def test_service_is_hardened(name: str, service: str) -> None:
    table = load_composition(name)["services"][service]
    assert "no-new-privileges:true" in table["security_opt"]
    assert "privileged" not in table
    assert table.get("network_mode") != "host"
    for port in table.get("ports", []):
        assert port.startswith("127.0.0.1:"), f"{port} is open to the network"
    if not WRITES_TO_ITS_ROOT.fullmatch(service):
        assert table["read_only"] is True
        assert any(entry.partition(":")[0] == "/tmp" for entry in table["tmpfs"])
    if OURS.fullmatch(service) or service in ("spark", "haproxy", "prometheus", "grafana"):
        assert table["cap_drop"] == ["ALL"]


@pytest.mark.parametrize(("name", "service"), SERVICES)
def test_service_is_watched_and_stopped_in_time(name: str, service: str) -> None:
    table = load_composition(name)["services"][service]
    if "profiles" in table:
        return  # a job: it ends by itself
    assert table["healthcheck"]["test"][0] == "CMD"
    assert {"interval", "timeout", "retries"} <= set(table["healthcheck"])
    assert table["restart"] == "on-failure"
    if OURS.fullmatch(service):
        assert int(table["stop_grace_period"].removesuffix("s")) > settings_of(table).server.drain_seconds + 10


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_what_is_referred_to_is_there(name: str) -> None:
    """Volumes, files of ours, other services."""
    whole = load_composition(name)
    mounted = set()
    for service, table in whole["services"].items():
        for volume in table.get("volumes", []):
            source = volume.partition(":")[0]
            if source.startswith("."):
                assert (DOCKER / source).exists(), f"{service} mounts {source}"
                assert volume.endswith(":ro")
            else:
                mounted.add(source)
        for needed, how in table.get("depends_on", {}).items():
            assert how == {"condition": "service_healthy"}
            assert "healthcheck" in whole["services"][needed]
        if "build" in table:
            assert (DOCKER / table["build"]["context"]).resolve() == ROOT
            assert (ROOT / table["build"]["dockerfile"]).is_file()
    assert mounted == set(whole["volumes"])


@pytest.mark.parametrize("name", ["single", "kafka", "cluster"])
def test_settings_are_accepted(name: str) -> None:
    for service, table in load_composition(name)["services"].items():
        if OURS.fullmatch(service):
            settings = settings_of(table)
            assert settings.server.data_dir in {volume.split(":")[1] for volume in table["volumes"]}
            assert settings.log.provider == ("embedded" if name == "single" else "kafka")


def test_nodes_of_the_cluster_are_one() -> None:
    services = load_composition("cluster")["services"]
    nodes = {service: settings_of(table) for service, table in services.items() if OURS.fullmatch(service)}
    assert len(nodes) == 3
    assert {service: settings.server.node_id for service, settings in nodes.items()} == {node: node for node in nodes}
    for settings in nodes.values():
        assert settings.kafka.bootstrap_servers == "kafka-1:9092,kafka-2:9092,kafka-3:9092"
        assert settings.kafka.replication_factor == 3
        assert "min.insync.replicas:2" in settings.kafka.topic_properties
        assert settings.kafka.acks == "all"
        assert (settings.device.store, settings.redis.addresses) == ("redis", "redis:6379")
        assert settings.listeners[0].proxy_protocol


def test_kafka_and_redis_keep_what_they_were_given() -> None:
    services = load_composition("cluster")["services"]
    brokers = [table["environment"] for service, table in services.items() if service.startswith("kafka")]
    assert sorted(broker["KAFKA_NODE_ID"] for broker in brokers) == ["1", "2", "3"]
    for broker in brokers:
        assert broker["KAFKA_MIN_INSYNC_REPLICAS"] == "2"
        assert broker["KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR"] == "3"
        assert broker["KAFKA_UNCLEAN_LEADER_ELECTION_ENABLE"] == "false"
        assert f"{broker['KAFKA_NODE_ID']}@" in broker["KAFKA_CONTROLLER_QUORUM_VOTERS"]
    for name in ("kafka", "cluster"):
        command = " ".join(load_composition(name)["services"]["redis"]["command"])
        assert "--appendonly yes --appendfsync always --maxmemory-policy noeviction" in command


def backend_of(text: str, name: str) -> str:
    """What stands below `backend name`, up to the next section."""
    found = re.search(rf"^backend {name}\n((?:    .*\n)+)", text, re.M)
    assert found, f"haproxy has no backend {name}"
    return found[1]


def test_haproxy_knows_the_nodes() -> None:
    """Names and ports, the PROXY header that only MQTT listeners expect, where the nodes say that they are ready."""
    text = (DOCKER / "haproxy/haproxy.cfg").read_text()
    services = load_composition("cluster")["services"]
    nodes = {service: settings_of(table) for service, table in services.items() if OURS.fullmatch(service)}
    (admin_port,) = {settings.admin.address.rpartition(":")[2] for settings in nodes.values()}
    addresses = {
        "penstock": {node: settings.listeners[0].address for node, settings in nodes.items()},
        "penstock-data": {node: settings.data_subscription.address for node, settings in nodes.items()},
    }
    for name, listening in addresses.items():
        backend = backend_of(text, name)
        servers = dict(re.findall(r"^\s+server (\S+) (\S+)$", backend, re.M))
        assert servers == {node: f"{node}:{address.rpartition(':')[2]}" for node, address in listening.items()}
        assert "option httpchk GET /readyz" in backend
        (defaults,) = re.findall(r"^\s+default-server (.*)$", backend, re.M)
        assert f"check port {admin_port} " in defaults
        assert ("send-proxy-v2" in defaults) == (name == "penstock")
    (minutes,) = set(re.findall(r"^\s+timeout (?:client|server) (\d+)m$", text, re.M))
    assert int(minutes) * 60 > 1.5 * max(settings.limits.max_keep_alive for settings in nodes.values())
    published = {port.rpartition(":")[2] for port in services["haproxy"]["ports"]}
    assert published == {"1883", "6030"}
    for port in published:
        assert f"bind :{port}\n" in text


def test_monitoring_finds_every_node() -> None:
    """By one name that all nodes have."""
    (config,) = load_yaml(DOCKER / "prometheus/prometheus.yml")
    (found,) = config["scrape_configs"][0]["dns_sd_configs"]
    assert config["rule_files"] == ["rules.yml"]
    for name in ("single", "cluster"):
        for service, table in load_composition(name)["services"].items():
            if OURS.fullmatch(service):
                aliases = table.get("networks", {}).get("default", {}).get("aliases", [])
                assert found["names"] == ["penstock"]
                assert "penstock" in [service, *aliases]
                assert settings_of(table).admin.address.endswith(f":{found['port']}")


def test_spark_runs_a_job_of_ours() -> None:
    """It writes only to its own volume and may execute what it unpacks: docker mounts a tmpfs without that."""
    spark = load_composition("single-spark")["services"]["spark"]
    output = parse_penstock(spark["command"])["output"]
    mounted = {volume.split(":")[1]: volume.endswith(":ro") for volume in spark["volumes"]}
    assert mounted == {output: False, "/var/lib/penstock": True}
    assert spark["working_dir"] == output
    (temporary,) = spark["tmpfs"]
    assert "exec" in temporary.partition(":")[2].split(",")


def test_schema_of_the_specification_agrees() -> None:
    """Of each file by itself: Compose's own schema, as check-jsonschema has it in its package."""
    files = sorted(map(str, DOCKER.glob("compose*.yaml")))
    done = run_tool(sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", *files)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_compose_itself_agrees(name: str) -> None:
    """Version 2, installed or made by `make tools-compose`: it knows what we mean and warns of nothing."""
    variables = environment_of_v2()
    if variables is None:
        pytest.skip("docker compose is not installed; `make tools-compose` makes it")
    files = [word for file in COMPOSITIONS[name] for word in ("-f", str(DOCKER / file))]
    done = docker("compose", *files, "--profile", "*", "config", "--format", "json", **variables)
    assert (done.returncode, done.stderr) == (0, "")
    understood = json.loads(done.stdout)
    meant = load_composition(name)
    assert set(understood["services"]) == set(meant["services"])
    assert set(understood["volumes"]) == set(meant["volumes"])
    for service, table in meant["services"].items():
        for key, value in table.get("environment", {}).items():
            assert understood["services"][service]["environment"][key] == value


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_the_first_compose_agrees(name: str) -> None:
    """Version 1, which Debian 12 has, where it is installed."""
    if shutil.which("docker-compose") is None or "version 1." not in run_tool("docker-compose", "version").stdout:
        pytest.skip("docker-compose 1 is not installed")
    files = [word for file in COMPOSITIONS[name] for word in ("-f", str(DOCKER / file))]
    done = run_tool("docker-compose", *files, "config", "-q")
    assert done.returncode == 0, done.stderr
    assert "is not set" not in done.stderr
