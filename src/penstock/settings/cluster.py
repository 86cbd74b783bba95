"""Settings of a cluster: brokers that share a log know each other by heartbeats in a topic of it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from penstock.settings.section import Section, about
from penstock.settings.services import Name

OFF = "off"


class ClusterSettings(Section, frozen=True):
    """Brokers that share a log, such as Kafka. [Clustering](clustering.md) explains them."""

    topic: Annotated[Name, about("topic of the members and their heartbeats")] = "penstock.cluster.members"
    heartbeat_interval: Annotated[float, Meta(gt=0, le=600), about("time between heartbeats", unit="seconds")] = 2.0
    member_timeout: Annotated[
        float,
        Meta(gt=0, le=3_600),
        about("time without a heartbeat after which a member is gone; at least two intervals", unit="seconds"),
    ] = 10.0
    adopt_after: Annotated[
        float,
        Meta(ge=0, le=86_400),
        about("time after which others take over the sessions of a member that is gone", unit="seconds"),
    ] = 30.0
    forget_after: Annotated[
        float,
        Meta(gt=0, le=30 * 86_400),
        about("time after which the topics of a member that is gone are deleted", unit="seconds"),
    ] = 86_400.0
    relay_address: Annotated[
        str,
        about(
            "host:port where other nodes reach this one, for consumers of its queues; port 0 = a free one; empty = a "
            "free port of the address from which Kafka is reached; off = not reachable"
        ),
    ] = ""
    relay_advertised: Annotated[
        str, about("host:port that other nodes use instead, for instance with address translation in between")
    ] = ""
