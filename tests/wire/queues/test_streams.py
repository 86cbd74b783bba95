"""Where does a reader of a stream begin, and where does it go on? Reference, section 8 (position, commit, resume)."""

import time

import pytest

from tests.support.clients.packets import V5
from tests.support.worlds.application import persistent

NUMBERS = [b"%d" % number for number in range(5)]
pytestmark = pytest.mark.queue(type="stream")


@pytest.mark.parametrize(
    ("position", "first"),
    [("first", 0), ("3", 3), ("offset=3", 3), ("0", 0), ("offset=0", 0), ("last", 5), ("next", 5), ("5", 5)],
)
def test_positions(publisher, consumer, queue, position, first):
    """Rows "position values", "where given": MQTT 5 user property `x-stream-offset`."""
    publisher.publish(f"$queue/{queue}", *NUMBERS)
    consumer.consume(f"$queue/{queue}", "readers", x_stream_offset=position)
    publisher.publish(f"$queue/{queue}", b"5")
    expected = [*NUMBERS, b"5"][first:]
    assert [delivery.offset for delivery in consumer.take(*expected)] == list(range(first, 6))


def test_a_position_in_time(publisher, open_queue, queue):
    """Row "position values": `timestamp=<ms>`: the first message not older."""
    publisher.publish(f"$queue/{queue}", *NUMBERS[:2])
    time.sleep(0.05)
    middle = int(time.time() * 1000)
    time.sleep(0.05)
    publisher.publish(f"$queue/{queue}", *NUMBERS[2:])
    for group, stamp, expected in (
        ("past", middle - 3_600_000, NUMBERS),
        ("middle", middle, NUMBERS[2:]),
        ("future", middle + 3_600_000, []),
        ("seconds", middle // 1000 + 3_600, []),
    ):
        reader = open_queue()
        reader.consume(f"$queue/{queue}", group, x_stream_offset=f"timestamp={stamp}")
        reader.take(*expected)
        reader.nothing(0.05)


@pytest.mark.parametrize("position", ["sometime", "offset=x", "timestamp=", "offset=", "1.5"])
def test_unknown_positions_are_refused(publisher, consumer, queue, position):
    """Row "position values": unknown text refused."""
    publisher.publish(f"$queue/{queue}", b"0")
    [reason] = consumer.try_consume(f"$queue/{queue}", "readers", x_stream_offset=position)
    assert reason >= 0x80
    consumer.nothing(0.05)


def test_a_position_beyond_the_end(publisher, consumer, queue):
    """Row "position values": a number above the end waits for what comes, and loses nothing of that."""
    publisher.publish(f"$queue/{queue}", b"0")
    reasons = consumer.try_consume(f"$queue/{queue}", "readers", x_stream_offset="1000")
    publisher.publish(f"$queue/{queue}", b"1")
    if reasons[0] < 0x80:
        consumer.take(b"1")


def test_resume_by_auto_commit(publisher, open_queue, broker, queue):
    """Rows "position values" (omitted = resume) and "auto-commit": goes on where it was, nothing twice."""
    first = open_queue()
    first.consume(f"$queue/{queue}", "readers")
    publisher.publish(f"$queue/{queue}", *NUMBERS)
    first.take(*NUMBERS)
    broker.await_progress(queue, "readers", committed=5)
    first.close()
    publisher.publish(f"$queue/{queue}", b"5")
    second = open_queue()
    second.consume(f"$queue/{queue}", "readers")
    second.take(b"5")
    second.nothing(0.05)


def test_resume_from_committed(publisher, open_queue, broker, queue):
    """Row "resume": from the last committed offset; what lies between is read again."""
    first = open_queue()
    first.consume(f"$queue/{queue}", "readers", x_auto_commit="false")
    publisher.publish(f"$queue/{queue}", *NUMBERS)
    first.take(*NUMBERS)
    first.commit(queue, "readers", 1)
    assert broker.progress(queue, "readers") == (5, 2, 0)
    first.close()
    second = open_queue()
    second.consume(f"$queue/{queue}", "readers", x_auto_commit="false")
    second.take(*NUMBERS[2:])


def test_without_a_commit_it_begins_again(publisher, open_queue, queue):
    """Row "auto-commit off": nothing is committed unless the client says so."""
    for attempt in range(2):
        reader = open_queue()
        reader.consume(f"$queue/{queue}", "readers", x_auto_commit="false")
        if attempt == 0:
            publisher.publish(f"$queue/{queue}", *NUMBERS)
        reader.take(*NUMBERS)
        time.sleep(0.25)  # two intervals of the auto-commit that is off
        reader.close()


def test_ack_leaves_a_manual_commit_alone(publisher, consumer, broker, queue):
    """Section 14: manual commit leaves committed alone on ack."""
    consumer.consume(f"$queue/{queue}", "readers", x_auto_commit="false")
    publisher.publish(f"$queue/{queue}", *NUMBERS)
    consumer.ack(*consumer.take(*NUMBERS))
    assert broker.progress(queue, "readers") == (5, 0, 0)
    consumer.commit(queue, "readers", 4)
    assert broker.progress(queue, "readers") == (5, 5, 0)


@pytest.mark.queue("work", type="classic")
def test_refused_commits(publisher, consumer, broker, queues):
    """Row "commit": refused when not a stream, of an unknown group or beyond the cursor; also without a number."""
    stream, work = queues[""], queues["work"]
    for name in (stream, work):
        consumer.consume(f"$queue/{name}", "readers")
        publisher.publish(f"$queue/{name}", b"0", b"1")
        consumer.take(b"0", b"1")
    consumer.commit(work, "readers", 0, refused=True)
    consumer.commit(f"no-{stream}", "readers", 0, refused=True)
    consumer.commit(stream, "nobody", 0, refused=True)
    for offset in (2, 100, -1, "", "one", "1.0", 2**70):
        consumer.commit(stream, "readers", offset, refused=True)
    consumer.command(f"$queue/{stream}/$commit", [("x-group-id", "readers")], refused=True)
    consumer.command(f"$queue/{stream}/$commit", [("x-offset", "1")], refused=True)
    consumer.command(f"$queue/{stream}/$commit", [], refused=True)
    assert broker.queue(stream)["tail"] == 2, "a commit was stored as a message"
    consumer.commit(stream, "readers", 1)


def test_commits_name_the_group_with_or_without_its_filter(publisher, consumer, broker, queue):
    """Section 3, row "identity": both forms accepted in settlements and commits."""
    consumer.consume(f"$queue/{queue}/a/#", "readers", x_auto_commit="false")
    publisher.publish(f"$queue/{queue}/a/b", b"0", b"1")
    consumer.take(b"0", b"1")
    consumer.commit(queue, "readers", 0)
    assert broker.progress(queue, "readers@a/#") == (2, 1, 0)
    consumer.commit(queue, "readers@a/#", 1)
    assert broker.progress(queue, "readers@a/#") == (2, 2, 0)


def test_a_commit_may_go_back(publisher, open_queue, broker, queue):
    """Row "commit": offset ≤ cursor; a smaller one than before makes the next reader read again."""
    reader = open_queue()
    reader.consume(f"$queue/{queue}", "readers", x_auto_commit="false")
    publisher.publish(f"$queue/{queue}", *NUMBERS)
    reader.take(*NUMBERS)
    reader.commit(queue, "readers", 4)
    reader.commit(queue, "readers", 0)
    assert broker.group(queue, "readers")["committed"] == 1
    reader.close()
    again = open_queue()
    again.consume(f"$queue/{queue}", "readers", x_auto_commit="false")
    again.take(*NUMBERS[1:])


@pytest.mark.queue(type="stream", visibility_timeout="200ms")
def test_no_pending_list(publisher, consumer, broker, queue):
    """Row "no pending list", section 14: cursor only; what is never acknowledged does not come again."""
    consumer.consume(f"$queue/{queue}", "readers")
    publisher.publish(f"$queue/{queue}", *NUMBERS)
    consumer.take(*NUMBERS)
    assert broker.progress(queue, "readers")[::2] == (5, 0)
    consumer.nothing(0.4)


def test_each_filter_has_a_cursor(publisher, open_queue, broker, queue):
    """Row "filtered subscription": own cursor per filter and group; it also passes what the filter drops."""
    readers = {key: open_queue() for key in ("a/#", "b/#")}
    for key, reader in readers.items():
        reader.consume(f"$queue/{queue}/{key}", "readers")
    for key in ("a/1", "b/1", "a/2", "b/2", "b/3"):
        publisher.publish(f"$queue/{queue}/{key}", key.encode())
    assert [delivery.offset for delivery in readers["a/#"].take(b"a/1", b"a/2")] == [0, 2]
    assert [delivery.offset for delivery in readers["b/#"].take(b"b/1", b"b/2", b"b/3")] == [1, 3, 4]
    for key in readers:
        broker.await_progress(queue, f"readers@{key}", cursor=5, committed=5)


def test_groups_replay_independently(publisher, open_queue, queue):
    """Section 5, ack of a stream: done for one group is not done for another; a stream is read many times."""
    publisher.publish(f"$queue/{queue}", *NUMBERS)
    for group in ("one", "two", "three"):
        reader = open_queue()
        reader.consume(f"$queue/{queue}", group)
        reader.take_and_ack(*NUMBERS)


@pytest.mark.parametrize(("position", "expected"), [("first", NUMBERS), ("offset=3", NUMBERS[3:]), ("next", [])])
def test_seek_while_subscribed(publisher, consumer, queue, position, expected):
    """The issue: seek while subscribed, by another SUBSCRIBE with a position."""
    consumer.consume(f"$queue/{queue}", "readers")
    publisher.publish(f"$queue/{queue}", *NUMBERS)
    consumer.take(*NUMBERS)
    consumer.consume(f"$queue/{queue}", "readers", x_stream_offset=position)
    publisher.publish(f"$queue/{queue}", b"5")
    consumer.take(*expected, b"5")


def test_subscribing_again_without_a_position(publisher, consumer, queue):
    """Row "position values": omitted = resume; a repeated SUBSCRIBE disturbs nothing."""
    consumer.consume(f"$queue/{queue}", "readers")
    publisher.publish(f"$queue/{queue}", *NUMBERS)
    consumer.take(*NUMBERS)
    consumer.consume(f"$queue/{queue}", "readers")
    publisher.publish(f"$queue/{queue}", b"5")
    consumer.take(b"5")


def test_readers_of_one_group_share(publisher, open_queue, queue):
    """Section 3, "independence": many consumers per group; each message goes to one of them."""
    readers = [open_queue(receive_maximum=10), open_queue(receive_maximum=10)]
    for reader in readers:
        reader.consume(f"$queue/{queue}", "readers")
    payloads = [b"%d" % number for number in range(20)]
    for payload in payloads:
        publisher.publish(f"$queue/{queue}", payload)
    got = []
    while len(got) < 20:
        for reader in readers:
            for packet in reader.raw.receive_all(0.05):
                reader.raw.ack(packet)
                got.append(packet.payload)
    assert sorted(got) == sorted(payloads)


def test_the_receive_maximum_holds(publisher, open_queue, queue):
    """[MQTT-3.3.4-9]: a stream sends no more than the Receive Maximum; the rest waits in the log."""
    reader = open_queue(receive_maximum=3)
    publisher.publish(f"$queue/{queue}", *NUMBERS)
    reader.consume(f"$queue/{queue}", "readers")
    held = reader.take(*NUMBERS[:3], puback=False)
    reader.nothing(0.05)
    for delivery in held:
        reader.raw.ack(delivery.packet)
    reader.take(*NUMBERS[3:])


def test_a_persistent_reader_comes_back(publisher, open_queue, new_name, queue):
    """Section 14, resume after reconnect: the session keeps the subscription, the group its place."""
    name = new_name("reader")
    reader = open_queue(client_id=name, **persistent(V5))
    reader.consume(f"$queue/{queue}", "readers")
    publisher.publish(f"$queue/{queue}", b"0")
    reader.ack(reader.next(b"0"))
    reader.raw.disconnect()
    publisher.publish(f"$queue/{queue}", *NUMBERS[1:])
    reader = open_queue(client_id=name, **persistent(V5))
    reader.take(*NUMBERS[1:])


def test_committed_survives_a_kill(publisher, open_queue, broker, queue):
    """Row "resume": an acknowledged commit is durable."""
    reader = open_queue()
    reader.consume(f"$queue/{queue}", "readers", x_auto_commit="false")
    publisher.publish(f"$queue/{queue}", *NUMBERS)
    reader.take(*NUMBERS)
    reader.commit(queue, "readers", 2)
    broker.kill()
    broker.restart()
    again = open_queue()
    again.consume(f"$queue/{queue}", "readers", x_auto_commit="false")
    again.take(*NUMBERS[3:])
    again.nothing(0.05)


def test_the_last_word_about_auto_commit_counts(publisher, open_queue, broker, queue):
    """Row "auto-commit off": also of a group that is there; who does not say changes nothing, and a kill neither."""
    for said, is_committed in (({}, True), ({"x_auto_commit": "false"}, False), ({}, False)):
        reader = open_queue()
        reader.consume(f"$queue/{queue}", "readers", **said)
        publisher.publish(f"$queue/{queue}", b"1")
        delivery = reader.next(b"1")
        reader.ack(delivery)
        committed = broker.group(queue, "readers")["committed"]
        assert (committed == delivery.offset + 1) == is_committed
        reader.commit(queue, "readers", delivery.offset)
        reader.close()
    broker.kill()
    broker.restart()
    publisher = open_queue()
    publisher.publish(f"$queue/{queue}", b"2")
    for said in ({}, {"x_auto_commit": "true"}):
        reader = open_queue()
        reader.consume(f"$queue/{queue}", "readers", **said)
        reader.ack(reader.next(b"2"))
        assert broker.group(queue, "readers")["committed"] == (4 if said else 3)
        reader.close()
