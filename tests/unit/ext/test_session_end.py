"""What is left of a session that has ended: nothing, without the garbage collector, which does not look at sessions
that were restored when the broker started."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest

from penstock._ext.application.lane import Lane
from penstock._ext.device.outlet import DeviceDesk
from penstock._ext.hub.connection import BatchConsumer, Hub, Session
from penstock._ext.local.outlet import LocalDesk, LocalOutlet
from tests.support.worlds.lanes import LaneClient, StepLoop, numbered
from tests.support.worlds.queue_world import QueueWorld, in_world
from tests.unit.ext.test_lane import Stage, save


@pytest.fixture(autouse=True)
def _without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def count_sessions() -> int:
    return sum(type(one) is Session for one in gc.get_objects())


class Devices:
    """Persistent DEVICE clients on a hub."""

    def __init__(self) -> None:
        self.loop = StepLoop()
        self.hub = Hub(self.loop)
        self.desk = DeviceDesk(self.hub, lambda _: None, lambda _: None)


def end_restored(devices: Devices) -> None:
    session = Session(devices.hub, "c")
    devices.desk.of(session).open()
    session.end()
    assert session.outlets_now == []


def end_connected(devices: Devices) -> None:
    session = Session(devices.hub, "c")
    client = LaneClient(devices.hub, session, turn=devices.loop.turn)
    devices.desk.of(session).open()
    session.end()
    client.connection.connection_lost(None)
    # the client refers to its connection, and that to the client
    client.transport.protocol = None


def end_before_the_store_answers(devices: Devices) -> None:
    session = Session(devices.hub, "c")
    devices.desk.of(session).open()
    session.end()
    late = devices.desk.of(session)
    late.stored([1])
    late.send_pubrels([1])
    late.open()
    assert (session.outlets_now, session.intake) == ([], None)


@pytest.mark.parametrize("scenario", [end_restored, end_connected, end_before_the_store_answers])
def test_a_device_is_freed(scenario: Callable[[Devices], None]) -> None:
    devices = Devices()
    before = count_sessions()
    scenario(devices)
    devices.loop.turn()
    assert count_sessions() == before
    assert devices.loop.failures == []


@pytest.mark.parametrize("closes", [False, True])
def test_an_application_is_freed(closes: bool) -> None:
    stage = Stage()
    before = count_sessions()
    session = Session(stage.hub, "other")
    stage.session = session
    client = stage.connect()
    lanes = [stage.own(), stage.shared(), stage.shared(partition=1)]
    for lane in lanes:
        lane.offer([numbered(0, 4)])
        save(lane)
    client.take()
    session.end()
    assert stage.desk.lanes_of(session) == []
    if closes:
        for lane in lanes:
            lane.close()
    client.connection.connection_lost(None)
    client.transport.protocol = None
    stage.session = stage.client = None  # type: ignore[assignment]
    stage.loop.turn()
    stage.desk.take_dirty()
    del session, client, lanes, lane
    assert count_sessions() == before


def test_a_lane_of_a_session_that_has_ended_is_not_among_its_outlets() -> None:
    stage = Stage()
    stage.session.end()
    lane = stage.open(Lane(stage.session, "late"))
    assert stage.desk.lanes_of(stage.session) == []
    lane.close()


def test_a_consumer_of_a_queue_is_freed() -> None:
    async def work(world: QueueWorld) -> None:
        queue = await world.fill("jobs", ["a", "b"])
        before = count_sessions()
        group = await world.join(queue, "workers", "c")
        session = world.open_session("c")
        core = group.members[0].core
        assert session.outlets_now == [core]
        session.end()
        assert session.outlets_now == []
        assert not isinstance(core, BatchConsumer)
        # Its front-end has the consumer leave only now.
        core.leave()
        core.leave()
        assert count_sessions() == before + 1

    in_world(work)


def test_a_local_subscriber_is_freed() -> None:
    devices = Devices()
    before = count_sessions()
    session = Session(devices.hub, "$local/c")
    LocalOutlet(LocalDesk(devices.hub), session, lambda pack: None)
    session.end()
    with pytest.raises(ValueError, match="ended"):
        LocalOutlet(LocalDesk(devices.hub), session, lambda pack: None)
    del session
    assert count_sessions() == before
