"""Do the manifests fit together, with the image and with the settings, as far as that can be said without a cluster?"""

from __future__ import annotations

import copy
import shutil
import tomllib
from typing import Any

import pytest
import yaml
from kubernetes_validate import ValidationError, latest_version, validate

from penstock.broker.check import check
from penstock.settings import load_settings
from tests.support.brokers.deployment import DOCKER, VERSION, image_environment, load_dockerfile, load_yaml, run_tool

FOLDER = DOCKER / "kubernetes"
(KUSTOMIZATION,) = load_yaml(FOLDER / "kustomization.yaml")
RESOURCES = [document for name in KUSTOMIZATION["resources"] for document in load_yaml(FOLDER / name)]
BY_KIND = {(document["kind"], document["metadata"]["name"]): document for document in RESOURCES}
STATEFUL_SET = BY_KIND["StatefulSet", "penstock"]["spec"]
POD = STATEFUL_SET["template"]["spec"]
(CONTAINER,) = POD["containers"]
IMAGE = next(stage for stage in load_dockerfile() if stage.name == "broker")


def test_every_file_is_used() -> None:
    files = {path.name for path in FOLDER.iterdir()}
    (generated,) = KUSTOMIZATION["configMapGenerator"]
    used = {"kustomization.yaml", *KUSTOMIZATION["resources"], *generated["files"]}
    assert files - used == {"servicemonitor.yaml"}, "only the one that needs an operator stands apart"


