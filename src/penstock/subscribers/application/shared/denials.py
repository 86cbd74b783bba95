"""Messages of a shared subscription that the client whose turn it is may not read: another member gets them.

1. A member that is connected goes on with the partition, from the message on.
2. For a member that is offline the message is kept as an offer. The client goes on with the partition.
3. A message that no member may read is dropped and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock._ext.application.lane import Lane
from penstock._ext.hub.connection import Session
from penstock.subscribers.application.contexts import SHARED, Contexts, make_key
from penstock.subscribers.application.shared.claims import ShareClaims
from penstock.subscribers.application.shared.shares import Member, Share, may_receive


class ShareDenials:
    """All shares of this node. On the loop."""

    def __init__(
        self,
        contexts: Contexts,
        claims: ShareClaims,
        shares: Callable[[], Iterable[Share]],
        *,
        is_online: Callable[[Session], bool],
        restart: Callable[[Share, int, Member], None],
    ) -> None:
        """`restart` closes the lane of a partition and opens a new one for a member."""
        self._contexts = contexts
        self._claims = claims
        self._shares = shares
        self._is_online = is_online
        self._restart = restart

    def handle(self, lane: Lane) -> None:
        """The lane waits at a message that another member may have, or it has to plan its messages again because the
        rules have changed."""
        share = next((one for one in self._shares() if one.lanes.get(lane.partition) is lane), None)
        if share is None:
            self._handle_offers(lane)
        elif lane.is_stale:
            self._restart(share, lane.partition, share.members[lane.session.client_id])
        else:
            self._hand_over(share, lane)

    def _hand_over(self, share: Share, lane: Lane) -> None:
        able = _find_able(share, lane)
        online = [one for one in able if self._is_online(one.session)]
        if online:
            owners = [other.session for other in share.lanes.values()]
            self._restart(share, lane.partition, min(online, key=lambda one: owners.count(one.session)))
            return
        if able:
            self._claims.offer(able[0].session.client_id, share.group, lane)
        lane.pass_over(counts=not able)
        # Stored together: after a crash the message does not come from both.
        key = make_key(SHARED, share.group, share.topic, lane.partition)
        self._contexts.put(key, lane.session.client_id.encode() + b"\0" + lane.peek())
        lane.is_paused = False
        share.reader.add(lane)

    def _handle_offers(self, lane: Lane) -> None:
        """The client lost its right to a message that was offered to it: the offer goes to another member."""
        found = self._claims.find(lane)
        share = next((one for one in self._shares() if one.sessions is lane.peers), None)
        if found is None or share is None:
            return
        reader, key = found
        if lane.is_stale:
            unsent = self._claims.retire(lane.session.client_id, key)
            self._claims.open(lane.session, key, live_without=unsent)
            return
        able = _find_able(share, lane)
        online = [one.session for one in able if self._is_online(one.session)]
        if able:
            taker = online[0] if online else able[0].session
            self._claims.offer(taker.client_id, share.group, lane, taker if online else None)
        lane.pass_over(counts=not able)
        self._contexts.put(key, lane.peek())
        lane.is_paused = False
        reader.add(lane)


def _find_able(share: Share, lane: Lane) -> list[Member]:
    """Return the members that may have the message that the lane waits at."""
    topic = lane.denied_topic
    assert topic is not None
    return [member for member in share.members.values() if may_receive(member.session, topic)]
