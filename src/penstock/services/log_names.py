"""Names of the topics and groups of one installation, all of them after `services.prefix`: installations with different
prefixes may share a Kafka. Those of APPLICATION clients are in subscribers/application/names.py, those of queues
between services in services/names.py."""

from __future__ import annotations

from penstock.settings.model import Settings
from penstock.settings.providers import log_capabilities
from penstock_schema.event import TOPIC as EVENTS_TOPIC

RETAINED_TOPIC = "tbmq.msg.retained"
DISPATCH_GROUP = "msg-all-consumer-group"


def dispatch_group(node: str, prefix: str = "") -> str:
    """Nodes that share a Kafka each serve clients of their own, so each of them reads everything."""
    name = f"{DISPATCH_GROUP}-{node}" if node else DISPATCH_GROUP
    return f"{prefix}.{name}" if prefix else name


class LogNames:
    def __init__(self, settings: Settings) -> None:
        self.prefix = settings.services.prefix
        self.ingest_topic = self.of(settings.ingest.topic)
        self.retained_topic = self.of(RETAINED_TOPIC)
        self.events_topic = self.of(EVENTS_TOPIC)
        node = settings.server.node_id if log_capabilities(settings).is_shared else ""
        self.dispatch_group = dispatch_group(node, self.prefix)

    def of(self, name: str) -> str:
        return f"{self.prefix}.{name}" if self.prefix else name
