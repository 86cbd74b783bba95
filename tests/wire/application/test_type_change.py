"""What becomes of a session when the type of its client changes?"""

import threading
import time

import pytest

from tests.support.brokers.broker import IS_MOSQUITTO
from tests.support.worlds.application import persistent, topic_of, until

pytestmark = pytest.mark.skipif(IS_MOSQUITTO, reason="types of clients are Penstock's own")


@pytest.fixture
def types(broker):
    """Changes the types; they are as before at the end."""
    yield broker.change_types
    broker.change_types(("app*",))


def check_goes_on(reconnect, client, publisher, topic):
    """Whatever became of the old session, a new subscription works in its new type, offline and after a reconnect."""
    client.subscribe(topic, qos=1)
    client.disconnect()
    for payload in (b"x", b"y"):
        publisher.publish(topic, payload, qos=1)
    client = reconnect()
    assert client.connack.session_present
    sent = client.expect_payloads([b"x", b"y"], ack=False, dup=False)
    client.ack(sent[0])
    client.ping()
    client.close()
    again = reconnect()
    assert again.expect_publish(topic, b"y", dup=True, ack=True).packet_id == sent[1].packet_id
    again.expect_nothing(0.1)
    return again


def take_what_was_kept(client, payloads):
    """A session that is there has its backlog, one that was dropped has nothing; never a part of it."""
    if client.connack.session_present:
        client.expect_payloads(payloads, dup=None)
    client.expect_nothing(0.2)


def assert_told(log, client_id):
    """One line of the log names the client and both types."""
    lines = [line for line in log.splitlines() if client_id in line and "application" in line.lower()]
    assert any("device" in line.lower() for line in lines), log


def test_application_becomes_a_device_and_an_application_again(
    *, broker, types, backlog, connect, publisher, new_name, app_id, version
):
    """The issue: migrates or drops with a clear message, and never leaks a topic."""

    def reconnect():
        return connect(version, app_id, **persistent(version))

    payloads = backlog(version, 5)
    assert topic_of(app_id) in broker.topics()
    types(())
    start = broker.log_size()
    client = reconnect()
    assert_told(broker.await_log(app_id, start), app_id)
    take_what_was_kept(client, payloads)
    client.disconnect()
    client = reconnect()  # at the latest now, when everything it had as an APPLICATION has arrived
    broker.await_topic(topic_of(app_id), exists=False)
    client.expect_nothing(0.1)
    check_goes_on(reconnect, client, publisher, new_name("topic/")).disconnect()
    assert topic_of(app_id) not in broker.topics()

    types(("app*",))
    start = broker.log_size()
    client = reconnect()
    assert_told(broker.await_log(app_id, start), app_id)
    broker.await_topic(topic_of(app_id))
    take_what_was_kept(client, [])
    check_goes_on(reconnect, client, publisher, new_name("topic/"))


def test_a_device_becomes_an_application(*, broker, types, connect, publisher, client_id, new_name, topic, version):
    """Messages that wait for the DEVICE are kept or dropped whole, and what is said is true."""

    def reconnect():
        return connect(version, client_id, **persistent(version))

    client = reconnect()
    client.subscribe(topic, qos=1)
    client.disconnect()
    payloads = [b"%d" % number for number in range(5)]
    for payload in payloads:
        publisher.publish(topic, payload, qos=1)
    types(("app*", client_id))
    start = broker.log_size()
    client = reconnect()
    assert_told(broker.await_log(client_id, start), client_id)
    broker.await_topic(topic_of(client_id))
    take_what_was_kept(client, payloads)
    check_goes_on(reconnect, client, publisher, new_name("topic/"))


def test_the_type_of_a_connected_client_changes_with_its_next_connection(broker, types, open_app, publisher, topic):
    """A reload touches no connection that is there."""
    client = open_app(5)
    client.subscribe(topic, qos=1)
    types(())
    publisher.publish(topic, b"x", qos=1)
    client.expect_publish(topic, b"x", qos=1, ack=True)
    client.ping()


def test_an_application_becomes_a_device_however_busy_the_broker_is(
    *, broker, types, open_app, connect, topic, app_id, client_id
):
    """Messages for it and for others come all the time: it is a DEVICE all the same, and gets each of them once."""
    app = open_app(5)
    app.subscribe(topic, qos=1)
    app.disconnect()
    sent, got, is_over = [], [], threading.Event()

    def publish() -> None:
        with connect(5, client_id) as busy:
            while not is_over.is_set():
                sent.append(b"%d" % len(sent))
                busy.publish(topic, sent[-1], qos=1)
                is_over.wait(0.005)  # the client keeps up

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        until(lambda: len(sent) > 50)
        start = broker.log_size()
        types(())
        app = connect(5, app_id, **persistent(5))
        deadline = time.monotonic() + 60
        while "is a DEVICE from now on" not in broker.log(start) and time.monotonic() < deadline:
            got.append(app.expect_publish(topic, qos=1, ack=True).payload)
    finally:
        is_over.set()
        publisher.join()
    broker.await_topic(topic_of(app_id), exists=False)
    while len(got) < len(sent):
        got.append(app.expect_publish(topic, qos=1, ack=True).payload)
    assert got == sent
    app.expect_nothing(0.2)
