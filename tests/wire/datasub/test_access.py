"""Who may connect, create, subscribe and drop; over TLS."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock_client import Admin, Consumer, DataError
from tests.support.clients.packets import V5, PacketType
from tests.support.servers.certificates import Authority
from tests.support.worlds.datasub import (
    DataBroker,
    DataWorld,
    read,
    read_error,
    running_data_broker,
    until_assigned,
    wait_for,
)
from tests.wire.conftest import PASSWORDS

NOT_AUTHORIZED = 0x87
# alice reads everything, bob what is public; who may subscribe is said by GRANT.
RULES = """
[[rules]]
effect = "allow"
users = ["alice"]
topics = ["#"]

[[rules]]
effect = "allow"
users = ["bob"]
topics = ["public/#"]

[[rules]]
effect = "allow"
anonymous = true
actions = ["publish"]
topics = ["#"]

[[data]]
effect = "allow"
users = ["alice", "bob"]
actions = ["create"]
"""


@pytest.fixture(scope="module")
def guarded(
    tmp_path_factory: pytest.TempPathFactory, password_file: Path, authority: Authority
) -> Iterator[DataBroker]:
    identity = authority.issue("localhost")
    settings = {
        "access.password_file": str(password_file),
        "access.anonymous": "allow",
        "data_subscription.transport": "tls",
        "data_subscription.certificate": str(identity.certificate),
        "data_subscription.key": str(identity.key),
        "data_subscription.anonymous": "deny",
    }
    keys = {"tls.ca.file": str(authority.path), "tls.check.hostname": False}
    with running_data_broker(tmp_path_factory.mktemp("guarded"), settings=settings, rules=RULES, keys=keys) as broker:
        yield broker


class Users(DataWorld):
    def run(self, user: str, sql: str) -> Any:
        return self.execute(sql, user, PASSWORDS[user])

    def consumer_of(self, user: str, **keys: Any) -> Consumer:
        return self.consumer(user=user, password=PASSWORDS[user], **keys)


@pytest.fixture
def users(guarded: DataBroker) -> Iterator[Users]:
    with contextlib.ExitStack() as stack:
        yield Users(guarded, stack)


def is_refused(work: Callable[[], object]) -> str:
    with pytest.raises(DataError) as refused:
        work()
    assert refused.value.code == "not-allowed", refused.value
    return str(refused.value)


@pytest.mark.parametrize(("user", "password"), [("", ""), ("alice", "wrong"), ("alice", ""), ("nobody", "x")])
def test_a_password_is_needed(users: Users, user: str, password: str) -> None:
    config = {**users.broker.keys, "user": user, "password": password}
    with Admin(config) as admin:
        is_refused(lambda: admin.execute("SHOW TOPICS"))
    consumer = Consumer({**config, "group.id": users.group})
    is_refused(lambda: consumer.subscribe(["any"]))
    consumer.close()


def test_a_stranger_s_certificate_is_not_believed(users: Users) -> None:
    config = {"server": f"127.0.0.1:{users.broker.data_port}", "tls": True}
    with Admin(config) as admin, pytest.raises(DataError, match="certificate"):
        admin.execute("SHOW TOPICS")


def test_creating_needs_the_source(users: Users) -> None:
    """Who creates a topic must be allowed to read all of what it shows."""
    is_refused(lambda: users.run("bob", 'CREATE TOPIC {topic} AS SELECT topic FROM "secret/#"'))
    is_refused(lambda: users.run("bob", 'CREATE TOPIC {topic} AS SELECT topic FROM "#"'))
    users.run("bob", 'CREATE TOPIC {topic} AS SELECT topic FROM "public/{space}/#"')


def test_subscribing_and_dropping(users: Users) -> None:
    users.run("alice", 'CREATE TOPIC {topic} AS SELECT payload.n AS n FROM "{space}/#"')
    users.publish({"n": 1})
    with users.consumer_of("alice") as consumer:
        assert read(consumer, 1) == [1], "the owner may"
    bob = Consumer(users.config(user="bob", password=PASSWORDS["bob"], group_id=f"{users.group}-bob"))
    is_refused(lambda: bob.subscribe([users.topic]))
    is_refused(lambda: users.run("bob", "DROP TOPIC {topic}"))
    is_refused(lambda: users.run("bob", "GRANT SUBSCRIBE ON {topic} TO bob"))
    users.run("alice", "GRANT SUBSCRIBE ON {topic} TO bob")
    with bob:
        bob.subscribe([users.topic])
        assert read(bob, 1) == [1]
        is_refused(lambda: users.run("bob", "DROP TOPIC {topic}"))
        users.run("alice", "REVOKE SUBSCRIBE ON {topic} FROM bob")
        error = read_error(bob)
        assert error.code == "refused"
        assert users.topic in str(error)
        assert not bob.assignment()
    users.run("alice", "DROP TOPIC {topic}")


def test_mqtt_clients_need_the_right_too(users: Users) -> None:
    """[reference] A topic without permission: 0x87. A topic of MQTT that may be read is no reason."""
    users.run("alice", 'CREATE TOPIC {topic} AS SELECT payload.n AS n FROM "{space}/#"')
    users.publish({"n": 1})
    with contextlib.closing(users.broker.client(V5)) as client:
        client.connect(f"reader-{users.space}", username="bob", password=PASSWORDS["bob"].encode())
        topic_filter = f"$share/{users.group}/{users.topic}"
        properties = {"user_property": [("sub-offset", "earliest")]}
        assert client.subscribe(topic_filter, qos=1, properties=properties) == [NOT_AUTHORIZED]
        reported = "or user bob may not subscribe to it"
        wait_for(lambda: topic_filter in users.broker.log() and reported in users.broker.log(), what=users.broker.log)
        users.run("alice", "GRANT SUBSCRIBE ON {topic} TO bob")
        assert client.subscribe(topic_filter, qos=1, properties=properties) == [1]
        client.ack(client.expect(PacketType.PUBLISH, 30.0))


def test_a_consumer_is_its_user_s(users: Users) -> None:
    """Nobody reads or commits in the name of another's consumer."""
    users.run("alice", 'CREATE TOPIC {topic} AS SELECT payload.n AS n FROM "{space}/#"')
    users.run("alice", "GRANT SUBSCRIBE ON {topic} TO bob")
    alice = users.consumer_of("alice")
    until_assigned([alice], [4])
    (shown,) = users.run("alice", "SHOW CONSUMERS").to_pylist()
    assert shown["user"] == "alice"
    assert "alice-secret" not in str(shown), "a password is no parameter"
