"""librdkafka's statistics, as far as an operator looks at them."""

from __future__ import annotations

import msgspec


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


class Statistics(msgspec.Struct):
    msg_cnt: int = 0
    msg_size: int = 0
    txmsgs: int = 0
    txmsg_bytes: int = 0
    rxmsgs: int = 0
    rxmsg_bytes: int = 0
    brokers: dict[str, BrokerStatistics] = {}

    @classmethod
    def parse(cls, text: str) -> Statistics:
        return msgspec.json.decode(text, type=cls)

    def counters(self) -> dict[str, int | float]:
        # Bootstrap addresses and the coordinator's shadow are entries too, without a node id of their own.
        brokers = [broker for broker in self.brokers.values() if broker.nodeid >= 0]
        return {
            "kafka_queue_messages": self.msg_cnt,
            "kafka_queue_bytes": self.msg_size,
            "kafka_sent_records": self.txmsgs,
            "kafka_sent_bytes": self.txmsg_bytes,
            "kafka_brokers_known": len(brokers),
            "kafka_brokers_up": sum(broker.state == "UP" for broker in brokers),
            "kafka_requests_waiting": sum(broker.outbuf_cnt + broker.waitresp_cnt for broker in brokers),
            "kafka_request_errors": sum(broker.txerrs for broker in brokers),
            "kafka_request_retries": sum(broker.txretries for broker in brokers),
            "kafka_request_timeouts": sum(broker.req_timeouts for broker in brokers),
            "kafka_rtt_avg_ms": max((broker.rtt.avg for broker in brokers), default=0) / 1000,
            "kafka_rtt_p99_ms": max((broker.rtt.p99 for broker in brokers), default=0) / 1000,
            "kafka_throttle_avg_ms": max((broker.throttle.avg for broker in brokers), default=0),
        }
