"""All lanes of this node: where each is read, under which key its context is stored, and what became of its packs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from penstock._ext.application.lane import ApplicationDesk, Lane
from penstock._ext.hub.connection import Hub, Session
from penstock.core.logging import get_logger
from penstock.settings.application import ApplicationSettings
from penstock.storage.log.pack_reader import PackReader
from penstock.subscribers.application.contexts import Contexts

log = get_logger("penstock.application")

SAVE_SECONDS = 0.1
SWEEP_TICKS = 5  # of SAVE_SECONDS
COMMIT_TICKS = 10
LIVE = ("delivered", "acknowledged", "expired", "duplicates", "retried", "skipped", "damaged")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a lane belongs. `prefix` is what its stored context begins with."""

    key: bytes
    prefix: bytes
    reader: PackReader[Lane]


class LaneBook:
    """`on_detach` is called when the connection of a session with lanes goes."""

    def __init__(
        self, hub: Hub, contexts: Contexts, settings: ApplicationSettings, on_detach: Callable[[Session], None]
    ) -> None:
        flush_after = 1 if settings.write_and_flush else settings.buffered_messages
        self._desk = ApplicationDesk(
            hub, self.on_lanes, on_detach, packs_in_flight=settings.packs_in_flight, flush_after=flush_after
        )
        self._contexts = contexts
        self._settings = settings
        self._places: dict[Lane, Place] = {}
        self._has_places = asyncio.Event()
        self._totals = dict.fromkeys(LIVE, 0)
        self._past: dict[str, dict[str, int]] = {}  # of lanes that are closed, by client
        self._uncommitted: dict[Lane, PackReader[Lane]] = {}
        self._on_denied: Callable[[Lane], None] = lambda lane: None
        self._ticker: asyncio.Task[None] | None = None

    def start(self, on_denied: Callable[[Lane], None]) -> None:
        """`on_denied` is called with lanes that wait at a message the client may not read."""
        self._on_denied = on_denied
        self._ticker = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        await self._commit()

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterable[Lane]:
        return iter(list(self._places))

    def open(self, lane: Lane, place: Place) -> None:
        """The lane is the session's from here on: PUBRELs first, then its packs."""
        self._places[lane] = place
        self._has_places.set()
        self._desk.open(lane)
        # A PUBREL says that PUBREC came: it must be durable that it did.
        self._contexts.when_durable(place.key, lane.resume)
        place.reader.add(lane)

    def close(self, lane: Lane, *, keeps_context: bool = True) -> None:
        place = self._places.pop(lane, None)
        if place is None:
            return
        place.reader.remove(lane)
        context = lane.close()
        past = self._past.setdefault(lane.session.client_id, dict.fromkeys(LIVE, 0))
        for name in LIVE:
            self._totals[name] += getattr(lane, name)
            past[name] += getattr(lane, name)
        if keeps_context:
            self._contexts.put(place.key, place.prefix + context)
            self._uncommitted[lane] = place.reader
        else:
            self._uncommitted.pop(lane, None)  # its offsets mean nothing any more

    def save(self, lanes: Iterable[Lane]) -> None:
        """Makes the contexts durable that packs or PUBRELs wait for."""
        self._store([lane for lane in lanes if lane.needs_context])

    def _store(self, lanes: Iterable[Lane]) -> None:
        known = [(lane, self._places[lane]) for lane in lanes if lane in self._places]
        self._contexts.save((place.key, place.prefix, lane) for lane, place in known)

    def on_lanes(self, lanes: list[Lane]) -> None:
        """Lanes with room for more, or with PUBRELs that wait for a context; once per loop iteration."""
        for lane in lanes:
            place = self._places.get(lane)
            if place is not None:
                place.reader.go_on(lane)
        self.save(lanes)
        for lane in lanes:
            # What was sent before the message is acknowledged first: nothing of it changes hands.
            is_denied = lane.is_stale or (lane.denied_topic is not None and not lane.packs)
            if is_denied and lane in self._places:
                self._on_denied(lane)

    async def _run(self) -> None:
        count = 0
        while True:
            if not self._places and not self._uncommitted:
                self._has_places.clear()
                await self._has_places.wait()
            await asyncio.sleep(SAVE_SECONDS)
            count += 1
            try:
                self._tick(count)
                if count % COMMIT_TICKS == 0:
                    await self._commit()
            except Exception as error:  # whatever it is, the other clients need the next round
                log.exception("delivery to APPLICATION clients failed", error=repr(error))

    def _tick(self, count: int) -> None:
        dirty = self._desk.take_dirty()
        self._store(dirty)
        for lane in dirty:
            if lane in self._places:
                self._uncommitted[lane] = self._places[lane].reader
        if count % SWEEP_TICKS == 0:
            for lane in list(self._places):
                if lane.packs:
                    self._sweep(lane)

    def _sweep(self, lane: Lane) -> None:
        """Packs that were not acknowledged in time."""
        settings = self._settings
        _, skipped = lane.sweep(
            round(settings.pack_timeout * 1000),
            round(settings.retry_pause * 1000),
            settings.retries,
            settings.ack_strategy == "skip-all",
        )
        if skipped:
            log.warning(
                "messages were not acknowledged and are given up",
                client_id=lane.session.client_id,
                topic=lane.topic,
                messages=skipped,
                ack_strategy=settings.ack_strategy,
            )

    async def _commit(self) -> None:
        """The groups' offsets are for those who look from outside, and for other nodes."""
        waiting, self._uncommitted = self._uncommitted, {}
        by_reader: dict[PackReader[Lane], list[Lane]] = {}
        for lane, reader in waiting.items():
            by_reader.setdefault(reader, []).append(lane)
        for reader, lanes in by_reader.items():
            await reader.commit(lanes)

    def totals(self) -> dict[str, int]:
        """Of all clients since the start, those connected now included."""
        totals = dict(self._totals)
        for lane in self._places:
            for name in LIVE:
                totals[name] += getattr(lane, name)
        return totals

    def lanes_of(self, session: Session) -> list[Lane]:
        """The open lanes of a session."""
        return self._desk.lanes_of(session)

    def totals_of(self, session: Session) -> dict[str, int]:
        """Of one client's session since the broker started."""
        past = self._past.get(session.client_id, {})
        return {name: past.get(name, 0) + sum(getattr(lane, name) for lane in self.lanes_of(session)) for name in LIVE}

    def forget(self, client_ids: Iterable[str]) -> None:
        """Their sessions are over."""
        for client_id in client_ids:
            self._past.pop(client_id, None)

    def clients_known(self) -> Iterable[str]:
        return self._past.keys()

    @property
    def in_flight(self) -> int:
        return sum(lane.in_flight for lane in self._places)
