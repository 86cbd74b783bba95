"""What a careless or hostile client tries. Nothing of it loses a message of somebody else or stops somebody else."""

import signal

import pytest

from tests.support.clients.packets import V5, V311, PacketType, Will
from tests.support.worlds.application import persistent, until
from tests.support.worlds.queues import QueueClient, running_queue_broker

REFUSED = 0x80
INVALID = 0x8F
QUOTA_EXCEEDED = 0x97
NUMBERS = [b"%d" % number for number in range(10)]


@pytest.mark.any_log
@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.queue("other")
def test_a_puback_settles_in_its_own_queue(*, open_queue, publisher, broker, new_name, queues, version):
    """Section 5, rows "MQTT 3.1.1" and "MQTT 5": a persistent client of two queues has the same offset of both."""
    client = open_queue(version, new_name("persistent"), **persistent(version))
    properties = {"settle_on_ack": "true"} if version == V5 else {}
    for name in queues.values():
        client.consume(f"$queue/{name}", **properties)
    publisher.publish(f"$queue/{queues['']}", b"first")
    first = client.next(b"first", puback=False)
    publisher.publish(f"$queue/{queues['other']}", b"second")
    client.next(b"second")
    broker.await_progress(queues["other"], client.client_id, cursor=1, committed=1, pending=0)
    assert broker.progress(queues[""], client.client_id) == (1, 0, 1)
    client.raw.ack(first.packet)
    broker.await_progress(queues[""], client.client_id, committed=1)


@pytest.mark.any_log
def test_two_subscriptions_of_one_client_to_one_group(open_queue, publisher, new_name, queue):
    """Section 2, row "no filter": `$queue/q` and `$queue/q/#` are one group; each settlement makes room again."""
    client = open_queue(V5, new_name("persistent"), **persistent(V5))
    for address in (f"$queue/{queue}", f"$queue/{queue}/#"):
        client.consume(address, "workers", prefetch=1)
    publisher.publish(f"$queue/{queue}", *NUMBERS)
    taken = set()
    for _ in NUMBERS:
        delivery = client.next()
        taken.add(delivery.payload)
        client.ack(delivery)
    assert taken == set(NUMBERS)


@pytest.mark.any_log
@pytest.mark.queue(limits={"max_depth": 5}, overflow="drop-oldest")
def test_a_consumer_goes_on_while_the_oldest_are_dropped(open_queue, publisher, queue):
    """The issue, policy drop-oldest: what is dropped on its way to a consumer does not take up its room for ever."""
    consumer = open_queue(receive_maximum=3)
    consumer.consume(f"$queue/{queue}", "workers")
    for _ in range(30):
        for number in range(40):
            publisher.raw.send_publish(f"$queue/{queue}", b"%d" % number, qos=0)
        publisher.publish(f"$queue/{queue}", b"round")
    publisher.publish(f"$queue/{queue}", b"last")
    while (delivery := consumer.next()).payload != b"last":
        consumer.try_ack(delivery)
    consumer.ack(delivery)


@pytest.mark.any_log
def test_a_queue_made_again_knows_nothing_of_the_one_before(publisher, open_queue, broker, new_name):
    """Deleted while a consumer had messages, made again under the same name: it begins at 0, over a kill, too."""
    name = new_name("again")
    broker.api("queues", "POST", {"name": name})
    payloads = [b"%d" % number for number in range(600)]
    for payload in payloads:
        publisher.raw.send_publish(f"$queue/{name}", payload, qos=0)
    consumer = open_queue()
    consumer.consume(f"$queue/{name}", "workers")
    for delivery in consumer.take(*payloads):
        if delivery.offset < 500:
            consumer.raw.send_publish(
                f"$queue/{name}/$ack",
                b"",
                properties={"user_property": [("message-id", delivery.message_id), ("group-id", "workers")]},
            )
    until(lambda: broker.progress(name, "workers") == (600, 500, 100))
    broker.api(f"queues/{name}", "DELETE")
    broker.api("queues", "POST", {"name": name})
    publisher.publish(f"$queue/{name}", *NUMBERS)
    consumer.take(*NUMBERS)
    consumer.raw.disconnect()
    broker.kill()
    broker.restart()
    until(lambda: broker.progress(name, "workers") == (10, 0, 10))
    publisher = open_queue()
    publisher.publish(f"$queue/{name}", b"new")
    consumer = open_queue()
    consumer.consume(f"$queue/{name}", "workers")
    assert {delivery.payload for delivery in consumer.take_any(11)} == {*NUMBERS, b"new"}


