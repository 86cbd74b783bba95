"""What of a client's session is there after the broker was killed or stopped, and started again?"""

import itertools
import random
import threading
import time

import pytest

from tests.support.brokers.broker import IS_MOSQUITTO
from tests.support.clients.packets import (
    V5,
    V311,
    PacketType,
    Reason,
    Will,
    pack_disconnect,
    pack_publish,
    pack_subscribe,
    pack_unsubscribe,
)
from tests.support.clients.raw_client import ClosedByServer, NothingCame
from tests.support.worlds.application import until

pytestmark = pytest.mark.skipif(IS_MOSQUITTO, reason="the store is Penstock's own")

HOUR = 3_600


@pytest.fixture
def broker(start_log_broker):
    return start_log_broker()


def restart(broker, how="kill"):
    if how == "kill":
        broker.kill()
    else:
        assert broker.terminate() == 0
    broker.restart()


def persistent(version, expiry=HOUR, **options):
    """The options of a CONNECT whose session outlives its connection."""
    if version == V5:
        return {"clean_start": False, "properties": {"session_expiry_interval": expiry}, **options}
    return {"clean_start": False, **options}


def present(client):
    return client.connack.session_present


def test_subscriptions_come_back_with_their_options(broker, connect, client_id):
    """[MQTT-3.1.2-5] [MQTT-4.1.0-1] [MQTT-3.2.2-3]"""
    client = connect(V5, client_id, broker=broker, **persistent(V5))
    assert not present(client)
    client.subscribe("plain/+", qos=1, properties={"subscription_identifier": 7})
    client.subscribe("kept/#", qos=2, retain_as_published=True)
    client.subscribe("own", qos=1, no_local=True)
    client.subscribe("$share/g/shared", qos=1)
    client.subscribe("gone", qos=1)
    client.subscribe("plain/+", qos=2, properties={"subscription_identifier": 8})
    client.unsubscribe("gone")
    restart(broker)
    client = connect(V5, client_id, broker=broker, **persistent(V5))
    assert present(client)
    other = connect(V5, broker=broker)
    client.publish("own", b"mine", qos=1)
    for topic in ("gone", "plain/a", "shared", "own"):
        other.publish(topic, b"1", qos=1)
    other.publish("kept/b", b"2", qos=2, retain=True)
    packets = [client.expect_publish(ack=True) for _ in range(4)]
    got = {packet.topic: packet for packet in packets}  # topics have their own orders
    assert (got["plain/a"].qos, got["plain/a"].properties) == (1, {"subscription_identifier": [8]})
    assert got["shared"].qos == 1
    assert (got["own"].qos, got["own"].payload) == (1, b"1")
    assert (got["kept/b"].qos, got["kept/b"].retain) == (2, True)
    client.expect_nothing()


@pytest.mark.parametrize(("how", "log"), [("kill", "all"), ("stop", "all"), ("kill", "none")])
def test_a_session_of_each_version_is_resumed(start_log_broker, connect, version, how, log):
    """[MQTT3-3.1.2-4] [MQTT3-3.2.2-2] [MQTT-3.2.2-2]; with and without a log of the messages."""
    broker, client_id = start_log_broker({"ingest.log": log}), "resumed"
    client = connect(version, client_id, broker=broker, **persistent(version))
    assert client.subscribe("t/1", "t/2", qos=1) == [1, 1]
    client.disconnect()
    restart(broker, how)
    # what comes while the client is away waits for it, as before
    connect(V5, broker=broker).publish("t/2", b"waiting", qos=1)
    client = connect(version, client_id, broker=broker, **persistent(version))
    assert present(client)
    client.expect_publish("t/2", b"waiting", qos=1, ack=True)
    client.unsubscribe("t/1", "t/2")
    client.close()
    restart(broker, how)
    client = connect(version, client_id, broker=broker, **persistent(version))
    assert present(client)
    connect(V5, broker=broker).publish("t/1", b"", qos=1)
    # Only what was acknowledged a moment before the kill may come again.
    again = [packet for packet in client.take_rest() if not (how == "kill" and packet.dup and packet.topic == "t/2")]
    assert not again


