"""Does a session stay with its user when another user connects with its client id at another broker?"""

import pytest

from tests.support.brokers.cluster import await_dispatched, running_cluster
from tests.support.clients.packets import V5, V311, PacketType, Reason
from tests.support.worlds.application import persistent

FOREIGN = "CONNECT refused: the session of the client id belongs to another user"


@pytest.fixture(scope="module", params=["deny", "allow"])
def takeover(request):
    return request.param


@pytest.fixture(scope="module")
def module_cluster(tmp_path_factory, password_file, takeover):
    settings = {
        "access.password_file": str(password_file),
        "access.anonymous": "allow",
        "access.foreign_takeover": takeover,
    }
    with running_cluster(tmp_path_factory.mktemp("cluster"), settings) as brokers:
        yield brokers


def login(user):
    return {"username": user, "password": f"{user}-secret".encode()}


@pytest.mark.parametrize("kind", ["device", "app"])
@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("is_connected", [True, False])
def test_another_user_at_another_broker(
    *, pair, takeover, connect, open_client, new_name, topic, kind, version, is_connected
):
    a, b = pair
    name = new_name(kind)
    owner = connect(version, name, broker=a, **login("alice"), **persistent(version))
    owner.subscribe(topic, qos=1)
    if not is_connected:
        owner.disconnect()
    begin = b.log_size()
    publisher = connect(V5, broker=b)
    if takeover == "deny":
        for options in (persistent(version), {"clean_start": True}):
            client = open_client(version, broker=b)
            client.send_connect(name, **login("bob"), **options)
            client.expect_refused_connect(Reason.CLIENT_ID_INVALID, 2)
        assert FOREIGN in b.log(begin)
        publisher.publish(topic, b"x", qos=1)
        if not is_connected:
            owner = connect(version, name, broker=b, **login("alice"), **persistent(version))
            assert owner.connack.session_present
        owner.expect_publish(topic, b"x", ack=True)
        owner.disconnect()
        return
    if not is_connected:
        publisher.publish(topic, b"stored", qos=1)
        await_dispatched(a)
    client = connect(version, name, broker=b, **login("bob"), **persistent(version))
    assert not client.connack.session_present
    publisher.publish(topic, b"later", qos=1)
    client.expect_nothing(0.5)
    if is_connected and version == V5:
        assert owner.expect(PacketType.DISCONNECT).reason == Reason.SESSION_TAKEN_OVER
    client.disconnect()


@pytest.mark.parametrize("kind", ["device", "app"])
def test_a_session_of_a_broker_that_is_gone(*, pair, takeover, connect, open_client, new_name, topic, kind):
    """The other broker has only the record, which names the owner."""
    a, b = pair
    name = new_name(kind)
    owner = connect(V5, name, broker=a, **login("alice"), **persistent(V5))
    owner.subscribe(topic, qos=1)
    owner.disconnect()
    connect(V5, broker=b).publish(topic, b"stored", qos=1)
    await_dispatched(a)
    a.kill()
    try:
        client = open_client(V5, broker=b)
        client.send_connect(name, **login("bob"), **persistent(V5))
        if takeover == "deny":
            client.expect_refused_connect(Reason.CLIENT_ID_INVALID)
            owner = connect(V5, name, broker=b, **login("alice"), **persistent(V5))
            assert owner.connack.session_present
            owner.expect_publish(topic, b"stored", dup=None, ack=True)
        else:
            assert not client.expect(PacketType.CONNACK, reason=0).session_present
            client.expect_nothing(0.5)
    finally:
        a.restart()