@pytest.mark.any_log
def test_a_queue_is_deleted_under_its_publishers(publisher, open_queue, broker, new_name):
    """Its publishers are told that all is well, and publishers of other queues notice nothing."""
    name, other = new_name("deleted"), new_name("other")
    for each in (name, other):
        broker.api("queues", "POST", {"name": each})
    rounds = [[]]
    for round_ in range(10):
        rounds.append([])
        for each in (name, other):
            rounds[-1] += [publisher.raw.send_publish(f"$queue/{each}", b"%d" % round_, qos=1) for _ in range(20)]
        broker.api(f"queues/{name}", "DELETE")
        broker.api("queues", "POST", {"name": name}) if round_ % 2 else None
        for packet_id in rounds[-2]:  # no more than the receive maximum is under way
            publisher.raw.expect(PacketType.PUBACK, packet_id=packet_id, reason=0)
    for packet_id in rounds[-1]:
        publisher.raw.expect(PacketType.PUBACK, packet_id=packet_id, reason=0)
    assert broker.counter(other, "depth") == 200


@pytest.mark.any_log
def test_many_in_flight_do_not_overrun_the_depth(open_queue, broker, queue):
    """Row `limits.max_depth`: several publishers, while what came before is on its way to the disk."""
    broker.api(f"queues/{queue}", "PATCH", {"limits": {"max_depth": 100}})
    publishers = [open_queue() for _ in range(4)]
    sent = {publisher: [] for publisher in publishers}
    for _ in range(30):
        for publisher in publishers:
            sent[publisher] += [publisher.raw.send_publish(f"$queue/{queue}", b"x", qos=1) for _ in range(3)]
    answers = [
        publisher.raw.expect(PacketType.PUBACK, packet_id=packet_id).reason
        for publisher, ids in sent.items()
        for packet_id in ids
    ]
    assert answers.count(0) == 100
    assert broker.counter(queue, "depth") == 100


ALLOWED = '[[rules]]\neffect = "allow"\ntopics = ["$queue/#"]\n'
DENIED = '[[rules]]\neffect = "deny"\nclients = ["worker"]\ntopics = ["$queue/#"]\n\n'
READS = '[[rules]]\neffect = "deny"\nactions = ["publish"]\nclients = ["reads"]\ntopics = ["$queue/#"]\n\n'


@pytest.fixture(scope="module")
def strict(tmp_path_factory):
    """A broker with rights and little room."""
    settings = {
        "durable_queues.auto_create": "ephemeral",
        "durable_queues.ephemeral_bytes": 65536,
        "durable_queues.retention_interval": "1h",
        "limits.max_subscriptions": 2,
    }
    queues = [{"name": "events", "type": "stream"}, *({"name": f"q{number}"} for number in range(5))]
    with running_queue_broker(
        tmp_path_factory.mktemp("strict"), settings=settings, queues=queues, rules=READS + ALLOWED
    ) as broker:
        yield broker


def test_a_stranger_commits_only_where_it_may_publish(strict, connect):
    """Section 8, row "commit": a group of others is moved by who has the right to publish to exactly that address."""
    reader, reads = (QueueClient(connect(V5, name, broker=strict)) for name in ("reader", "reads"))
    reader.publish("$queue/events", *NUMBERS)
    reader.consume("$queue/events", "readers", x_auto_commit="false")
    reader.take(*NUMBERS)
    reads.commit("events", "readers", 5, refused=True)
    assert strict.progress("events", "readers")[1] == 0
    reader.commit("events", "readers", 3)
    reads.consume("$queue/events", "own", x_auto_commit="false")
    reads.take(*NUMBERS)
    reads.commit("events", "own", 4)
    reads.commit("events", "readers", 5, refused=True)
    assert strict.progress("events", "readers")[1] == 4


