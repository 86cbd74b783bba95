"""Do the clients people use (paho-mqtt, mosquitto_pub and mosquitto_sub, aiomqtt) work with the server?"""

import asyncio
import queue
import subprocess

import aiomqtt
import paho.mqtt.client as paho
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

WAIT = 30
PAHO_VERSIONS = {"v31": paho.MQTTv31, "v311": paho.MQTTv311, "v5": paho.MQTTv5}


@pytest.fixture
def new_paho(broker, new_name):
    """new_paho(protocol, ...) gives a connected paho client and the queue of messages it receives."""
    clients = []

    def connect(protocol, client_id=None, configure=lambda client: None, **options):
        messages, connected = queue.Queue(), queue.Queue()
        client = paho.Client(
            paho.CallbackAPIVersion.VERSION2, client_id=client_id or new_name("paho"), protocol=protocol
        )
        client.on_message = lambda _client, _data, message: messages.put(message)
        client.on_connect = lambda _client, _data, flags, reason, _properties: connected.put((flags, reason))
        configure(client)
        client.connect(*broker.address, **options)
        client.loop_start()
        flags, reason = connected.get(timeout=WAIT)
        assert not reason.is_failure
        clients.append(client)
        return client, messages, flags

    yield connect
    for client in clients:
        client.disconnect()
        client.loop_stop()


def subscribe_and_wait(client, *arguments, **options):
    subscribed = queue.Queue()
    client.on_subscribe = lambda _client, _data, _mid, reasons, _properties: subscribed.put(reasons)
    client.subscribe(*arguments, **options)
    return subscribed.get(timeout=WAIT)


@pytest.mark.parametrize("protocol", PAHO_VERSIONS.values(), ids=PAHO_VERSIONS.keys())
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_paho_publish_and_subscribe(new_paho, topic, protocol, qos):
    """paho-mqtt: a hundred messages at each QoS arrive once and in order."""
    subscriber, messages, _ = new_paho(protocol)
    subscribe_and_wait(subscriber, topic, qos)
    publisher, _, _ = new_paho(protocol)
    for number in range(100):
        info = publisher.publish(topic, str(number), qos)
    info.wait_for_publish(WAIT)
    received = [messages.get(timeout=WAIT) for _ in range(100)]
    assert [int(message.payload) for message in received] == list(range(100))
    assert {message.qos for message in received} == {qos}


@pytest.mark.parametrize("protocol", PAHO_VERSIONS.values(), ids=PAHO_VERSIONS.keys())
def test_paho_retained_and_will(new_paho, topic, protocol):
    """paho-mqtt: retained messages, and a will after the connection broke."""
    publisher, _, _ = new_paho(protocol)
    publisher.publish(f"{topic}/kept", "kept", 1, retain=True).wait_for_publish(WAIT)
    subscriber, messages, _ = new_paho(protocol)
    subscribe_and_wait(subscriber, f"{topic}/#", 1)
    kept = messages.get(timeout=WAIT)
    assert (kept.topic, kept.payload, kept.retain) == (f"{topic}/kept", b"kept", True)
    dying, _, _ = new_paho(protocol, configure=lambda client: client.will_set(f"{topic}/will", "gone", 1))
    dying._sock_close()
    will = messages.get(timeout=WAIT)
    assert (will.topic, will.payload) == (f"{topic}/will", b"gone")


def test_paho_persistent_session(new_paho, client_id, topic):
    """paho-mqtt 5: session expiry, session present, messages that waited."""
    properties = Properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = 60
    options = {"clean_start": False, "properties": properties}
    subscriber, _, flags = new_paho(paho.MQTTv5, client_id, **options)
    assert not flags.session_present
    subscribe_and_wait(subscriber, topic, 1)
    subscriber.disconnect()
    subscriber.loop_stop()
    publisher, _, _ = new_paho(paho.MQTTv5)
    publisher.publish(topic, "waited", 1).wait_for_publish(WAIT)
    _, messages, flags = new_paho(paho.MQTTv5, client_id, **options)
    assert flags.session_present
    assert messages.get(timeout=WAIT).payload == b"waited"


def test_paho_properties(new_paho, topic):
    """paho-mqtt 5: properties of a message, topic alias, subscription identifier."""
    subscriber, messages, _ = new_paho(paho.MQTTv5)
    subscription = Properties(PacketTypes.SUBSCRIBE)
    subscription.SubscriptionIdentifier = 42
    subscribe_and_wait(subscriber, topic, properties=subscription)
    publisher, _, _ = new_paho(paho.MQTTv5)
    properties = Properties(PacketTypes.PUBLISH)
    properties.UserProperty = [("a", "1"), ("a", "2")]
    properties.ContentType = "text/plain"
    properties.ResponseTopic = "answers"
    properties.CorrelationData = b"7"
    properties.TopicAlias = 3
    publisher.publish(topic, "x", properties=properties)
    received = messages.get(timeout=WAIT)
    assert received.topic == topic
    assert received.properties.UserProperty == [("a", "1"), ("a", "2")]
    assert received.properties.ContentType == "text/plain"
    assert received.properties.ResponseTopic == "answers"
    assert received.properties.CorrelationData == b"7"
    assert received.properties.SubscriptionIdentifier == [42]


