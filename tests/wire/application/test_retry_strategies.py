"""SKIP_ALL, retries without end, the pause between them, and the modes of writing."""

import time

import pytest

from tests.support.clients.packets import V5, V311, PacketType
from tests.support.worlds.application import running_app_broker

TIMEOUT = 0.4
PACKS = {"application.max_poll_records": 5, "application.packs_in_flight": 1, "application.retry_pause": 0}


@pytest.fixture
def settings():
    return {}


@pytest.fixture
def module_broker(settings, provider, tmp_path_factory):
    """A broker of its own for each test here."""
    with running_app_broker(tmp_path_factory.mktemp("broker"), provider, {**PACKS, **settings}) as broker:
        yield broker


@pytest.mark.parametrize("settings", [{"application.ack_strategy": "skip-all", "application.pack_timeout": TIMEOUT}])
def test_skip_all(open_app, backlog, version):
    """Seed: what is not acknowledged in time is discarded and the offset committed at once."""
    payloads = backlog(version, 12)
    client = open_app(version)
    first = client.expect_payloads(payloads[:5], ack=False)
    client.ack(first[1])
    client.expect_payloads(payloads[5:10], dup=False)
    client.expect_payloads(payloads[10:], dup=False)
    client.expect_nothing(2 * TIMEOUT)
    client.close()
    open_app(version).expect_nothing()


@pytest.mark.parametrize("settings", [{"application.retries": 0, "application.pack_timeout": 0.2}])
def test_retries_without_end(open_app, backlog):
    """Seed: 0 = unlimited; more than the 3 of the default, and the next pack waits."""
    payloads = backlog(V311, 6)
    client = open_app(V311)
    first = client.expect_payloads(payloads[:5], ack=False)
    for _ in range(7):
        again = client.expect_payloads(payloads[:5], ack=False, dup=True)
    assert [packet.packet_id for packet in again] == [packet.packet_id for packet in first]
    for packet in again:
        client.ack(packet)
    while (packet := client.expect_publish(dup=None, ack=True)).payload != payloads[5]:
        assert packet.dup, "a repetition that was on its way"


@pytest.mark.parametrize("settings", [{"application.retry_pause": 0.6, "application.pack_timeout": 0.2}])
def test_pause_between_retries(open_app, backlog):
    payloads = backlog(V311, 1)
    client = open_app(V311)
    client.expect_payloads(payloads, ack=False)
    client.expect_payloads(payloads, ack=False, dup=True)
    start = time.monotonic()
    client.expect_payloads(payloads, ack=False, dup=True)
    assert time.monotonic() - start > 0.5


@pytest.mark.providers("embedded")
@pytest.mark.parametrize(
    "settings",
    [
        {"application.write_and_flush": True},
        {"application.write_and_flush": False, "application.buffered_messages": 1},
        {"application.write_and_flush": False, "application.buffered_messages": 1000},
    ],
    ids=["flush", "one", "many"],
)
def test_modes_of_writing(open_app, backlog, publisher, topic, version):
    """Seed: they differ in system calls, never in what arrives; the end of a pack is not held back."""
    payloads = backlog(version, 23)
    client = open_app(version)
    client.expect_payloads(payloads)
    for number in range(5):
        publisher.publish(topic, b"live %d" % number, qos=1)
        client.expect_publish(topic, b"live %d" % number, ack=True)


@pytest.mark.providers("embedded")
@pytest.mark.parametrize("settings", [{"application.max_clients": 2}])
def test_most_applications(broker, open_app, connect, new_name):
    """max_clients: a further persistent APPLICATION is refused with a reason, others are not."""
    names = [new_name("app") for _ in range(3)]
    kept = [open_app(V5, name) for name in names[:2]]
    refused = broker.client(V5)
    refused.send_connect(names[2], clean_start=False, properties={"session_expiry_interval": 100})
    answer = refused.expect(PacketType.CONNACK)
    assert answer.reason in {0x97, 0x88, 0x89, 0x83}
    refused.close()
    connect(V5, names[2])
    connect(V5)
    kept[0].close()
    open_app(V5, names[0])
