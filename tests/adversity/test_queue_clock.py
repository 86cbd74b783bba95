"""Does a clock that somebody sets, ahead or back, lose or double anything of a queue, or let it hang?

The clocks of the broker are the test's (see shifted_clock.py): minutes pass at once, and the day jumps as it likes.
"""

import pytest

from tests.support.clients.packets import V5
from tests.support.machine.shifted_clock import ShiftedClock
from tests.support.worlds.queues import QueueClient, running_queue_broker

HOUR = 3_600.0
VISIBILITY, BACK_OFF = 30.0, 10.0
QUEUES = [
    {"name": name, "visibility_timeout": "30s", "retry": {"initial_backoff": "10s", "max_backoff": "10s"}}
    for name in ("timeout", "back-off", "dead", "down", "down-waiting", "order")
]


@pytest.fixture(scope="module")
def clock(tmp_path_factory):
    return ShiftedClock(tmp_path_factory.mktemp("clock"))


@pytest.fixture(scope="module")
def shared(clock, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in clock.environment.items():
            patch.setenv(name, value)
        streams = [{"name": "events", "type": "stream"}]
        with running_queue_broker(tmp_path_factory.mktemp("queues"), queues=[*QUEUES, *streams]) as started:
            yield started


@pytest.fixture
def broker(shared, request):
    if not shared.is_alive:
        shared.restart()
    request.node.broker_logs = [(shared, 0)]
    yield shared
    shared.assert_healthy()


@pytest.fixture
def client(broker, connect):
    """client() connects one more, without a keep alive: minutes pass here."""
    return lambda: QueueClient(connect(V5, keep_alive=0, broker=broker))


@pytest.fixture
def elapse(clock, client):
    """elapse(30.0): the time passes, and everything that was due has been done."""
    waker = client()

    def pass_time(seconds):
        clock.elapse(seconds)
        for _ in range(3):
            waker.raw.ping()

    return pass_time


@pytest.fixture(params=[HOUR, -HOUR], ids=["ahead", "back"])
def jump(request):
    return request.param


def test_the_visibility_timeout(*, client, clock, elapse, broker, jump):
    """Set while a consumer has a message: it is neither given out sooner nor later, and once."""
    consumer, publisher = client(), client()
    consumer.consume("$queue/timeout", f"workers{jump}")
    publisher.publish("$queue/timeout", b"%d" % jump)
    deliveries = []
    while not deliveries or deliveries[-1].payload != b"%d" % jump:
        deliveries.append(consumer.next())
    consumer.ack(*deliveries[:-1])
    clock.set_day(jump)
    elapse(VISIBILITY - 5)
    consumer.nothing()
    elapse(6)
    again = consumer.next(b"%d" % jump)
    assert again.count == 2
    consumer.ack(again)
    elapse(2 * VISIBILITY)
    consumer.nothing(0.05)
    assert broker.group("timeout", f"workers{jump}")["pending"] == 0


def test_the_back_off(client, clock, elapse, jump):
    """Set while a nacked message waits."""
    consumer = client()
    consumer.consume("$queue/back-off", "workers")
    consumer.publish("$queue/back-off", b"1")
    consumer.nack(consumer.next(b"1"))
    clock.set_day(jump)
    elapse(BACK_OFF - 2)
    consumer.nothing()
    elapse(3)
    again = consumer.next(b"1")
    assert again.count == 2
    consumer.ack(again)


def test_set_while_the_broker_was_down(client, clock, broker, jump):
    """What a consumer without session had comes at once after a restart, whatever the clock says."""
    consumer = client()
    consumer.consume("$queue/down", "workers")
    consumer.publish("$queue/down", b"1", b"2")
    consumer.ack(consumer.take(b"1", b"2")[0])
    broker.kill()
    clock.set_day(jump)
    broker.restart()
    other = client()
    other.consume("$queue/down", "workers")
    again = other.next(b"2")
    assert again.count == 2
    other.ack(again)
    other.nothing(0.05)


def test_set_back_while_the_broker_was_down(client, clock, broker):
    """A nacked message does not wait for the hour to come again: as long as messages of this queue wait at most."""
    consumer = client()
    consumer.consume("$queue/down-waiting", "workers")
    consumer.publish("$queue/down-waiting", b"1")
    consumer.nack(consumer.next(b"1"))
    broker.kill()
    clock.set_day(-HOUR)
    broker.restart()
    other = client()
    other.consume("$queue/down-waiting", "workers")
    clock.elapse(VISIBILITY + 1)
    other.raw.ping()
    again = other.next(b"1")
    assert again.count == 2
    other.ack(again)


def test_messages_keep_their_order(client, clock, jump):
    """Published before and after a jump: the order of the log, nothing twice, nothing expired."""
    consumer = client()
    consumer.consume("$queue/order", f"workers{jump}")
    before, after = b"before %d" % jump, b"after %d" % jump
    consumer.publish("$queue/order", before)
    clock.set_day(jump)
    consumer.publish("$queue/order", after)
    payloads = []
    while payloads[-1:] != [after]:
        delivery = consumer.next()
        payloads.append(delivery.payload)
        consumer.ack(delivery)
    assert payloads[-2:] == [before, after]
    assert len(set(payloads)) == len(payloads)
    consumer.nothing(0.05)


def test_a_stream_goes_on(client, clock, broker, jump):
    """Readers and commits go by offsets; the clock is only in the timestamps."""
    reader = client()
    reader.consume("$queue/events", f"readers{jump}", x_stream_offset="next", x_auto_commit="false")
    reader.publish("$queue/events", b"1")
    clock.set_day(jump)
    reader.publish("$queue/events", b"2")
    first, second = reader.take(b"1", b"2")
    elapsed = int(second.properties["x-stream-timestamp"]) - int(first.properties["x-stream-timestamp"])
    assert abs(elapsed - jump * 1000) < 10_000
    reader.commit("events", f"readers{jump}", second.offset)
    assert broker.progress("events", f"readers{jump}")[1] == second.offset + 1


def test_an_ephemeral_queue_does_not_end_by_a_jump(client, clock, elapse, broker, new_name):
    """expires_after is time that passed, not the difference of two days: its messages are there after a jump."""
    name = new_name("ephemeral")
    client().publish(f"$queue/{name}", b"1")
    clock.set_day(HOUR)
    elapse(1)
    elapse(1)
    assert broker.queue(name) is not None
    consumer = client()
    consumer.consume(f"$queue/{name}", "workers")
    consumer.take_and_ack(b"1")