@pytest.fixture
def mosquitto_sub(broker):
    """mosquitto_sub(topic, ...) starts one that prints `topic payload retained` and ends after `count` messages."""
    processes = []

    def start(topic, *arguments, count=1):
        command = ["mosquitto_sub", "-h", "127.0.0.1", "-p", str(broker.port), "-t", topic, "-C", str(count)]
        command += ["-W", str(WAIT), "-F", "%t %p %r", *arguments]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


def mosquitto_pub(broker, topic, *arguments, **options):
    command = ["mosquitto_pub", "-h", "127.0.0.1", "-p", str(broker.port), "-t", topic, *arguments]
    subprocess.run(command, check=True, timeout=WAIT, **options)


VERSION_FLAGS = ["mqttv31", "mqttv311", "mqttv5"]


@pytest.mark.parametrize("version_flag", VERSION_FLAGS)
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_mosquitto_retained(broker, mosquitto_sub, topic, version_flag, qos):
    """mosquitto_pub -r, then mosquitto_sub."""
    mosquitto_pub(broker, topic, "-m", "hello", "-r", "-q", qos, "-V", version_flag)
    output, _ = mosquitto_sub(topic, "-q", qos, "-V", version_flag).communicate(timeout=WAIT)
    assert output == f"{topic} hello 1\n"


@pytest.mark.parametrize("version_flag", VERSION_FLAGS)
def test_mosquitto_many_lines(broker, mosquitto_sub, topic, version_flag, connect):
    """mosquitto_pub -l: a line a message, in order, to a waiting mosquitto_sub."""
    subscriber = mosquitto_sub(f"{topic}/#", "-q", "2", "-V", version_flag, count=101)
    publisher = connect()
    # Subscribed when its first message is there: retained messages are sent with the subscription.
    publisher.publish(f"{topic}/start", b"start", qos=1, retain=True)
    assert subscriber.stdout.readline().startswith(f"{topic}/start start")
    lines = [f"line-{number}" for number in range(100)]
    mosquitto_pub(broker, f"{topic}/lines", "-l", "-q", "2", "-V", version_flag, input="\n".join(lines), text=True)
    output, _ = subscriber.communicate(timeout=WAIT)
    assert output.splitlines() == [f"{topic}/lines {line} 0" for line in lines]


def test_mosquitto_will(mosquitto_sub, topic, connect):
    """mosquitto_sub with a will that is killed."""
    watcher = connect()
    watcher.subscribe(f"{topic}/will")
    # Its first message says that it is connected.
    watcher.publish(f"{topic}/start", b"start", qos=1, retain=True)
    will = ["--will-topic", f"{topic}/will", "--will-payload", "gone"]
    dying = mosquitto_sub(f"{topic}/start", *will, count=2)
    assert dying.stdout.readline()
    dying.kill()
    watcher.expect_publish(f"{topic}/will", b"gone")


@pytest.mark.parametrize("protocol", [aiomqtt.ProtocolVersion.V311, aiomqtt.ProtocolVersion.V5], ids=["v311", "v5"])
def test_aiomqtt(broker, topic, protocol):
    """aiomqtt: retained, live, will."""

    async def scenario():
        host, port = broker.address
        will = aiomqtt.Will(f"{topic}/will", b"gone", qos=1)
        async with aiomqtt.Client(host, port, protocol=protocol) as watcher:
            await watcher.publish(f"{topic}/kept", b"kept", qos=1, retain=True)
            await watcher.subscribe(f"{topic}/#", qos=2)
            dying = aiomqtt.Client(host, port, protocol=protocol, will=will)
            await dying.__aenter__()
            for qos in (0, 1, 2):
                await dying.publish(f"{topic}/live", b"%d" % qos, qos=qos)
            dying._client._sock_close()
            received = []
            async for message in watcher.messages:
                received.append((message.topic.value.rpartition("/")[2], message.payload, message.retain))
                if len(received) == 5:
                    return received

    received = asyncio.run(asyncio.wait_for(scenario(), WAIT))
    assert received[0] == ("kept", b"kept", True)
    # paho gives a QoS 2 message to the application only at its PUBREL, when the will may be there already.
    live = [("live", b"%d" % qos, False) for qos in (0, 1, 2)]
    assert sorted(received[1:]) == [*live, ("will", b"gone", False)]
