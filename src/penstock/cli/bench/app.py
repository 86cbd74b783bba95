"""`penstock bench`: load tests of any MQTT broker, and comparisons of brokers."""

from __future__ import annotations

import shutil
import sys
import textwrap
from dataclasses import fields
from pathlib import Path
from typing import Any, TextIO

import typer

from penstock._ext.load.generator import LoadError, LoadRefused
from penstock.cli.app import make_app
from penstock.cli.bench.compare import compare
from penstock.cli.bench.leftovers import remove_leftovers
from penstock.cli.bench.options import STANDARD_OUTPUT, command_of
from penstock.cli.bench.version import ask_version
from penstock.cli.bench.view import live_view
from penstock.cli.cleaning_up import interruptible
from penstock.cli.client_options import Connection, ConnectionOptions, make_connection
from penstock.core import exit_codes
from penstock.core.errors import PenstockError, UsageError
from penstock.settings.address import is_loopback
from penstock_bench.html_report import render_report
from penstock_bench.neighbours import Neighbours
from penstock_bench.result import (
    broker_of,
    check_target,
    document_of,
    figures_of,
    json_of,
    remarks_of,
    settings_line,
    verdict,
    write_json,
    write_text,
)
from penstock_bench.runner import Outcome, run_scenario
from penstock_bench.scenarios import SCENARIOS, Request, Scenario
from penstock_bench.system import listening_processes, process_tree
from penstock_client.mqtt.reasons import describe_refusal

app = make_app()

EPILOG = (
    "Exit codes: 0 the broker did everything right; 1 messages were lost at QoS 1 or 2, doubled at QoS 2, reordered or"
    " damaged, connections were lost, a --rate was not reached, or nothing came at all; 2 bad usage; 3 the test cannot"
    " be run: no broker there, or it refuses."
)
NARROWEST = 60


def run(scenario: Scenario, given: dict[str, Any]) -> None:
    """One scenario. Files are looked at before it, and written after the table: nothing is lost to a wrong name."""
    json: Path | None = given["json"]
    html: Path | None = given["html"]
    quiet: bool = given["quiet"]
    connection = _connection(given)
    request = _request(scenario, given, connection)
    if html == STANDARD_OUTPUT:
        raise UsageError("--html -: write the name of a file")
    for option, path in (("--json", json), ("--html", html)):
        if path is not None and path != STANDARD_OUTPUT:
            check_target(path, option)
    with interruptible() as ending:
        outcome = _run_and_clean_up(request, quiet=quiet)
    version = None if outcome.is_interrupted else ask_version(connection, f"bench-{request.token}-version")
    is_other = version is not None and not version.startswith("penstock ")
    document = document_of(outcome, None if is_other else remove_leftovers(request), version)
    if not quiet:
        _print(document, sys.stderr if json == STANDARD_OUTPUT else sys.stdout)
    if json == STANDARD_OUTPUT:
        sys.stdout.write(json_of(document))
    elif json is not None:
        write_json(json, document)
    if html is not None:
        write_text(html, render_report(document))
    if outcome.faults():
        raise typer.Exit(exit_codes.FAILURE)
    raise typer.Exit(ending.exit_code if outcome.is_interrupted else exit_codes.OK)


for each in SCENARIOS.values():
    about = f"{each.about[0].upper()}{each.about[1:]}."
    app.command(each.name, help=about, epilog=EPILOG)(command_of(each, run))
app.command("compare", epilog=EPILOG)(compare)


@app.callback(epilog=f"{EPILOG} penstock bench SCENARIO --help shows the options.")
def bench() -> None:
    """Load-test any MQTT broker: rates, latencies, loss, duplicates, order."""


