"""Enhanced authentication with a challenge: who the client is afterwards, and AUTH packets out of turn."""

import time

import pytest

from tests.support.brokers.file_broker import running_broker
from tests.support.clients.hmac_auth import METHOD, SLOW_METHOD, SLOW_SECONDS, TARGETS, prove
from tests.support.clients.packets import V5, PacketType, Reason, pack_auth, pack_publish

RULES = '[[rules]]\neffect = "allow"\ntopics = ["users/%u/#"]\n'
METHODS = [METHOD, SLOW_METHOD]
CONTINUE, AGAIN = Reason.CONTINUE_AUTHENTICATION, Reason.REAUTHENTICATE


@pytest.fixture(scope="module")
def challenging(tmp_path_factory):
    """A broker where nobody is let in but by the challenge."""
    directory = tmp_path_factory.mktemp("broker")
    (directory / "acl.toml").write_text(RULES)
    access = {"anonymous": "deny", "acl_file": str(directory / "acl.toml"), "enhanced": TARGETS}
    with running_broker(directory, {"access": access, "limits": {"connect_timeout": 2}}) as broker:
        yield broker


def auth(method, data, reason=CONTINUE):
    return pack_auth(reason, {"authentication_method": method, "authentication_data": data})


@pytest.fixture
def begin(challenging, open_client, new_name):
    """begin(method, user) sends CONNECT with the user's name; gives the client and the nonce."""

    def begin_one(method=METHOD, user="carol", **options):
        client = open_client(V5, broker=challenging)
        properties = {"authentication_method": method, "authentication_data": user.encode()}
        client.send_connect(new_name("client"), properties=properties, **options)
        question = client.expect(PacketType.AUTH, reason=CONTINUE)
        assert question.properties["authentication_method"] == method
        return client, question.properties["authentication_data"]

    return begin_one


@pytest.fixture
def enter(begin):
    """enter(method, user) gives a client after its CONNACK."""

    def enter_one(method=METHOD, user="carol", **options):
        client, nonce = begin(method, user, **options)
        client.send_raw(auth(method, prove(user, nonce)))
        connack = client.expect(PacketType.CONNACK, reason=0)
        assert connack.properties["authentication_method"] == method
        assert connack.properties["authentication_data"] == prove(user, nonce[::-1])
        return client

    return enter_one


@pytest.mark.parametrize("method", METHODS)
def test_name_of_the_exchange_counts(enter, method):
    """The rules see the user that was proven, whatever user name CONNECT claims. [MQTT-4.12.0-5]"""
    for user, other in (("carol", "dave"), ("dave", "carol")):
        client = enter(method, user, username=other, password=b"x")
        assert client.subscribe(f"users/{user}/x", f"users/{other}/x") == [0, Reason.NOT_AUTHORIZED]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("user", ["carol", "unknown"])
def test_wrong_proof(begin, method, user):
    """[MQTT-4.12.0-4]: 0x87, and the end."""
    client, nonce = begin(method, user)
    client.send_raw(auth(method, prove("dave", nonce)))
    client.expect_refused_connect(Reason.NOT_AUTHORIZED)


def test_proof_of_another_exchange(begin):
    """An answer that was overheard is of no use."""
    first, first_nonce = begin()
    second, _ = begin()
    second.send_raw(auth(METHOD, prove("carol", first_nonce)))
    second.expect_refused_connect(Reason.NOT_AUTHORIZED)
    first.send_raw(auth(METHOD, prove("carol", first_nonce)))
    first.expect(PacketType.CONNACK, reason=0)


def test_other_methods_and_none(challenging, open_client, client_id):
    """[MQTT-4.12.0-1]: 0x8C for a method that is not there, 0x87 for clients that try without."""
    client = open_client(V5, broker=challenging)
    client.send_connect(client_id, properties={"authentication_method": METHOD.lower()})
    client.expect_refused_connect(Reason.BAD_AUTHENTICATION_METHOD)
    client = open_client(V5, broker=challenging)
    client.send_connect(client_id)
    client.expect_refused_connect(Reason.NOT_AUTHORIZED)


def test_client_that_does_not_answer(begin):
    """limits.connect_timeout covers the whole exchange."""
    client, _ = begin()
    started = time.monotonic()
    client.receive_until_closed()
    assert time.monotonic() - started < 9  # the default is ten seconds


