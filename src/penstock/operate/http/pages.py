"""What the admin address answers everybody: /metrics, /healthz, /readyz and a page that lists them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from penstock.operate.collector import CONTENT_TYPE, MetricsPage
from penstock.operate.http.hosts import HostGuard

# True: fine. False or a text that says why: not ready.
Check = Callable[[], bool | str]

_INDEX = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Penstock</title>
<h1>Penstock</h1>
<ul>
<li><a href="/metrics">/metrics</a>: counters for Prometheus
<li><a href="/healthz">/healthz</a>: whether the process lives
<li><a href="/readyz">/readyz</a>: whether it takes connections, and if not, why
<li>/api/v1: commands, for those who have the token
</ul>
</html>
"""
_NO_STORE = {"Cache-Control": "no-store"}
_log = logging.getLogger(__name__)


def run_checks(checks: Mapping[str, Check]) -> dict[str, str]:
    """The checks that fail, each with its reason. A check that raises has failed."""
    failing: dict[str, str] = {}
    for name, check in checks.items():
        try:
            result = check()
        except Exception:
            _log.exception("readiness check failed", extra={"check": name})
            result = "the check itself failed; see the log"
        if result is not True:
            failing[name] = result if isinstance(result, str) and result else "not ready"
    return failing


def build_app(
    metrics: MetricsPage,
    checks: Mapping[str, Check],
    others: Sequence[BaseRoute] = (),
    lesser_checks: Mapping[str, Check] | None = None,
    hosts: Sequence[str] = (),
) -> Starlette:
    """The pages everybody may see, and `others` that look after themselves."""

    async def index(request: Request) -> Response:
        return HTMLResponse(_INDEX)

    async def show_metrics(request: Request) -> Response:
        return Response(metrics.render(), headers={"Content-Type": CONTENT_TYPE, **_NO_STORE})

    async def healthz(request: Request) -> Response:
        # That it answers at all is the answer: the loop runs.
        return PlainTextResponse("ok\n", headers=_NO_STORE)

    async def readyz(request: Request) -> Response:
        failing, degraded = run_checks(checks), run_checks(lesser_checks or {})
        content = {"ready": not failing, "failing": failing, **({"degraded": degraded} if degraded else {})}
        return JSONResponse(content, status_code=503 if failing else 200, headers=_NO_STORE)

    return Starlette(
        routes=[
            Route("/", index),
            Route("/metrics", show_metrics),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            *others,
        ],
        middleware=[Middleware(HostGuard, names=hosts)],
    )
