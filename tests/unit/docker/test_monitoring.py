"""Do dashboard and alerts ask for metrics that a broker really has, and do their expressions hold together?"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.operate.collector import MetricsPage
from penstock.services.node import ClusterNode
from penstock.services.rpc.instances import InstanceCalls
from penstock.storage.log.memory import MemoryLog
from tests.support.brokers.broker import Listener
from tests.support.brokers.deployment import DOCKER, ROOT, load_yaml, run_tool
from tests.support.brokers.file_broker import FileBroker
from tests.support.clients.packets import V5
from tests.support.worlds.service_settings import services

DASHBOARD = DOCKER / "grafana/dashboards/penstock.json"
METRIC = re.compile(r"\b(?:penstock|process)_[a-z0-9_]+")
LABELS = {"instance", "job", "qos", "cause", "client", "share", "version", "channel", "le"}
Series = list[dict[str, str]]


def dashboard() -> dict[str, Any]:
    return json.loads(DASHBOARD.read_text())  # type: ignore[no-any-return]  # it is a table


def expressions() -> Iterator[tuple[str, str]]:
    """Where it is, and the expression."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", []):
            yield f"panel {panel['title']!r}", target["expr"]
    for variable in dashboard()["templating"]["list"]:
        yield f"variable {variable['name']!r}", variable["query"]
    (rules,) = load_yaml(DOCKER / "prometheus/rules.yml")
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield f"alert {rule['alert']!r}", rule["expr"]


def exported(broker: FileBroker) -> set[str]:
    with urllib.request.urlopen(f"http://{broker.tables['admin']['address']}/metrics", timeout=30) as answer:
        return names_in(answer.read())


def names_in(page: bytes) -> set[str]:
    return set(re.findall(r"^(\w+)[ {]", page.decode(), re.M))


def of_calls() -> set[str]:
    """What only a broker that has others beside it shows; tests/wire/cluster sees it there."""

    async def read() -> dict[str, int | float]:
        log = MemoryLog()
        node = ClusterNode(log, services({}), "a", asyncio.get_running_loop())
        return InstanceCalls(log, node.queues.calls("sessions"), lambda request: request.data).counters("sessions")

    counters = asyncio.run(read())
    return names_in(MetricsPage(lambda: counters, "1").render())


def test_every_metric_is_one_of_a_running_broker(
    start_watched: Callable[..., FileBroker], connect: Callable[..., Any]
) -> None:
    """Metrics with labels are there from their first sample on: an APPLICATION client, and a client that is refused."""
    web = Listener("ws")
    broker = start_watched({"access": {"anonymous_type": "application"}}, (web,))
    client = connect(V5, "billing", broker=broker, clean_start=False, properties={"session_expiry_interval": 60})
    client.subscribe("orders/#", qos=1)
    with socket.create_connection(web.host_and_port, 30) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        while stranger.recv(4096):
            pass
    wanted = {metric for _, expression in expressions() for metric in METRIC.findall(expression)}
    assert len(wanted) > 40
    calls = of_calls()
    # The page is made once a second at most.
    deadline = time.monotonic() + 60
    while missing := wanted - exported(broker) - calls:
        assert time.monotonic() < deadline, f"not exported: {sorted(missing)}"
        time.sleep(0.2)


def test_expressions_are_well_formed() -> None:
    """Counters are asked for as rates, others are not; labels exist; brackets close."""
    for where, expression in expressions():
        assert expression.count("(") == expression.count(")"), where
        for metric, after in re.findall(r"\b((?:penstock|process)_[a-z0-9_]+)((?:\{[^}]*\})?\[?)", expression):
            is_counter = metric.endswith(("_total", "_bucket"))
            is_range = after.endswith("[") and not re.search(r"(?:min_over_time|deriv)\(" + metric, expression)
            assert is_counter == is_range, f"{where}: {metric}"
        for label in re.findall(r"[{,]\s*(\w+)\s*[=!]", expression):
            assert label in LABELS, f"{where}: there is no label {label}"


def test_dashboard_is_whole() -> None:
    board = dashboard()
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    (source,) = load_yaml(DOCKER / "grafana/provisioning/datasources/prometheus.yml")[0]["datasources"]
    uids = {panel["datasource"]["uid"] for panel in panels if panel["type"] != "row"}
    assert uids == {source["uid"]}
    assert source["url"] == "http://prometheus:9090"
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{panel['title']} lies over another one"
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_alerts_say_what_to_do() -> None:
    (rules,) = load_yaml(DOCKER / "prometheus/rules.yml")
    for rule in rules["groups"][0]["rules"]:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["action"]
        for page in re.findall(r"docs/[\w-]+\.md", rule["annotations"]["action"]):
            assert (ROOT / page).is_file()


