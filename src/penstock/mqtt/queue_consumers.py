"""MQTT clients as consumers of durable queues: a filter and user properties become an address, terms and an outlet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock._ext.hub.connection import MqttConsumer, QueueConsumer, QueueGroup, Session
from penstock._ext.match.trie import Trie
from penstock.core.logging import get_logger
from penstock.core.refusal import Refusal, Refused
from penstock.subscribers.queue.abandoned import LIVES, Life
from penstock.subscribers.queue.consumer import MOST_CREDIT, ConsumerTerms
from penstock.subscribers.queue.manager import QueueManager
from penstock.subscribers.queue.names import ROOT, Address, parse_subscription
from penstock.subscribers.queue.state import MemberRecord

log = get_logger("penstock.mqtt")

LIFE_PROPERTY = "x-group-life"  # between nodes: how long the group of a relayed client stays


@dataclass(frozen=True, slots=True)
class MqttOutlet:
    """Sends deliveries as PUBLISH packets. `settles_by_ack`: PUBACK and PUBCOMP settle them."""

    session: Session
    qos: int = 1
    identifier: int = 0
    settles_by_ack: bool = False

    @property
    def stored(self) -> Mapping[str, Any]:
        return {"settles_by_ack": self.settles_by_ack, "qos": self.qos, "identifier": self.identifier}

    @property
    def is_settled_by_ack(self) -> bool:
        """Whether that holds for the client's present version of MQTT."""
        return self.settles_by_ack or self.session.version != 5

    def make_consumer(self, group: QueueGroup, *, credit: int, number: int) -> MqttConsumer:
        return MqttConsumer(
            group,
            self.session,
            qos=self.qos,
            prefetch=credit,
            identifier=self.identifier,
            settles_by_ack=self.settles_by_ack,
            number=number,
        )

    def attached(self, consumer: QueueConsumer) -> None:
        assert isinstance(consumer, MqttConsumer)
        consumer.settles_by_ack = self.is_settled_by_ack

    def moved(self) -> None:
        connection = self.session.connection
        if connection is not None:
            connection.shutdown("the queue is served by another node now")


class MqttConsumers:
    """The consumers of persistent sessions, by their topic filters."""

    def __init__(self, trie: Trie) -> None:
        self._trie = trie

    def names_of(self, client: Session) -> list[str]:
        filters = [topic_filter.decode() for topic_filter, _, _ in self._trie.subscriptions(client)]
        return [topic_filter for topic_filter in filters if topic_filter.startswith(f"{ROOT}/")]

    def address_of(self, name: str) -> Address:
        return parse_subscription(name)

    def outlet_of(self, client: Session, record: MemberRecord) -> MqttOutlet:
        return MqttOutlet(client, record.qos, record.identifier, record.settles_by_ack)


async def subscribe(
    queues: QueueManager,
    session: Session,
    topic_filter: str,
    *,
    qos: int,
    identifier: int = 0,
    properties: Iterable[tuple[str, str]] = (),
    receive_maximum: int = MOST_CREDIT,
    is_relayed: bool = False,
) -> int:
    """Make the client a consumer and return the QoS granted; raises Refused. `is_relayed`: the client is another node,
    for a client of its own."""
    given = dict(properties)
    try:
        address = parse_subscription(topic_filter)
        terms = read_terms(given, version=session.version, qos=qos, receive_maximum=receive_maximum)
    except ValueError as error:
        log.info("a subscription to a queue is refused", client_id=session.client_id, error=str(error))
        raise Refused(Refusal.INVALID_NAME, str(error)) from None
    by_ack = session.version != 5 or given.get("settle-on-ack", "false").lower() == "true"
    outlet = MqttOutlet(session, qos, identifier, by_ack)
    relayed_life = read_life(given) if is_relayed else None
    await queues.consume(session, topic_filter, address, terms=terms, outlet=outlet, relayed_life=relayed_life)
    return qos


def read_terms(given: Mapping[str, str], *, version: int, qos: int, receive_maximum: int) -> ConsumerTerms:
    """Return the terms that the user properties of a SUBSCRIBE ask for; raises ValueError."""
    credit = receive_maximum
    if "prefetch" in given:
        if not given["prefetch"].isascii() or not given["prefetch"].isdigit() or not int(given["prefetch"]):
            raise ValueError(f"prefetch {given['prefetch'][:40]!r} is not a number from 1 on")
        credit = min(int(given["prefetch"]), MOST_CREDIT)
    for name in ("x-auto-commit", "settle-on-ack"):
        if given.get(name, "true").lower() not in ("true", "false"):
            raise ValueError(f"{name} is true or false, not {given[name][:40]!r}")
    return ConsumerTerms(
        group=given.get("consumer-group", "") if version == 5 else "",
        credit=max(credit, 1),
        settles=qos > 0,
        position=given.get("x-stream-offset", ""),
        auto_commit=given["x-auto-commit"].lower() == "true" if "x-auto-commit" in given else None,
    )


def read_life(given: Mapping[str, str]) -> Life:
    """Return the lifetime that another node sends for the group of its client; named if it sends none."""
    return next((life for life in LIVES if life == given.get(LIFE_PROPERTY)), "named")
