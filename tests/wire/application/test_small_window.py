"""Does a client whose Receive Maximum is smaller than the number of its subscriptions get messages of all of them?"""

import pytest

from tests.support.clients.packets import V5

PROVIDERS = ["embedded"]
COUNT = 30


@pytest.mark.parametrize("receive_maximum", [1, 2, 3])
@pytest.mark.parametrize("client_id", ["app", "dev"])
def test_queues_and_topics_take_turns(*, open_app, publisher, topic, new_name, receive_maximum, client_id):
    """The own topic and a share (of an APPLICATION), two queues and a retained message."""
    name = new_name(client_id)
    queues = [new_name("one"), new_name("two")]
    topics = [f"{topic}/own", f"{topic}/share", *(f"$queue/{queue}" for queue in queues)]
    client = open_app(V5, name, receive_maximum=receive_maximum)
    client.subscribe(f"{topic}/own", qos=1)
    client.subscribe(f"$share/g/{topic}/share", qos=1)
    for queue in queues:
        client.subscribe(f"$queue/{queue}", qos=1, properties={"user_property": [("settle-on-ack", "true")]})
    client.disconnect()
    publisher.publish(f"{topic}/kept", b"kept", qos=1, retain=True)
    for number in range(COUNT):
        for one in topics:
            publisher.publish(one, b"%d" % number, qos=1)
    client = open_app(V5, name, receive_maximum=receive_maximum)
    client.subscribe(f"{topic}/kept", qos=1)
    received = [client.expect_publish(qos=1, ack=True).topic for _ in range(4 * COUNT + 1)]
    assert {one: received.count(one) for one in topics} == dict.fromkeys(topics, COUNT)
    # everything makes progress while the rest has a backlog
    for one in topics:
        assert received[:80].count(one) >= 4, received
