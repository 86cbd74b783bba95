"""Applies new access rules to existing sessions, after SIGHUP."""

from __future__ import annotations

from penstock._ext.hub.connection import Hub
from penstock.access import AccessControl
from penstock.sessions.ownership import Ownership
from penstock.sessions.registry import SessionRegistry
from penstock.settings import AccessSettings


def apply_access(
    settings: AccessSettings, hub: Hub, registry: SessionRegistry, access: AccessControl, ownership: Ownership
) -> None:
    """Give every session its new rules."""
    ownership.takeover = settings.foreign_takeover
    for session in registry.sessions():
        session.acl = access.program_for(session.client_id, session.username)
    hub.trie.checks_acl = bool(settings.acl_file)
    hub.trie.bump()
    hub.queues.bindings.bump()
