"""Fuzzes every parser of the codec: python -m tests.fuzz.fuzz_codec --seconds 30 (or --runs 1000000).

An input is the first byte of a packet and its body. Each is parsed as MQTT 3.1, 3.1.1 and 5.0, as a server and as a
client would, with the body right before an inaccessible page: reading too far ends the process. What is refused must be
refused with a reason code; what is accepted must survive being built and parsed again; and the two parsers of PUBLISH
must agree. libFuzzer cannot see into the compiled modules, so each new outcome is shown to it as a branch taken.

Options that are not known here go to libFuzzer. The corpus is kept: the next session goes on where this one ended.
"""

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import atheris

from penstock._ext.wire import codec, packets
from penstock._ext.wire.packets import ProtocolViolation
from tests.support.clients.packet_table import CASES
from tests.support.clients.parse_any import GuardedMemory, attempt, parse_any

CORPUS = Path(__file__).parent / "corpus" / "codec"
LARGEST = 1024
VERSIONS = (3, 4, 5)
REASONS = frozenset((0x81, 0x82, 0x84, 0x85, 0x90, 0x94, 0x97))
PROBES = 4096

memory = GuardedMemory(LARGEST)
outcomes: dict[Any, Callable[[], None]] = {}


def make_probes() -> Iterator[Callable[[], None]]:
    """Functions that do nothing but be seen by the fuzzer."""
    for _ in range(PROBES):
        namespace: dict[str, Callable[[], None]] = {}
        exec("def probe():\n    return None\n", namespace)  # each needs code of its own to be a branch of its own
        yield atheris.instrument_func(namespace["probe"])


probes = make_probes()


def show(outcome: Any) -> None:
    """Tells the fuzzer what happened; outcomes beyond the number of probes share the last one."""
    probe = outcomes.get(outcome)
    if probe is None:
        probe = outcomes[outcome] = next(probes, None) or next(reversed(outcomes.values()))
    probe()


def show_refusal(parser: tuple[Any, ...], refused: ProtocolViolation) -> None:
    assert refused.reason_code in REASONS, hex(refused.reason_code)
    show((*parser, refused.reason_code, refused.message[:24]))


def attributes(packet: Any) -> dict[str, Any]:
    """All that a packet holds, comparable."""
    values = {name: getattr(packet, name) for name in dir(type(packet)) if not name.startswith("_")}
    if values.get("will") is not None:
        values["will"] = attributes(values["will"])
    return values


def some(values: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: values[name] for name in names}


def rebuild(kind: int, values: dict[str, Any], version: int) -> bytes | None:
    """The packet that was parsed, built again."""
    match kind:
        case 1:
            names = ["client_id", "version", "clean_start", "keep_alive", "username", "password"]
            if values["version"] == 5:
                names += ["session_expiry", "receive_maximum", "topic_alias_maximum", "user_properties"]
                names += ["request_response_information", "request_problem_information"]
                names += ["authentication_method", "authentication_data"]
            will = values["will"] and packets.WillPacket(**values["will"])
            size = {"maximum_packet_size": values["maximum_packet_size"] or None} if values["version"] == 5 else {}
            return packets.build_connect(will=will, **some(values, *names), **size)
        case 8:
            entries = [(topic, options) for topic, options, _ in values["entries"]]
            rest = some(values, "identifier", "user_properties")
            return packets.build_subscribe(values["packet_id"], entries, version=version, **rest)
        case 10:
            filters = [topic for topic, _ in values["entries"]]
            properties = values["user_properties"]
            return packets.build_unsubscribe(values["packet_id"], filters, version=version, user_properties=properties)
        case 14:
            names = ["reason", "session_expiry", "reason_string", "user_properties", "server_reference"]
            return packets.build_disconnect(version=version, **some(values, *names))
        case 15:
            return packets.build_auth(**values)
    return None


def body_of(packet: bytes) -> bytes:
    """What follows the fixed header."""
    at = next(at for at in itertools.count(1) if not packet[at] & 128)
    return packet[at + 1 :]


