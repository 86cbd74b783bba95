"""The scenarios of `penstock bench`: what each does to a broker, as one or more runs of the load generator."""

from __future__ import annotations

import math
import secrets
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.core.errors import UsageError
from penstock_bench.options import LoadOptions

OWN_QUEUE = ""
_PREFETCH = 500
_UNDELIVERED_BYTES = 4 << 20  # of a publisher under way by default
_EXPIRY = 60  # seconds: what a test leaves in queues that take copies of everything goes by itself


@dataclass(frozen=True)
class Request:
    """The options of the user; None is the scenario's own default."""

    scenario: str
    host: str = "127.0.0.1"
    port: int = 1883
    username: str | None = None
    password: bytes | None = None
    tls: ssl.SSLContext | None = None
    version: int | None = None
    keep_alive: int = 60
    clients: int | None = None
    subscribers: int | None = None
    qos: int | None = None
    payload: int = 64
    rate: float = 0.0
    duration: float = 10.0
    warmup: float = 1.0
    drain: float | None = None
    window: int = 1_000
    undelivered: int | None = None
    messages: int | None = None
    queue: str | None = None
    pids: tuple[int, ...] = ()
    threads: int = 1
    token: str = field(default_factory=lambda: secrets.token_hex(3))

    @property
    def is_own_queue(self) -> bool:
        """The queue is the test's: its name is of no other."""
        return self.queue == self.own_queue

    @property
    def own_queue(self) -> str:
        return f"bench-{self.token}"

    def load(self, **options: Any) -> LoadOptions:
        """The options every run of the load generator has, and these."""
        common: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "username": self.username,
            "password": self.password,
            "tls": self.tls,
            "version": self.version or 4,
            "keepalive": self.keep_alive,
            "qos": self.qos,
            "size": self.payload,
            "window": self.window,
            "e2e": self.undelivered or 0,
            "rate": self.rate,
            "secs": self.duration,
            "warmup": self.warmup,
            "drain": self.drain,
            "prefix": f"bench-{self.token}",
            "name": self.token,
            "pids": self.pids,
            "threads": self.threads,
        }
        return LoadOptions(**{**common, **options})


@dataclass(frozen=True)
class Stage:
    """One run of the load generator within a scenario."""

    title: str
    options: LoadOptions  # those with a count are over with the last message, the others after a time
    is_figure: bool = True  # its figures are part of the result; the others only prepare or clean up


