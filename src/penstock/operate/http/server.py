"""The HTTP server of the operator, in the broker's own loop: metrics, health and commands, never on a message's way.

Starlette, uvicorn and the Prometheus client are imported when the server starts, not before: most commands never do.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from penstock.core import exit_codes
from penstock.core.errors import PenstockError
from penstock.core.metrics import ClientSample, GroupSample, Number, ShareSample
from penstock.operate.http.token import publish_access, withdraw_access
from penstock.settings.address import Address, parse_address
from penstock.settings.model import AdminSettings

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from penstock.operate.collector import MetricsPage
    from penstock.operate.http.api import ApplicationControl
    from penstock.operate.http.overview import ReadCut
    from penstock.operate.retained import RetainedControl
    from penstock.operate.sessions import SessionControl
    from penstock.subscribers.queue.control import QueueControl

BACKLOG = 128
STOP_SECONDS = 2
EX_OSERR = 71


class AdminError(PenstockError):
    """The admin address cannot be used."""

    exit_code = exit_codes.CONFIGURATION


def package_version() -> str:
    try:
        return version("penstock")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "unknown"


Check = Callable[[], bool | str]
"""True, or what is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """The parts that do the commands, as far as the broker has them; `read_cut` is for backups."""

    applications: ApplicationControl | None = None
    sessions: SessionControl | None = None
    retained: RetainedControl | None = None
    queues: QueueControl | None = None
    read_cut: ReadCut | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """The numbers of single clients, shares and consumer groups for /metrics, and how many groups it shows."""

    clients: Callable[[], Iterable[ClientSample]] | None = None
    shares: Callable[[], Iterable[ShareSample]] | None = None
    groups: Callable[[], Iterable[GroupSample]] | None = None
    most_groups: int = 0


NO_COMMANDS = Commands()
NO_READINGS = Readings()


class AdminServer:
    """/metrics, /healthz, /readyz and the commands on `settings.address`; nothing at all when that is empty.

    `data_dir` is where commands find the address and the token; without one there are no commands. `lesser_checks` are
    those that keep no client from connecting: /readyz only names them.
    """

    def __init__(
        self,
        settings: AdminSettings,
        checks: Mapping[str, Check],
        read_counters: Callable[[], Mapping[str, Number]],
        *,
        data_dir: str = "",
        commands: Commands = NO_COMMANDS,
        readings: Readings = NO_READINGS,
        lesser_checks: Mapping[str, Check] | None = None,
    ) -> None:
        self._settings = settings
        self._checks = checks
        self._read_counters = read_counters
        self._data_dir = data_dir
        self._commands = commands
        self._readings = readings
        self._lesser_checks = lesser_checks
        self._stop: Callable[[], None] | None = None
        self._task: asyncio.Task[None] | None = None
        self.address = settings.address

    async def start(self) -> None:
        """Answers when it returns; raises AdminError if the address cannot be used."""
        if not self._settings.address:
            if self._data_dir:
                withdraw_access(self._data_dir)
            return
        # Bound here: uvicorn would end the process if it could not.
        listening = _bind(self._settings.address)
        host, port = listening.getsockname()[:2]
        self.address = str(Address(host, port))

        import uvicorn  # noqa: PLC0415  # see the top of the file

        from penstock.operate.http.connections import make_protocol  # noqa: PLC0415  # the same
        from penstock.operate.http.pages import build_app  # noqa: PLC0415  # the same

        is_up = asyncio.Event()

        class Server(uvicorn.Server):
            @contextlib.contextmanager
            def capture_signals(self) -> Iterator[None]:
                """The broker's signals are the broker's business."""
                yield

            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                is_up.set()

        app = build_app(
            self._make_metrics(),
            self._checks,
            self._build_commands(listening),
            self._lesser_checks,
            self._settings.hosts,
        )
        server = Server(
            uvicorn.Config(
                app,
                http=make_protocol(),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                backlog=BACKLOG,
                timeout_keep_alive=5,
                timeout_graceful_shutdown=STOP_SECONDS,
            )
        )

        def stop() -> None:
            server.should_exit = True

        self._stop = stop
        self._task = asyncio.create_task(server.serve(sockets=[listening]))
        self._task.add_done_callback(lambda _: is_up.set())
        await is_up.wait()
        if self._task.done():
            self._task.result()

    def _make_metrics(self) -> MetricsPage:
        from penstock.operate.collector import MetricsPage  # noqa: PLC0415  # see the top of the file

        return MetricsPage(
            self._read_counters,
            package_version(),
            read_clients=self._readings.clients,
            read_shares=self._readings.shares,
            most_clients=self._settings.per_client_metrics,
            read_groups=self._readings.groups,
            most_groups=self._readings.most_groups,
            read_queues=None if self._commands.queues is None else self._commands.queues.samples,
            most_queues=self._settings.per_queue_metrics,
        )

    def _build_commands(self, listening: socket.socket) -> list[BaseRoute]:
        if not self._data_dir:
            return []
        from penstock.operate.http.api import build_api  # noqa: PLC0415  # see the top of the file
        from penstock.operate.http.overview import Overview  # noqa: PLC0415  # the same

        try:
            token = publish_access(self._data_dir, self.address, self._settings.token)
        except OSError as error:
            listening.close()
            raise AdminError(
                f"server.data_dir {self._data_dir}: the files of the admin address cannot be written: {error.strerror}",
                "Commands find the broker by them: it needs room on that disk, and the right to write there.",
            ) from error
        overview = Overview(self._read_counters, package_version())
        commands = self._commands
        parts = (commands.applications, commands.sessions, commands.retained, commands.queues)
        return [build_api(token, *parts, overview=overview, read_cut=commands.read_cut)]

    async def stop(self) -> None:
        if self._stop is None or self._task is None:
            return
        if self._data_dir:
            withdraw_access(self._data_dir)
        self._stop()
        try:
            async with asyncio.timeout(2 * STOP_SECONDS):
                await self._task
        except TimeoutError:  # the task is cancelled: a scraper that hangs does not hold up the exit
            pass
        self._stop = self._task = None


def _bind(text: str) -> socket.socket:
    try:
        address = parse_address(text)
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        return socket.create_server((address.host, address.port), family=family, backlog=BACKLOG)
    except ValueError as error:
        raise AdminError(f"admin.address {text!r}: {error}", "Write it as host:port; empty turns it off.") from None
    except OSError as error:
        in_use = error.errno == errno.EADDRINUSE
        reason = "the address is in use" if in_use else error.strerror or str(error)
        raise AdminError(
            f"admin.address {text}: {reason}",
            "Set admin.address to another host:port, or to an empty text to do without metrics and health checks.",
            exit_code=EX_OSERR if in_use else None,
        ) from error