def test_clean_sessions_leave_nothing(broker, connect, version):
    """[MQTT-3.1.2-23] [MQTT3-3.1.2-6]"""
    connect(version, "clean", broker=broker).subscribe("t", qos=1)
    ended = connect(version, "ended", broker=broker, **persistent(version))
    ended.subscribe("t", qos=1)
    ended.close()
    connect(version, "ended", broker=broker, clean_start=True)
    if version == V5:
        # A session that ends with its DISCONNECT, and one that is taken up for the last time.
        last = connect(V5, "last", broker=broker, **persistent(V5))
        last.subscribe("t", qos=1)
        last.disconnect(properties={"session_expiry_interval": 0})
        connect(V5, "taken-up", broker=broker, **persistent(V5)).close()
        taken_up = connect(V5, "taken-up", broker=broker, clean_start=False)
        assert present(taken_up)
    restart(broker)
    for client_id in ("clean", "ended", *(("last", "taken-up") if version == V5 else ())):
        client = connect(version, client_id, broker=broker, **persistent(version))
        assert not present(client), client_id
        connect(V5, broker=broker).publish("t", b"", qos=1)
        client.expect_nothing(0.05)


def test_another_user_does_not_get_a_kept_session(*, start_log_broker, password_file, connect, open_client, client_id):
    """The stored record says whose it is: others are refused."""
    broker = start_log_broker({"access.password_file": str(password_file), "access.anonymous": "allow"})
    alice = {"username": "alice", "password": b"alice-secret"}
    connect(V5, client_id, broker=broker, **persistent(V5), **alice).subscribe("t")
    restart(broker)
    client = connect(V5, client_id, broker=broker, **persistent(V5), **alice)
    assert present(client)
    client.close()
    other = open_client(V5, broker=broker)
    other.send_connect(client_id, **persistent(V5))
    other.expect_refused_connect(Reason.CLIENT_ID_INVALID)
    assert present(connect(V5, client_id, broker=broker, **persistent(V5), **alice))


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_session_expires_on_time_across_a_restart(broker, connect, how):
    """[MQTT-3.1.2-23]: the time during which the broker is away counts, and a crash is the end of a connection."""
    connect(V5, "short", broker=broker, **persistent(V5, 1)).disconnect()
    connect(V5, "middle", broker=broker, **persistent(V5, 4)).disconnect()
    left = time.monotonic()
    connect(V5, "long", broker=broker, **persistent(V5, HOUR)).disconnect()
    connect(V5, "connected", broker=broker, **persistent(V5, HOUR))
    connect(V5, "briefly", broker=broker, **persistent(V5, 1))
    time.sleep(1.1)
    restart(broker, how)
    back = time.monotonic()
    for client_id, is_present in {"short": False, "long": True, "connected": True}.items():
        assert present(connect(V5, client_id, broker=broker, **persistent(V5))) is is_present, client_id
    time.sleep(max(0.0, left + 4.1 - time.monotonic(), back + 1.2 - time.monotonic()))
    assert not present(connect(V5, "middle", broker=broker, **persistent(V5)))
    assert not present(connect(V5, "briefly", broker=broker, **persistent(V5)))


def delayed(topic, seconds):
    return Will(topic, b"gone", qos=1, properties={"will_delay_interval": seconds})


def watch_wills(broker, connect):
    watcher = connect(V5, "watcher", broker=broker, **persistent(V5))
    watcher.subscribe("will/#", qos=1)
    return watcher