def test_revoked_rights_hold_at_once(strict, connect):
    """A publisher and a consumer that are connected lose their rights by a SIGHUP, and get them back by another."""
    worker, other = (QueueClient(connect(V5, name, broker=strict)) for name in ("worker", "other"))
    worker.consume("$queue/q4", "workers")
    worker.publish("$queue/q4", b"0")
    worker.ack(worker.next(b"0"))
    for rules, reason in ((DENIED + ALLOWED, 0x87), (READS + ALLOWED, 0)):
        strict.acl_path.write_text(rules)
        start = strict.log_size()
        strict.process.send_signal(signal.SIGHUP)
        strict.await_log("reloaded", start)
        until(lambda count=int(not reason): strict.group("q4", "workers")["consumers"] == count)
        worker.raw.send_publish("$queue/q4", b"1", qos=1)
        other.publish("$queue/q4", b"2")
        if reason:
            assert worker.raw.expect(PacketType.PUBACK).reason == reason
            worker.nothing(0.05)
    came = [worker.raw.receive() for _ in range(4)]
    assert sorted(packet.payload or b"" for packet in came) == [b"", b"1", b"2", b"2"]


def test_a_full_queue_in_memory_is_nobody_elses_trouble(strict, connect):
    """The issue: no queue blocks another. A full ephemeral queue refuses its own publishers, and those alone."""
    hostile, good, old = (
        QueueClient(connect(version, broker=strict, client_id=name))
        for version, name in ((V5, "hostile"), (V5, "good"), (V311, "old"))
    )
    hostile.publish("$queue/mine", *[b"x" * 10_000] * 6)
    [answer] = hostile.publish("$queue/mine", b"x" * 10_000, reason=QUOTA_EXCEEDED)
    assert "memory" in answer.properties["reason_string"]
    for _ in range(20):
        for _ in range(20):
            hostile.raw.send_publish("$queue/mine", b"x" * 10_000, qos=0)
        good.publish("$queue/q3", b"1")
        old.publish("$queue/q3", b"1")
    consumer = QueueClient(connect(V5, "consumer", broker=strict))
    consumer.consume("$queue/mine", "workers")
    # what is settled makes room at once, not when retention looks the next time
    for _ in range(6):
        consumer.ack(consumer.next())
    for number in range(40):
        until(lambda: hostile.raw.publish("$queue/mine", b"y" * 10_000, qos=1).reason == 0, 10, f"room {number}")
        consumer.ack(consumer.next())


def test_subscriptions_over_the_limit_are_no_consumers(strict, connect):
    """`limits.max_subscriptions` holds for many filters in one SUBSCRIBE."""
    client = QueueClient(connect(V5, "many", broker=strict))
    reasons = client.raw.subscribe(*[f"$queue/q{number}" for number in range(3)], qos=1)
    assert reasons == [1, 1, QUOTA_EXCEEDED]
    assert [strict.counter(f"q{number}", "consumers") for number in range(3)] == [1, 1, 0]


@pytest.mark.any_log
@pytest.mark.parametrize("version", [V311, V5])
def test_a_will_to_a_queue_that_is_not_there_makes_it(open_queue, consumer, broker, new_name, version):
    """Section 1, row "no queue matches", for wills; a control word as the topic of a will is no message."""
    name = new_name("will")
    for topic in (f"$queue/{name}/gone", f"$queue/{name}/$ack"):
        client = open_queue(version, will=Will(topic, b"bye", qos=1))
        client.raw.close()
        until(lambda: broker.queue(name))
    consumer.consume(f"$queue/{name}", "workers")
    assert consumer.next(b"bye").topic == f"$queue/{name}/gone"
    consumer.nothing(0.05)


@pytest.mark.any_log
@pytest.mark.queue(topics=["status/{queue}/+"], capture=True)
def test_a_will_is_captured(open_queue, consumer, queue):
    """Section 1, row "what enters a queue": capture never with silent loss."""
    client = open_queue(will=Will(f"status/{queue}/7", b"offline", qos=1))
    client.raw.close()
    consumer.consume(f"$queue/{queue}", "workers")
    consumer.next(b"offline")


