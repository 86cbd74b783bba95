"""Is nothing of a durable queue lost, and nothing settled given out again, whenever the broker is killed?"""

import contextlib
import random
import time

import pytest

from tests.support.brokers.broker import IS_MOSQUITTO
from tests.support.checkers.queue_checker import Ledger, QueuePublisher, StreamReader, Worker
from tests.support.clients.packets import V5, V311
from tests.support.worlds.application import until
from tests.support.worlds.queues import open_queue_client, running_queue_broker

pytestmark = pytest.mark.skipif(IS_MOSQUITTO, reason="mosquitto has no durable queues")

ROUNDS = {"embedded": 4, "kafka": 2}
MORE_ROUNDS = 4
QUEUES = [
    {
        "name": "work",
        "visibility_timeout": "1s",
        "retry": {"max_retries": 1000, "initial_backoff": "50ms", "max_backoff": "200ms"},
    },
    {"name": "events", "type": "stream", "topics": ["$queue/work/#"]},
    {"name": "exact1", "visibility_timeout": "60s"},
    {"name": "exact2", "visibility_timeout": "60s"},
    {"name": "untouched"},
    {"name": "patient", "retry": {"initial_backoff": "4s"}},
    {"name": "poison", "retry": {"max_retries": 3, "initial_backoff": "0s"}},
    {"name": "hanging-reads", "visibility_timeout": "1s", "retry": {"max_retries": 1000}},
    {"name": "hanging-deaf", "visibility_timeout": "1s", "retry": {"max_retries": 1000}},
    {"name": "slow"},
    {"name": "quick"},
]
CHOICES = ("ack",) * 16 + ("nack", "nack", "reject", "forget")


@pytest.fixture(scope="module", params=["embedded", "kafka"])
def shared(request, tmp_path_factory):
    with running_queue_broker(tmp_path_factory.mktemp("queues"), request.param, queues=QUEUES) as started:
        yield started


@pytest.fixture
def broker(shared, request):
    if not shared.is_alive:
        shared.restart()
    request.node.broker_logs = [(shared, 0)]
    yield shared
    shared.assert_healthy()


@pytest.fixture
def client(broker, new_name):
    """client() connects one more, client(version) one of another version; all are closed with the test."""
    with contextlib.ExitStack() as stack:

        def connect(version=V5):
            opened = open_queue_client(broker, new_name("crash"), version)
            stack.callback(opened.close)
            return opened

        yield connect


def count_acknowledged(publishers):
    return sum(len(publisher.acknowledged) for publisher in publishers)


def kill_and_restart(broker):
    broker.kill()
    broker.restart()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_kills_under_load(broker):
    """Every message whose publish was acknowledged is delivered until it is settled; one whose settlement was
    acknowledged is never delivered again; an answered reject is among the dead letters; a stream goes on where its
    last answered commit was."""
    seed = time.time_ns()
    chance, ledger, publishers = random.Random(seed), Ledger(), []
    workers = [
        Worker(broker, f"worker{number}", "work", ledger, choose=lambda dice: dice.choice(CHOICES), seed=seed + number)
        for number in range(3)
    ]
    reader = StreamReader(broker, "reader", "events", seed)
    for each in (*workers, reader):
        each.start()
    try:
        for number in range(ROUNDS[broker.provider] + MORE_ROUNDS + 1):
            # a round without a kill at the end; before it, kills until one has met a pending entry
            is_last = number >= ROUNDS[broker.provider] and (
                ledger.highest_number() > 1 or number == ROUNDS[broker.provider] + MORE_ROUNDS
            )
            running = [
                QueuePublisher(broker, f"p{number}-{at}", (V311, V5, V5)[at], qos=(1, 1, 2)[at], window=(5, 20, 10)[at])
                for at in range(3)
            ]
            publishers += running
            for publisher in running:
                publisher.start()
            enough = chance.randrange(50, 200)
            until(lambda running=running, enough=enough: count_acknowledged(running) > enough, 60, "some load")
            # and some of it at the workers: on Kafka they are back later than the publishers
            got = sum(ledger.deliveries.values())
            until(lambda got=got: sum(ledger.deliveries.values()) > got + 10, 60, "some deliveries")
            time.sleep(chance.uniform(0.0, 0.2))
            if not is_last:
                broker.kill()
            for publisher in running:
                publisher.stop()
            for publisher in running:
                publisher.join()
            if is_last:
                break
            broker.restart()
        for worker in workers:
            worker.prompt.set()
        acknowledged = {payload for publisher in publishers for payload in publisher.acknowledged}
        errors = [ledger.errors, reader.errors, *(worker.errors for worker in workers)]
        until(lambda: any(errors) or acknowledged <= ledger.done(), 60, f"all settled (seed {seed})")
        if not any(errors):
            tail = broker.counter("work", "tail")
            broker.await_progress("work", "workers", cursor=tail, committed=tail, pending=0)
        until(lambda: any(errors) or acknowledged <= set(reader.payloads.values()), 60, f"all read (seed {seed})")
    finally:
        for each in (*workers, reader):
            each.stop()
    for found in (*errors, ledger.unfounded()):
        assert not found, f"{found[:5]} (seed {seed})"
    assert len(acknowledged) > 100, f"too little load (seed {seed})"
    assert ledger.highest_number() > 1, f"no kill met a pending entry (seed {seed})"
    sent = sum(publisher.sent for publisher in publishers)
    assert len(ledger.payloads) <= sent
    assert len(set(ledger.payloads.values())) == len(ledger.payloads), f"a message is in the queue twice (seed {seed})"
    check_dead_letters(broker, ledger, seed)


