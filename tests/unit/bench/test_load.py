"""The load generator against real brokers, and against one that loses, repeats, reorders and damages messages."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import headroom
from penstock._ext.load.generator import Load
from penstock_bench.brokers import Broker
from penstock_bench.load import main as run_load_main
from penstock_bench.load import run_options
from penstock_bench.options import LoadOptions
from tests.unit.bench.faulty_broker import FaultyBroker, Packets

FIELDS = {
    "published", "expected", "received", "lost", "unacknowledged", "duplicates", "disordered", "downgraded", "refused",
    "corrupt", "rate", "msgs_per_cpu_s", "p50_us", "p90_us", "p99_us", "p999_us", "max_us", "disconnects",
    "broker_cpu_s", "broker_cores", "rss_kb", "load_cpu_s", "load_cores",
}  # fmt: skip
FAULTS = (
    "lost", "unacknowledged", "duplicates", "disordered", "downgraded", "refused", "corrupt", "stalls", "disconnects",
)  # fmt: skip


def run_load(port: int, *options: str, pids: list[int] | None = None) -> dict[str, Any]:
    accounted = ["--pids", ",".join(map(str, pids))] if pids else []
    result = run_options(["--port", str(port), *accounted, *options])
    assert "error" not in result
    return result


def run_clean(broker: Broker, options: str) -> dict[str, Any]:
    result = run_load(broker.port, *options.split(), pids=broker.pids())
    assert {fault: result[fault] for fault in FAULTS if result.get(fault)} == {}
    return result


def test_half_a_second_of_pairs(broker: Broker) -> None:
    result = run_clean(broker, "--scenario p2p --n 4 --qos 1 --e2e 100 --secs 0.5 --warmup 0.1")
    assert result.keys() >= FIELDS
    assert result["received"] == result["published"] > 0
    assert result["msgs_per_cpu_s"] > 0
    assert 0 < result["p50_us"] <= result["p99_us"] <= result["max_us"]
    assert result["rss_kb"] > 0


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(
    ("options", "deliveries"),
    [
        ("--scenario p2p --n 2 --qos 0 --e2e 50 --size 16", 400),
        ("--scenario p2p --n 2 --qos 2 --e2e 50", 400),
        ("--scenario p2p --n 2 --qos 1 --e2e 4 --size 65536", 400),
        ("--scenario fanout --n 20 --qos 1 --e2e 50", 4_000),
        ("--scenario fanin --n 5 --qos 1 --e2e 20", 1_000),
        ("--scenario fanin --n 5 --subs 3 --qos 1 --e2e 20", 1_000),
        ("--scenario publish --n 5 --qos 1 --window 20", 1_000),
        ("--scenario publish --n 5 --qos 2 --window 20", 1_000),
    ],
)
def test_every_counted_message_arrives_once(broker: Broker, options: str, deliveries: int, version: int) -> None:
    result = run_clean(broker, f"{options} --count 200 --version {version}")
    assert result["received"] == deliveries


@pytest.mark.parametrize(
    ("options", "deliveries"),
    [
        ("--scenario p2p --n 7 --qos 1 --e2e 20", 1_400),
        ("--scenario p2p --n 2 --qos 2 --e2e 50 --version 5", 400),
        ("--scenario fanout --n 20 --qos 1 --e2e 50", 4_000),
        ("--scenario fanin --n 7 --qos 0 --e2e 20", 1_400),
        ("--scenario fanin --n 7 --subs 4 --qos 1 --e2e 20", 1_400),
        ("--scenario fanin --n 7 --groups 4 --qos 1 --e2e 20", 1_400),
        ("--scenario publish --n 7 --qos 2 --window 20", 1_400),
    ],
)
def test_threads_share_the_connections(broker: Broker, options: str, deliveries: int) -> None:
    """Messages that one thread sends and another receives are counted and checked as those of one thread are."""
    result = run_clean(broker, f"{options} --count 200 --threads 3")
    assert (result["received"], result["published"], result["threads"]) == (
        deliveries, deliveries // (20 if "fanout" in options else 1), 3,
    )  # fmt: skip


def test_threads_without_traffic(broker: Broker) -> None:
    assert run_clean(broker, "--scenario storm --n 8 --count 200 --threads 3")["connects"] >= 200
    run_clean(broker, "--scenario idle --n 20 --keepalive 1 --secs 0.6 --threads 3")


def test_threads_share_the_rate(broker: Broker) -> None:
    result = run_clean(broker, "--scenario fanin --n 5 --qos 1 --rate 500 --secs 0.6 --warmup 0.1 --threads 3")
    assert result["rate"] == pytest.approx(500, rel=0.2)
    assert 0 < result["p50_us"] <= result["p99_us"] <= result["max_us"]


def test_paced_load_keeps_its_rate(broker: Broker) -> None:
    result = run_clean(broker, "--scenario p2p --n 2 --qos 1 --rate 500 --secs 0.6 --warmup 0.1")
    assert result["rate"] == pytest.approx(500, rel=0.2)
    assert result["sent_rate"] == pytest.approx(500, rel=0.2)


@pytest.mark.parametrize("threads", [1, 2])
def test_latency_at_a_rate_includes_the_wait_for_the_broker(broker: Broker, threads: int) -> None:
    """With one message at a time nobody gets a million a second: each is the later the longer the run lasts."""
    options = f"--scenario p2p --n 2 --qos 1 --window 1 --e2e 1 --rate 1e6 --secs 0.5 --warmup 0 --threads {threads}"
    result = run_clean(broker, options)
    assert result["sent_rate"] < 500_000
    assert result["send_lag_max_us"] > 200_000
    assert result["p50_us"] > 100_000


def test_the_latency_of_what_was_stored_is_that_of_the_return(broker: Broker) -> None:
    options = "--scenario fanin --n 3 --groups 3 --qos 1 --count 20 --session returns- --prefix returns"
    for part in ("subscribe", "publish"):
        run_clean(broker, f"{options} --part {part}")
    time.sleep(1.5)
    result = run_clean(broker, f"{options} --part receive")
    assert result["received"] == 60
    assert 0 < result["max_us"] <= 1.05 * result["secs"] * 1e6 + 1_000  # secs are rounded to ms
    run_clean(broker, f"{options} --part subscribe --forget")


def test_messages_of_a_megabyte_and_messages_that_expire(broker: Broker) -> None:
    for options in ("--size 1000000 --e2e 2", "--size 1000000 --e2e 2 --rate 100", "--expiry 60 --e2e 20 --version 5"):
        result = run_clean(broker, f"--scenario p2p --n 2 --qos 1 --count 10 {options}")
        assert result["received"] == 20


def test_open_connections_of_a_storm_are_no_more_than_asked_for(broker: Broker) -> None:
    load = Load(LoadOptions("storm", port=broker.port, n=8, secs=1.0, warmup=0.0))
    seen = []
    while load.step(0.02):
        seen.append(load.ready)
    load.close()
    assert 0 < max(seen) <= 8


@pytest.mark.parametrize("how", ["", "--subscribe", "--abrupt", "--version 5"])
def test_connect_storm_counts_connects(broker: Broker, how: str) -> None:
    result = run_clean(broker, f"--scenario storm --n 8 --count 200 {how}")
    assert result["connects"] >= 200
    assert result["unclosed"] == 0
    assert result["connects_per_s"] > 0
    assert result["cpu_us_per_connect"] > 0


def test_idle_connections_are_opened_and_kept(broker: Broker) -> None:
    result = run_clean(broker, "--scenario idle --n 200 --keepalive 1 --secs 1.6")
    assert result["connects_per_s"] > 0
    assert "bytes_per_conn" in result


def lose_one(packets: Packets) -> Packets:
    return packets[:3] + packets[4:]


def repeat_one(packets: Packets) -> Packets:
    return packets[:4] + packets[3:]


def swap_two(packets: Packets) -> Packets:
    return [packets[1], packets[0], *packets[2:]]


def damage_one(packets: Packets) -> Packets:
    return [packets[0][:-1] + b"?", *packets[1:]]


def damage_the_middle_of_one(packets: Packets) -> Packets:
    """Of one that follows others of the same time, and of the first."""
    return [packet[:-20] + b"?" + packet[-19:] if at in (0, 5) else packet for at, packet in enumerate(packets)]


def dress_up_one(packets: Packets) -> Packets:
    """It comes twice, as a packet that is no PUBLISH."""
    return packets[:4] + 2 * [b"\xd0" + packets[4][1:]] + packets[5:]


@pytest.mark.parametrize(
    ("mistreat", "seen"),
    [
        (lose_one, {"lost": 5}),
        (dress_up_one, {"lost": 5}),
        (repeat_one, {"duplicates": 5}),
        (swap_two, {"disordered": 5}),
        (damage_one, {"corrupt": 5, "lost": 5}),
        (damage_the_middle_of_one, {"corrupt": 10, "lost": 10}),
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_faults_of_a_broker_are_seen(
    mistreat: Callable[[Packets], Packets], seen: dict[str, int], threads: int
) -> None:
    """With two threads the publisher is in another one than the subscriber."""
    options = f"--scenario fanin --n 1 --size 64 --count 50 --drain 0.3 --threads {threads}"
    with FaultyBroker(mistreat) as faulty:
        result = run_load(faulty.port, *options.split())
    assert {fault: result[fault] for fault in FAULTS if result[fault]} == seen


def test_what_comes_again_makes_no_broker_faster() -> None:
    options = "--scenario fanin --n 1 --count 50 --qos 1 --drain 0.3"
    with FaultyBroker(lambda packets: [packet for packet in packets for _ in range(2)]) as faulty:
        result = run_load(faulty.port, *options.split())
    assert (result["received"], result["duplicates"], result["measured"]) == (100, 50, 50)


@pytest.mark.parametrize("size", [17, 64, 100])
@pytest.mark.parametrize("threads", [1, 2])
def test_messages_for_another_subscriber_are_seen(threads: int, size: int) -> None:
    """All go to one of two."""
    options = f"--scenario p2p --n 2 --count 50 --size {size} --drain 0.3 --threads {threads}"
    with FaultyBroker() as faulty:
        result = run_load(faulty.port, *options.split())
    assert {fault: result[fault] for fault in FAULTS if result[fault]} == {"lost": 50, "corrupt": 50}


@pytest.mark.parametrize("qos", [0, 1])
def test_a_topic_longer_than_its_packet_is_seen(qos: int) -> None:
    """Nothing behind the packet is read, so nothing is acknowledged either."""

    def lie_about_the_topic(packets: Packets) -> Packets:
        first = packets[0]
        return [first[:2] + b"\xff\xff" + first[4:], *packets[1:]]

    with FaultyBroker(lie_about_the_topic, lies=1) as faulty:
        result = run_load(faulty.port, *f"--scenario fanin --n 1 --count 50 --drain 0.3 --qos {qos}".split())
    assert {fault: result[fault] for fault in FAULTS if result[fault]} == {"corrupt": 1, "lost": 1}


def test_an_acknowledgement_without_a_packet_id_is_seen() -> None:
    """It is none: the message it was for stays unacknowledged."""
    options, answers = "--scenario fanin --n 1 --count 50 --drain 0.3", 0

    def cut_one(answer: bytes) -> bytes:
        nonlocal answers
        answers += 1
        return b"\x40\x00" if answers == 10 else answer

    with FaultyBroker(answer=cut_one) as faulty:
        result = run_load(faulty.port, *f"{options} --qos 1".split())
    assert {fault: result[fault] for fault in FAULTS if result[fault]} == {"corrupt": 1, "unacknowledged": 1}


@pytest.mark.parametrize("options", ["--qos 1", "--qos 1 --window 1000 --e2e 100", "--qos 2", "--qos 1 --threads 2"])
def test_acknowledgements_that_do_not_come_are_seen(options: str) -> None:
    """Everything arrives, and all but the last answer."""
    answers = 0

    def withhold(answer: bytes) -> bytes:
        nonlocal answers
        answers += answer[0] in (0x40, 0x70)  # PUBACK, PUBCOMP
        return b"" if answers == 50 else answer

    with FaultyBroker(answer=withhold) as faulty:
        result = run_load(faulty.port, *f"--scenario fanin --n 1 --count 50 --drain 0.3 {options}".split())
    assert {fault: result[fault] for fault in FAULTS if result[fault]} == {"unacknowledged": 1}


@pytest.mark.parametrize("options", ["--e2e 100", "--e2e 100 --threads 2", ""])
def test_refusals_are_seen_although_acknowledgements_are_read_late(options: str) -> None:
    """Every third PUBACK has an error code; the window never needs them, so they are read when all is published."""
    answers = 0

    def refuse_some(answer: bytes) -> bytes:
        nonlocal answers
        answers += 1
        return answer if answers % 3 else b"\x40\x03" + answer[2:] + b"\x97"

    load_options = f"--scenario fanin --n 1 --count 300 --qos 1 --version 5 --window 1000 --drain 5 {options}"
    with FaultyBroker(answer=refuse_some) as faulty:
        result = run_load(faulty.port, *load_options.split())
    assert {fault: result[fault] for fault in FAULTS if result[fault]} == {"refused": 100}


def mix_up(packets: Packets) -> Packets:
    """One is lost, two change places, one comes again long after; each in the middle of many that are in order."""
    *_, third = packets[:4]
    return packets[:70] + packets[71:130] + [packets[131], packets[130]] + packets[132:] + [third]


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("size", [16, 64])
def test_faults_are_seen_among_many_messages_in_order(qos: int, size: int) -> None:
    options = f"--scenario fanin --n 1 --qos {qos} --window 1000 --size {size} --count 1000 --drain 0.3"
    with FaultyBroker(mix_up, group=200) as faulty:
        result = run_load(faulty.port, *options.split())
    seen = {fault: result[fault] for fault in FAULTS if result[fault]}
    assert seen == {"lost": 5, "duplicates": 5, "disordered": 5}
    assert result["received"] == 1_000


def downgrade_some(packets: Packets) -> Packets:
    """From QoS 1 to 0: the packet has no identifier then."""
    topic_end = 4 + int.from_bytes(packets[0][2:4])

    def downgraded(packet: bytes) -> bytes:
        return bytes((packet[0] & ~6, packet[1] - 2)) + packet[2:topic_end] + packet[topic_end + 2 :]

    return packets[:3] + [downgraded(packet) for packet in packets[3:7]] + packets[7:]


def test_a_lower_qos_is_seen_among_others() -> None:
    options = "--scenario fanin --n 1 --qos 1 --count 50 --drain 0.3"
    with FaultyBroker(downgrade_some) as faulty:
        result = run_load(faulty.port, *options.split())
    assert {fault: result[fault] for fault in FAULTS if result[fault]} == {"downgraded": 20}


@pytest.mark.parametrize("qos", [0, 1])
def test_publishers_in_turn_send_long_batches(qos: int) -> None:
    """They share what may be under way, here 5 times 20: whoever has its turn sends at least a quarter of that. The
    broker passes on only what fills the limit, so that the run would stand still if it was not reached."""
    groups: list[list[bytes]] = []

    def record(packets: Packets) -> Packets:
        topic_end = 4 + int.from_bytes(packets[0][2:4])
        groups.append([packet[:topic_end] for packet in packets])
        return packets

    options = f"--scenario fanin --n 5 --qos {qos} --e2e 20 --in-turn --count 200 --window 1000"
    with FaultyBroker(record, group=100) as broker:
        result = run_load(broker.port, *options.split())
    assert {fault: result[fault] for fault in FAULTS if result[fault]} == {}
    assert result["received"] == 1_000
    assert max(len(set(group)) for group in groups) <= 4
    assert len({topic for group in groups for topic in group}) == 5


def test_publishers_in_turn_keep_their_common_limit() -> None:
    def forward_nothing(_: Packets) -> Packets:
        return []

    options = "--scenario fanin --n 5 --e2e 20 --in-turn --secs 0.3 --warmup 0 --drain 0.1"
    with FaultyBroker(forward_nothing) as broker:
        result = run_load(broker.port, *options.split())
    assert (result["published"], result["lost"]) == (100, 100)


@pytest.mark.parametrize(
    "options",
    [
        "--n 7 --qos 0 --e2e 20 --size 16 --threads 3",
        "--n 7 --qos 1 --e2e 20 --window 3 --version 5",
        "--n 3 --qos 2 --e2e 2 --window 1",
        "--n 7 --qos 1 --e2e 20 --subs 4 --threads 2",
        "--n 3 --qos 1 --e2e 20 --size 65536",
        "--n 5 --qos 1 --e2e 20 --rate 100000",
    ],
)
def test_publishers_in_turn(broker: Broker, options: str) -> None:
    result = run_clean(broker, f"--scenario fanin --in-turn --count 200 {options}")
    assert result["received"] == result["published"] == 200 * int(options.split()[1])


def test_a_thread_without_publishers_has_no_turn(broker: Broker) -> None:
    """With three threads the subscriber of a fan-in has one for itself."""
    result = run_clean(broker, "--scenario fanin --in-turn --n 4 --e2e 20 --secs 0.3 --warmup 0.1 --threads 3")
    assert result["received"] == result["published"] > 0


@pytest.mark.parametrize(
    "options",
    ["", "--scenario nothing", "--scenario p2p --size 15", "--scenario p2p --size 1048577", "--scenario p2p --secs 0",
     "--scenario p2p --subs 2", "--scenario p2p --version 3", "--scenario p2p --abrupt",
     "--scenario p2p --e2e 9 --in-turn", "--scenario fanin --in-turn"],
)  # fmt: skip
def test_options_out_of_bounds_are_refused(options: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run_load_main(["--port", "1", *options.split()])
    assert "usage:" in capsys.readouterr().err


def test_a_broker_that_is_not_there_is_an_error_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_load_main(["--port", "1", "--scenario", "p2p"]) == 1
    assert "refused" in json.loads(capsys.readouterr().out)["error"]


def test_headroom_of_the_generator(capsys: pytest.CaptureFixture[str]) -> None:
    """The script behind the table: for a broker with and without its log, a line for each number of threads."""
    options = ["--scenario", "shared", "--threads", "1", "2", "--reps", "1", "--secs", "0.2"]
    assert headroom.main(options) == 0
    shown = capsys.readouterr()
    assert [line.split()[:2] for line in shown.out.splitlines()] == [["log", "shared"]] * 2 + [["no", "log"]] * 2
    assert shown.err == "", "every message was right"


def test_headroom_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The median of each figure, with its target, and all that it is of."""
    monkeypatch.setattr("bench.parts.RESULTS", tmp_path)
    headroom.save("no log", {("fan-in", 0, 1): [2.5, 1.0, 2.2]}, 3, 2.0)
    (path,) = (tmp_path / "headroom").glob("*-no-log.json")
    result = json.loads(path.read_text())
    cell = result["summary"][0]["brokers"]["penstock"]
    assert (result["summary"][0]["target"], cell["value"], cell["reached"]) == ("≥ 2", 2.2, True)
    assert result["settings"]["ratios"] == {"fan-in, QoS 0, 1 threads": [2.5, 1.0, 2.2]}