def promtool(*words: str) -> None:
    """`make test` puts it beside Python where it is not installed."""
    path = shutil.which("promtool", path=os.pathsep.join([os.environ["PATH"], str(Path(sys.executable).parent)]))
    if path is None:
        pytest.skip("promtool is not to be had")
    done = run_tool(path, *words)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_agrees() -> None:
    promtool("check", "config", str(DOCKER / "prometheus/prometheus.yml"))


def test_promtool_can_read_every_expression(tmp_path: Path) -> None:
    """Those of the dashboard too, with what Grafana puts in for its variables."""
    rules = []
    for number, (where, expression) in enumerate(expressions()):
        if where.startswith("variable"):
            continue  # a question to Grafana, no expression of Prometheus
        text = re.sub(r"\$__(?:rate_)?interval", "5m", expression)
        assert "$__" not in text, where
        rules.append({"record": f"number_{number}", "expr": re.sub(r"\$\w+|\$\{\w+\}", ".*", text)})
    assert len(rules) > 40
    path = tmp_path / "rules.yml"
    path.write_text(json.dumps({"groups": [{"name": "all", "rules": rules}]}))
    promtool("check", "rules", str(path))


def run_cases(
    directory: Path, alert: str, fires: Series, stays: list[Series], labels: dict[str, str], *, at: str = "10m"
) -> None:
    """Asks promtool whether the alert is there at that time of the one series, and not there of the others."""

    def case(series: Series, expected: list[dict[str, Any]]) -> dict[str, Any]:
        asked = {"eval_time": at, "alertname": alert, "exp_alerts": expected}
        return {"interval": "10s", "input_series": series, "alert_rule_test": [asked]}

    rules = load_yaml(DOCKER / "prometheus/rules.yml")[0]["groups"][0]["rules"]
    (rule,) = (rule for rule in rules if rule["alert"] == alert)
    # What people read is looked at above; here only that the alert is there.
    bare = {**rule, "annotations": {}}
    (directory / "rules.yml").write_text(json.dumps({"groups": [{"name": "penstock", "rules": [bare]}]}))
    tests = [case(fires, [{"exp_labels": labels}]), *(case(series, []) for series in stays)]
    (directory / "cases.yml").write_text(json.dumps({"rule_files": ["rules.yml"], "tests": tests}))
    promtool("test", "rules", str(directory / "cases.yml"))


def up(**values: str) -> Series:
    return [{"series": f'up{{job="penstock", instance="{name}"}}', "values": value} for name, value in values.items()]


@pytest.mark.parametrize("fires", [up(a="1x48 stale"), up(a="1x90", b="1x90", c="1x48 stale")])
def test_containers_that_have_ended_are_told(tmp_path: Path, fires: Series) -> None:
    """Their name leads nowhere, so they are not among the targets. A new address of a node is no node less."""
    stays = [up(a="1x90", b="1x90"), up(a="1x48 stale", b="_x46 1x60")]
    run_cases(tmp_path, "PenstockIsGone", fires, stays, {"severity": "critical", "job": "penstock"}, at="15m")


def buckets(quick: str, slow: str) -> Series:
    """The series of a histogram by how many more answers there are every ten seconds: in 100 ms, and in 8 s."""
    name = 'penstock_response_lag_seconds_bucket{instance="a", channel="sessions", le="%s"}'
    return [
        {"series": name % edge, "values": more}
        for edge, more in (("0.1", quick), ("5.0", quick), ("10.0", slow), ("+Inf", slow))
    ]


@pytest.mark.parametrize(
    ("alert", "fires", "stays"),
    [
        (
            "PenstockCallsPile",
            [{"series": 'penstock_pending_requests_count{instance="a", channel="sessions"}', "values": "8001x60"}],
            [{"series": 'penstock_pending_requests_count{instance="a", channel="sessions"}', "values": "8000x60"}],
        ),
        (
            "PenstockCallsTimeOut",
            [{"series": 'penstock_request_timeout_count_total{instance="a", channel="sessions"}', "values": "0+17x60"}],
            [{"series": 'penstock_request_timeout_count_total{instance="a", channel="sessions"}', "values": "0+16x60"}],
        ),
        ("PenstockCallsAreSlow", buckets("0+98x60", "0+100x60"), buckets("0+100x60", "0+100x60")),
        # long ago they were slow: what is over does not hold the alert up
        ("PenstockCallsAreSlow", buckets("0+98x60", "0+100x60"), buckets("0+100x60", "9000+100x60")),
    ],
)
def test_alerts_of_calls_fire_at_the_thresholds_of_the_seed(
    tmp_path: Path, alert: str, fires: Series, stays: Series
) -> None:
    """More than 8,000 that wait, more than 100 a minute that time out, answers after more than 5 seconds."""
    run_cases(tmp_path, alert, fires, [stays], {"severity": "warning", "instance": "a", "channel": "sessions"})
