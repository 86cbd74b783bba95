"""Rules that an identity brings with it, compiled as those of the ACL file are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from penstock._ext.match.acl import AclProgram
from penstock.access.base import Grant, Subject
from penstock.access.topics import fill_level, parse_topic, uses_user

if TYPE_CHECKING:
    from penstock._ext.match.acl import Rule


def compile_grants(grants: Sequence[Grant], subject: Subject) -> list[Rule]:
    return [rule for _, rule in _compile(grants, subject)]


def explain_grants(grants: Sequence[Grant], subject: Subject, action: str, topic: bytes) -> str | None:
    """Say which grant keeps the client from it; None: none of them decides."""
    compiled = list(_compile(grants, subject))
    program = AclProgram([rule for _, rule in compiled])
    decided = program.find_publish(topic) if action == "publish" else program.find_subscribe(topic)
    if decided is None:
        return None
    number, (is_allowed, _, _) = compiled[decided]
    if is_allowed:
        return "no rule denies it: the answer to the client says why"
    return f"rule {number} of {subject.identity.source or 'the identity'} denies it"


def _compile(grants: Sequence[Grant], subject: Subject) -> Iterator[tuple[int, Rule]]:
    client_id, user = subject.client_id, subject.user
    for number, grant in enumerate(grants, 1):
        levels = parse_topic(grant.topic)
        # A topic with %u is none for clients without a user name.
        if user is not None or not uses_user(levels):
            filled = tuple(fill_level(level, client_id, user or "") for level in levels)
            yield number, (grant.allow, grant.actions, filled)
