"""The ACL file: allow and deny rules in TOML, first match decides, nothing matches = denied.

    [[rules]]
    effect = "allow"                        # or "deny"
    actions = ["publish", "subscribe"]      # default: both
    users = ["alice"]                       # default: everybody
    clients = ["sensor-7"]                  # exact client ids, default: all
    anonymous = true                        # only clients without (false: with) a user name, default: both
    topics = ["sensors/%u/#", "devices/%c/+"]

%c and %u are the client id and user name, as text within their level: whatever they contain, they never act as a
wildcard or as a separator. A topic with %u is none for clients without a user name. %% is a percent sign.

Beside the rules there may be [[types]] entries, see client_types.py, [[data]] entries, see data_rules.py, and
[[client_ids]] entries, see client_ids.py.
"""

from __future__ import annotations

import tomllib
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from penstock._ext.match import acl
from penstock.access.base import Authoriser, Subject, Surroundings
from penstock.access.certificates import CERTIFICATE
from penstock.access.client_ids import ClientIdRule, may_use, parse_client_id_rule
from penstock.access.client_types import TypeRule, parse_type_rule
from penstock.access.data_rules import DataRule, parse_data_rule
from penstock.access.entries import check_keys, read_anonymous, read_texts
from penstock.access.topics import PLACEHOLDER, Levels, fill_level, parse_topic, uses_user
from penstock.core.errors import AccessFileError
from penstock.settings import AccessSettings
from penstock.settings.model import ClientType

MOST_RULES = 10_000
MOST_SHARED = 1_024
NO_RULE = "no rule allows it"
ACTIONS = {"publish": acl.PUBLISH, "subscribe": acl.SUBSCRIBE}
SECTIONS = ("rules", "types", "data", "client_ids")
KEYS = ("effect", "actions", "users", "clients", "anonymous", "topics")


@dataclass(frozen=True, slots=True)
class Rule:
    """One [[rules]] entry."""

    allow: bool
    actions: int
    topics: tuple[Levels, ...]
    users: frozenset[str] | None
    clients: frozenset[str] | None
    anonymous: bool | None
    uses_client: bool
    uses_user: bool

    def applies_to(self, client_id: str, username: str | None) -> bool:
        if self.users is not None and username not in self.users:
            return False
        if self.clients is not None and client_id not in self.clients:
            return False
        return self.anonymous is None or self.anonymous is (username is None)


