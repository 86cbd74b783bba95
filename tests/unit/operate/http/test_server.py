"""The admin address: metrics, health and readiness over real HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import uvloop
from prometheus_client.parser import text_string_to_metric_families

from penstock.core.metrics import ClientSample, QueueSample, ShareSample
from penstock.operate.collector import MetricsPage
from penstock.operate.http.server import AdminError, AdminServer
from penstock.settings.model import AdminSettings

COUNTERS = {
    "connections_total": 3,
    "connections_current": 2,
    "messages_received_qos1": 5,
    "messages_dropped_expired": 1,
}


async def get(server: AdminServer, path: str, asked: str | None = None) -> tuple[int, dict[str, str], bytes]:
    host, _, port = server.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {asked or server.address}\r\nConnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    status, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    return int(status.split()[1]), headers, body


def serve(test: Any, checks: dict[str, Any] | None = None) -> None:
    async def run() -> None:
        server = AdminServer(AdminSettings(address="127.0.0.1:0"), checks or {}, lambda: COUNTERS)
        await server.start()
        try:
            await test(server)
        finally:
            await server.stop()

    uvloop.run(asyncio.wait_for(run(), 60))


def test_metrics_are_what_prometheus_reads():
    async def test(server: AdminServer) -> None:
        status, headers, body = await get(server, "/metrics")
        assert status == 200
        assert headers["content-type"].startswith("text/plain; version=0.0.4")
        samples = {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(body.decode())
            for sample in family.samples
        }
        assert samples["penstock_connections_total",] == 3
        assert samples["penstock_connections_open",] == 2
        assert samples["penstock_messages_received_total", "1"] == 5
        assert samples["penstock_messages_dropped_total", "expired"] == 1
        assert samples["process_resident_memory_bytes",] > 1_000_000
        assert samples["process_open_fds",] > 2
        assert any(name == "penstock_build_info" for name, *_ in samples)

    serve(test)


def test_metrics_are_made_once_a_second_however_many_ask():
    readings, now = [0], [100.0]

    def read() -> dict[str, int]:
        readings[0] += 1
        return COUNTERS

    page = MetricsPage(read, "1", clock=lambda: now[0])
    assert page.render() == page.render()
    assert readings == [1]
    now[0] += 1
    page.render()
    assert readings == [2]


def test_clients_have_metrics_of_their_own_as_many_as_allowed():
    clients = [ClientSample('we"ird\n', 9, 1, 2, 3), ClientSample("b", 8, 0, 0, 0), ClientSample("c", 7, 0, 0, 0)]
    page = MetricsPage(dict, "1", read_clients=lambda: clients, most_clients=2).render().decode()
    samples = {
        (sample.name, sample.labels["client"]): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if "client" in sample.labels
    }
    assert {client for _, client in samples} == {'we"ird\n', "b"}
    assert samples["penstock_application_client_lag", 'we"ird\n'] == 9
    assert samples["penstock_application_client_retries_total", 'we"ird\n'] == 2
    assert samples["penstock_application_client_expired_total", "b"] == 0


def test_so_have_shares():
    shares = [
        ShareSample("$share/g/a/#", 5, 1, 2),
        ShareSample("$share/g/b", 6, 0, 1),
        ShareSample("$share/h/b", 4, 0, 1),
    ]
    page = MetricsPage(dict, "1", read_shares=lambda: shares, most_clients=2).render().decode()
    assert 'penstock_application_share_lag{share="$share/g/a/#"} 5.0' in page
    assert 'penstock_application_share_members{share="$share/g/b"} 1.0' in page
    assert "$share/h" not in page


def test_so_have_queues():
    queues = [
        QueueSample("orders", 5, 1, 2, 0),
        QueueSample("$dlq/orders", 6, 0, 1, 3),
        QueueSample("idle", 0, 0, 0, 0),
    ]
    page = MetricsPage(dict, "1", read_queues=lambda: queues, most_queues=2).render().decode()
    assert 'penstock_queue_depth{queue="orders"} 5.0' in page
    assert 'penstock_queue_dead_total{queue="$dlq/orders"} 3.0' in page
    assert "idle" not in page
    assert "orders" not in MetricsPage(dict, "1", read_queues=lambda: queues).render().decode()


def test_health_and_the_page_that_lists_everything():
    async def test(server: AdminServer) -> None:
        assert (await get(server, "/healthz"))[0::2] == (200, b"ok\n")
        status, headers, body = await get(server, "/")
        assert status == 200
        assert headers["content-type"].startswith("text/html")
        assert all(path in body for path in (b"/metrics", b"/healthz", b"/readyz"))
        assert (await get(server, "/nothing"))[0] == 404

    serve(test)


def test_readiness_follows_its_checks_and_says_which_fail():
    state: dict[str, Any] = {"listeners": False, "store": True}

    def broken() -> bool:
        if state["store"] is None:
            raise RuntimeError("a secret path")
        return True

    checks = {"listeners": lambda: state["listeners"], "store": broken}

    async def test(server: AdminServer) -> None:
        status, _, body = await get(server, "/readyz")
        assert (status, json.loads(body)) == (503, {"ready": False, "failing": {"listeners": "not ready"}})
        state["listeners"] = True
        status, _, body = await get(server, "/readyz")
        assert (status, json.loads(body)) == (200, {"ready": True, "failing": {}})
        state.update(listeners="draining", store=None)
        status, _, body = await get(server, "/readyz")
        assert status == 503
        assert json.loads(body)["failing"]["listeners"] == "draining"
        assert b"secret" not in body

    serve(test, checks)


def test_what_is_degraded_is_named_and_keeps_nobody_away():
    state: dict[str, Any] = {"log": "a partition cannot be read"}

    async def test() -> None:
        server = AdminServer(
            AdminSettings(address="127.0.0.1:0"),
            {"listeners": lambda: True},
            dict,
            lesser_checks={"log": lambda: state["log"]},
        )
        await server.start()
        try:
            status, _, body = await get(server, "/readyz")
            assert status == 200
            assert json.loads(body) == {"ready": True, "failing": {}, "degraded": {"log": "a partition cannot be read"}}
            state["log"] = True
            assert json.loads((await get(server, "/readyz"))[2]) == {"ready": True, "failing": {}}
        finally:
            await server.stop()

    uvloop.run(test())


def test_an_address_in_use_or_malformed_is_an_error_that_names_the_setting():
    async def test(server: AdminServer) -> None:
        for address, code in ((server.address, 71), ("nonsense", 78)):
            with pytest.raises(AdminError, match=r"admin\.address") as caught:
                await AdminServer(AdminSettings(address=address), {}, dict).start()
            assert caught.value.exit_code == code

    serve(test)


def test_no_address_is_no_server():
    async def test() -> None:
        server = AdminServer(AdminSettings(address=""), {}, dict)
        await server.start()
        await server.stop()

    uvloop.run(test())


def test_sigterm_stays_the_brokers():
    async def test(server: AdminServer) -> None:
        received = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, received.set)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(received.wait(), 30)
        assert (await get(server, "/healthz"))[0] == 200

    serve(test)


def test_a_client_that_hangs_does_not_hold_up_the_end():
    async def test() -> None:
        server = AdminServer(AdminSettings(address="127.0.0.1:0"), {}, dict)
        await server.start()
        host, _, port = server.address.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /metrics HTTP/1.1\r\n")
        await asyncio.sleep(0.05)
        await asyncio.wait_for(server.stop(), 30)
        writer.close()

    uvloop.run(test())


def test_nothing_heavy_is_imported_before_it_starts():
    code = (
        "import sys, penstock.operate.http.server, penstock.core.metrics;"
        "print([name for name in ('uvicorn', 'starlette', 'prometheus_client') if name in sys.modules])"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[4] / "src")}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("path", ["/", "/metrics", "/healthz", "/readyz", "/api/v1/overview", "/nowhere"])
def test_a_page_of_the_internet_cannot_ask_through_a_browser(path: str) -> None:
    """DNS rebinding: the name of the page is in the Host header, and it is not one of ours."""

    async def test(server: AdminServer) -> None:
        port = server.address.rpartition(":")[2]
        for asked in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example"):
            status, _, body = await get(server, path, asked)
            assert status == 421
            assert "admin.hosts" in json.loads(body)["hint"]
        for asked in (f"localhost:{port}", "127.0.0.1", f"[::1]:{port}", "[::1]", "penstock:9883", "192.0.2.7:9883"):
            status, _, _ = await get(server, path, asked)
            assert status != 421

    serve(test)


def test_names_of_the_settings_may_be_asked_for() -> None:
    async def run() -> None:
        settings = AdminSettings(address="127.0.0.1:0", hosts=("Broker.example",))
        server = AdminServer(settings, {}, lambda: COUNTERS)
        await server.start()
        try:
            assert (await get(server, "/healthz", "broker.example:9883"))[0] == 200
            assert (await get(server, "/healthz", "broker.example."))[0] == 200
            assert (await get(server, "/healthz", "other.example"))[0] == 421
        finally:
            await server.stop()

    uvloop.run(asyncio.wait_for(run(), 60))
