"""What a consumer is told of its share: the partitions, and where to begin in each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.subscribers.query.catalogue import QueryTopic
from penstock.subscribers.query.groups.group import READY, Group, Member
from penstock.subscribers.query.groups.offsets import OffsetBook
from penstock.subscribers.query.ports import Source
from penstock_client import wire


async def build_assignment(
    group: Group, member: Member, topic_of: Callable[[str], QueryTopic | None], source: Source, book: OffsetBook
) -> wire.Assignment:
    """As the group is at the time of the call. Raises Unavailable."""
    known = {name: found for name in member.topics if (found := topic_of(name)) is not None}
    answer = wire.Assignment(
        consumer=member.id,
        epoch=member.epoch,
        state=member.state,
        partitions=[],
        topics=list(member.topics),
        schema={name: topic.schema for name, topic in known.items()},
        refused=dict(member.refused),
        sources={name: topic.plan.filter for name, topic in known.items()},
    )
    if member.state != READY:
        return answer
    owned = [(topic, number) for topic, numbers in member.owned.items() for number in numbers]
    terms = member.terms
    numbers = sorted({number for _, number in owned})
    ends = dict(zip(numbers, await asyncio.gather(*(source.watermarks(number) for number in numbers)), strict=True))
    begun: dict[tuple[str, int], int] = {}
    for topic, number in owned:
        begin, end = ends[number]
        offsets = book.of(group.name, topic)
        committed = offsets.committed.get(number, -1)
        offset = committed
        if committed < 0:
            start = offsets.starts.get(number)
            offset = _first_offset(terms.reset, begin, end, start)
            if offset >= 0 and offset != start and not terms.replay:
                begun[topic, number] = offset
        answer.partitions.append(wire.Partition(topic, number, offset, begin, end, committed))
    if begun:
        await book.begin(group.name, begun)
    return answer


def _first_offset(reset: str, begin: int, end: int, start: int | None) -> int:
    """Of a partition without a commit. The stored number is a position that may have been removed meanwhile: then the
    consumer is told so when it reads there."""
    if reset == "earliest":
        return begin if start is None else min(begin, start)
    if reset == "latest":
        return end if start is None else start
    return -1