@pytest.mark.any_log
def test_a_shared_subscription_to_a_queue_is_refused(consumer, broker, queue):
    """It would be granted and never get anything: groups are what consumers share a queue by."""
    assert consumer.raw.subscribe(f"$share/workers/$queue/{queue}", qos=1) == [INVALID]


@pytest.mark.any_log
@pytest.mark.queue(dlq={"topic": "$queue/{queue}-failed"})
@pytest.mark.queue("failed")
@pytest.mark.queue("secret")
def test_a_replay_goes_by_what_the_broker_wrote(publisher, consumer, broker, queues):
    """Section 7, row "content": in an ordinary queue for dead letters a publisher may write such properties, too."""
    forged = [("_dlq_original_queue", queues["secret"]), ("_dlq_original_topic", "x"), ("own", "1")]
    publisher.publish(f"$queue/{queues['failed']}", b"forged", properties={"user_property": forged})
    publisher.publish(f"$queue/{queues['']}/eu", b"real")
    consumer.consume(f"$queue/{queues['']}", "workers")
    consumer.reject(consumer.next(b"real"))
    until(lambda: broker.counter(queues["failed"], "depth") == 2)
    result = broker.api(f"queues/{queues['failed']}/replay", "POST", {})
    assert (result["moved"], result["skipped"]) == (1, 1)
    assert broker.counter(queues["secret"], "depth") == 0
    assert consumer.next(b"real").topic == f"$queue/{queues['']}/eu"


@pytest.mark.any_log
def test_the_longest_topic_dies(publisher, consumer, open_queue, queue):
    """Section 7, row "address": a routing key that does not fit behind the address of the dead letters is left out."""
    key = "k" * (65_535 - len(f"$queue/{queue}/"))
    publisher.publish(f"$queue/{queue}/{key}", b"long")
    consumer.consume(f"$queue/{queue}", "workers")
    consumer.reject(consumer.next(b"long"))
    reader = open_queue()
    reader.consume(f"$queue/$dlq/{queue}", "operators")
    letter = reader.next(b"long")
    assert letter.topic == f"$queue/$dlq/{queue}"
    assert letter.value("_dlq_original_topic") == f"$queue/{queue}/{key}"


@pytest.mark.any_log
@pytest.mark.queue("small", limits={"max_depth": 3})
def test_a_move_stops_at_the_limit(publisher, broker, queues):
    """Row `limits.max_depth`: of many messages as many move as there is room for."""
    publisher.publish(f"$queue/{queues['']}", *NUMBERS)
    with pytest.raises(AssertionError, match="409"):
        broker.api(f"queues/{queues['']}/move", "POST", {"to": queues["small"]})
    assert (broker.counter(queues["small"], "depth"), broker.counter(queues[""], "depth")) == (3, 7)


@pytest.mark.any_log
@pytest.mark.queue(limits={"max_depth": 0})
def test_purged_under_load(publisher, open_queue, broker, queue):
    """A purge while publishers are at work takes what is there, and what comes behind it is delivered."""
    other = open_queue()
    consumer = open_queue()
    for round_ in range(10):
        for number in range(200):
            other.raw.send_publish(f"$queue/{queue}", b"%d" % number, qos=0)
        broker.api(f"queues/{queue}/purge", "POST", {})
        if round_ == 5:
            consumer.consume(f"$queue/{queue}", "workers", prefetch=10)
    other.publish(f"$queue/{queue}", b"end")
    publisher.publish(f"$queue/{queue}", b"last")
    while (delivery := consumer.next()).payload != b"last":
        consumer.try_ack(delivery)