def check_dead_letters(broker, ledger, seed):
    """Answered rejects are there; nothing is there that nobody rejected."""
    rejected = {ledger.payloads[offset] for offset, (verb, _) in ledger.settled.items() if verb == "reject"}
    tried = {ledger.payloads[offset] for offset in ledger.tried["reject"]}
    undertaker = open_queue_client(broker, "undertaker")
    undertaker.consume("$queue/$dlq/work", "undertakers", prefetch=10_000)
    buried, tail = [], broker.counter("$dlq/work", "tail")
    while len(buried) < tail:
        buried.append(undertaker.next())
    undertaker.close()
    payloads = {letter.payload for letter in buried}
    assert rejected <= payloads, f"{len(rejected - payloads)} answered rejects are no dead letters (seed {seed})"
    assert payloads <= tried, f"dead letters that nobody rejected (seed {seed})"
    assert {letter.properties["_dlq_reason"] for letter in buried} <= {"rejected"}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kills", [1, 2])
def test_exactly_the_pending_set_survives(broker, client, kills):
    """Delivered and not settled = pending after the restart, exactly; the rest of the queue was never claimed."""
    queue, chance = f"exact{kills}", random.Random(seed := time.time_ns())
    client().publish(f"$queue/{queue}", *[b"%d" % number for number in range(60)])
    consumer = client()
    consumer.consume(f"$queue/{queue}", "workers", prefetch=30)
    delivered = consumer.take_any(30)
    settled = chance.sample(delivered, 12)
    for delivery in settled:
        consumer.settle(delivery, chance.choice(("ack", "reject")))
    delivered += consumer.take_any(12)
    for _ in range(kills):
        kill_and_restart(broker)
    wanted = {delivery.offset for delivery in delivered} - {delivery.offset for delivery in settled}
    broker.await_progress(queue, "workers", cursor=42, committed=min(wanted), pending=len(wanted))
    assert set(broker.pending(queue, "workers")) == wanted, f"seed {seed}"
    other = client()
    other.consume(f"$queue/{queue}", "workers", prefetch=100)
    left = other.take_any(48)
    assert {delivery.offset for delivery in left if delivery.count == 2} == wanted, f"seed {seed}"
    assert {delivery.offset for delivery in left if delivery.count == 1} == set(range(42, 60)), f"seed {seed}"
    other.ack(*left)
    other.nothing(0.05)
    assert broker.progress(queue, "workers") == (60, 60, 0)


