"""Do no local, retain handling and retain as published, the subscription options of MQTT 5, do what they say?"""

import pytest

from tests.support.clients.packets import V5, Reason


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("as_published", [False, True])
def test_retain_as_published(connect, topic, retain, as_published):
    """[MQTT-3.3.1-12] [MQTT-3.3.1-13]"""
    subscriber = connect(V5)
    subscriber.subscribe(topic, retain_as_published=as_published)
    connect(V5).publish(topic, b"x", retain=retain)
    subscriber.expect_publish(topic, b"x", retain=retain and as_published)


def test_stored_messages_have_the_flag_whatever_the_option_says(connect, topic):
    """3.3.1.3: what is sent because of a new subscription carries RETAIN 1."""
    connect(V5).publish(topic, b"x", qos=1, retain=True)
    for as_published in (False, True):
        subscriber = connect(V5)
        subscriber.subscribe(topic, retain_as_published=as_published)
        subscriber.expect_publish(topic, b"x", retain=True)


@pytest.mark.parametrize(("handling", "first", "again"), [(0, True, True), (1, True, False), (2, False, False)])
def test_retain_handling(connect, topic, handling, first, again):
    """[MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11] [MQTT-3.8.4-4]: at a new subscription and at a repeated one."""
    connect(V5).publish(topic, b"kept", qos=1, retain=True)
    subscriber = connect(V5)
    for expected in (first, again):
        subscriber.subscribe(topic, retain_handling=handling)
        if expected:
            subscriber.expect_publish(topic, b"kept", retain=True)
        subscriber.expect_nothing(0.1)


def test_retain_handling_1_after_unsubscribe_is_new_again(connect, topic):
    """[MQTT-3.3.1-10]: the subscription does not exist any more."""
    connect(V5).publish(topic, b"kept", qos=1, retain=True)
    subscriber = connect(V5)
    for _ in range(2):
        subscriber.subscribe(topic, retain_handling=1)
        subscriber.expect_publish(topic, b"kept", retain=True)
        subscriber.unsubscribe(topic)


def test_retain_handling_1_knows_the_subscriptions_of_a_resumed_session(connect, client_id, topic):
    """[MQTT-3.3.1-10]"""
    connect(V5).publish(topic, b"kept", qos=1, retain=True)
    options = {"clean_start": False, "properties": {"session_expiry_interval": 60}}
    first = connect(V5, client_id, **options)
    first.subscribe(topic, retain_handling=1)
    first.expect_publish(topic, b"kept", retain=True)
    first.disconnect()
    second = connect(V5, client_id, **options)
    second.subscribe(topic, retain_handling=1)
    second.expect_nothing()


def test_no_local(connect, topic):
    """[MQTT-3.8.3-3]: own messages do not come back, those of others do; without the option all do."""
    deaf, hearing = connect(V5), connect(V5)
    deaf.subscribe(topic, qos=1, no_local=True)
    hearing.subscribe(topic, qos=1)
    deaf.publish(topic, b"from deaf", qos=1)
    hearing.expect_publish(topic, b"from deaf", ack=True)
    hearing.publish(topic, b"from hearing", qos=1)
    hearing.expect_publish(topic, b"from hearing", ack=True)
    deaf.expect_publish(topic, b"from hearing", ack=True)
    deaf.expect_nothing()


def test_no_local_belongs_to_the_subscription_not_to_the_client(connect, topic):
    """[MQTT-3.8.3-3]: an overlapping subscription without the option brings the message."""
    client = connect(V5)
    client.subscribe(topic, no_local=True)
    client.subscribe(f"{topic}/#")
    client.publish(topic, b"mine")
    client.expect_publish(topic, b"mine")
    client.expect_nothing()


def test_no_local_is_about_the_client_id(connect, client_id, topic):
    """[MQTT-3.8.3-3]: also for a message of the connection before."""
    options = {"clean_start": False, "properties": {"session_expiry_interval": 60}}
    client = connect(V5, client_id, **options)
    client.subscribe(topic, qos=1, no_local=True)
    client.publish(topic, b"mine", qos=1)
    client.disconnect()
    connect(V5, client_id, **options).expect_nothing()


def test_no_local_on_a_shared_subscription(connect, bystander, topic):
    """[MQTT-3.8.3-4]: a protocol error."""
    client = connect(V5)
    client.send_subscribe((f"$share/group/{topic}", 0x04))
    client.expect_disconnect(Reason.PROTOCOL_ERROR)


def test_options_can_be_replaced(connect, topic):
    """[MQTT-3.8.4-3]: the new options hold, all of them."""
    client = connect(V5)
    client.subscribe(topic, no_local=True, retain_as_published=True, qos=2)
    client.subscribe(topic, qos=0)
    client.publish(topic, b"x", qos=1, retain=True)
    client.expect_publish(topic, b"x", qos=0, retain=False)
    client.expect_nothing()
