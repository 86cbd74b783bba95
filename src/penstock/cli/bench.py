"""`penstock bench`: load tests of any MQTT broker, and comparisons of brokers."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock._ext.load import LoadError, LoadRefused
from penstock.bench.html_report import render_report
from penstock.bench.result import document_of, rows_of, settings_line, verdict, write_json, write_text
from penstock.bench.runner import Outcome, run_scenario
from penstock.bench.scenarios import SCENARIOS, Request, Scenario
from penstock.bench.system import listening_processes, process_tree
from penstock.cli import client_options as shared
from penstock.cli.app import make_app
from penstock.cli.bench_compare import compare
from penstock.cli.bench_view import live_view
from penstock.cli.client import describe_refusal
from penstock.cli.client_options import Connection, ConnectionOptions, make_connection
from penstock.core import exit_codes
from penstock.core.errors import PenstockError, UsageError

app = make_app()

EPILOG = (
    "Exit codes: 0 the broker did everything right; 1 messages were lost at QoS 1 or 2, doubled at QoS 2, reordered or"
    " damaged, or connections were lost; 2 bad usage; 3 the test cannot be run: no broker there, or it refuses."
)
Clients = Annotated[
    int | None,
    typer.Option(
        "-c",
        "--clients",
        min=1,
        help="Pairs (p2p), publishers (fan-in, shared, application, queue), subscribers (fan-out, retained, device),"
        " connections (idle; connect-storm: at a time).",
    ),
]
Subscribers = Annotated[
    int | None, typer.Option("--subscribers", min=1, help="Of shared, application and queue; else one per pair.")
]
Qos = Annotated[int | None, typer.Option("-q", "--qos", min=0, max=2, help="Of publishers and subscribers.")]
Payload = Annotated[int, typer.Option("-s", "--payload", min=16, max=65536, help="Bytes of a message.")]
Rate = Annotated[
    float, typer.Option("-r", "--rate", min=0, help="Messages published per second in all; 0 = as fast as it goes.")
]
Duration = Annotated[float, typer.Option("-d", "--duration", min=0.01, help="Seconds that are measured.")]
Warmup = Annotated[float, typer.Option("--warmup", min=0, help="Seconds of load before them.")]
Drain = Annotated[
    float | None, typer.Option("--drain", min=0, help="Give up on missing messages after so many seconds of silence.")
]
Window = Annotated[
    int, typer.Option("-w", "--window", min=1, max=32768, help="Unacknowledged QoS 1 and 2 messages of a publisher.")
]
Undelivered = Annotated[
    int | None,
    typer.Option(
        "--undelivered",
        min=0,
        help="Messages of a publisher under way to subscribers; fan-in, shared: all publishers share them and send in "
        "turn; 0 = no limit.",
    ),
]
Messages = Annotated[
    int | None, typer.Option("--messages", min=1, help="Of device (each client) and retained, instead of a duration.")
]
QueueName = Annotated[str | None, typer.Option("--queue", help="Name of the queue.  [default: bench, made by its use]")]
Threads = Annotated[
    int, typer.Option("--threads", min=1, max=64, help="Of the load generator, which share the connections.")
]
BrokerPid = Annotated[
    int | None,
    typer.Option("--broker-pid", min=1, help="Process to account.  [default: who listens on the port, when local]"),
]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON.")]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a report with charts.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress, no table: only files and the exit code.")]


def run(
    ctx: typer.Context,
    *,
    clients: Clients = None,
    subscribers: Subscribers = None,
    qos: Qos = None,
    payload: Payload = 64,
    rate: Rate = 0.0,
    duration: Duration = 10.0,
    warmup: Warmup = 1.0,
    drain: Drain = None,
    window: Window = 1_000,
    undelivered: Undelivered = None,
    messages: Messages = None,
    queue: QueueName = None,
    threads: Threads = 1,
    host: shared.Host = None,
    port: shared.Port = None,
    username: shared.Username = None,
    password: shared.Password = None,
    password_file: shared.PasswordFile = None,
    version: shared.Version = None,
    keep_alive: shared.KeepAlive = 60,
    cafile: shared.CaFile = None,
    cert: shared.Cert = None,
    key: shared.Key = None,
    system_certificates: shared.SystemCertificates = False,
    insecure: shared.Insecure = False,
    broker_pid: BrokerPid = None,
    json: Json = None,
    html: Html = None,
    quiet: Quiet = False,
) -> None:
    scenario = SCENARIOS[ctx.command.name or ""]
    request = _request(scenario, ctx.params)
    outcome = _run(request, quiet=quiet)
    document = document_of(outcome)
    if json is not None:
        write_json(json, document)
    if html is not None:
        write_text(html, render_report(document))
    if not quiet:
        _print(document)
    if outcome.faults():
        raise typer.Exit(exit_codes.FAILURE)
    raise typer.Exit(exit_codes.INTERRUPTED if outcome.is_interrupted else exit_codes.OK)


for each in SCENARIOS.values():
    app.command(each.name, help=f"{each.about[0].upper()}{each.about[1:]}.", epilog=EPILOG)(run)
app.command("compare", epilog=EPILOG)(compare)


@app.callback(epilog=f"{EPILOG} penstock bench SCENARIO --help shows the options.")
def bench() -> None:
    """Put load on any MQTT broker and check what comes out: rates, latencies, loss, duplicates, order."""


def _request(scenario: Scenario, given: dict[str, Any]) -> Request:
    connection = _connection(given)
    target, credentials = connection.target, connection.request
    version = credentials.version if given["version"] is not None else None
    if version == 3:
        raise UsageError("-V mqttv31: use mqttv311 or mqttv5")
    names = ("clients", "subscribers", "qos", "payload", "rate", "duration", "warmup", "drain", "window", "threads")
    request = Request(
        scenario.name,
        host=target.host,
        port=target.port,
        username=credentials.username,
        password=credentials.password,
        tls=target.tls,
        version=version,
        keep_alive=given["keep_alive"],
        undelivered=given["undelivered"],
        messages=given["messages"],
        queue=given["queue"],
        pids=tuple(_broker_processes(given["broker_pid"], target.host, target.port)),
        **{name: given[name] for name in names},
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


def _run(request: Request, *, quiet: bool) -> Outcome:
    try:
        with live_view(request, quiet=quiet) as shown:
            return run_scenario(request, shown)
    except LoadRefused as refused:
        message = describe_refusal(refused.connack, request.version or 4)
        raise PenstockError(message, exit_code=exit_codes.NOT_RUN) from None
    except LoadError as error:
        hint = "is the broker running? -h and -p say where" if "connection refused" in str(error) else ""
        raise PenstockError(str(error), hint, exit_code=exit_codes.NOT_RUN) from None


def _print(document: dict[str, Any]) -> None:
    broker = document["broker"]
    print(f"{document['scenario']} at {broker['host']}:{broker['port']}: {settings_line(document)}\n")
    rows = rows_of(document)
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")
    print(f"\n{verdict(document)}")
