"""Makes the parts through which several nodes on one log are one broker."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.broker.foundation import Foundation
from penstock.cluster.adoption import Adoption, LeftWills
from penstock.cluster.claims import Claims
from penstock.cluster.cluster import Cluster
from penstock.cluster.departures import Departures
from penstock.cluster.hand_over import HandOver
from penstock.cluster.neighbours import Neighbours
from penstock.cluster.owners import Owners
from penstock.cluster.questions import Questions
from penstock.cluster.take_over import TakeOver
from penstock.cluster.writes import Writes
from penstock.dispatch.moves import SessionMoves
from penstock.dispatch.turns import ShareTable
from penstock.services.node import ClusterNode
from penstock.sessions.keeper import SessionKeeper
from penstock.sessions.registry import SessionRegistry
from penstock.storage.log.base import Log
from penstock.subscribers.application.delivery import ApplicationDelivery
from penstock.subscribers.application.names import ApplicationNames
from penstock.subscribers.kinds import Kinds


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """The knowledge of other nodes that this one has before it has sessions of its own."""

    names: ApplicationNames
    owners: Owners
    questions: Questions
    claims: Claims
    shares: ShareTable
    neighbours: Neighbours

    @classmethod
    def of(cls, base: Foundation, log_provider: Log, node: ClusterNode, names: ApplicationNames) -> Neighbourhood:
        name, prefix = base.settings.server.node_id, base.names.prefix
        owners = Owners(log_provider, name, prefix)
        questions = Questions(log_provider, node.queues.calls("sessions"), node.others, node.heard_at)
        claims = Claims()
        shares = ShareTable(base.hub, log_provider, name, node.others, has_sessions=owners.has_sessions, prefix=prefix)
        neighbours = Neighbours(
            name, prefix, names=names, owners=owners, questions=questions, claims=claims, shares=shares
        )
        return cls(names, owners, questions, claims, shares, neighbours)


@dataclass(frozen=True, slots=True)
class Own:
    """The sessions of this node, and how they move."""

    kinds: Kinds
    registry: SessionRegistry
    keeper: SessionKeeper
    moves: SessionMoves
    delivery: ApplicationDelivery


def make_cluster(
    base: Foundation, node: ClusterNode, nearby: Neighbourhood, own: Own, *, has_own_queues: bool
) -> Cluster:
    """`has_own_queues`: messages wait for DEVICE clients where no other node can read them."""
    return Cluster(
        base.hub,
        base.settings.server.node_id,
        members=node,
        registry=own.registry,
        moves=own.moves,
        shares=nearby.shares,
        neighbours=nearby.neighbours,
        owners=nearby.owners,
        take_over=_make_take_over(base, node, nearby, own),
        adopt_after=base.settings.cluster.adopt_after,
        has_own_queues=has_own_queues,
    )


def _make_take_over(base: Foundation, node: ClusterNode, nearby: Neighbourhood, own: Own) -> TakeOver:
    name, program_for = base.settings.server.node_id, base.access.program_for
    writes = Writes(base.hub, own.keeper)

    async def read_own() -> None:
        """Read what is stored, up to what this node has written itself."""
        await writes.stored()
        await nearby.owners.catch_up()

    departures = Departures(
        node.queues,
        own.registry,
        own.moves,
        node=name,
        owner_of=nearby.owners.owner_of,
        catch_up=read_own,
        is_claimed=nearby.claims.current.__contains__,
    )
    hand_over = HandOver(
        name,
        registry=own.registry,
        keeper=own.keeper,
        moves=own.moves,
        delivery=own.delivery,
        ownership=base.ownership,
        claims=nearby.claims,
        writes=writes,
    )
    adoption = Adoption(
        own.registry,
        own.keeper,
        own.kinds,
        own.moves,
        names=nearby.names,
        owners=nearby.owners,
        program_for=program_for,
    )
    return TakeOver(
        name,
        base.names.prefix,
        registry=own.registry,
        owners=nearby.owners,
        questions=nearby.questions,
        claims=nearby.claims,
        moves=own.moves,
        adoption=adoption,
        wills=LeftWills(own.registry, own.keeper, nearby.owners, writes, program_for),
        hand_over=hand_over,
        departures=departures,
    )
