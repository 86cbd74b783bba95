"""Rows of a query topic on their way to an MQTT client: one PUBLISH for each block, as JSON."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock._ext.hub.connection import Courier, Session
from penstock._ext.query.block import Block
from penstock._ext.wire.packets import encode_publish_properties
from penstock.subscribers.query.consumer import Rows

JSON = "application/json"


class MqttRows:
    """The outlet of a query consumer that is an MQTT client."""

    def __init__(self, session: Session, on_news: Callable[[], None], *, qos: int, identifier: int) -> None:
        self._session = session
        self._courier = Courier(session, on_news, qos=qos, identifier=identifier)

    @property
    def is_connected(self) -> bool:
        return self._courier.is_connected

    @property
    def has_room(self) -> bool:
        return self._courier.has_room

    @property
    def acknowledges(self) -> bool:
        return self._courier.qos > 0

    def send(self, rows: Rows, token: int) -> bool:
        payload = b'{"topic":%s,"db":%s,"vid":%d,"rows":%s}' % (
            msgspec.json.encode(rows.topic),
            msgspec.json.encode(rows.database),
            rows.partition,
            rows.block.to_json(),
        )
        return self._courier.send(rows.topic.encode(), payload, self._properties(rows.partition, rows.block), token)

    def _properties(self, partition: int, block: Block) -> bytes:
        if self._session.version != 5:
            return b""
        return encode_publish_properties(
            payload_format=1,
            content_type=JSON,
            user_properties=[
                ("partition", str(partition)),
                ("first-offset", str(block.first_offset)),
                ("last-offset", str(block.last_offset)),
            ],
        )

    def take_acked(self) -> list[int]:
        return self._courier.take_acked()

    def close(self) -> None:
        self._courier.close()
