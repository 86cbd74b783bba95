"""A QoS 2 message that is not sent again: the client may hold its packet id, so PUBREL finishes the handshake and the
id stays reserved until PUBCOMP."""

from __future__ import annotations

import pytest

from penstock._ext.application.lane import Lane
from penstock._ext.match.acl import PUBLISH as MAY_PUBLISH
from penstock._ext.match.acl import SUBSCRIBE, AclProgram
from tests.support.worlds.lanes import PUBCOMP, PUBLISH, PUBREC, PUBREL, TOPIC, make_pack, record
from tests.unit.ext.test_lane import Stage, save

NOT_FOUND = 0x92
DENIED = AclProgram([(True, MAY_PUBLISH | SUBSCRIBE, (b"public", "#"))])


def in_flight(stage: Stage) -> list[int]:
    ids = stage.session.ids_in_flight()
    return [int.from_bytes(ids[at : at + 2], "little") for at in range(0, len(ids), 2)]


def finish(stage: Stage, packet_id: int) -> None:
    """Only PUBREL comes, and the id is free after PUBCOMP."""
    assert [(packet.kind, packet.packet_id) for packet in stage.client.take()] == [(PUBREL, packet_id)]
    assert in_flight(stage) == [packet_id]
    stage.client.say(PUBREC, packet_id)  # of a client that had not sent it, or whose PUBREC was late
    assert [(packet.kind, packet.packet_id) for packet in stage.client.take()] == [(PUBREL, packet_id)]
    stage.client.say(PUBCOMP, packet_id, NOT_FOUND if stage.version == 5 else 0)
    assert in_flight(stage) == []
    assert stage.hub.counters_now()["inflight"] == 0


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("is_too_large", [False, True])
def test_in_memory(version: int, *, is_too_large: bool) -> None:
    stage = Stage(version)
    stage.hub.trie.subscribe(stage.session, b"secret", 2, 0)
    stage.hub.publish("secret", b"x" * 100, qos=2)
    [sent] = stage.client.take()
    assert sent.kind == PUBLISH
    assert sent.qos == 2
    stage.client.lose()
    stage.session.detach()
    if is_too_large and version == 5:
        stage.maximum_packet_size = 50
    else:
        stage.session.acl = DENIED
    stage.connect()
    stage.session.resume()
    finish(stage, sent.packet_id)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("is_planned", [False, True])
def test_in_a_lane(version: int, *, is_planned: bool) -> None:
    """`is_planned`: the right was taken away after the record was read again."""
    stage = Stage(version)
    lane = stage.open(Lane(stage.session, TOPIC))
    pack = make_pack([record(b"1", qos=2, topic="secret")])
    lane.offer([pack])
    save(lane)
    [sent] = stage.client.take()
    stage.client.lose()
    context = lane.close()
    stage.session.detach()
    if not is_planned:
        stage.session.acl = DENIED
    stage.connect()
    lane = stage.open(Lane(stage.session, TOPIC), context)
    lane.offer([pack])
    if is_planned:
        stage.session.acl = DENIED
        stage.hub.trie.bump()
    save(lane)
    assert stage.session.dropped()["denied"] == 1
    if is_planned:
        assert stage.client.take() == []  # PUBREL waits for a context that knows why it was sent
        save(lane)
    finish(stage, sent.packet_id)
    assert lane.committed == 1
