"""Shared subscriptions that are refused cost nothing, and how many there may be is bounded."""

import signal

from tests.support.clients.packets import V5, V311
from tests.support.worlds.application import SHARED_PREFIX, until

PROVIDERS = ["embedded"]
SETTINGS = {"application.max_shares": 2}


def shared_topics(broker):
    return {name.removeprefix(SHARED_PREFIX) for name in broker.topics() if name.startswith(SHARED_PREFIX)}


def test_as_many_as_allowed(broker, open_app, new_name):
    """Several names on one filter count each; a member more counts nothing; who leaves makes room."""
    client, member = open_app(V5), new_name("app")
    other = open_app(V311, member)
    name = new_name("limit")
    assert client.subscribe(f"$share/a/{name}", f"$share/b/{name}", f"$share/c/{name}", qos=1) == [1, 1, 0x97]
    assert other.subscribe(f"$share/a/{name}", f"$share/a/{name}x", name, qos=1) == [1, 0x80, 1]
    assert shared_topics(broker) == {name}
    broker.await_log("application.max_shares")
    broker.kill()
    broker.restart()
    client = open_app(V5)
    assert client.subscribe(f"$share/b/{name}", f"$share/c/{name}", qos=1) == [1, 0x97]
    client.unsubscribe(f"$share/b/{name}")
    assert client.subscribe(f"$share/c/{name}", qos=1) == [1]
    for one in (client, open_app(V311, member)):
        one.unsubscribe(f"$share/a/{name}", f"$share/c/{name}")
    until(lambda: not shared_topics(broker), 60, "the topic is gone")


def test_a_refused_one_makes_no_topic(broker, open_app, new_name):
    """The ACL forbids it: nothing is made in the log for it."""
    name = new_name("secret")
    allowed = broker.acl_path.read_text()
    start = broker.log_size()
    broker.acl_path.write_text(f'[[rules]]\neffect = "deny"\ntopics = ["{name}/#"]\n{allowed}')
    broker.process.send_signal(signal.SIGHUP)
    broker.await_log("reloaded", start)
    client = open_app(V5)
    assert client.subscribe(f"$share/a/{name}/x", qos=1) == [0x87]
    assert not shared_topics(broker)
    broker.write_types(("app*",))


def test_a_name_that_everybody_has_left_begins_anew(broker, open_app, publisher, new_name):
    """Another name on the same filter keeps the topic: what came meanwhile is not for who joins later."""
    name = new_name("left")
    stays, goes = open_app(V5), open_app(V5, new_name("app"))
    stays.subscribe(f"$share/a/{name}", qos=1)
    goes.subscribe(f"$share/b/{name}", qos=1)
    publisher.publish(name, b"1", qos=1)
    for client in (stays, goes):
        client.expect_publish(name, b"1", qos=1, ack=True)
    goes.unsubscribe(f"$share/b/{name}")
    publisher.publish(name, b"2", qos=1)
    stays.expect_publish(name, b"2", qos=1, ack=True)
    goes.subscribe(f"$share/b/{name}", qos=1)
    publisher.publish(name, b"3", qos=1)
    goes.expect_publish(name, b"3", qos=1, ack=True)
    stays.expect_publish(name, b"3", qos=1, ack=True)
    for client, share in ((stays, "a"), (goes, "b")):
        client.unsubscribe(f"$share/{share}/{name}")
    until(lambda: not shared_topics(broker), 60, "the topic is gone")
