"""$SYS topics: names, values, and the load averages as mosquitto computes them."""

from __future__ import annotations

import asyncio
import math

import pytest

from penstock.operate.sys_topics import SysPublisher, SysState, compute

COUNTERS = {
    "connections_total": 12,
    "connections_current": 3,
    "sessions": 5,
    "sessions_expired": 2,
    "subscriptions": 8,
    "shared_subscriptions": 1,
    "retained_messages": 4,
    "retained_bytes": 400,
    "queued_messages": 6,
    "queued_bytes": 60,
    "inflight": 7,
    "packets_received": 100,
    "packets_sent": 200,
    "messages_received_qos0": 10,
    "messages_received_qos1": 20,
    "messages_received_qos2": 30,
    "messages_sent_qos0": 1,
    "messages_sent_qos1": 2,
    "messages_sent_qos2": 3,
    "messages_dropped_queue_full": 4,
    "messages_dropped_expired": 5,
    "publish_bytes_received": 1000,
    "bytes_received": 5000,
    "bytes_sent": 6000,
}


@pytest.mark.parametrize(
    ("topic", "payload"),
    {
        "uptime": b"90 seconds",
        "clients/total": b"5",
        "clients/connected": b"3",
        "clients/active": b"3",
        "clients/disconnected": b"2",
        "clients/inactive": b"2",
        "clients/expired": b"2",
        "clients/maximum": b"3",
        "messages/received": b"100",
        "messages/sent": b"200",
        "messages/stored": b"10",
        "messages/inflight": b"7",
        "store/messages/count": b"10",
        "store/messages/bytes": b"460",
        "publish/messages/received": b"60",
        "publish/messages/sent": b"6",
        "publish/messages/dropped": b"9",
        "publish/bytes/received": b"1000",
        "bytes/received": b"5000",
        "bytes/sent": b"6000",
        "retained messages/count": b"4",
        "subscriptions/count": b"8",
        "shared_subscriptions/count": b"1",
    }.items(),
)
def test_values(topic, payload):
    assert compute(COUNTERS, SysState(), 90.5)[f"$SYS/broker/{topic}"] == payload


def test_what_is_not_counted_is_not_shown():
    assert "$SYS/broker/publish/bytes/sent" not in compute(COUNTERS, SysState(), 1)


def test_the_maximum_stays_when_clients_go():
    state = SysState()
    compute({"connections_current": 9}, state, 1)
    assert compute({"connections_current": 2}, state, 1)["$SYS/broker/clients/maximum"] == b"9"


def test_a_steady_rate_is_what_the_averages_come_to():
    state, values = SysState(), {}
    for step in range(1, 400):  # 7 messages a second for more than an hour
        values = compute({"packets_received": 70 * step}, state, 10)
    assert values["$SYS/broker/load/messages/received/1min"] == b"420.00"
    assert values["$SYS/broker/load/messages/received/5min"] == b"420.00"
    assert float(values["$SYS/broker/load/messages/received/15min"]) == pytest.approx(420, rel=0.02)


@pytest.mark.parametrize(("window", "seconds"), [("1min", 60), ("5min", 300), ("15min", 900)])
def test_a_step_follows_the_exponential(window, seconds):
    state = SysState()
    first = compute({"bytes_sent": 600}, state, 10)  # 3600 a minute for ten seconds
    up = 3600 * (1 - math.exp(-10 / seconds))
    assert float(first[f"$SYS/broker/load/bytes/sent/{window}"]) == pytest.approx(up, abs=0.01)
    second = compute({"bytes_sent": 600}, state, 10)  # and silence
    down = up * math.exp(-10 / seconds)
    assert float(second[f"$SYS/broker/load/bytes/sent/{window}"]) == pytest.approx(down, abs=0.01)


def test_the_interval_does_not_change_an_average_of_silence():
    often, seldom = SysState(), SysState()
    for state in (often, seldom):
        compute({"connections_total": 50}, state, 10)
    for _ in range(6):
        last = compute({"connections_total": 50}, often, 10)
    topic = "$SYS/broker/load/connections/1min"
    assert last[topic] == compute({"connections_total": 50}, seldom, 60)[topic]


@pytest.mark.parametrize("name", ["publish/received", "publish/sent", "publish/dropped", "sockets", "connections"])
def test_every_load_has_its_three_windows(name):
    values = compute(COUNTERS, SysState(), 10)
    assert all(float(values[f"$SYS/broker/load/{name}/{window}"]) > 0 for window in ("1min", "5min", "15min"))


class Recorder:
    def __init__(self) -> None:
        self.published: list[tuple[str, bytes, bool]] = []

    def __call__(self, topic: str, payload: bytes, retain: bool = True) -> None:
        self.published.append((topic, payload, retain))


def test_only_what_changed_is_published():
    now, counters, recorder = [50.0], {"subscriptions": 1, "sessions": 1}, Recorder()
    memory: list[int | None] = [1000]
    publisher = SysPublisher(
        recorder, lambda: counters, 10, "1.2.3", clock=lambda: now[0], read_memory=lambda: memory[0]
    )
    publisher.update()
    assert ("$SYS/broker/version", b"penstock version 1.2.3", True) in recorder.published
    assert ("$SYS/broker/uptime", b"0 seconds", True) in recorder.published
    assert ("$SYS/broker/heap/maximum", b"1000", True) in recorder.published
    recorder.published.clear()
    publisher.update()
    assert recorder.published == []
    now[0] += 10
    counters["subscriptions"] = 2
    memory[0] = 900
    publisher.update()
    assert sorted(recorder.published) == [
        ("$SYS/broker/heap/current", b"900", True),
        ("$SYS/broker/subscriptions/count", b"2", True),
        ("$SYS/broker/uptime", b"10 seconds", True),
    ]


def test_the_task_goes_on_after_an_error_and_ends_when_told():
    async def test() -> None:
        recorder, readings = Recorder(), [0]

        def read() -> dict[str, int]:
            readings[0] += 1
            if readings[0] == 1:
                raise RuntimeError("not yet")
            return {}

        publisher = SysPublisher(recorder, read, 0.01, "1")
        publisher.start()
        await asyncio.sleep(0.1)
        await publisher.stop()
        count = readings[0]
        await asyncio.sleep(0.03)
        assert recorder.published
        assert readings[0] == count

    asyncio.run(test())


def test_an_interval_of_nothing_is_off():
    async def test() -> None:
        recorder = Recorder()
        publisher = SysPublisher(recorder, dict, 0, "1")
        publisher.start()
        await asyncio.sleep(0.02)
        await publisher.stop()
        assert recorder.published == []

    asyncio.run(test())
