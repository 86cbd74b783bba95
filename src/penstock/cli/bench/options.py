"""The options of `penstock bench SCENARIO`: those that mean something there, with its own defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli import client_options as shared
from penstock.core.errors import UsageError
from penstock_bench.options import LARGEST_PAYLOAD, LARGEST_WINDOW, LEAST_PAYLOAD, MOST_THREADS
from penstock_bench.scenarios import Scenario

FLAGS = {
    "clients": ("-c", "--clients"),
    "subscribers": ("--subscribers",),
    "messages": ("--messages",),
    "queue": ("--queue",),
    "qos": ("-q", "--qos"),
    "payload": ("-s", "--payload"),
    "rate": ("-r", "--rate"),
    "duration": ("-d", "--duration"),
    "warmup": ("--warmup",),
    "drain": ("--drain",),
    "window": ("-w", "--window"),
    "undelivered": ("--undelivered",),
    "threads": ("--threads",),
    "version": ("-V", "--protocol-version"),
}


# Those that mean the same in every scenario, and in a comparison.
Payload = Annotated[
    int, typer.Option(*FLAGS["payload"], help="Bytes of a message.", min=LEAST_PAYLOAD, max=LARGEST_PAYLOAD)
]
Rate = Annotated[
    float,
    typer.Option(
        *FLAGS["rate"],
        help="Messages published per second in all, and a failure if less than 95 % of it can be sent;"
        " 0 = as fast as it goes.",
        min=0,
    ),
]
Duration = Annotated[float, typer.Option(*FLAGS["duration"], help="Seconds that are measured.", min=0.01)]
Warmup = Annotated[float, typer.Option(*FLAGS["warmup"], help="Seconds of load before them.", min=0)]
Window = Annotated[
    int,
    typer.Option(
        *FLAGS["window"], help="Unacknowledged QoS 1 and 2 messages of a publisher.", min=1, max=LARGEST_WINDOW
    ),
]
Threads = Annotated[
    int,
    typer.Option(
        *FLAGS["threads"], help="Threads of the load generator, which share the connections.", min=1, max=MOST_THREADS
    ),
]
DEFAULT_PAYLOAD = 64
DEFAULT_WINDOW = 1_000


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _option(name: str, kind: Any, default: Any, help: str, **more: Any) -> inspect.Parameter:
    return _parameter(name, Annotated[kind, typer.Option(*FLAGS[name], help=help, **more)], default)


def _load_options(scenario: Scenario) -> list[inspect.Parameter]:
    """What the load is; a scenario lacks some of them."""
    together = " All publishers share them and send in turn." if scenario.name in ("fan-in", "shared") else ""
    levels = "1 or 2, of" if scenario.least_qos else "Of"
    return [
        _option("clients", int, scenario.clients, f"{scenario.clients_are.capitalize()}.", min=1),
        _option("subscribers", int, scenario.subscribers, "Subscribers.", min=1),
        _option("messages", int, scenario.messages, _messages(scenario), min=1),
        _option("queue", str | None, None, "Queue to use.  [default: one of its own, in memory]"),
        _option("qos", int, scenario.qos, f"{levels} publishers and subscribers.", min=0, max=2),
        _parameter("payload", Payload, DEFAULT_PAYLOAD),
        _parameter("rate", Rate, 0.0),
        _parameter("duration", Duration, 10.0),
        _parameter("warmup", Warmup, 1.0),
        _option(
            "drain", float, scenario.drain, "Give up on missing messages after this many seconds of silence.", min=0
        ),
        _parameter("window", Window, DEFAULT_WINDOW),
        _option(
            "undelivered",
            int | None,
            None,
            f"Messages of a publisher under way to subscribers; 0 = no limit.{together}"
            f"  [default: {scenario.undelivered}, at most 4 MiB]",
            min=0,
        ),
        _parameter("threads", Threads, 1),
    ]


def _messages(scenario: Scenario) -> str:
    return (
        "Messages for each session."
        if scenario.name == "device"
        else "Number of retained messages, each on a topic of its own."
    )


Port = Annotated[
    int | None,
    typer.Option("-p", "--port", min=1, max=65535, help="Port of the broker.  [default: 1883, with TLS 8883]"),
]
BrokerPid = Annotated[
    int | None,
    typer.Option("--broker-pid", min=1, help="Process to measure.  [default: the local process on that port]"),
]
STANDARD_OUTPUT = Path("-")
Json = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write the result as JSON; - = to standard output, without a table."),
]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a report with charts.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress, no table: only files and the exit code.")]


def _other_options(
    *,
    host: shared.Host = None,
    port: Port = None,
    username: shared.Username = None,
    password: shared.Password = None,
    password_file: shared.PasswordFile = None,
    version: str | None = None,
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
    """The options of every scenario, as parameters."""


def command_of(scenario: Scenario, run: Callable[[Scenario, dict[str, Any]], None]) -> Callable[..., None]:
    """A function with the options of the scenario as its parameters, which gives what was said to `run`. What has no
    meaning in it is hidden, and refused with more than "no such option"."""
    load = _load_options(scenario)
    others = dict(inspect.signature(_other_options, eval_str=True).parameters)
    versions = (
        "Protocol version: mqttv5." if scenario.least_version == 5 else "mqttv311 or mqttv5.  [default: mqttv311]"
    )
    others["version"] = _option("version", str | None, None, versions)
    load = [
        _option(option.name, str | None, None, "", hidden=True) if option.name in scenario.lacks else option
        for option in load
    ]
    parameters = [*load, *others.values()]

    def command(**given: Any) -> None:
        for name in FLAGS:
            if name in scenario.lacks and given[name] is not None:
                raise UsageError(
                    f"{FLAGS[name][-1]} has no meaning in {scenario.name}",
                    f"penstock bench {scenario.name} --help shows what has.",
                )
        run(scenario, given)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # inspect looks for it
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command
