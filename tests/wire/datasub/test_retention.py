"""What the log keeps for groups; and falling off it: consumers are told what they lost, whatever their policy is."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock_client import Consumer, TopicPartition
from penstock_client.errors import BadRequest
from tests.support.worlds.datasub import DataBroker, DataWorld, read, read_rows, running_data_broker, wait_for
from tests.wire.datasub.conftest import BROKERS


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[DataBroker]:
    with running_data_broker(tmp_path) as broker:
        yield broker


def stand_at(world: DataWorld, policy: str, place: TopicPartition) -> Consumer:
    """A consumer that has not read on from the place, and will not yet."""
    consumer = world.consumer(auto_offset_reset=policy, group_id=f"{world.group}-{policy}")
    wait_for(lambda: len(consumer.assignment()) == 4, what="its partitions")
    consumer.pause([place])
    if policy == "none":
        consumer.seek_to_end()
    consumer.seek(place)
    consumer.commit()
    while (message := consumer.poll(0.1)) is not None:
        assert policy == "none", message.error()  # which has told that nothing is committed
    return consumer


def test_falling_off_is_seen(own_broker: DataBroker) -> None:
    """[reference] "falling off the log is an error the consumer sees, with reset policy, never silent"."""
    with contextlib.ExitStack() as stack:
        world = DataWorld(own_broker, stack)
        world.create_topic()
        world.publish(*({"n": number} for number in range(10)))
        (row, *_) = read_rows(world.consumer(group_id=f"{world.group}-first"), 10)
        place = TopicPartition(world.topic, row["partition"], row["offset"])
        consumers = {policy: stand_at(world, policy, place) for policy in ("earliest", "latest", "none")}
        own_broker.end()
        world.forget_publishers()
        own_broker.command("log", "truncate", "tbmq.msg.all", "--before", "5", "-p", str(place.partition), "--yes")
        own_broker.restart()
        for policy, consumer in consumers.items():
            # Each has lost its place in the group together with the broker.
            error = wait_for(lambda consumer=consumer: _read_on(consumer, place), what=policy)
            assert error.code == "out-of-range", (policy, error)
            assert error.begin == 5, (policy, error)
        # earliest goes on with the oldest that is left, latest with what comes, none with nothing until it is told.
        assert read(consumers["earliest"], 5) == [5, 6, 7, 8, 9]
        assert consumers["none"].poll(0.2) is None
        world.publish({"n": 10})
        assert read(consumers["latest"], 1) == [10]
        consumers["none"].seek(TopicPartition(*place.key, 9))
        assert read(consumers["none"], 1)[0] == 9


def _read_on(consumer: Consumer, place: TopicPartition) -> object:
    """The error, when the consumer reads on."""
    if place in consumer.assignment():
        with contextlib.suppress(BadRequest):  # lost since the line before, with the broker
            consumer.resume([place])
    message = consumer.poll(0.05)
    return None if message is None else message.error()


# Four partitions of 32 KiB each, looked at all the time.
SMALL = {
    "ingest.properties": "retention.ms:604800000;segment.bytes:32768;retention.bytes:32768",
    "log.maintenance_interval": 0.1,
    "data_subscription.retention_interval": 0.1,
}


@pytest.mark.parametrize("policy", ["hold", "log"])
def test_retention_waits_for_a_group_unless_the_operator_says_otherwise(tmp_path: Path, policy: str) -> None:
    """[issue] Retention never removes what a live group has not read unless the operator says so: not while it is away,
    not after a kill of the broker, and when it has read, it does."""
    with (
        running_data_broker(tmp_path, settings={**SMALL, "data_subscription.retention": policy}) as broker,
        contextlib.ExitStack() as stack,
    ):
        world = DataWorld(broker, stack)
        world.create_topic()
        world.publish({"n": 0})
        with world.consumer(group_id="slow") as slow:
            assert read(slow, 1) == [0]
            slow.commit()
            (place,) = [each for each in slow.assignment() if each.offset]
            begin = slow.get_watermark_offsets(place)[0]
        wanted = list(range(1, 151))
        world.publish(*({"n": number, "filling": "x" * 4_000} for number in wanted))
        if policy == "log":
            with world.consumer(group_id="looker") as looker:
                wait_for(lambda: looker.get_watermark_offsets(place)[0] > begin, what="segments that are gone")
            return
        wait_for(lambda: broker.counter("log_segments_held") >= 5, what="segments that are held")
        broker.kill()
        world.forget_publishers()
        broker.restart()
        wait_for(lambda: broker.counter("log_segments_held") >= 5, what="segments that are held after a kill")
        wait_for(lambda: broker.counter("datasub_lag_max") >= len(wanted), what="what is held for whom can be seen")
        wait_for(lambda: 'penstock_datasub_group_lag{group="slow:' in broker.metrics(), what="the lag in the metrics")
        with world.consumer(group_id="slow") as slow:
            assert read(slow, len(wanted)) == wanted, "all of it is there"
            assert slow.get_watermark_offsets(place)[0] == begin
            slow.commit()
            wait_for(lambda: slow.get_watermark_offsets(place)[0] > begin, what="room, when it was read")


# Kafka has no smaller segments.
MIB = 1_048_576
SMALL_KAFKA = {
    "ingest.properties": f"retention.ms:604800000;segment.bytes:{MIB};retention.bytes:{MIB}",
    "data_subscription.retention_interval": 0.1,
}


@pytest.mark.parametrize("policy", ["hold", "log"])
def test_retention_of_kafka_waits_too(tmp_path: Path, policy: str) -> None:
    """[issue] The same where retention is Kafka's: its limits are lifted while the group has not read, also through a
    kill of the broker, and put back when it has."""
    BROKERS.end()  # of two brokers on one Kafka either may be the one that changes the limits
    settings = {**SMALL_KAFKA, "data_subscription.retention": policy}
    with running_data_broker(tmp_path, "kafka", settings) as broker, contextlib.ExitStack() as stack:
        world = DataWorld(broker, stack)
        world.create_topic()
        world.publish({"n": 0})
        with world.consumer(group_id="slow") as slow:
            assert read(slow, 1) == [0]
            slow.commit()
            (place,) = [each for each in slow.assignment() if each.offset]
        world.publish({"n": 1})
        if policy == "hold":
            wait_for(lambda: broker.counter("datasub_retention_suspended") == 1, 60, "the group is behind")
        wanted = list(range(2, 152))
        world.publish(*({"n": number, "filling": "x" * 40_000} for number in wanted))
        with world.consumer(group_id="looker") as looker:
            if policy == "log":
                wait_for(lambda: looker.get_watermark_offsets(place)[0] > place.offset, 60, "segments that are gone")
                assert broker.counter("datasub_retention_suspended") == 0
                return
            time.sleep(6)  # in which Kafka looks three times for what it could remove
            assert looker.get_watermark_offsets(place)[0] <= place.offset
            # Whoever reads from the beginning is not served any longer when the slow one is.
            looker.seek_to_end()
            looker.commit()
        broker.kill()
        world.forget_publishers()
        broker.restart()
        wait_for(lambda: broker.counter("datasub_retention_suspended") == 1, 60, "the group is still behind")
        with world.consumer(group_id="slow") as slow:
            assert read(slow, 151, 60) == [1, *wanted], "all of it is there"
            slow.commit()
            wait_for(lambda: broker.counter("datasub_retention_suspended") == 0, 60, "the limits are there again")
            wait_for(lambda: slow.get_watermark_offsets(place)[0] > place.offset, 60, "room, when it was read")
        described = broker.command("log", "describe", "tbmq.msg.all")
        assert "604800000" in described, described
        assert str(MIB) in described, described
