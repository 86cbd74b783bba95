"""kill -9 of the broker in the middle of statements: what was answered is so, the rest is whole or not there."""

from __future__ import annotations

import threading

from penstock_client import Admin, Consumer, DataError
from tests.support.worlds.datasub import DataWorld, read, wait_for

CREATE = 'CREATE TOPIC {name} AS SELECT payload.n AS n FROM "{space}/#"'


class Changer:
    """Creates and drops topics, by turns, until the broker is gone."""

    def __init__(self, world: DataWorld, number: int) -> None:
        self._world = world
        self._number = number
        self.is_there: dict[str, bool] = {}  # as it was answered
        self.is_open = ""  # asked for, and not answered
        self.answers = 0
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        with Admin(self._world.broker.keys) as admin:
            for turn in range(100_000):
                name = f"{self._world.topic}_{self._number}_{turn // 2}"
                # Every third stays.
                if turn % 2 and turn // 2 % 3 == 0:
                    continue
                statement = CREATE if turn % 2 == 0 else "DROP TOPIC {name}"
                self.is_open = name
                try:
                    admin.execute(statement.format(name=name, space=self._world.space))
                except DataError:
                    return
                self.is_there[name] = turn % 2 == 0
                self.is_open = ""
                self.answers += 1


def test_killed_while_topics_come_and_go(world: DataWorld) -> None:
    world.create_topic()
    world.publish({"n": 1})
    with world.consumer() as consumer:
        read(consumer, 1)
        consumer.commit()
    changers = [Changer(world, number) for number in range(3)]
    for changer in changers:
        changer.thread.start()
    wait_for(lambda: sum(changer.answers for changer in changers) >= 30, what="30 statements")
    world.broker.kill()
    for changer in changers:
        changer.thread.join(60)
        assert not changer.thread.is_alive()
    world.forget_publishers()
    world.broker.restart()
    there = {row["topic_name"] for row in world.show("TOPICS")}
    for changer in changers:
        for name, is_there in changer.is_there.items():
            if name != changer.is_open:
                assert (name in there) == is_there, name
    # Those that are there are whole.
    world.publish({"n": 2})
    name = sorted(there - {world.topic})[0]
    assert read(world.consumer(name, group_id=f"{world.group}-of-{name}"), 2) == [1, 2]
    assert read(world.consumer(), 1) == [2], "and the group is where it was"
    for name in sorted(there - {world.topic}):
        world.execute(f"DROP TOPIC FORCE {name}")
    assert [row["topic_name"] for row in world.show("TOPICS")] == [world.topic]


def test_a_consumer_that_is_started_while_the_broker_restarts(world: DataWorld) -> None:
    world.create_topic()
    world.publish({"n": 1})
    world.broker.kill()
    consumer = Consumer(world.config(connect_timeout_ms=500))
    failures: list[BaseException] = []

    def subscribe() -> None:
        try:
            consumer.subscribe([world.topic])
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=subscribe, daemon=True)
    thread.start()
    thread.join(2)
    try:
        assert thread.is_alive(), failures
        world.forget_publishers()
        world.broker.restart()
        thread.join(60)
        assert not thread.is_alive()
        assert not failures
        assert read(consumer, 1) == [1]
    finally:
        consumer.close()