@pytest.mark.any_log
@pytest.mark.queue("short", limits={"max_depth": 3}, overflow="drop-oldest")
def test_what_was_dropped_or_died_is_known_after_a_kill(publisher, open_queue, broker, queues):
    """The issue, policy drop-oldest: what was dropped does not come back. `penstock queue list`: bytes and the number
    of dead letters are those of the queue, not of the process."""
    queue, short = queues[""], queues["short"]
    publisher.publish(f"$queue/{short}", *NUMBERS)
    publisher.publish(f"$queue/{queue}", b"1", b"2", b"x" * 1000)
    consumer = open_queue()
    consumer.consume(f"$queue/{queue}", "workers")
    for delivery in consumer.take_any(2):
        consumer.reject(delivery)
    until(lambda: broker.counter(f"$dlq/{queue}", "depth") == 2 == broker.counter(queue, "dead"))
    before = broker.counter(queue, "bytes")
    assert 1000 < before < 2000
    broker.kill()
    broker.restart()
    assert broker.counter(queue, "dead") == 2
    assert before <= broker.counter(queue, "bytes") < 2000  # where the log begins is noted in it, too
    assert broker.counter(short, "depth") == 3
    consumer = open_queue()
    consumer.consume(f"$queue/{short}", "workers")
    consumer.take_and_ack(*NUMBERS[-3:])


@pytest.mark.any_log
def test_a_topic_alias_leads_to_the_queue(publisher, consumer, queue):
    """Section 2, row "shape": an alias stands for the topic, [MQTT-3.3.2-12], for messages and for settlements."""
    publisher.publish(f"$queue/{queue}/k", b"1", properties={"topic_alias": 1})
    publisher.publish("", b"2", properties={"topic_alias": 1})
    consumer.consume(f"$queue/{queue}", "workers")
    first, second = consumer.take(b"1", b"2")
    assert second.topic == f"$queue/{queue}/k"
    for delivery, topic in ((first, f"$queue/{queue}/$ack"), (second, "")):
        pairs = [("message-id", delivery.message_id), ("group-id", "workers")]
        properties = {"topic_alias": 2, "user_property": pairs}
        assert consumer.raw.publish(topic, b"", qos=1, properties=properties).reason == 0


@pytest.mark.any_log
def test_a_message_of_qos_2_that_comes_twice_enters_once(open_queue, consumer, broker, new_name, queue):
    """The issue, QoS 1/2 acknowledged when durable; [MQTT-4.3.3-10]: over a new connection, too."""
    name = new_name("twice")
    client = open_queue(client_id=name, **persistent(V5))
    for _ in range(2):
        client.raw.send_publish(f"$queue/{queue}", b"once", qos=2, packet_id=7, dup=_ == 1)
        client.raw.expect(PacketType.PUBREC, packet_id=7)
    client.close()
    client = open_queue(client_id=name, **persistent(V5))
    client.raw.send_publish(f"$queue/{queue}", b"once", qos=2, packet_id=7, dup=True)
    client.raw.expect(PacketType.PUBREC, packet_id=7)
    assert broker.counter(queue, "tail") == 1


@pytest.mark.any_log
def test_a_consumer_changes_its_group_and_its_prefetch(publisher, open_queue, broker, queue):
    """Section 3, rows "MQTT 5" and "leaving": the same filter with other properties replaces the subscription."""
    consumer, other = open_queue(), open_queue()
    consumer.consume(f"$queue/{queue}", "one", prefetch=1)
    publisher.publish(f"$queue/{queue}", b"1", b"2", b"3")
    consumer.next(b"1")
    consumer.consume(f"$queue/{queue}", "two", prefetch=2)
    deliveries = consumer.take(b"1", b"2")
    assert {delivery.group for delivery in deliveries} == {"two"}
    consumer.nothing(0.05)
    other.consume(f"$queue/{queue}", "one")
    assert {delivery.payload for delivery in other.take_any(3)} == {b"1", b"2", b"3"}
    assert broker.group(queue, "one")["consumers"] == 1


@pytest.mark.any_log
def test_dead_letters_and_impossible_names_are_refused_in_their_own_words(publisher, queue):
    """Section 7, row "address": only the broker publishes there, also before there are any."""
    [answer] = publisher.publish(f"$queue/$dlq/{queue}/k", b"", reason=0x87)
    assert "dead letters" in answer.properties["reason_string"]
    [answer] = publisher.publish(f"$queue/{'n' * 256}", b"", reason=QUOTA_EXCEEDED)
    assert "cannot be made" in answer.properties["reason_string"]
