"""The ports of access control: who somebody is, and what they may do.

    front-end ── Credentials ─▶ Authenticators, in the order of the settings ─▶ Identity, or Refused
    front-end ── Subject ─────▶ Authorisers, the same ─▶ AclProgram, client type, client ids, query topics

Nothing here is asked per message: the authorisers compile the rules of a client into an AclProgram when it connects. A
provider is one file in this package, or a `module:factory` in the settings; it knows no protocol.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from penstock._ext.match.acl import AclProgram
from penstock.access.topics import parse_topic
from penstock.core.refusal import Refusal
from penstock.settings import AccessSettings, ListenerSettings
from penstock.settings.checks import is_anonymous_allowed
from penstock.settings.model import ClientType

Surface: TypeAlias = Literal["mqtt", "data", "admin", "amqp"]
ENHANCED = "enhanced"


# ---- who somebody is ----


class Grant(msgspec.Struct, frozen=True, array_like=True):
    """A rule for one client: `actions` is a mask of PUBLISH and SUBSCRIBE, `topic` a filter, with %c and %u."""

    allow: bool
    actions: int
    topic: str

    def __post_init__(self) -> None:
        """Raises ValueError."""
        parse_topic(self.topic)


class Identity(msgspec.Struct, frozen=True):
    """Somebody who has proved who they are. `source` is the name of the provider that has confirmed it, empty if that
    is not known.

    `grants` are rules of that provider: they come before those of the authorisers, first match decides, and what no
    rule allows is denied. None: the provider says nothing about it. `attributes` has limits, and whatever else rules
    may need. All connections as this identity end at `expires_at` (seconds since the epoch).
    """

    user: str | None = None
    source: str = ""
    groups: tuple[str, ...] = ()
    grants: tuple[Grant, ...] | None = None
    client_type: ClientType | None = None
    attributes: dict[str, str | int | float] = {}
    expires_at: float | None = None


class Subject(msgspec.Struct, frozen=True):
    """The one whom rules are about. `address` is `host:port` of a connected client, if that is known."""

    identity: Identity
    client_id: str = ""
    address: str = ""

    @property
    def user(self) -> str | None:
        return self.identity.user


# ---- what they present ----


@dataclass(frozen=True, slots=True, eq=False)
class Entrance:
    """The listener that a client connects to."""

    name: str
    surface: Surface
    admits_anonymous: bool
    certificate_username: str = "none"

    @classmethod
    def of(cls, listener: ListenerSettings, access: AccessSettings, surface: Surface) -> Entrance:
        admits = is_anonymous_allowed(listener, access)
        return cls(listener.name, surface, admits, listener.certificate_username)


class Credentials(msgspec.Struct):
    """What a client presents. `certificate` is the verified one (`ssl.getpeercert()`), `peer` its `host:port`, `method`
    and `data` those of an exchange. `was_examined`: an authenticator has looked for the user and has not found it."""

    entrance: Entrance
    client_id: str = ""
    username: str | None = None
    password: bytes | None = None
    peer: str | None = None
    certificate: Mapping[str, Any] | None = None
    method: str | None = None
    data: bytes | None = None
    was_examined: bool = False

    @property
    def host(self) -> str:
        return (self.peer or "").rpartition(":")[0]


# ---- answers ----


class No(msgspec.Struct, frozen=True):
    """The client is refused, whatever others would say."""

    refusal: Refusal
    message: str = ""


class Next(msgspec.Struct, frozen=True):
    """The next authenticator decides. `has_examined`: this one has looked at user name and password, and does not know
    the user; so nobody is let in as if they had presented nothing."""

    has_examined: bool = False


NEXT = Next()
UNKNOWN_USER = Next(has_examined=True)
Answer: TypeAlias = Identity | No | Next
"""Yes, no, or next."""


@dataclass(frozen=True, slots=True)
class AuthStep:
    """An answer of an exchange: go on with `data`, or the client is in as `identity`, or it is not."""

    outcome: str
    data: bytes | None = None
    identity: Identity | None = None

    @classmethod
    def proceed(cls, data: bytes) -> AuthStep:
        return cls("proceed", data)

    @classmethod
    def success(cls, user: str | Identity | None, data: bytes | None = None) -> AuthStep:
        """The client is who it says: a user name is enough if the method knows no more than that."""
        return cls("success", data, user if isinstance(user, Identity) else Identity(user, ENHANCED))

    @classmethod
    def failure(cls) -> AuthStep:
        return cls("failure")

    @property
    def username(self) -> str | None:
        return None if self.identity is None else self.identity.user


class AuthExchange(Protocol):
    """The broker's side of one exchange of messages (MQTT 5 AUTH, SASL). A new one is made for each."""

    def step(self, data: bytes | None) -> AuthStep | Awaitable[AuthStep]:
        """Answer the client's data."""
        ...