@pytest.mark.timeout(120)
def test_poison_across_kills(broker, client):
    """It reaches the dead letters after the configured deliveries (1 + 3) and not sooner, whatever ended them."""
    client().publish("$queue/poison", b"poison")
    for number in (1, 3):
        consumer = client()
        consumer.consume("$queue/poison", "workers", prefetch=1)
        for count in (number, number + 1):
            delivery = consumer.next(b"poison")
            assert delivery.count == count
            dead = broker.queue("$dlq/poison")
            assert dead is None or dead["tail"] == 0, "sooner than configured"
            if count == number:
                consumer.nack(delivery)
        kill_and_restart(broker)
    consumer = client()
    consumer.consume("$queue/poison", "workers")
    consumer.publish("$queue/poison", b"good")
    consumer.ack(consumer.next(b"good"))
    undertaker = client()
    undertaker.consume("$queue/$dlq/poison", "undertakers")
    letter = undertaker.next(b"poison")
    assert letter.properties["_dlq_reason"] == "max-deliveries"
    assert letter.properties["_dlq_delivery_count"] == "4"
    undertaker.ack(letter)
    undertaker.nothing(0.05)
    consumer.nothing(0.05)


@pytest.mark.parametrize("how", ["reads", "deaf"])
def test_two_consumers_one_hanging(broker, client, how):
    """The other gets everything after the visibility timeout; the hanging one may read and never settle, or not even
    read."""
    queue = f"hanging-{how}"
    hanging, other = client(), client()
    hanging.consume(f"$queue/{queue}", "workers", prefetch=20)
    payloads = {b"%d" % number for number in range(60)}
    client().publish(f"$queue/{queue}", *sorted(payloads))
    if how == "reads":
        hanging.take_any(20)
    other.consume(f"$queue/{queue}", "workers", prefetch=10)
    done = set()
    while done != payloads:
        delivery = other.next()
        # A second copy may be under way: on a busy machine a timeout passes between delivery and ack.
        assert delivery.payload not in done or int(delivery.properties["x-delivery-count"]) > 1, "after its ack"
        if other.try_ack(delivery):
            done.add(delivery.payload)
    broker.await_progress(queue, "workers", cursor=60, pending=0)
    other.raw.ping()  # second copies that were under way have arrived
    other.raw.forget_received()
    other.nothing(1.2)  # the visibility timeout has passed: what is settled does not come again
    assert broker.progress(queue, "workers") == (60, 60, 0)


def test_a_slow_consumer_delays_no_other_queue(broker, client):
    """One that reads nothing, with megabytes waiting for it, next to a queue whose messages come at once."""
    slow, quick, publisher = client(), client(), client()
    slow.consume("$queue/slow", "workers", prefetch=5000)
    quick.consume("$queue/quick", "workers")
    for _ in range(300):
        publisher.raw.send_publish("$queue/slow", b"x" * 20_000, qos=0)
    slowest = 0.0
    for number in range(30):
        start = time.monotonic()
        publisher.publish("$queue/quick", b"%d" % number)
        quick.ack(quick.next(b"%d" % number))
        slowest = max(slowest, time.monotonic() - start)
    assert slowest < 15, f"{slowest} s for one message"


def test_kills_between_publish_and_delivery(broker, client):
    """Acknowledged and never delivered before the kill: all of it comes, once, in order, as a first delivery."""
    payloads = [b"%d" % number for number in range(100)]
    client().publish("$queue/untouched", *payloads)
    kill_and_restart(broker)
    consumer = client()
    consumer.consume("$queue/untouched", "workers")
    deliveries = consumer.take(*payloads)
    assert {delivery.count for delivery in deliveries} == {1}
    consumer.ack(*deliveries)
    kill_and_restart(broker)
    again = client()
    again.consume("$queue/untouched", "workers")
    again.nothing()


def test_a_back_off_survives_a_kill(broker, client):
    """A nacked message is not delivered sooner because the broker was started again, nor lost."""
    client().publish("$queue/patient", b"1")
    consumer = client()
    consumer.consume("$queue/patient", "workers")
    nacked = consumer.nack(consumer.next(b"1"))
    kill_and_restart(broker)
    again = client()
    again.consume("$queue/patient", "workers")
    delivery = again.next(b"1")
    assert delivery.count == 2
    assert delivery.at - nacked > 3.9
    again.ack(delivery)
