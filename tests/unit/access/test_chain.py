"""Yes, no and next: which authenticator has the last word, and what rules an identity brings."""

from __future__ import annotations

import asyncio

import pytest

from penstock._ext.match.acl import PUBLISH, SUBSCRIBE, AclProgram
from penstock.access.anonymous import NOBODY, Anonymous
from penstock.access.base import (
    NEXT,
    UNKNOWN_USER,
    Answer,
    Authenticator,
    AuthExchange,
    Authoriser,
    AuthStep,
    Credentials,
    Entrance,
    Grant,
    Identity,
    No,
    Provider,
    Subject,
    Surroundings,
)
from penstock.access.chain import Chain
from penstock.access.control import AccessControl
from penstock.core.errors import SettingsError
from penstock.core.refusal import Refusal, Refused
from penstock.settings import AccessSettings, load_settings

ENTRANCE = Entrance("here", "mqtt", admits_anonymous=True)
SETTINGS = Surroundings(AccessSettings())
ADA = Identity("ada", "says")
BAD = No(Refusal.BAD_CREDENTIALS)


class Says(Authenticator):
    """Always answers the same, at once or later."""

    name = "says"

    def __init__(self, answer: Answer, *, now: bool = False) -> None:
        self._answer = answer
        self._now = now

    def try_now(self, credentials: Credentials) -> Answer | None:
        return self._answer if self._now else None

    async def authenticate(self, credentials: Credentials) -> Answer:
        await asyncio.sleep(0)
        return self._answer


def ask(*answers: Answer, anonymous: bool = False) -> Identity | Refusal:
    chain = Chain([*(Says(answer) for answer in answers), *([Anonymous(SETTINGS)] if anonymous else [])])
    try:
        return asyncio.run(chain.authenticate(Credentials(ENTRANCE, "c", "ada", b"x")))
    except Refused as refused:
        return refused.refusal


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ((), Refusal.NOT_AUTHORISED),
        ((NEXT,), Refusal.NOT_AUTHORISED),
        ((ADA, BAD), ADA),
        ((BAD, ADA), Refusal.BAD_CREDENTIALS),
        ((NEXT, ADA), ADA),
        ((UNKNOWN_USER, ADA), ADA),
        ((UNKNOWN_USER, NEXT), Refusal.BAD_CREDENTIALS),
        ((No(Refusal.UNAVAILABLE), ADA), Refusal.UNAVAILABLE),
    ],
)
def test_the_first_yes_or_no_decides(answers: tuple[Answer, ...], expected: object) -> None:
    assert ask(*answers) == expected


def test_anonymous_clients_are_those_whose_name_nobody_has_checked() -> None:
    assert ask(NEXT, anonymous=True) == NOBODY
    assert ask(UNKNOWN_USER, anonymous=True) is Refusal.BAD_CREDENTIALS


def test_what_is_known_is_answered_at_once() -> None:
    credentials = Credentials(ENTRANCE, "c", "ada", b"x")
    assert Chain([Says(NEXT, now=True), Says(ADA, now=True)]).try_now(credentials) == ADA
    assert Chain([Says(NEXT, now=True), Says(ADA)]).try_now(credentials) is None
    # One who has to wait is not passed over for the sake of the next.
    assert Chain([Says(BAD), Says(ADA, now=True)]).try_now(credentials) is None
    with pytest.raises(Refused):
        Chain([Says(BAD, now=True), Says(ADA, now=True)]).try_now(credentials)


def test_a_listener_is_served_by_those_that_serve_it() -> None:
    class Elsewhere(Says):
        def serves(self, entrance: Entrance) -> bool:
            return entrance.surface == "amqp"

    chain = Chain([Elsewhere(BAD), Says(ADA)])
    assert asyncio.run(chain.authenticate(Credentials(ENTRANCE))) == ADA
    with pytest.raises(Refused):
        asyncio.run(chain.authenticate(Credentials(Entrance("there", "amqp", admits_anonymous=False))))


