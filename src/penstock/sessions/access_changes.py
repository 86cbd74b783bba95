"""Applies new access rules to existing sessions, after SIGHUP."""

from __future__ import annotations

from penstock._ext.hub.connection import Hub
from penstock.access import AccessControl
from penstock.access.identities import subject_of
from penstock.sessions.ownership import Ownership
from penstock.sessions.registry import SessionRegistry
from penstock.settings import AccessSettings


def apply_access(
    settings: AccessSettings, hub: Hub, registry: SessionRegistry, access: AccessControl, ownership: Ownership
) -> None:
    """Give every session its new rules."""
    ownership.takeover = settings.foreign_takeover
    for session in registry.sessions():
        session.acl = access.program_for(subject_of(session))
    hub.trie.checks_acl = access.has_rules
    hub.trie.bump()
    hub.queues.bindings.bump()
