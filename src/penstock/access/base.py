"""The ports of access control: who a client is, and what it may do.

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


# ---- identities ----


class Grant(msgspec.Struct, frozen=True, array_like=True):
    """A rule for one client: `actions` is a mask of PUBLISH and SUBSCRIBE, `topic` a filter, with %c and %u."""

    allow: bool
    actions: int
    topic: str

    def __post_init__(self) -> None:
        """Raises ValueError."""
        parse_topic(self.topic)


class Identity(msgspec.Struct, frozen=True):
    """An authenticated user. `source` is the name of the provider that has authenticated it, empty if unknown.

    `grants` are rules of that provider. They come before those of the authorisers, the first match decides, and
    anything that no rule allows is denied. None: the provider has no rules. `attributes` has limits and other values
    that rules refer to. Connections of the identity end at `expires_at` (seconds since the epoch), unless the client
    authenticates again before.
    """

    user: str | None = None
    source: str = ""
    groups: tuple[str, ...] = ()
    grants: tuple[Grant, ...] | None = None
    client_type: ClientType | None = None
    attributes: dict[str, str | int | float] = {}
    expires_at: float | None = None


class Subject(msgspec.Struct, frozen=True):
    """The client that rules are about. `address` is its `host:port` while it is connected, else empty."""

    identity: Identity
    client_id: str = ""
    address: str = ""

    @property
    def user(self) -> str | None:
        return self.identity.user


# ---- credentials ----


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
    """Everything that a client presents. `certificate` is verified (`ssl.getpeercert()`), `peer` is `host:port`,
    `method` and `data` belong to an exchange. `was_examined`: an authenticator has looked for the user without finding
    it."""

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
    """The client is refused; no other authenticator is asked."""

    refusal: Refusal
    message: str = ""


class Next(msgspec.Struct, frozen=True):
    """The next authenticator decides. `has_examined`: this one has looked for the user without finding it, so the
    client must not be accepted as anonymous either."""

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
    """Argument of a provider's factory. A provider calls `changed` when its users or rules have changed without a
    reload: live sessions get their new rules, and clients of removed users are disconnected."""

    settings: AccessSettings
    changed: Callable[[], None] = lambda: None


class Provider:
    """Life cycle of a provider. Every method has a default, so that a provider has only what it needs. `name` appears
    in logs, and as the source of identities."""

    name = ""

    async def start(self) -> None:
        """Start background work. Called before the listeners open."""

    async def stop(self) -> None:
        """Stop background work, and refuse clients that are still waiting for an answer."""

    def prepare(self, settings: AccessSettings) -> object:
        """Read and check what the settings name, for `apply`. Raises SettingsError; nothing changes yet."""
        return None

    def apply(self, prepared: object) -> None:
        """Use the result of `prepare`. A reload applies the results of all providers, or of none. Also called once
        after construction."""


class Authenticator(Provider):
    """Says who a client is."""

    def serves(self, entrance: Entrance) -> bool:
        """Return whether this authenticator may know clients of the listener. Asked again after a reload."""
        return True

    def try_now(self, credentials: Credentials) -> Answer | None:
        """Answer without waiting, as at the usual reconnect; None if `authenticate` has to be asked. Never blocks."""
        return None

    async def authenticate(self, credentials: Credentials) -> Answer:
        """Answer when `try_now` could not. Raises Refused with BUSY or UNAVAILABLE; any other exception is logged, and
        the client is refused."""
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
    """Says what a client may do. All methods but `enrich` answer from memory. A remote authoriser asks its server in
    `enrich`, once per connection; the answer is stored with the session."""

    is_remote = False

    async def enrich(self, subject: Subject) -> Identity:
        """Return the identity with additional groups, grants or limits. Only called if `is_remote`. Raises Refused; any
        other exception is logged, and the client is refused."""
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
