"""`penstock bench compare`: the same load against several brokers, in turns."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.bench.options import (
    DEFAULT_PAYLOAD,
    DEFAULT_WINDOW,
    STANDARD_OUTPUT,
    Duration,
    Json,
    Payload,
    Rate,
    Threads,
    Warmup,
    Window,
)
from penstock.cli.cleaning_up import interruptible
from penstock.cli.client_options import VERSIONS
from penstock.core.errors import PenstockError, UsageError
from penstock_bench.contest import check_failed, circumstances_of, compare_brokers, parse_broker, table_of
from penstock_bench.result import check_target, json_of, write_json
from penstock_bench.scenarios import SCENARIOS, Request
from penstock_bench.summary import Run

SHOWN = ("error", "rate", "msgs_per_cpu_s", "connects_per_cpu_s", "bytes_per_conn", "p99_us", "lost", "other_cores")
BEGIN_LINE = "\r\x1b[K"  # and nothing in it
BrokerOption = Annotated[
    list[str] | None,
    typer.Option(
        "-b",
        "--broker",
        metavar="NAME=COMMAND",
        help="A broker and how to start it in the foreground; {port} and {dir} (a fresh directory) are filled in."
        " `mosquitto` and `penstock` are known. Repeatable; ratios are to the first.  [default: mosquitto, penstock]",
    ),
]
ScenarioOption = Annotated[
    list[str] | None, typer.Option("--scenario", help=f"{', '.join(SCENARIOS)}; repeatable.  [default: p2p]")
]
Save = Annotated[
    Path | None,
    typer.Option("--save", metavar="DIR", help="Directory for the result, named by date and time."),
]


def compare(
    *,
    brokers: BrokerOption = None,
    scenarios: ScenarioOption = None,
    reps: Annotated[int, typer.Option("--reps", min=1, help="Repetitions; the table shows medians.")] = 3,
    duration: Duration = 4.0,
    warmup: Warmup = 1.0,
    clients: Annotated[int | None, typer.Option("-c", "--clients", min=1, help="As in the scenario.")] = None,
    qos: Annotated[int | None, typer.Option("-q", "--qos", min=0, max=2, help="Quality of service.")] = None,
    payload: Payload = DEFAULT_PAYLOAD,
    rate: Rate = 0.0,
    window: Window = DEFAULT_WINDOW,
    undelivered: Annotated[
        int | None, typer.Option("--undelivered", min=0, help="As `penstock bench --undelivered`.")
    ] = None,
    threads: Threads = 1,
    version: Annotated[str | None, typer.Option("-V", "--protocol-version", help="mqttv311 or mqttv5.")] = None,
    quiet: Annotated[float, typer.Option("--quiet-wait", min=0, help="Seconds to wait for an idle machine.")] = 20.0,
    json: Json = None,
    save: Save = None,
) -> None:
    """Start several brokers, put the same load on each in turns, show medians, ratios and work per CPU-second.

    While one broker is measured the others are frozen. Known brokers have 1,000 messages in flight and 100,000 queued
    for a client, and keep nothing; in device, application and queue they keep everything on the disk.
    """
    if version is not None and VERSIONS.get(version, 0) < 4:
        raise UsageError(f"-V {version!r}: use mqttv311 or mqttv5")
    started = [parse_broker(text) for text in brokers or ["mosquitto", "penstock"]]
    unknown = [name for name in scenarios or [] if name not in SCENARIOS]
    if unknown:
        raise UsageError(f"--scenario {unknown[0]!r}: there are {', '.join(SCENARIOS)}")
    requests = [
        SCENARIOS[name].complete(
            Request(
                name,
                clients=clients,
                qos=qos,
                payload=payload,
                rate=rate,
                duration=duration,
                warmup=warmup,
                window=window,
                undelivered=undelivered,
                threads=threads,
                version=VERSIONS[version] if version else None,
            )
        )
        for name in scenarios or ["p2p"]
    ]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # inherited by the brokers
    _check_targets(json, save)
    with interruptible():
        document = compare_brokers(started, requests, reps, quiet, _tell, doing=_show)
    _show("")
    _write(document, json, save)
    check_failed(document)


def _write(document: dict[str, Any], path: Path | None, directory: Path | None) -> None:
    # Shown first: what cannot be written is not lost.
    target = sys.stderr if path == STANDARD_OUTPUT else sys.stdout
    print(f"{circumstances_of(document)}\n\n{table_of(document)}", file=target)
    if path == STANDARD_OUTPUT:
        sys.stdout.write(json_of(document))
    elif path is not None:
        write_json(path, document)
    if directory is not None:
        # with seconds: the next comparison may end within the minute
        write_json(directory / f"{document['date'][:19].replace(':', '')}.json", document)


def _check_targets(path: Path | None, directory: Path | None) -> None:
    """Before the runs, which take long."""
    if path is not None and path != STANDARD_OUTPUT:
        check_target(path, "--json")
    if directory is not None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PenstockError(f"cannot make {directory}: {error.strerror}") from None


def _show(doing: str) -> None:
    """On a terminal, in a line that the next one takes the place of."""
    if sys.stderr.isatty():
        print(f"{BEGIN_LINE}{doing}", end="", file=sys.stderr, flush=True)


def _tell(name: str, rep: int, run: Run) -> None:
    _show("")
    shown = ", ".join(f"{key} {run[key]}" for key in SHOWN if key in run)
    print(f"{rep + 1}. {name} {run['broker']}: {shown}", file=sys.stderr, flush=True)