AuthExchangeFactory: TypeAlias = Callable[[str, str | None], AuthExchange]
"""Made from (client id, user name that the client claims, or None)."""


# ---- ports ----


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Given to the factory of a provider. `changed` is called by a provider whose users or rules have changed: live
    sessions get their new rules, and clients of removed users are disconnected."""

    settings: AccessSettings
    changed: Callable[[], None] = lambda: None


class Provider:
    """Life of a provider. Every method has a default, so that a provider has only what it needs.

    `name` is what `Identity.source`, logs and the settings call it.
    """

    name = ""

    async def start(self) -> None:
        """Before the first client is asked for its credentials."""

    async def stop(self) -> None:
        """Refuse everything that still waits."""

    def prepare(self, settings: AccessSettings) -> object:
        """Read and check what the settings name, for `apply`. Raises SettingsError; nothing changes yet."""
        return None

    def apply(self, prepared: object) -> None:
        """Use what `prepare` returned: all providers of a reload do, or none. Called after construction as well."""


class Authenticator(Provider):
    """Knows who somebody is."""

    def serves(self, entrance: Entrance) -> bool:
        """Return whether clients of this listener are worth asking about; asked again after a reload."""
        return True

    def try_now(self, credentials: Credentials) -> Answer | None:
        """Answer without waiting, as at the usual reconnect; None: ask `authenticate`. Never blocks."""
        return None

    async def authenticate(self, credentials: Credentials) -> Answer:
        """Answer after `try_now` could not. Raises Refused with BUSY or UNAVAILABLE; any other exception is logged and
        keeps the client out."""
        return NEXT

    def begin_exchange(self, credentials: Credentials) -> AuthExchange | None:
        """Begin an exchange by `credentials.method`; None if this is not a method of this authenticator."""
        return None

    def knows(self, identity: Identity) -> bool:
        """Return whether the identity, which came from here, is still valid. Asked after a reload and `changed`."""
        return True

    def client_type(self, user: str) -> ClientType | None:
        """Return the type of the user's clients, whichever authenticator has confirmed the user; None: not known."""
        return None


class Authoriser(Provider):
    """Knows what somebody may do. Every question is answered from memory: whoever has to ask elsewhere does so once, in
    `enrich`, and the answer stays with the session."""

    is_remote = False

    async def enrich(self, subject: Subject) -> Identity:
        """Return the identity with what is known of it elsewhere (groups, grants, limits). Only called if `is_remote`,
        once for each connection. Raises Refused; any other exception is logged and keeps the client out."""
        return subject.identity

    @property
    def has_rules(self) -> bool:
        """Return whether there are rules at all: if not, nothing else is asked, and where no authoriser has any,
        everything is allowed. Looked at after a reload and after `changed`."""
        return False

    def program_for(self, subject: Subject) -> AclProgram | None:
        """Compile the rules for the client; None: there are none. Called when a client connects, after a restart for
        each session, and for each session after a reload."""
        return None

    def explain(self, subject: Subject, action: str, topic: bytes) -> str | None:
        """Say why the client may not publish to the topic, or subscribe to the filter; None: no rule here decides."""
        return None

    def may_use_client_id(self, subject: Subject) -> bool | None:
        """Return whether the user may connect with the client id; None: no rule here is about it."""
        return None

    def data_access(self, subject: Subject, action: str, topic: str) -> bool | None:
        """Return whether the user may create, subscribe to or drop the query topic; None: no rule is about it."""
        return None

    def client_type(self, subject: Subject) -> ClientType | None:
        """Return the type that rules give to the client; None: no rule here is about it."""
        return None