def test_wills_are_published_after_a_crash(broker, connect):
    """[MQTT-3.1.2-8] [MQTT3-3.1.2-8]: the connection ended without a DISCONNECT; [MQTT-3.1.2-10] withdraws a will."""
    watcher = watch_wills(broker, connect)
    watcher.disconnect()
    connect(V5, "now", broker=broker, **persistent(V5, will=Will("will/now", b"gone", qos=1)))
    connect(V311, "v3", broker=broker, **persistent(V311, will=Will("will/v3", b"gone", qos=1, retain=True)))
    connect(V5, "later", broker=broker, **persistent(V5, will=delayed("will/later", 2)))
    connect(V5, "waiting", broker=broker, **persistent(V5, will=delayed("will/waiting", 3))).close()
    connect(V5, "end", broker=broker, **persistent(V5, 1, will=delayed("will/end", 60)))
    for version in (V311, V5):
        will = Will("will/withdrawn", b"gone")
        connect(version, f"withdrawn{version}", broker=broker, **persistent(version, will=will)).disconnect()
    # Of sessions that end with their connection, too: that is over as well.
    connect(V5, "clean", broker=broker, will=Will("will/clean", b"gone", qos=1))
    connect(V311, "clean3", broker=broker, will=Will("will/clean3", b"gone", qos=1))
    connect(V5, "cleandelayed", broker=broker, will=delayed("will/cleandelayed", 60))
    for version in (V311, V5):
        connect(version, f"leaver{version}", broker=broker, will=Will("will/withdrawn", b"gone")).disconnect()
    # Nobody answers a DISCONNECT. A new session has its CONNACK when it is stored, and with it everything before.
    connect(V5, "back", broker=broker, **persistent(V5, will=delayed("will/back", 2)))
    started = time.monotonic()
    restart(broker)
    restarted = time.monotonic()
    connect(V5, "back", broker=broker, **persistent(V5))
    watcher = connect(V5, "watcher", broker=broker, **persistent(V5))
    arrived = {}
    for _ in range(8):
        packet = watcher.expect_publish(payload=b"gone", qos=1, ack=True)
        arrived[packet.topic.removeprefix("will/")] = time.monotonic()
    assert set(arrived) == {"now", "v3", "end", "waiting", "later", "clean", "clean3", "cleandelayed"}
    assert arrived["later"] - restarted > 1.0
    assert arrived["later"] - started > 1.9
    watcher.expect_nothing(1.6)  # the records let go of published wills a second later
    restart(broker)
    watcher = connect(V5, "watcher", broker=broker, **persistent(V5))
    assert present(watcher)
    watcher.expect_nothing(0.5)


def test_a_delayed_will_survives_a_stop(broker, connect):
    """A client is told that the broker stops; its will waits for its delay all the same."""
    watch_wills(broker, connect).disconnect()
    connect(V5, "a", broker=broker, **persistent(V5, will=delayed("will/a", 2)))
    restart(broker, "stop")
    watcher = connect(V5, "watcher", broker=broker, **persistent(V5))
    watcher.expect_publish("will/a", b"gone")
    watcher.expect_nothing(0.3)


def test_pipelined_packets_are_answered_in_order(broker, connect, version, client_id):
    """[MQTT-4.6.0-2] [MQTT-3.8.4-2]: SUBSCRIBE, UNSUBSCRIBE, PUBLISH and DISCONNECT in one write."""
    client = connect(version, client_id, broker=broker, **persistent(version))
    client.send_raw(
        pack_subscribe(version, 1, [("a", 1), ("b", 1)])
        + pack_subscribe(version, 2, [("c", 1)])
        + pack_unsubscribe(version, 3, ["a"])
        + pack_subscribe(version, 4, [("d", 0)])
        + pack_publish(version, "elsewhere", b"")
        + pack_disconnect(version)
    )
    client.expect(PacketType.SUBACK, packet_id=1, reasons=[1, 1])
    client.expect(PacketType.SUBACK, packet_id=2, reasons=[1])
    client.expect(PacketType.UNSUBACK, packet_id=3)
    client.expect(PacketType.SUBACK, packet_id=4, reasons=[0])
    client.expect_closed()
    restart(broker)
    client = connect(version, client_id, broker=broker, **persistent(version))
    assert present(client)
    other = connect(V5, broker=broker)
    for topic in "abcd":
        other.publish(topic, b"", qos=1)
    # Each topic has an order of its own.
    assert sorted(client.expect_publish(ack=True).topic for _ in range(3)) == ["b", "c", "d"]


def test_a_goodbye_counts_though_answers_wait(broker, connect, version):
    """The client does not wait for its SUBACK: its DISCONNECT withdraws the will all the same [MQTT-3.14.4-3]."""
    watcher = watch_wills(broker, connect)
    for number in range(20):
        client_id, will = f"hasty{number}", Will("will/hasty", b"gone")
        client = connect(version, client_id, broker=broker, **persistent(version, will=will))
        client.send_raw(pack_subscribe(version, 1, [("t", 1)]) + pack_disconnect(version))
        client.close()
    watcher.expect_nothing(0.5)


