"""Looking at APPLICATION clients and changing them, for the admin API and the metrics."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Literal

from penstock._ext.application.context import read_context
from penstock._ext.hub.connection import Session
from penstock.core.errors import ConflictError, NotFoundError
from penstock.core.logging import get_logger
from penstock.core.metrics import ClientSample, ShareSample
from penstock.storage.log.base import Consumer, Log, LogError, TopicPartition, Watermarks
from penstock.subscribers.application.delivery import ApplicationDelivery
from penstock.subscribers.application.shared.shares import Share
from penstock_schema.topic_filter import split_share

log = get_logger("penstock.application")

REFRESH_SECONDS = 1.0
REST = 10  # times as long as a round of questions took

ResetTo = Literal["begin", "end"] | int | datetime


class ApplicationOverview:
    """What there is to say about each client. Ends of topics are asked of the log, so most of it is asynchronous."""

    def __init__(self, delivery: ApplicationDelivery, log_provider: Log) -> None:
        self._delivery = delivery
        self._log = log_provider
        self._consumer: Consumer | None = None
        self._lags: dict[str, int] = {}
        self._share_lags: dict[bytes, int] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._consumer = self._log.consumer("")
        self._task = asyncio.get_running_loop().create_task(self._refresh())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=1.0)
        if self._consumer is not None:
            await self._consumer.close()

    async def list(self) -> list[dict[str, Any]]:
        entries = []
        for session in self._delivery.sessions():
            with contextlib.suppress(NotFoundError):  # its log was removed during the call
                entries.append(await self.describe(session))
        return entries

    async def show(self, client_id: str) -> dict[str, Any]:
        session = self.find(client_id)
        entry = await self.describe(session)
        context = self._delivery.context_of(session)
        entry["packet_ids"] = [] if context is None else read_context(context)["in_flight"]
        return entry

    def find(self, client_id: str) -> Session:
        """Raises NotFoundError if the client has no log."""
        session = self._delivery.find(client_id)
        if session is None:
            raise _not_found(client_id)
        return session

    async def watermarks(self, place: TopicPartition) -> Watermarks:
        """Raises LogError."""
        assert self._consumer is not None
        return await self._consumer.watermarks(place)

    async def describe(self, session: Session) -> dict[str, Any]:
        """Raises NotFoundError if the client has no log, or loses it during the call."""
        if session.feed is None:
            raise _not_found(session.client_id)
        topic = session.feed.topic
        lanes = self._delivery.book.lanes_of(session)
        totals = self._delivery.book.totals_of(session)
        committed = self._delivery.committed_of(session)
        end = (await self.watermarks(TopicPartition(topic, 0))).end
        if session.feed is None:
            raise _not_found(session.client_id)
        self._lags[session.client_id] = max(0, end - committed)
        return {
            "client_id": session.client_id,
            "topic": topic,
            "connected": session.connection is not None,
            "session_expiry": session.expiry_interval,
            "subscriptions": session.hub.trie.count(session),
            "lag": max(0, end - committed),
            "end_offset": end,
            "committed_offset": committed,
            "in_flight": sum(lane.in_flight for lane in lanes),
            "packs_in_flight": sum(lane.packs for lane in lanes),
            "retries": totals["retried"],
            "given_up": totals["skipped"],
            "expired": totals["expired"],
            "delivered": totals["delivered"],
            "acknowledged": totals["acknowledged"],
            "shared": [await self._describe_share(share) for share in self._delivery.shared.shares_of(session)],
        }

    async def _describe_share(self, share: Share) -> dict[str, Any]:
        name, plain = split_share(share.share_filter)
        return {
            "share": (name or b"").decode(),
            "filter": plain.decode(),
            "topic": share.topic,
            "group": share.group,
            "partitions": len(share.partitions),
            "lag": await self._find_share_lag(share),
        }

    async def _find_share_lag(self, share: Share) -> int:
        lag = 0
        for partition in sorted(share.partitions):
            end = (await self.watermarks(TopicPartition(share.topic, partition))).end
            lag += max(0, end - self._delivery.shared.committed_of(share, partition))
        self._share_lags[share.share_filter] = lag
        return lag

    # ---- metrics ----

    async def _refresh(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            for session in self._delivery.sessions():
                if session.feed is None:
                    continue
                try:
                    end = (await self.watermarks(TopicPartition(session.feed.topic, 0))).end
                    self._lags[session.client_id] = max(0, end - self._delivery.committed_of(session))
                except LogError as error:
                    log.debug("the lag of a client is not known", client_id=session.client_id, error=str(error))
            for share in self._delivery.shared.shares():
                try:
                    await self._find_share_lag(share)
                except LogError as error:
                    log.debug("the lag of a share is not known", topic=share.topic, error=str(error))
            self._forget_those_that_ended()
            await asyncio.sleep(max(REFRESH_SECONDS, REST * (loop.time() - began)))

    def _forget_those_that_ended(self) -> None:
        self._lags = {name: lag for name, lag in self._lags.items() if self._delivery.find(name) is not None}
        shares = {share.share_filter for share in self._delivery.shared.shares()}
        self._share_lags = {name: lag for name, lag in self._share_lags.items() if name in shares}
        book = self._delivery.book
        book.forget([name for name in book.clients_known() if self._delivery.find(name) is None])

    def counters(self) -> dict[str, int]:
        totals = self._delivery.book.totals()
        sessions = self._delivery.sessions()
        return {
            "application_clients": len(sessions),
            "application_connected": sum(session.connection is not None for session in sessions),
            "application_lag_total": sum(self._lags.values()),
            "application_shared_lag_total": sum(self._share_lags.values()),
            "application_in_flight": self._delivery.book.in_flight,
            "application_retries_total": totals["retried"],
            "application_expired_total": totals["expired"],
            "application_given_up_total": totals["skipped"],
            "application_delivered_total": totals["delivered"],
            "application_acknowledged_total": totals["acknowledged"],
            "application_duplicates_skipped_total": totals["duplicates"],
        }

    def samples(self) -> Sequence[ClientSample]:
        """The numbers of each client."""
        return [
            ClientSample(
                session.client_id,
                self._lags.get(session.client_id, 0),
                sum(lane.in_flight for lane in self._delivery.book.lanes_of(session)),
                totals["retried"],
                totals["expired"],
                totals["skipped"],
            )
            for session in self._delivery.sessions()
            for totals in (self._delivery.book.totals_of(session),)
        ]

    def share_samples(self) -> Sequence[ShareSample]:
        """Those of each share."""
        return [
            ShareSample(
                share.share_filter.decode(),
                self._share_lags.get(share.share_filter, 0),
                sum(lane.in_flight for lane in share.lanes.values()),
                len(share.members),
            )
            for share in self._delivery.shared.shares()
        ]


class ApplicationControl:
    """The commands of the operator; `end_session` ends a session and disconnects its client."""

    def __init__(
        self,
        overview: ApplicationOverview,
        delivery: ApplicationDelivery,
        log_provider: Log,
        end_session: Callable[[Session], None],
    ) -> None:
        self._overview = overview
        self._delivery = delivery
        self._log = log_provider
        self._end_session = end_session

    async def list(self) -> list[dict[str, Any]]:
        return await self._overview.list()

    async def show(self, client_id: str) -> dict[str, Any]:
        return await self._overview.show(client_id)

    async def reset(self, client_id: str, to: ResetTo) -> dict[str, Any]:
        session = self._overview.find(client_id)
        if session.connection is not None:
            raise ConflictError(
                f"the client {client_id!r} is connected, and what it has in flight would come again",
                "Disconnect it first; it goes on from the new offset when it connects.",
            )
        assert session.feed is not None
        place = TopicPartition(session.feed.topic, 0)
        marks = await self._overview.watermarks(place)
        if to == "begin":
            offset = marks.first
        elif to == "end":
            offset = marks.end
        elif isinstance(to, datetime):
            offset = await self._offset_of(place, to)
        else:
            offset = to if to >= 0 else marks.end + to
        if not marks.first <= offset <= marks.end:
            raise ConflictError(f"offset {offset} of {place.topic} is not within {marks.first} to {marks.end}")
        self._delivery.move(session, offset)
        log.info("an APPLICATION client was moved", client_id=client_id, offset=offset)
        return await self._overview.describe(session)

    async def delete(self, client_id: str) -> dict[str, Any]:
        session = self._delivery.find(client_id)
        if session is None and await self._delivery.has_topic(client_id):
            await self._delivery.remove_topic(client_id)  # of a session that ended, with remove_topics = "never"
            return {"client_id": client_id, "topic": self._delivery.topic_name(client_id), "connected": False, "lag": 0}
        session = self._overview.find(client_id)
        entry = await self._overview.describe(session)
        self._end_session(session)
        await self._delivery.remove_topic(client_id)
        return entry

    async def _offset_of(self, place: TopicPartition, time: datetime) -> int:
        consumer = self._log.consumer("")
        try:
            consumer.assign([place])
            return await consumer.seek_to_time(place, round(time.timestamp() * 1000))
        finally:
            await consumer.close()


def _not_found(client_id: str) -> NotFoundError:
    return NotFoundError(f"there is no APPLICATION client {client_id!r}", "`penstock app list` shows those there are.")
