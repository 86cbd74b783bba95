"""Commands over HTTP: nobody without the token, JSON in and out, refusals in words."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.operate.http import commands
from penstock.operate.http.server import AdminError, AdminServer
from penstock.settings.model import AdminSettings
from tests.support.clients.admin_api import TOKEN, MemoryApplications, entry, serving

GUARDED = {"Authorization": f"Bearer {TOKEN}"}


def ask(
    server: AdminServer, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> tuple[int, Any, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(server.address, timeout=30)
    connection.request(method, path, body, GUARDED if headers is None else headers)
    response = connection.getresponse()
    text = response.read()
    connection.close()
    return response.status, json.loads(text) if text.startswith((b"{", b"[")) else text, response


@pytest.fixture
def control() -> MemoryApplications:
    return MemoryApplications(entry("one", lag=10), entry("two", connected=True), entry("a/b/reset"), entry("ü %?#"))


@pytest.fixture
def server(tmp_path, control):
    with serving(tmp_path, control, TOKEN) as started:
        yield started


WRONG_HEADERS = [
    {},
    {"Authorization": f"Bearer {TOKEN}x"},
    {"Authorization": f"Bearer {TOKEN[:-1]}"},
    {"Authorization": TOKEN},
    {"Authorization": f"bearer {TOKEN}"},
    {"Authorization": "Bearer "},
    {"Authorization": "Basic YTpi"},
    {"Authorization": "Bearer ä".encode().decode("latin-1")},
]
GUARDED_PATHS = [
    ("GET", "/applications"),
    ("DELETE", "/applications/one"),
    ("POST", "/applications/one/reset"),
    ("GET", "/zzz"),
]


def test_nothing_without_the_token(server, control):
    for headers in WRONG_HEADERS:
        for method, path in GUARDED_PATHS:
            status, answer, response = ask(server, method, f"/api/v1{path}", b'{"to": "end"}', headers)
            assert status == 401, headers
            assert "admin.token" in answer["hint"]
            assert TOKEN not in json.dumps(answer)
            assert response.headers["WWW-Authenticate"] == "Bearer"
    assert "one" in control.entries
    assert control.resets == []


def test_two_tokens_are_none(server):
    with socket.create_connection(server.address.split(":"), timeout=30) as stream:
        header = f"Authorization: Bearer {TOKEN}\r\n"
        stream.sendall(f"GET /api/v1/applications HTTP/1.1\r\nHost: x\r\n{header}{header}\r\n".encode())
        assert stream.recv(100).startswith(b"HTTP/1.1 401")


def test_metrics_and_health_stay_open(server):
    for path in ("/metrics", "/healthz", "/readyz", "/"):
        assert ask(server, "GET", path, headers={})[0] == 200


def test_list_and_show(server, control):
    status, answer, response = ask(server, "GET", "/api/v1/applications")
    assert (status, answer) == (200, list(control.entries.values()))
    assert response.headers["Cache-Control"] == "no-store"
    assert ask(server, "GET", "/api/v1/applications/one")[1] == control.entries["one"]


@pytest.mark.parametrize("path", ["a%2Fb%2Freset", "a/b/reset", "%C3%BC%20%25%3F%23"])
def test_a_client_id_may_be_any_text(server, control, path):
    status, answer, _ = ask(server, "GET", f"/api/v1/applications/{path}")
    assert status == 200
    client_id = answer["client_id"]
    assert ask(server, "POST", f"/api/v1/applications/{path}/reset", b'{"to": "end"}')[0] == 200
    assert control.resets == [(client_id, "end")]
    assert ask(server, "DELETE", f"/api/v1/applications/{path}")[0] == 200
    assert client_id not in control.entries


@pytest.mark.parametrize(
    ("body", "to"),
    [
        (b'{"to": "begin"}', "begin"),
        (b'{"to": "end"}', "end"),
        (b'{"to": 7}', 7),
        (b'{"to": -3}', -3),
        (b'{"to": "2026-11-16T12:30:00+02:00"}', datetime(2026, 11, 16, 10, 30, tzinfo=UTC)),
        (b'{"to": "2026-11-16T12:30:00Z"}', datetime(2026, 11, 16, 12, 30, tzinfo=UTC)),
    ],
)
def test_reset(server, control, body, to):
    status, answer, _ = ask(server, "POST", "/api/v1/applications/one/reset", body)
    assert (status, answer["client_id"]) == (200, "one")
    assert control.resets == [("one", to)]


NO_PLACES = [
    b"",
    b"nonsense",
    b"[]",
    b"3",
    b'{"to": true}',
    b'{"to": 1.5}',
    b'{"to": null}',
    b'{"to": ["begin"]}',
    b'{"to": "soon"}',
    b'{"to": "2026-11-16T12:30:00"}',
    b'{"to": 9223372036854775808}',
    b'{"to": "begin", "from": 3}',
    b"{}",
    b"[" * 60_000,
    b"\xff",
]


def test_a_place_that_is_none(server, control):
    for body in NO_PLACES:
        status, answer, _ = ask(server, "POST", "/api/v1/applications/one/reset", body)
        assert (status, bool(answer["error"])) == (400, True), body[:100]
    assert control.resets == []


def test_a_body_is_bounded(server):
    status, answer, _ = ask(server, "POST", "/api/v1/applications/one/reset", b" " * (commands.LARGEST_BODY + 1))
    assert (status, answer["error"]) == (413, "the body is larger than 65536 bytes")


def test_a_body_that_does_not_come(server, monkeypatch):
    monkeypatch.setattr(commands, "BODY_SECONDS", 0.1)
    with socket.create_connection(server.address.split(":"), timeout=30) as stream:
        stream.sendall(
            f"POST /api/v1/applications/one/reset HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n"
            f"Authorization: Bearer {TOKEN}\r\n\r\n{{".encode()
        )
        assert stream.recv(100).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize(
    ("method", "path", "status", "word"),
    [
        ("GET", "/applications/nobody", 404, "nobody"),
        ("DELETE", "/applications/nobody", 404, "nobody"),
        ("GET", "/applications/", 404, "there is no"),
        ("POST", "/applications/two/reset", 409, "is connected"),
        ("DELETE", "/applications/broken", 500, "failed to do this"),
        ("GET", "/zzz", 404, "/api/v1/zzz is not a path"),
    ],
)
def test_refusals_are_json(server, method, path, status, word):
    got, answer, _ = ask(server, method, f"/api/v1{path}", b'{"to": "end"}')
    assert (got, word in answer["error"]) == (status, True), answer
    assert answer["hint"]
    assert "secret" not in json.dumps(answer)


def test_other_methods_are_not_allowed(server):
    assert ask(server, "PUT", "/api/v1/applications/one")[0] == 405


def test_without_a_log_there_are_no_application_clients(tmp_path):
    with serving(tmp_path, None, TOKEN) as server:
        status, answer, _ = ask(server, "GET", "/api/v1/applications")
        assert (status, "keeps no log" in answer["error"]) == (409, True)


def test_without_a_setting_the_token_is_random_and_for_the_owner_only(tmp_path, control):
    seen = set()
    for _ in range(2):
        with serving(tmp_path, control) as server:
            path = tmp_path / "admin.token"
            token = path.read_text().strip()
            assert len(token) >= 32
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert (tmp_path / "admin.address").read_text().strip() == server.address
            assert ask(server, "GET", "/api/v1/applications", headers={"Authorization": f"Bearer {token}"})[0] == 200
            seen.add(token)
        assert list(tmp_path.iterdir()) == []
    assert len(seen) == 2


def test_a_token_of_the_settings_leaves_no_file(tmp_path, control):
    (tmp_path / "admin.token").write_text("of a broker that was killed\n")
    with serving(tmp_path, control, TOKEN):
        assert [path.name for path in tmp_path.iterdir()] == ["admin.address"]


def test_a_directory_that_cannot_be_written_is_named(tmp_path):
    server = AdminServer(AdminSettings(address="127.0.0.1:0"), {}, dict, data_dir=str(tmp_path / "nowhere"))

    with pytest.raises(AdminError, match=r"server\.data_dir .*nowhere"):
        asyncio.run(server.start())


def test_no_address_leaves_nothing_that_misleads(tmp_path):

    for name in ("admin.token", "admin.address"):
        Path(tmp_path, name).write_text("old")
    asyncio.run(AdminServer(AdminSettings(address=""), {}, dict, data_dir=str(tmp_path)).start())
    assert list(tmp_path.iterdir()) == []