def test_take_overs_while_the_store_is_asked(broker, connect, open_client, version):
    """[MQTT-3.1.4-3]: many connections of one id at once; the last one has the session, and it works."""
    rounds = [open_client(version, broker=broker) for _ in range(30)]
    for client in rounds:
        client.send_connect("same", **persistent(version))
        client.send_subscribe(("t", 1))
    time.sleep(0.5)
    alive = []
    for client in rounds:
        try:
            client.ping()
            alive.append(client)
        except (ClosedByServer, AssertionError, OSError):
            client.close()
    assert len(alive) == 1
    alive[0].await_packet(PacketType.SUBACK, 1)
    alive[0].forget_received()
    connect(V5, broker=broker).publish("t", b"for the last", qos=1)
    alive[0].expect_publish("t", b"for the last")


class Subscriber(threading.Thread):
    """Subscribes and unsubscribes without end; what was answered is what it can count on."""

    def __init__(self, broker, client_id, version, window):
        super().__init__()
        self.client_id, self.version = client_id, version
        self._broker, self._window = broker, window
        # filter → whether the answered packets leave it subscribed; those without an answer may be either
        self.answered, self.unsure = {}, set()
        self.answers = 0

    def run(self):
        under_way = {}
        chance = random.Random(self.client_id)
        try:
            client = self._broker.client(self.version)
            client.connect(self.client_id, **persistent(self.version))
            for number in itertools.count():
                name = f"storm/{self.client_id}/{number % 60}"
                if name in self.unsure or len(under_way) >= self._window:
                    self._take_answer(client, under_way)
                    continue
                is_subscribing = chance.random() < 0.7
                packet_id = client.new_packet_id()
                under_way[packet_id] = (name, is_subscribing)
                self.unsure.add(name)
                pack = pack_subscribe(self.version, packet_id, [(name, 1)])
                client.send_raw(pack if is_subscribing else pack_unsubscribe(self.version, packet_id, [name]))
        except (ClosedByServer, NothingCame, OSError):
            pass

    def _take_answer(self, client, under_way):
        packet = client.receive()
        assert packet.type in (PacketType.SUBACK, PacketType.UNSUBACK), packet
        assert packet.packet_id == next(iter(under_way)), "answered out of order"
        name, is_subscribed = under_way.pop(packet.packet_id)
        assert all(reason < 0x80 for reason in packet.reasons or ())
        self.unsure.discard(name)
        self.answered[name] = is_subscribed
        self.answers += 1


def test_everything_answered_is_there_after_kill_9(start_log_broker, connect):
    """A storm of subscribes and new sessions, killed at any moment."""
    chance = random.Random(time.time_ns())
    broker = start_log_broker({"sys.interval": 0})
    answers = 0
    for kill in range(4):
        storm = [Subscriber(broker, f"s{kill}x{at}", (V311, V5)[at % 2], (1, 10, 30)[at % 3]) for at in range(6)]
        for subscriber in storm:
            subscriber.start()
        until(lambda storm=storm: sum(one.answers for one in storm) > 60, 60, "a storm")
        time.sleep(chance.uniform(0.0, 0.8))
        broker.kill()
        for subscriber in storm:
            subscriber.join()
        broker.restart()
        publisher = connect(V5, broker=broker)
        for subscriber in storm:
            answers += subscriber.answers
            client = connect(subscriber.version, subscriber.client_id, broker=broker, **persistent(subscriber.version))
            if subscriber.answered:
                assert present(client), "a session that was promised is gone"
            sure = {name: kept for name, kept in subscriber.answered.items() if name not in subscriber.unsure}
            for name in sure:
                publisher.send_publish(name, b"", qos=0)
            publisher.ping()
            client.ping()
            wanted = {name for name, kept in sure.items() if kept}
            assert {packet.topic for packet in client.receive_all(0.05, at_least=len(wanted))} == wanted
    assert answers > 200, f"too little of a storm: {answers}"


def test_a_data_directory_has_one_owner(start_log_broker):
    broker = start_log_broker({"ingest.log": "none"})
    second = type(broker)(broker.directory / "..", {"ingest.log": "none", "server.data_dir": str(broker.data_dir)})
    assert second.process.wait(60) not in (0, None)
    assert f"is in use by another process (pid {broker.process.pid})" in second.log()
    assert "Traceback" not in second.log()