def test_settings_are_accepted(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The file, with what the image and the pod add; its paths are where the volumes are."""
    environment = {**image_environment(IMAGE), "PENSTOCK_SERVER__NODE_ID": "penstock-0"}
    loaded = load_settings(FOLDER / "penstock.toml", environment, check=False)
    settings = loaded.settings
    check(settings)
    mounts = {mount["mountPath"]: mount["name"] for mount in CONTAINER["volumeMounts"]}
    assert mounts["/etc/penstock"] == "settings"
    assert settings.access.password_file.rpartition("/")[0] in mounts
    assert settings.server.data_dir in mounts
    assert settings.access.anonymous == "deny"
    assert settings.kafka.replication_factor == 3
    assert "min.insync.replicas:2" in settings.kafka.topic_properties
    assert settings.device.store == "redis"
    # Ready to be ended: told to balancers, drained, closed.
    (pause,) = [int(word) for word in CONTAINER["lifecycle"]["preStop"]["exec"]["command"] if word.isdigit()]
    assert POD["terminationGracePeriodSeconds"] > pause + settings.server.drain_seconds + 15
    # A file with a password file, so that the listener of the image may be open.
    passwords = tmp_path_factory.mktemp("secret") / "passwords"
    passwords.write_text("")
    environment["PENSTOCK_ACCESS__PASSWORD_FILE"] = str(passwords)
    load_settings(FOLDER / "penstock.toml", environment)


def test_names_of_the_environment() -> None:
    """Kubernetes adds PENSTOCK_SERVICE_HOST for a service of that name unless it is told not to; that is no setting."""
    assert POD["enableServiceLinks"] is False
    names = [variable["name"] for variable in CONTAINER["env"]]
    assert names == ["PENSTOCK_SERVER__NODE_ID"]
    assert CONTAINER["env"][0]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"


def test_labels_and_selectors_meet() -> None:
    labels = STATEFUL_SET["template"]["metadata"]["labels"].items()

    def selects(selector: dict[str, str]) -> bool:
        return selector.items() <= labels

    assert selects(STATEFUL_SET["selector"]["matchLabels"])
    assert selects(BY_KIND["PodDisruptionBudget", "penstock"]["spec"]["selector"]["matchLabels"])
    assert selects(BY_KIND["NetworkPolicy", "penstock"]["spec"]["podSelector"]["matchLabels"])
    for (kind, _), document in BY_KIND.items():
        if kind == "Service":
            assert selects(document["spec"]["selector"])
    (spread,) = POD["topologySpreadConstraints"]
    assert selects(spread["labelSelector"]["matchLabels"])
    assert BY_KIND["Service", STATEFUL_SET["serviceName"]]["spec"]["clusterIP"] == "None"


def test_ports_meet() -> None:
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    environment = image_environment(IMAGE)
    assert str(ports["mqtt"]) == environment["PENSTOCK_LISTENERS"].rpartition(":")[2]
    assert str(ports["admin"]) == environment["PENSTOCK_ADMIN__ADDRESS"].rpartition(":")[2]
    assert str(ports["data"]) == environment["PENSTOCK_DATA_SUBSCRIPTION__ADDRESS"].rpartition(":")[2]
    for probe, path in (("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert CONTAINER[probe]["httpGet"] == {"path": path, "port": "admin"}
    for (kind, _), document in BY_KIND.items():
        if kind == "Service":
            for port in document["spec"]["ports"]:
                assert ports[port["targetPort"]] == port["port"]
    ingress = BY_KIND["NetworkPolicy", "penstock"]["spec"]["ingress"]
    allowed = {port["port"]: rule.get("from") for rule in ingress for port in rule["ports"]}
    assert sorted(allowed) == ["admin", "data", "mqtt", "nodes"]
    assert allowed["mqtt"] is allowed["data"] is None  # from everywhere
    assert allowed["nodes"] == [{"podSelector": {"matchLabels": STATEFUL_SET["selector"]["matchLabels"]}}]
    settings = tomllib.loads((FOLDER / "penstock.toml").read_text())
    assert settings["cluster"]["relay_address"] == f"*:{ports['nodes']}"
    assert STATEFUL_SET["template"]["metadata"]["annotations"]["prometheus.io/port"] == str(ports["admin"])


def test_volumes_meet() -> None:
    volumes = {volume["name"]: volume for volume in POD["volumes"]}
    assert set(volumes) == {mount["name"] for mount in CONTAINER["volumeMounts"]}
    (generated,) = KUSTOMIZATION["configMapGenerator"]
    assert volumes["settings"]["configMap"]["name"] == generated["name"]
    assert volumes["passwords"]["secret"]["secretName"] == "penstock-passwords"
    assert volumes["passwords"]["secret"]["defaultMode"] == 0o440


def test_pod_is_hardened() -> None:
    user = IMAGE.all("USER")[-1].partition(":")[0]
    context: dict[str, Any] = POD["securityContext"]
    assert (context["runAsNonRoot"], str(context["runAsUser"]), str(context["fsGroup"])) == (True, user, user)
    assert context["seccompProfile"]["type"] == "RuntimeDefault"
    assert CONTAINER["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert POD["automountServiceAccountToken"] is False
    assert "limits" in CONTAINER["resources"]


def test_image_has_a_version() -> None:
    (image,) = KUSTOMIZATION["images"]
    assert image == {"name": CONTAINER["image"], "newTag": VERSION}


def test_service_monitor_finds_the_nodes() -> None:
    (monitor,) = load_yaml(FOLDER / "servicemonitor.yaml")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    found = [
        name
        for (kind, name), each in BY_KIND.items()
        if kind == "Service" and wanted <= each["metadata"]["labels"].items()
    ]
    assert found == ["penstock-nodes"]
    assert monitor["spec"]["endpoints"][0]["port"] in {
        port["name"] for port in BY_KIND["Service", found[0]]["spec"]["ports"]
    }


@pytest.mark.parametrize("version", ["1.25", "1.29", "1.33", latest_version()])
def test_schema_of_the_api_agrees(version: str) -> None:
    """Every field is one that Kubernetes has, and of its type; kubernetes-validate has the schemas in its package."""
    for document in RESOURCES:
        validate(document, version, strict=True)


def test_schema_finds_mistakes() -> None:
    wrong = copy.deepcopy(BY_KIND["StatefulSet", "penstock"])
    wrong["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(ValidationError, match="readinesProbe"):
        validate(wrong, latest_version(), strict=True)


def test_kubectl_puts_it_together() -> None:
    """Where it is installed; what comes out is valid as a whole."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    done = run_tool("kubectl", "kustomize", str(FOLDER))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\nkind: ") == len(RESOURCES) + 1
    assert f"image: penstock:{VERSION}" in done.stdout
    for document in yaml.safe_load_all(done.stdout):
        validate(document, latest_version(), strict=True)
