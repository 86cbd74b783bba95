"""librdkafka's statistics, as far as an operator looks at them: summed up by the kind of client, never one by one.

A report is a page of JSON with some 700 bytes about every partition of its client, who polls it is given it: the loop,
of the producer. So the partitions are cut out, and only the numbers below are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Literal

import msgspec

from penstock.core.logging import get_logger

log = get_logger("penstock.logs.kafka")

Kind = Literal["producer", "consumer", "admin"]

# The names before and behind what a report says of each partition; those of topics have neither quotes nor spaces.
_TOPICS = ', "topics":{'
_GROUP = ', "cgrp":'
_TOTALS = ', "tx":'


class Window(msgspec.Struct):
    """A rolling window of measurements."""

    avg: int = 0
    p99: int = 0
    max: int = 0


class BrokerStatistics(msgspec.Struct):
    nodeid: int = -1
    state: str = ""
    outbuf_cnt: int = 0
    waitresp_cnt: int = 0
    txerrs: int = 0
    txretries: int = 0
    req_timeouts: int = 0
    rtt: Window = msgspec.field(default_factory=Window)
    throttle: Window = msgspec.field(default_factory=Window)


class GroupStatistics(msgspec.Struct):
    rebalance_cnt: int = 0


class Statistics(msgspec.Struct):
    """One report of one client."""

    replyq: int = 0
    msg_cnt: int = 0
    msg_size: int = 0
    txmsgs: int = 0
    txmsg_bytes: int = 0
    rxmsgs: int = 0
    rxmsg_bytes: int = 0
    brokers: dict[str, BrokerStatistics] = {}
    cgrp: GroupStatistics = msgspec.field(default_factory=GroupStatistics)

    @classmethod
    def parse(cls, text: str) -> Statistics:
        """What is said of each partition is nearly all of a long report and is not even looked at."""
        begin, group = text.find(_TOPICS), text.rfind(_GROUP)
        end = group if group >= 0 else text.rfind(_TOTALS)
        return msgspec.json.decode(text[:begin] + text[end:] if 0 < begin < end else text, type=cls)

    @property
    def nodes(self) -> list[BrokerStatistics]:
        """Bootstrap addresses and the coordinator's shadow are entries too, without a node id of their own."""
        return [broker for broker in self.brokers.values() if broker.nodeid >= 0]

    def counted(self, kind: Kind) -> Counter[str]:
        """What only rises while the client lives."""
        nodes = self.nodes
        counts = Counter(
            {
                f"kafka_request_errors_{kind}": sum(node.txerrs for node in nodes),
                f"kafka_request_retries_{kind}": sum(node.txretries for node in nodes),
                f"kafka_request_timeouts_{kind}": sum(node.req_timeouts for node in nodes),
            }
        )
        if kind == "producer":
            counts.update({"kafka_sent_records": self.txmsgs, "kafka_sent_bytes": self.txmsg_bytes})
        elif kind == "consumer":
            counts.update({"kafka_received_records": self.rxmsgs, "kafka_received_bytes": self.rxmsg_bytes})
            counts.update({"kafka_rebalances": self.cgrp.rebalance_cnt})
        return counts


class ClientStatistics:
    """Of one client, and of those before it that it replaced. Reports come in the client's thread."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        # Together, because they are read in another thread: what the clients before this one counted, its last report.
        self._known: tuple[Counter[str], Statistics | None] = Counter(), None
        self._turn = 0

    def begin(self) -> Callable[[str], None]:
        """librdkafka's callback for a new client. What one that was replaced still reports is not heard."""
        self._turn += 1
        self._known = self.read()[0], None
        return partial(self._take, self._turn)

    def read(self) -> tuple[Counter[str], Statistics | None]:
        """What was counted so far, and the last report of the client there is now."""
        before, last = self._known
        counts = before.copy()
        if last is not None:
            counts.update(last.counted(self.kind))
        return counts, last

    def _take(self, turn: int, text: str) -> None:
        if turn != self._turn:
            return
        try:
            self._known = self._known[0], Statistics.parse(text)
        except ValueError:
            log.exception("kafka statistics")


class StatisticsByKind:
    """Of all clients of this process; on the loop."""

    def __init__(self) -> None:
        self._clients: set[ClientStatistics] = set()
        self._ended: Counter[str] = Counter()  # counters do not fall when a client is closed

    def add(self, client: ClientStatistics) -> ClientStatistics:
        self._clients.add(client)
        return client

    def remove(self, client: ClientStatistics) -> None:
        self._clients.remove(client)
        self._ended.update(client.read()[0])

    def counters(self) -> dict[str, int | float]:
        """A kind of client of which nothing was reported yet is not there."""
        counts = self._ended.copy()
        reports: dict[Kind, list[Statistics]] = {}
        for client in self._clients:
            counted, last = client.read()
            counts.update(counted)
            if last is not None:
                reports.setdefault(client.kind, []).append(last)
        now = [_now(kind, reports[kind]) for kind in sorted(reports)]
        return {**counts, **{key: number for gauges in now for key, number in gauges.items()}}


def _now(kind: Kind, reports: list[Statistics]) -> dict[str, int | float]:
    nodes = [node for report in reports for node in report.nodes]
    gauges: dict[str, int | float] = {
        f"kafka_brokers_known_{kind}": len({node.nodeid for node in nodes}),
        f"kafka_brokers_up_{kind}": len({node.nodeid for node in nodes if node.state == "UP"}),
        f"kafka_requests_waiting_{kind}": sum(node.outbuf_cnt + node.waitresp_cnt for node in nodes),
        f"kafka_throttle_avg_ms_{kind}": max((node.throttle.avg for node in nodes), default=0),
    }
    if kind != "consumer":
        # A fetch waits at the broker for records, up to fetch.wait.max.ms: its answer time says nothing of Kafka's.
        gauges[f"kafka_rtt_avg_ms_{kind}"] = max((node.rtt.avg for node in nodes), default=0) / 1000
        gauges[f"kafka_rtt_p99_ms_{kind}"] = max((node.rtt.p99 for node in nodes), default=0) / 1000
    if kind == "producer":
        gauges["kafka_queue_messages_producer"] = sum(report.msg_cnt for report in reports)
        gauges["kafka_queue_bytes"] = sum(report.msg_size for report in reports)
    elif kind == "consumer":
        gauges["kafka_queue_messages_consumer"] = sum(report.replyq for report in reports)
    return gauges