@dataclass(frozen=True)
class Scenario:
    """Its own defaults stand where the user says nothing."""

    name: str
    about: str
    stages: Callable[[Request], list[Stage]]
    clients_are: str
    clients: int = 10
    subscribers: int | None = None  # None: the option has no meaning here
    qos: int = 0
    least_qos: int = 0
    undelivered: int = 500  # with all publishers no more than 1,000 for a subscriber: what brokers queue by default
    drain: float = 3.0
    messages: int | None = None  # None: it runs for a time, not for a number of messages
    queue: str | None = None
    version: int = 4
    least_version: int = 4
    is_traffic: bool = True

    @property
    def lacks(self) -> frozenset[str]:
        """Options that have no meaning in it."""
        missing = {name for name in ("subscribers", "messages", "queue") if getattr(self, name) is None}
        if not self.is_traffic:
            missing |= {"qos", "payload", "rate", "window", "undelivered", "drain"}
        if self.messages is not None:
            missing |= {"duration", "warmup", "undelivered"}
        return frozenset(missing | {"warmup"} if self.stages is _idle else missing)

    def undelivered_of(self, payload: int) -> int:
        """Its default: fewer of large messages, or a broker would have gigabytes under way."""
        return min(self.undelivered, max(1, _UNDELIVERED_BYTES // payload))

    def complete(self, request: Request) -> Request:
        """With the scenario's defaults; raises UsageError for what it cannot do."""
        for name in ("subscribers", "messages", "queue"):
            if getattr(request, name) is not None and getattr(self, name) is None:
                raise UsageError(f"--{name} has no meaning in {self.name}")
        defaults = ("clients", "subscribers", "qos", "undelivered", "messages", "queue", "version", "drain")
        filled = {name: getattr(self, name) for name in defaults if getattr(request, name) is None}
        if "undelivered" in filled:
            filled["undelivered"] = self.undelivered_of(request.payload)
        if filled.get("queue") == OWN_QUEUE:
            filled["queue"] = request.own_queue
        request = replace(request, **filled)
        if (request.qos or 0) < self.least_qos:
            raise UsageError(f"{self.name} needs -q {self.least_qos} or more")
        if (request.version or 0) < self.least_version:
            raise UsageError(f"{self.name} needs -V mqttv5")
        return request


def _pairs(request: Request) -> list[Stage]:
    return [Stage("pairs", request.load(scenario="p2p", n=request.clients))]


def _fan_out(request: Request) -> list[Stage]:
    return [Stage("fan-out", request.load(scenario="fanout", n=request.clients))]


def _fan_in(request: Request) -> list[Stage]:
    # In turn: fifty small windows would cost a call of the kernel for twenty messages, more than those cost a broker.
    return [Stage("fan-in", request.load(scenario="fanin", n=request.clients, in_turn=bool(request.undelivered)))]


def _shared(request: Request) -> list[Stage]:
    load = request.load(scenario="fanin", n=request.clients, in_turn=bool(request.undelivered))
    return [Stage("shared", replace(load, subs=request.subscribers or 1))]


def _storm(request: Request) -> list[Stage]:
    return [Stage("connects", request.load(scenario="storm", n=request.clients))]


def _idle(request: Request) -> list[Stage]:
    return [Stage("idle", request.load(scenario="idle", n=request.clients))]


def _forget(load: LoadOptions) -> Stage:
    options = replace(load, part="subscribe", forget=True, rate=0.0, e2e=0, count=load.count or 1)
    return Stage("ending the sessions", options, is_figure=False)


def _device(request: Request) -> list[Stage]:
    load = request.load(
        scenario="fanin",
        n=request.clients,
        groups=request.clients,
        session=f"bench-{request.token}-device",
        count=request.messages,
        e2e=0,
    )
    return [
        Stage("subscribing and leaving", replace(load, part="subscribe", rate=0.0), is_figure=False),
        Stage("published while away", replace(load, part="publish")),
        Stage("received on return", replace(load, part="receive", rate=0.0)),
        _forget(load),
    ]


def _application(request: Request) -> list[Stage]:
    load = request.load(
        scenario="fanin",
        n=request.clients,
        groups=request.subscribers,
        session=f"bench-{request.token}-app",
    )
    return [Stage("application", load), _forget(load)]


def _retained(request: Request) -> list[Stage]:
    load = request.load(scenario="fanout", retain=True, count=request.messages, e2e=0)
    return [
        Stage("published retained", replace(load, n=1, part="publish")),
        Stage("received by new subscribers", replace(load, n=request.clients or 1, part="receive", rate=0.0)),
        Stage("removing them", replace(load, n=1, part="publish", forget=True, rate=0.0, qos=1), is_figure=False),
    ]


def queue_expiry(request: Request) -> int:
    """Return the seconds after which a message of the test is no longer delivered."""
    return math.ceil(_EXPIRY + (request.drain or 0) + (0 if request.undelivered else request.duration))


def _queue(request: Request) -> list[Stage]:
    load = request.load(
        scenario="fanin",
        n=request.clients,
        subs=request.subscribers,
        queue=request.queue,
        settle=1,
        prefetch=_PREFETCH,
        expiry=queue_expiry(request),
    )
    return [Stage("queue", load)]


_ALL = (
    Scenario("p2p", "pairs of one publisher and one subscriber, each on a topic of its own", _pairs, "pairs"),
    Scenario(
        "fan-out",
        "one publisher, many subscribers of its topic",
        _fan_out,
        "subscribers",
        clients=100,
        undelivered=200,
    ),
    Scenario(
        "fan-in",
        "many publishers, one subscriber of all their topics",
        _fan_in,
        "publishers",
        clients=50,
        undelivered=20,
    ),
    Scenario(
        "shared",
        "many publishers, several subscribers that share the subscription",
        _shared,
        "publishers",
        clients=50,
        subscribers=4,
        qos=1,
        undelivered=20,
    ),
    Scenario(
        "connect-storm",
        "connect and disconnect repeatedly, N connections at a time",
        _storm,
        "connections at a time",
        clients=64,
        is_traffic=False,
    ),
    Scenario("idle", "connections that only keep alive", _idle, "connections", clients=1_000, is_traffic=False),
    Scenario(
        "device",
        "persistent sessions: subscribe, leave, be published to, come back for the messages",
        _device,
        "sessions",
        drain=10.0,
        clients=1_000,
        qos=1,
        least_qos=1,
        messages=100,
    ),
    Scenario(
        "application",
        "many publishers, persistent subscribers that stay connected (APPLICATION clients of Penstock)",
        _application,
        "publishers",
        drain=10.0,
        clients=50,
        subscribers=1,
        qos=1,
        least_qos=1,
        undelivered=20,
    ),
    Scenario(
        "retained",
        "a flood of retained messages, then new subscribers that get all of them",
        _retained,
        "subscribers",
        clients=100,
        qos=1,
        messages=1_000,
    ),
    Scenario(
        "queue",
        "publishers into a queue of Penstock, consumers that settle each delivery",
        _queue,
        "publishers",
        drain=10.0,
        clients=50,
        subscribers=10,
        qos=1,
        least_qos=1,
        undelivered=20,
        queue=OWN_QUEUE,
        version=5,
        least_version=5,
    ),
)
SCENARIOS = {scenario.name: scenario for scenario in _ALL}