def check_server(first_byte: int, body: bytes, version: int) -> None:
    kind = first_byte >> 4
    parsed, refused = attempt(parse_any, first_byte, memory.place(body), version)
    if refused is not None:
        assert kind != 1 or refused.version in (0, *VERSIONS)
        show_refusal(("server", kind, version), refused)
        return
    if parsed is None:
        return
    if kind == 3:
        check_publish(first_byte & 15, body, version, parsed)
    values = attributes(parsed) if kind not in (3, 4, 5, 6, 7) else {"parsed": parsed}
    show((kind, version, *(name for name, value in values.items() if value)))
    again = rebuild(kind, values, version)
    if again is not None:
        assert attributes(parse_any(again[0], body_of(again), version)) == values


def check_publish(flags: int, body: bytes, version: int, parsed: dict[str, Any]) -> None:
    """The parser in C and the one for clients see the same packet."""
    if parsed["topic"] and codec.debug_check_topic_name(parsed["topic"]):
        return
    packet = packets.parse_publish_packet(flags, memory.place(body), version)
    assert packet.topic.encode() == parsed["topic"]
    for name in ("payload", "qos", "retain", "dup", "packet_id"):
        assert getattr(packet, name) == parsed[name], name
    kept = packets.decode_publish_properties(parsed["props"])
    taken = {"topic_alias": parsed["alias"] or None, "message_expiry": parsed["expiry"]}
    assert packet.properties == kept | {name: value for name, value in taken.items() if value is not None}
    show((packet.qos, version, *sorted(packet.properties)))
    again = packets.build_publish(
        packet.topic,
        packet.payload,
        version=version,
        **{name: getattr(packet, name) for name in ("qos", "retain", "dup", "packet_id")},
        **packet.properties,
    )
    assert attributes(packets.parse_publish_packet(again[0] & 15, body_of(again), version)) == attributes(packet)


CLIENT_PARSERS: dict[int, Callable[[int, memoryview, int], Any]] = {
    2: lambda _flags, body, version: packets.parse_connack(body, version),
    3: packets.parse_publish_packet,
    9: lambda _flags, body, version: packets.parse_suback(body, version),
    11: lambda _flags, body, version: packets.parse_unsuback(body, version),
    14: lambda flags, body, version: packets.parse_disconnect(flags, body, version, True),
    15: lambda flags, body, version: packets.parse_auth(flags, body, version, True),
}


def check_client(first_byte: int, body: bytes, version: int) -> None:
    parser = CLIENT_PARSERS.get(first_byte >> 4)
    if parser is not None:
        _, refused = attempt(parser, first_byte & 15, memory.place(body), version)
        if refused is not None:
            show_refusal(("client", first_byte >> 4, version), refused)


def check_topics(body: bytes) -> None:
    for check in (codec.debug_check_topic_name, codec.debug_check_topic_filter):
        for levels in (0, 3):
            show((check.__name__, check(memory.place(body), levels)))


def test_one_input(data: bytes) -> None:
    if not data:
        return
    first_byte, body = data[0], data[1 : LARGEST + 1]
    for version in VERSIONS:
        check_server(first_byte, body, version)
        check_client(first_byte, body, version)
    if first_byte < 0x10:
        check_topics(body)


def write_seeds(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        directory.joinpath(case.name.replace(" ", "-").replace("/", "_")).write_bytes(
            bytes((case.first_byte,)) + case.body
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=0, help="stop after so long (0 = no limit)")
    parser.add_argument("--runs", type=int, default=-1, help="stop after so many executions (-1 = no limit)")
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="where the corpus is kept")
    options, rest = parser.parse_known_args()
    write_seeds(options.corpus)
    arguments = [
        sys.argv[0],
        f"-max_total_time={options.seconds}",
        f"-runs={options.runs}",
        f"-max_len={LARGEST}",
        "-timeout=10",
        "-print_final_stats=1",
        f"-artifact_prefix={options.corpus.parent}/",
        *rest,
        str(options.corpus),
    ]
    atheris.Setup(arguments, test_one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