class AclFile:
    """The rules of one file. Never changes: a reload makes a new one."""

    def __init__(
        self,
        rules: Iterable[Rule],
        types: Iterable[TypeRule] = (),
        data: Iterable[DataRule] = (),
        client_ids: Iterable[ClientIdRule] = (),
    ) -> None:
        self.rules = tuple(rules)
        self.types = tuple(types)
        self.data = tuple(data)
        self.client_ids = tuple(client_ids)
        # Programs without %c are the same for many clients; one object serves them all.
        self._shared: OrderedDict[tuple[tuple[int, ...], str | None], acl.AclProgram] = OrderedDict()

    @classmethod
    def load(cls, path: Path | str) -> AclFile:
        try:
            document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise AccessFileError(f"cannot read the ACL file {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise AccessFileError(f"the ACL file {path} is not UTF-8 text") from None
        except tomllib.TOMLDecodeError as error:
            raise AccessFileError(f"{path} is not valid TOML: {error}") from None
        return cls.parse(document, str(path))

    @classmethod
    def parse(cls, document: dict[str, Any], name: str) -> AclFile:
        unknown = [key for key in document if key not in SECTIONS]
        entries = {section: document.get(section, []) for section in SECTIONS}
        for section, found in entries.items():
            if unknown or not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
                raise AccessFileError(
                    f"{name}: an ACL file has [[rules]], [[types]], [[data]] and [[client_ids]] entries, nothing else"
                )
            if len(found) > MOST_RULES:
                raise AccessFileError(
                    f"{name}: {len(found)} {section} are more than the {MOST_RULES} allowed: use %c, %u or users"
                )
        return cls(
            [_parse_rule(rule, f"{name}: rule {number}") for number, rule in enumerate(entries["rules"], 1)],
            [parse_type_rule(entry, f"{name}: type {number}") for number, entry in enumerate(entries["types"], 1)],
            [parse_data_rule(entry, f"{name}: data {number}") for number, entry in enumerate(entries["data"], 1)],
            [
                parse_client_id_rule(entry, f"{name}: client id {number}")
                for number, entry in enumerate(entries["client_ids"], 1)
            ],
        )

    def client_type(self, client_id: str, username: str | None, *, from_certificate: bool = False) -> ClientType | None:
        """What the first [[types]] entry for this client says; None when there is none."""
        for rule in self.types:
            if rule.applies_to(client_id, username, from_certificate=from_certificate):
                return rule.client_type
        return None

    def may_use_client_id(self, client_id: str, username: str | None) -> bool:
        """Return whether the [[client_ids]] entries let this user connect with the client id."""
        return may_use(self.client_ids, client_id, username)

    def data_access(self, client_id: str, username: str | None, action: str, topic: str) -> bool | None:
        """What the first [[data]] entry for this action says; None when there is none."""
        for rule in self.data:
            if rule.applies_to(client_id, username, action, topic):
                return rule.allow
        return None

    def explain(self, client_id: str, username: str | None, action: str, topic: bytes) -> str:
        """Say why a client that may not publish to this topic, or subscribe to this filter, may not."""
        applicable = [index for index, rule in enumerate(self.rules) if rule.applies_to(client_id, username)]
        program = self._compile(applicable, client_id, username)
        decided = program.find_publish(topic) if action == "publish" else program.find_subscribe(topic)
        if decided is None:
            return NO_RULE
        decisive = [index for index in applicable for _ in self._usable(self.rules[index], username)][decided]
        if self.rules[decisive].allow:
            return "no rule denies it: the answer to the client says why"
        return f"rule {decisive + 1} denies it"

    def compile_for(self, client_id: str, username: str | None) -> acl.AclProgram:
        """The program that answers for this client; called once when it connects."""
        applicable = [index for index, rule in enumerate(self.rules) if rule.applies_to(client_id, username)]
        if any(self.rules[index].uses_client for index in applicable):
            return self._compile(applicable, client_id, username)
        uses_user = any(self.rules[index].uses_user for index in applicable)
        key = (tuple(applicable), username if uses_user else None)
        program = self._shared.get(key)
        if program is None:
            program = self._shared[key] = self._compile(applicable, client_id, username)
            if len(self._shared) > MOST_SHARED:
                self._shared.popitem(last=False)
        else:
            self._shared.move_to_end(key)
        return program

    def _compile(self, applicable: list[int], client_id: str, username: str | None) -> acl.AclProgram:
        return acl.AclProgram(
            [
                (rule.allow, rule.actions, tuple(fill_level(level, client_id, username or "") for level in levels))
                for rule in map(self.rules.__getitem__, applicable)
                for levels in self._usable(rule, username)
            ]
        )

    @staticmethod
    def _usable(rule: Rule, username: str | None) -> list[Levels]:
        """Return the topics of a rule, for clients without a user name those without %u. Only these topics are left
        out: a rule that denies others as well must continue to deny them."""
        return [levels for levels in rule.topics if username is not None or not uses_user(levels)]


def _parse_rule(rule: dict[str, Any], where: str) -> Rule:
    check_keys(rule, KEYS, where)
    effect = rule.get("effect")
    if effect not in ("allow", "deny"):
        raise AccessFileError(f'{where}: effect = {effect!r} is not allowed: use "allow" or "deny"')
    anonymous = read_anonymous(rule, ("users",), where)
    users, clients = read_texts(rule, "users", where), read_texts(rule, "clients", where)
    topics = read_texts(rule, "topics", where)
    if not topics:
        raise AccessFileError(f"{where}: topics is missing: give at least one topic filter")
    placeholders = {found[1] for topic in topics for found in PLACEHOLDER.finditer(topic)}
    return Rule(
        allow=effect == "allow",
        actions=_parse_actions(rule, where),
        topics=_parse_topics(topics, where),
        users=None if users is None else frozenset(users),
        clients=None if clients is None else frozenset(clients),
        anonymous=anonymous,
        uses_client="c" in placeholders,
        uses_user="u" in placeholders,
    )


def _parse_actions(rule: dict[str, Any], where: str) -> int:
    actions = read_texts(rule, "actions", where)
    mask = 0
    for action in list(ACTIONS) if actions is None else actions:
        if action not in ACTIONS:
            raise AccessFileError(f'{where}: action {action!r} is not allowed: use "publish" or "subscribe"')
        mask |= ACTIONS[action]
    if not mask:
        raise AccessFileError(f"{where}: actions is empty: leave it out for both")
    return mask


def _parse_topics(topics: Iterable[str], where: str) -> tuple[Levels, ...]:
    try:
        return tuple(map(parse_topic, topics))
    except ValueError as error:
        raise AccessFileError(f"{where}: {error}") from None


class AclFileRules(Authoriser):
    """The rules of the file that is in use (`access.acl_file`). Without one it has nothing to say."""

    name = "acl_file"

    def __init__(self, surroundings: Surroundings) -> None:
        self._file: AclFile | None = None

    def prepare(self, settings: AccessSettings) -> object:
        return AclFile.load(settings.acl_file) if settings.acl_file else None

    def apply(self, prepared: object) -> None:
        self._file = cast("AclFile | None", prepared)

    @property
    def has_rules(self) -> bool:
        return self._file is not None

    def program_for(self, subject: Subject) -> acl.AclProgram | None:
        return None if self._file is None else self._file.compile_for(subject.client_id, subject.identity.user)

    def explain(self, subject: Subject, action: str, topic: bytes) -> str | None:
        if self._file is None:
            return None
        found = self._file.explain(subject.client_id, subject.user, action, topic)
        return None if found == NO_RULE else found

    def may_use_client_id(self, subject: Subject) -> bool | None:
        if self._file is None or not self._file.client_ids:
            return None
        return self._file.may_use_client_id(subject.client_id, subject.user)

    def data_access(self, subject: Subject, action: str, topic: str) -> bool | None:
        return None if self._file is None else self._file.data_access(subject.client_id, subject.user, action, topic)

    def client_type(self, subject: Subject) -> ClientType | None:
        if self._file is None or not self._file.types:
            return None
        from_certificate = subject.identity.source == CERTIFICATE
        return self._file.client_type(subject.client_id, subject.user, from_certificate=from_certificate)
