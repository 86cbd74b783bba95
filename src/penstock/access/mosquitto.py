"""Files of mosquitto turned into ours: its acl_file as TOML rules, its plain-text password lines as users."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.core.errors import AccessFileError

_ACCESS = {"read": ["subscribe"], "write": ["publish"], "readwrite": ["publish", "subscribe"], "deny": []}


@dataclass
class _Group:
    """The `topic` lines of one user (None: of clients without a user name), or all `pattern` lines."""

    condition: str
    denied: list[str] = field(default_factory=list)
    allowed: dict[tuple[str, ...], list[str]] = field(default_factory=dict)

    def add(self, access: str, topic: str) -> None:
        if access == "deny":
            self.denied.append(topic)
        else:
            self.allowed.setdefault(tuple(_ACCESS[access]), []).append(topic)

    def render(self) -> Iterator[str]:
        # mosquitto looks at the deny lines of a group before its other lines, wherever they stand.
        if self.denied:
            yield f'[[rules]]\neffect = "deny"\n{self.condition}topics = {_list(self.denied)}\n'
        for actions, topics in self.allowed.items():
            yield (
                f'[[rules]]\neffect = "allow"\nactions = {_list(list(actions))}\n'
                f"{self.condition}topics = {_list(topics)}\n"
            )


def convert_acl(text: str, name: str = "acl_file") -> str:
    """A mosquitto acl_file as the text of ours; raises AccessFileError that names the line it does not understand."""
    users: dict[str | None, _Group] = {None: _Group("anonymous = true\n")}
    patterns = _Group("")
    current = users[None]
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        word, _, rest = line.partition(" ")
        rest = rest.strip()
        if word == "user" and rest:
            current = users.setdefault(rest, _Group(f"users = {_list([rest])}\n"))
            continue
        if word not in ("topic", "pattern") or not rest:
            raise AccessFileError(f"{name}:{number}: {line!r} is not a user, topic or pattern line")
        access, topic = _split_access(rest)
        if word == "topic":
            # Only in pattern lines do %c and %u mean something there.
            current.add(access, topic.replace("%", "%%"))
        else:
            patterns.add(access, topic)
    rendered = [rule for group in (*users.values(), patterns) for rule in group.render()]
    return "# Converted from mosquitto's acl_file: first match decides, nothing matches = denied.\n\n" + "\n".join(
        rendered
    )


def _split_access(rest: str) -> tuple[str, str]:
    word, _, topic = rest.partition(" ")
    if word in _ACCESS and topic.strip():
        return word, topic.strip()
    return "readwrite", rest


def _list(texts: list[str]) -> str:
    # Texts in TOML are written as in JSON, except that JSON may use surrogate pairs for what it escapes.
    return json.dumps(texts, ensure_ascii=False)


def parse_plain_passwords(text: str, name: str) -> dict[str, str]:
    """`user:password` lines, as mosquitto_passwd -U takes them; raises AccessFileError on hashes of mosquitto."""
    users: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        user, colon, password = line.partition(":")
        if not colon or not user or not password:
            raise AccessFileError(f"{name}:{number}: a line is user:password")
        if password.startswith(("$6$", "$7$")):
            raise AccessFileError(
                f"{name}:{number}: the password of {user!r} is hashed by mosquitto and cannot be converted",
                "set it again with `penstock passwd`",
            )
        users[user] = password
    return users
