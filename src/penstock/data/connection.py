"""One connection of a consumer: hello first, then requests, each answered when its answer is there."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, cast

import msgspec

from penstock.access import base as access
from penstock.core.logging import get_logger
from penstock.core.refusal import Refusal, Refused
from penstock.core.tasks import TaskSet
from penstock.data import frames
from penstock.subscribers.query.groups.limits import LONGEST_CLIENT
from penstock.subscribers.query.ports import Identity
from penstock_client.errors import BadRequest, DataError, NotAllowed, Unavailable
from penstock_client.wire import PROTOCOL, Hello, Welcome

if TYPE_CHECKING:
    from penstock.data.frontend import DataFrontend

log = get_logger("penstock.datasub")

# These change what the connection's consumers own or have read: they are handled one after the other. So are
# statements, beside them: a connection that has many to run does not keep those of others waiting.
IN_ORDER = {"subscribe": "group", "commit": "group", "leave": "group", "execute": "statements"}
# Of somebody who is not known yet no more is kept; it is more than a name and a password need.
LARGEST_HELLO = 64 * 1024


class DataConnection(asyncio.Protocol):
    """The protocol object of a transport. A frame that is none costs the connection, a request that fails does not."""

    def __init__(self, front: DataFrontend) -> None:
        self._front = front
        self._reader = frames.FrameReader(min(LARGEST_HELLO, front.settings.max_request_bytes))
        self._transport: asyncio.Transport | None = None
        self._identity: Identity | None = None
        self._is_greeting = False
        self._is_ending = False
        self._tasks = TaskSet()
        self._waiting: list[bytes] = []  # frames over the number of requests that may be under way
        self._order = {name: asyncio.Lock() for name in IN_ORDER.values()}
        self._timer: asyncio.TimerHandle | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._is_paused = False
        self._written = 0  # bytes of answers
        self._sent = 0  # of them, when it was looked last whether the other end reads
        self.peer = ""  # set by the listener if a proxy said so

    # ---- transport ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self.peer:
            name = transport.get_extra_info("peername")
            self.peer = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else ""
        sock = transport.get_extra_info("socket")
        if refusal := self._front.admit(self, 0 if sock is None else sock.fileno()):
            self._end(Unavailable(refusal))
            return
        self._timer = asyncio.get_running_loop().call_later(self._front.settings.hello_timeout, self._on_silence)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_ending = True
        self._transport = None
        self._waiting.clear()
        for timer in (self._timer, self._expiry):
            if timer is not None:
                timer.cancel()
        self._tasks.cancel()
        self._front.release(self)

    def data_received(self, data: bytes) -> None:
        if self._is_ending:
            return
        try:
            for frame in self._reader.feed(data):
                if self._waiting or len(self._tasks) >= self._front.settings.max_in_flight:
                    self._waiting.append(frame)
                else:
                    self._take(frame)
                if self._is_ending:
                    return
        except frames.BadFrame as error:
            self._front.count("bad_frames")
            self._end(BadRequest(str(error)))
        self._hold_or_read()

    def pause_writing(self) -> None:
        """It does not read its answers: it gets no more of them, and not for ever."""
        self._is_paused = True
        self._front.paused(self, is_paused=True)
        self._hold_or_read()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._front.settings.write_timeout, self._on_stall)

    def resume_writing(self) -> None:
        self._is_paused = False
        self._front.paused(self, is_paused=False)
        if self._identity is not None and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._hold_or_read()

    def _hold_or_read(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._waiting or self._is_paused:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def _on_silence(self) -> None:
        self._timer = None
        # One that has come is answered, however long it takes to look at the password.
        if self._identity is None and not self._is_greeting:
            self._end(BadRequest(f"no hello within {self._front.settings.hello_timeout:g} s"))

    def _on_stall(self) -> None:
        self._timer = None
        if self._transport is None:
            return
        sent = self._written - self._transport.get_write_buffer_size()
        if sent > self._sent:  # slow is not silent
            self._sent = sent
            self._timer = asyncio.get_running_loop().call_later(self._front.settings.write_timeout, self._on_stall)
        else:
            log.warning("a consumer does not read its answers", peer=self.peer)
            self._front.count("stalled")
            self._transport.abort()

    # ---- requests ----

    def _take(self, frame: bytes) -> None:
        number, method, raw = frames.parse(frame)
        if self._identity is None:
            if method != "hello" or self._is_greeting:
                raise frames.BadFrame("the first request is hello, and the next one comes after its answer")
            self._is_greeting = True
            work = self._greet(number, raw)
        elif method == "hello":
            raise frames.BadFrame("hello is said once")
        else:
            work = self._handle(number, method, raw)
        self._tasks.spawn(work).add_done_callback(self._on_done)

    def _on_done(self, _: asyncio.Task[None]) -> None:
        if not self._waiting or self._is_ending:
            return
        try:
            while self._waiting and len(self._tasks) < self._front.settings.max_in_flight:
                self._take(self._waiting.pop(0))
        except frames.BadFrame as error:
            self._front.count("bad_frames")
            self._end(BadRequest(str(error)))
        self._hold_or_read()

    async def _handle(self, number: int, method: str, raw: msgspec.Raw) -> None:
        identity = self._identity
        assert identity is not None
        try:
            parameters = frames.parse_parameters(method, raw)
            if method in IN_ORDER:
                async with self._order[IN_ORDER[method]]:
                    result = await self._front.service.handle(identity, method, parameters)
            else:
                result = await self._front.service.handle(identity, method, parameters)
            self._check_room(method)
            answer = frames.build_answer(number, result)
        except DataError as error:
            self._front.count("failures")
            if isinstance(error, NotAllowed):
                self._report_denied(identity, method, error)
            answer = frames.build_failure(number, error)
        except Exception:
            # One request of one consumer; the others go on.
            self._front.count("failures")
            log.exception("a request failed", method=method, peer=self.peer)
            answer = frames.build_failure(number, Unavailable("the broker failed at this request; its log says why"))
        self._front.count("requests")
        self._send(answer)

    def _report_denied(self, identity: Identity, method: str, error: NotAllowed) -> None:
        """Report a request that the user has no right for. The text of the error names the topic."""
        if self._front.refusals is not None:
            self._front.refusals.denied(
                f"data {method}",
                b"",
                lambda: error.message,
                client_id=identity.client_id,
                username=identity.user,
                address=self.peer,
            )

    async def _greet(self, number: int, raw: msgspec.Raw) -> None:
        hello = Hello()
        try:
            hello = cast(Hello, frames.parse_parameters("hello", raw))
            if hello.protocol != PROTOCOL:
                raise BadRequest(f"protocol {hello.protocol} is not spoken here: this broker speaks {PROTOCOL}")
            if len(hello.client_id) > LONGEST_CLIENT:
                raise BadRequest(f"client.id has {len(hello.client_id)} characters: use at most {LONGEST_CLIENT}")
            subject = access.Subject(await self._authenticate(hello), hello.client_id, self.peer)
            # Rules may name the client id, as for MQTT. A consumer without an id shares none.
            if hello.client_id and not self._front.access.may_use_client_id(subject):
                raise NotAllowed(f"the user may not use the client id {hello.client_id!r} ([[client_ids]])")
        except DataError as error:
            if self._front.refusals is not None:
                self._front.refusals.refused(
                    error.message,
                    client_id=hello.client_id,
                    username=hello.user or None,
                    address=self.peer,
                    listener=self._front.listener_settings.name,
                )
            self._front.count("refused")
            self._end(error, number)
            return
        self._identity = Identity.of(subject, "data")
        if subject.identity.expires_at is not None:
            left = max(0.0, subject.identity.expires_at - time.time())
            self._expiry = asyncio.get_running_loop().call_later(
                left, self._end, NotAllowed("the credentials have expired")
            )
        self._reader.largest = self._front.settings.max_request_bytes
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._send(frames.build_answer(number, Welcome(PROTOCOL, self._front.version, self._front.node)))

    async def _authenticate(self, hello: Hello) -> access.Identity:
        """Raises DataError."""
        front = self._front
        certificate = None
        if front.listener_settings.client_certificate != "none" and self._transport is not None:
            certificate = self._transport.get_extra_info("peercert")
        user, password = hello.user or None, hello.password.encode()
        try:
            return await front.access.chain.authenticate(
                access.Credentials(front.entrance, hello.client_id, user, password, self.peer, certificate)
            )
        except Refused as refused:
            kind = Unavailable if refused.refusal in (Refusal.BUSY, Refusal.UNAVAILABLE) else NotAllowed
            raise kind(refused.message) from None
        except Exception:
            # Whatever breaks in a check, nobody gets in by it.
            log.exception("authentication failed", peer=self.peer)
            raise Unavailable("the broker failed at this request; its log says why") from None

    def _check_room(self, method: str) -> None:
        """Rows for a consumer that does not read are not kept for it: the log has them. Raises Unavailable."""
        if method == "fetch" and self.unsent > self._front.most_unsent(self):
            self._front.count("unsent")
            raise Unavailable("the answers before this one are not read yet: fetch fewer partitions at once, or less")

    @property
    def unsent(self) -> int:
        """Bytes of answers that the other end has not taken."""
        return self._transport.get_write_buffer_size() if self._is_paused and self._transport is not None else 0

    def _send(self, answer: bytes) -> None:
        if self._transport is not None and not self._is_ending:
            self._written += len(answer)
            self._transport.write(answer)

    def _end(self, error: DataError, number: int = 0) -> None:
        """Says why, and hangs up."""
        if self._is_ending:
            return
        self._send(frames.build_failure(number, error))
        self._is_ending = True
        if self._transport is not None:
            self._transport.close()

    def end_removed(self) -> None:
        """Disconnect if the provider that has authenticated the user does not know it any more."""
        if self._identity is not None and not self._front.access.chain.knows(self._identity.subject.identity):
            log.warning("consumer disconnected: the user was removed", peer=self.peer, user=self._identity.user)
            self._end(NotAllowed("the user was removed"))

    def close(self) -> None:
        """The broker goes down: what was sent is sent."""
        self._is_ending = True
        if self._transport is not None:
            self._transport.close()