def _request(scenario: Scenario, given: dict[str, Any], connection: Connection) -> Request:
    target, credentials = connection.target, connection.request
    version = credentials.version if given["version"] is not None else None
    if version == 3:
        raise UsageError(f"-V {given['version']}: use mqttv311 or mqttv5")
    options = ("clients", "subscribers", "messages", "queue", "qos", "payload", "rate", "duration", "warmup", "drain")
    names = (*options, "window", "undelivered", "threads")
    request = Request(
        scenario.name,
        host=target.host,
        port=target.port,
        username=credentials.username,
        password=credentials.password,
        tls=target.tls,
        version=version,
        keep_alive=given["keep_alive"],
        pids=tuple(_broker_processes(given["broker_pid"], target.host, target.port)),
        **{name: given[name] for name in names if given[name] is not None},
    )
    return scenario.complete(request)


def _connection(given: dict[str, Any]) -> Connection:
    """As pub and sub read the same flags; what a load test does not have is left out."""
    others: dict[str, Any] = dict.fromkeys(
        ("url", "unix", "client_id", "id_prefix", "session_expiry", "will_topic", "will_payload", "properties")
    )
    others |= {"ws": False, "ws_path": "", "no_clean_session": False, "will_qos": 0, "will_retain": False}
    others |= {"debug": False}
    names = [entry.name for entry in fields(ConnectionOptions) if entry.name not in others]
    return make_connection(ConnectionOptions(**others, **{name: given[name] for name in names}))


def _broker_processes(pid: int | None, host: str, port: int) -> list[int]:
    if pid is None:
        return listening_processes(host, port)
    if not Path(f"/proc/{pid}").exists():
        raise UsageError(f"--broker-pid {pid}: there is no such process on this machine")
    return process_tree(pid)


def _run_and_clean_up(request: Request, *, quiet: bool) -> Outcome:
    try:
        return _run(request, quiet=quiet)
    except KeyboardInterrupt:
        left_behind = remove_leftovers(request)
        if left_behind:
            print(left_behind, file=sys.stderr)
        raise


def _run(request: Request, *, quiet: bool) -> Outcome:
    try:
        with live_view(request, quiet=quiet) as shown:
            others = Neighbours(request.pids)
            outcome = run_scenario(request, shown)
            # a broker on this machine whose processes are not known would be one of the others
            if request.pids or not is_loopback(request.host):
                outcome.other_cores = others.cores()
            return outcome
    except LoadRefused as refused:
        message = describe_refusal(
            refused.connack.reason, request.version or 4, refused.connack.properties.get("reason_string", "")
        )
        raise PenstockError(message, exit_code=exit_codes.NOT_RUN) from None
    except LoadError as error:
        raise PenstockError(str(error), _advise(str(error), request), exit_code=exit_codes.NOT_RUN) from None


def _advise(error: str, request: Request) -> str:
    if "connection refused" in error:
        return "is the broker running? -h and -p say where"
    if not any(word in error for word in ("does not answer", "CONNACK was awaited", "TLS", "does not speak MQTT")):
        return ""
    if request.tls is not None:
        return "does the broker speak MQTT over TLS on this port? -p says which"
    return "does a broker listen for MQTT on this port? If it wants TLS, give --cafile FILE or --tls-use-os-certs"


def _print(document: dict[str, Any], target: TextIO) -> None:
    _wrap(f"{document['scenario']} at {broker_of(document)}: {settings_line(document)}", target)
    figures = figures_of(document)
    width = max((len(name) for _, rows in figures for name, _ in rows), default=0) + 2
    for title, rows in figures:
        print(f"\n{title}" if title else "", file=target)
        for name, value in rows:
            _wrap(f"{name:<{width}}{value}", target, width)
    print(file=target)
    for line in (verdict(document), *remarks_of(document)):
        _wrap(line, target)


def _wrap(line: str, target: TextIO, indent: int = 0) -> None:
    """A line as it is, for a script; on a terminal broken between words."""
    room = max(shutil.get_terminal_size().columns, NARROWEST)
    lines = textwrap.wrap(line, room, subsequent_indent=" " * indent, break_on_hyphens=False)
    print("\n".join(lines) if target.isatty() else line, file=target)
