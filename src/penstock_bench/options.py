"""Options of one run of the load generator, and their checks."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from penstock._ext.load.generator import PARTS, SCENARIOS
from penstock.core.errors import UsageError

LEAST_PAYLOAD = 16  # the stamp of a message: nanoseconds, publisher, sequence number
LARGEST_PAYLOAD = 1 << 20
MOST_CLIENTS = 100_000
LARGEST_WINDOW = 32_768
LONGEST_QUEUE_NAME = 30
MOST_THREADS = 64


@dataclass(frozen=True)
class LoadOptions:
    """Read by penstock._ext.load.generator; times are seconds."""

    scenario: str
    host: str = "127.0.0.1"
    port: int = 1883
    subscriber_port: int = 0  # subscribers connect there, to a proxy before the broker; 0 = the broker's port
    username: str | None = None
    password: bytes | None = None
    tls: ssl.SSLContext | None = None
    version: int = 4
    keepalive: int = 60
    n: int = 10  # pairs (p2p), subscribers (fanout), publishers (fanin, publish), connections (idle, at a time: storm)
    subs: int = 1  # fanin: more than one share the subscription
    groups: int = 1  # fanin: subscribers, each to the publishers of its own group
    qos: int = 0
    size: int = 64
    window: int = 100  # unacknowledged QoS 1 and 2 messages of a publisher
    e2e: int = 0  # undelivered messages of a publisher; 0 = no such limit
    in_turn: bool = False  # fanin: the publishers share what may be undelivered, and send it in turn, in long batches
    count: int = 0  # messages of a publisher (connects of a storm) instead of a duration
    secs: float = 5.0
    warmup: float = 1.0
    drain: float = 3.0  # seconds of silence after which missing messages are given up
    rate: float = 0.0  # messages published per second in all; 0 = as fast as possible
    connect_limit: float = 120.0
    session: str = ""  # the subscribers are <session>0, <session>1, ... and their sessions stay
    forget: bool = False  # connect them once more, only to end their sessions
    part: str = "all"  # subscribe (and leave), publish, receive: one after the other; or all at once
    queue: str = ""  # through the durable queue of that name
    settle: int = -1  # QoS of the settlement of each delivery; -1 = none
    prefetch: int = 0
    expiry: int = 0  # seconds after which a message is no longer delivered; 0 = never
    start: str = ""  # x-stream-offset of consumers of a stream
    retain: bool = False  # each message to a topic of its own, retained
    subscribe: bool = False  # idle, storm: each connection subscribes to a topic of its own
    abrupt: bool = False  # storm: reset instead of DISCONNECT
    prefix: str = "load"  # of topics and client ids
    name: str = "0"  # of this run, in client ids
    pids: tuple[int, ...] = ()  # broker processes to account
    threads: int = 1  # that share the connections

    def __post_init__(self) -> None:
        if self.scenario not in SCENARIOS or self.part not in PARTS:
            raise UsageError(f"unknown scenario {self.scenario!r} with part {self.part!r}")
        self._check_numbers()
        if self.subs > 1 and self.scenario != "fanin":
            raise UsageError("several subscribers share a subscription in fan-in only")
        if self.in_turn and (self.scenario != "fanin" or self.groups > 1 or not self.e2e):
            raise UsageError(
                "publishers send in turn in fan-in with one subscription and a limit of the undelivered only"
            )
        if self.expiry and self.version < 5:
            raise UsageError("messages expire with MQTT 5 only")
        if self.abrupt and self.scenario != "storm":
            raise UsageError("only a storm can be abrupt")
        if self.scenario == "publish" and not self.qos:
            raise UsageError("publishing without subscribers needs QoS 1 or 2")
        self._check_sessions()
        self._check_queue()

    def _check_numbers(self) -> None:
        bounds: tuple[tuple[str, float, float, float], ...] = (
            ("port", self.port, 1, 65_535),
            ("port of subscribers", self.subscriber_port, 0, 65_535),
            ("MQTT version (4 = 3.1.1)", self.version, 4, 5),
            ("QoS", self.qos, 0, 2),
            ("payload", self.size, LEAST_PAYLOAD, LARGEST_PAYLOAD),
            ("clients", self.n, 1, MOST_CLIENTS),
            ("subscribers", self.subs, 1, MOST_CLIENTS),
            ("groups", self.groups, 1, self.n),
            ("window", self.window, 1, LARGEST_WINDOW),
            ("undelivered messages", self.e2e, 0, 1 << 32),
            ("messages", self.count, 0, (1 << 32) - 1),
            ("rate", self.rate, 0, 1e9),
            ("seconds", self.secs, 0.001, 7 * 86_400),
            ("warm-up", self.warmup, 0, 3_600),
            ("drain", self.drain, 0, 3_600),
            ("keep-alive", self.keepalive, 0, 65_535),
            ("settlement QoS", self.settle, -1, 1),
            ("prefetch", self.prefetch, 0, 65_535),
            ("expiry", self.expiry, 0, (1 << 32) - 1),
            ("threads", self.threads, 1, MOST_THREADS),
        )
        for name, value, least, most in bounds:
            if not least <= value <= most:
                raise UsageError(f"{name}: {value:g} is not between {least:g} and {most:g}")

    def _check_sessions(self) -> None:
        if self.groups > 1 and (self.scenario != "fanin" or self.subs > 1):
            raise UsageError("groups are for fan-in with one subscriber each")
        if self.session and (self.scenario != "fanin" or not self.qos):
            raise UsageError("sessions that stay are for fan-in with QoS 1 or 2")
        if self.part != "all" and self.e2e:
            raise UsageError("a part of a run cannot wait for deliveries")
        if self.part != "all" and not self.queue and not self.retain and not (self.session and self.count):
            raise UsageError("a part of a run needs a session, a queue or retained messages, and a count")

    def _check_queue(self) -> None:
        if not self.queue:
            if self.settle >= 0 or self.prefetch or self.start:
                raise UsageError("settlements, prefetch and start are for queues")
            return
        if self.scenario not in ("fanin", "publish") or self.session or self.groups > 1 or self.part == "subscribe":
            raise UsageError("a queue is for fan-in and publish, without sessions and groups")
        if self.version < 5 and (self.settle >= 0 or self.prefetch or self.start):
            raise UsageError("consumers of a queue need MQTT 5")
        if len(self.queue) > LONGEST_QUEUE_NAME or len(self.start) > LONGEST_QUEUE_NAME:
            raise UsageError(f"a queue's name has at most {LONGEST_QUEUE_NAME} characters here")

    def topic_of(self, index: int) -> str:
        """The topic of a publisher."""
        if self.queue:
            return f"$queue/{self.queue}/{index}"
        if self.retain:
            return f"{self.prefix}/retained"
        if self.scenario == "fanout":
            return f"{self.prefix}/fanout"
        if self.groups > 1:
            return f"{self.prefix}/fanin/{index % self.groups}/{index}"
        return f"{self.prefix}/{self.scenario}/{index}"

    def filter_of(self, index: int) -> str:
        """Return the filter of a subscriber."""
        if self.queue:
            return f"$queue/{self.queue}"
        if self.retain:
            return f"{self.prefix}/retained/#"
        if self.groups > 1:
            return f"{self.prefix}/fanin/{index}/+"
        if self.scenario != "fanin":
            return self.topic_of(index)
        return f"$share/load/{self.prefix}/fanin/+" if self.subs > 1 else f"{self.prefix}/fanin/+"