def test_client_that_leaves_while_it_is_checked(begin, enter):
    """The answer finds nobody, which harms nobody."""
    for _ in range(3):
        client, nonce = begin(SLOW_METHOD)
        client.send_raw(auth(SLOW_METHOD, prove("carol", nonce)))
        client.close()
    time.sleep(SLOW_SECONDS)
    enter().ping()


def test_packets_behind_the_proof_wait(begin, enter):
    """[MQTT-3.1.2-30]: what comes after the last AUTH is served after CONNACK."""
    watcher = enter()
    watcher.subscribe("users/carol/x")
    client, nonce = begin(SLOW_METHOD)
    client.send_raw(auth(SLOW_METHOD, prove("carol", nonce)) + pack_publish(V5, "users/carol/x", b"early"))
    client.expect(PacketType.CONNACK, reason=0)
    watcher.expect_publish("users/carol/x", b"early")


@pytest.mark.parametrize("method", METHODS)
def test_again_while_connected(enter, method):
    """4.12.1, [MQTT-4.12.1-1]: messages go on during the exchange; it may be repeated."""
    client = enter(method)
    client.subscribe("users/carol/x", qos=1)
    for number in range(2):
        client.send_raw(auth(method, b"carol", AGAIN))
        client.publish("users/carol/x", b"%d" % number, qos=1)
        question = client.await_packet(PacketType.AUTH)
        client.send_raw(auth(method, prove("carol", question.properties["authentication_data"])))
        assert client.await_packet(PacketType.AUTH).reason == Reason.SUCCESS
        client.expect_publish("users/carol/x", b"%d" % number, ack=True)


@pytest.mark.parametrize("method", METHODS)
def test_failing_again(enter, method):
    """[MQTT-4.12.1-2]: DISCONNECT 0x87."""
    client = enter(method)
    client.send_raw(auth(method, b"carol", AGAIN))
    client.expect(PacketType.AUTH, reason=CONTINUE)
    client.send_raw(auth(method, b"guess"))
    client.expect_disconnect(Reason.NOT_AUTHORIZED)


def test_again_as_another_user(enter):
    """The session and its rights stay with the user who came in: another one has to connect anew."""
    client = enter()
    client.send_raw(auth(METHOD, b"dave", AGAIN))
    question = client.expect(PacketType.AUTH, reason=CONTINUE)
    client.send_raw(auth(METHOD, prove("dave", question.properties["authentication_data"])))
    client.expect_disconnect(Reason.NOT_AUTHORIZED)


OUT_OF_TURN = {
    "continue without a beginning": [auth(METHOD, b"x")],
    "again while it is under way": [auth(METHOD, b"carol", AGAIN), auth(METHOD, b"carol", AGAIN)],
    "success from the client": [auth(METHOD, b"x", Reason.SUCCESS)],
    "no method": [pack_auth(AGAIN, {"authentication_data": b"carol"})],
    "another method": [auth(SLOW_METHOD, b"carol", AGAIN)],
    "another method under way": [auth(METHOD, b"carol", AGAIN), auth(SLOW_METHOD, b"x")],
}


@pytest.mark.parametrize("packets", OUT_OF_TURN.values(), ids=OUT_OF_TURN.keys())
def test_out_of_turn(enter, packets):
    """[MQTT-4.12.0-5] [MQTT-4.12.1-1] [MQTT-4.13.1-1]: the connection ends with a reason."""
    client = enter()
    for packet in packets:
        client.send_raw(packet)
    answer = client.receive()
    if answer.type == PacketType.AUTH:
        assert answer.reason == CONTINUE
        answer = client.receive()
    assert answer.type == PacketType.DISCONNECT
    assert answer.reason in (Reason.PROTOCOL_ERROR, Reason.BAD_AUTHENTICATION_METHOD, Reason.MALFORMED)
    client.expect_closed()


def test_answers_before_the_question(enter):
    """A step is answered before the next is taken: guesses are not checked side by side."""
    client = enter(SLOW_METHOD)
    client.send_raw(auth(SLOW_METHOD, b"carol", AGAIN) + auth(SLOW_METHOD, b"guess") * 3)
    client.expect_disconnect(Reason.PROTOCOL_ERROR)


def test_packets_other_than_auth_during_the_exchange(begin):
    """[MQTT-3.1.2-30]: only AUTH or DISCONNECT until CONNACK."""
    client, _ = begin()
    client.send_raw(pack_publish(V5, "users/carol/x", b"x"))
    assert all(packet.type == PacketType.CONNACK and packet.reason >= 0x80 for packet in client.receive_until_closed())