def test_the_first_who_has_the_method_begins_the_exchange() -> None:
    class Once:
        def step(self, data: bytes | None) -> AuthStep:
            return AuthStep.success(Identity("ada", "scram", ("staff",)))

    class Scram(Authenticator):
        name = "scram"

        def begin_exchange(self, credentials: Credentials) -> AuthExchange | None:
            return Once() if credentials.method == "SCRAM" else None

    chain = Chain([Says(ADA), Scram()])
    exchange = chain.begin_exchange(Credentials(ENTRANCE, "c", method="SCRAM"))
    assert exchange is not None
    step = exchange.step(b"")
    assert isinstance(step, AuthStep)
    assert (step.username, step.identity) == ("ada", Identity("ada", "scram", ("staff",)))
    assert chain.begin_exchange(Credentials(ENTRANCE, "c", method="other")) is None


# ---- rules ----


class Fixed(Authoriser):
    name = "fixed"
    rules = ((False, PUBLISH, (b"own", b"secret")), (True, PUBLISH | SUBSCRIBE, (b"all", "#")))

    def __init__(self, surroundings: Surroundings) -> None: ...

    @property
    def has_rules(self) -> bool:
        return True

    def program_for(self, subject: Subject) -> AclProgram | None:
        return AclProgram(self.rules)


class Both(Fixed, Says):
    """A provider may be an authenticator and an authoriser."""

    name = "both"

    def __init__(self, surroundings: Surroundings) -> None:
        Says.__init__(self, ADA, now=True)


def control(authorisers: tuple[str, ...], restricted: list[bool] | None = None) -> AccessControl:
    built_in: dict[str, type[Provider]] = {"fixed": Fixed, "second": Second}
    settings = AccessSettings(authenticators=(), authorisers=authorisers)
    noted = [] if restricted is None else restricted
    return AccessControl(settings, restrict=lambda: noted.append(True), built_in=built_in)


class Second(Fixed):
    name = "second"
    rules = ((True, PUBLISH, (b"own", "#")),)


def test_grants_come_before_the_rules_of_authorisers() -> None:
    grants = (Grant(False, PUBLISH, "all/%u/x"), Grant(True, PUBLISH, "mine/%c"))
    subject = Subject(Identity("ada", "jwt", grants=grants), "c1")
    access = control(("fixed", "second"))
    program = access.program_for(subject)
    assert program is not None
    topics = [b"all/ada/x", b"all/bob/x", b"mine/c1", b"mine/c2", b"own/secret", b"own/else"]
    assert [program.may_publish(topic) for topic in topics] == [False, True, True, False, False, True]
    assert access.explain(subject, "publish", b"all/ada/x") == "rule 1 of jwt denies it"
    assert access.explain(subject, "publish", b"nowhere") == "no rule allows it"


def test_grants_are_rules_where_nobody_else_has_any() -> None:
    restricted: list[bool] = []
    access = control((), restricted)
    free, bound = Subject(Identity("bob"), "b"), Subject(Identity("ada", grants=()), "a")
    assert access.program_for(free) is None
    assert not access.has_rules
    program = access.program_for(bound)
    assert program is not None
    assert not program.may_publish(b"x")
    assert access.program_for(bound) is not None
    assert restricted == [True]
    assert access.has_rules
    assert access.is_open_to(free)
    assert not access.is_open_to(bound)


@pytest.mark.parametrize("topic", ["", "a/#/b", "a+", "a\0"])
def test_a_grant_of_a_bad_filter_is_refused_when_it_is_made(topic: str) -> None:
    with pytest.raises(ValueError, match="is not allowed"):
        Grant(True, PUBLISH, topic)


def test_a_provider_in_both_lists_is_made_once() -> None:
    settings = AccessSettings(authenticators=("both",), authorisers=("both",))
    access = AccessControl(settings, built_in={"both": Both})
    assert access.chain.try_now(Credentials(ENTRANCE)) == ADA
    assert access.has_rules
    assert len(access._providers) == 1
    with pytest.raises(SettingsError, match="fixed is not an Authenticator"):
        AccessControl(AccessSettings(authenticators=("fixed",), authorisers=()), built_in={"fixed": Fixed})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"access.authenticators": "certificates"}, "'certificates' is not known: use enhanced, certificate"),
        ({"access.authorisers": "acl_file,acl_file"}, "'acl_file' is there twice"),
        ({"access.authorisers": "", "access.acl_file": "/dev/null"}, "authorisers does not name acl_file"),
        ({"access.authenticators": "password_file"}, "refuses every client"),
    ],
)
def test_lists_that_make_no_sense(overrides: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load_settings(None, {}, overrides)
