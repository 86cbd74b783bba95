"""The command group: knows the names and one line of help of each subcommand, and imports only the one that runs."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from penstock.broker.starting import no_collections

COMMANDS = {
    "serve": ("penstock.cli.serve", "Run the broker."),
    "pub": ("penstock.cli.pub", "Publish messages, with the flags of mosquitto_pub."),
    "sub": ("penstock.cli.sub", "Subscribe and print messages, with the flags of mosquitto_sub."),
    "passwd": ("penstock.cli.passwd", "Create and change password files."),
    "acl": ("penstock.cli.acl", "Check ACL files and import those of mosquitto."),
    "log": (
        "penstock.cli.log.app",
        "Inspect the logs of messages: topics, records, offsets; append, truncate, repair.",
    ),
    "app": ("penstock.cli.application", "Manage APPLICATION clients of a running broker."),
    "session": ("penstock.cli.session", "Show, disconnect and delete sessions of a running broker."),
    "retained": ("penstock.cli.retained", "Show and delete retained messages of a running broker."),
    "queue": (
        "penstock.cli.queue.app",
        "Manage durable queues of a running broker.",
    ),
    "sql": ("penstock.cli.sql", "Create, show and drop query topics with SQL statements."),
    "subscribe": (
        "penstock.cli.subscribe",
        "Print the rows of query topics, alone or as a member of a consumer group.",
    ),
    "bench": (
        "penstock.cli.bench.app",
        "Load tests of any MQTT broker, with checks and reports; comparisons of brokers.",
    ),
    "top": ("penstock.cli.top.app", "Watch a running broker: clients, rates, queues, lag, drops."),
    "doctor": ("penstock.cli.doctor", "Check the machine, files, Kafka and Redis, and suggest changes."),
    "backup": ("penstock.cli.backup", "Save the data directory of a broker, while it runs."),
    "restore": ("penstock.cli.restore", "Restore a backup into a data directory."),
    "spark": (
        "penstock.cli.spark.app",
        "Process logged messages with Spark: jobs, SQL, packages for a cluster.",
    ),
    "check-config": ("penstock.cli.check_config", "Show the effective settings and where each came from."),
}


class WholeLines(TyperGroup):
    """A group whose `--help` shows what each command does to the end of the sentence: click cuts it to fit the line."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands = [(name, command) for name in self.list_commands(ctx) if (command := self.get_command(ctx, name))]
        with formatter.section("Commands"):
            formatter.write_dl([(name, _first_sentence(each.help)) for name, each in commands if not each.hidden])


def _first_sentence(text: str | None) -> str:
    paragraph = " ".join((text or "").partition("\n\n")[0].split())
    sentence, dot, _ = paragraph.partition(". ")
    return sentence + dot.strip()


class LazyGroup(TyperGroup):
    """Commands by name; `--help` of the group costs no import."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        with no_collections():
            command = get_command(import_module(COMMANDS[cmd_name][0]).app)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


def _show_version(wanted: bool) -> None:
    if wanted:
        # Reading metadata is slow to import, and only this option needs it.
        metadata = import_module("importlib.metadata")
        try:
            number = metadata.version("penstock")
        except metadata.PackageNotFoundError:
            number = "(not installed)"
        typer.echo(f"penstock {number}")
        raise typer.Exit


def make_app() -> typer.Typer:
    """A typer application for one subcommand: plain help, our own error messages."""
    return typer.Typer(cls=WholeLines, rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)


app = typer.Typer(
    cls=LazyGroup,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    epilog="penstock COMMAND --help says more about each. Exit codes: 0 done, 1 failed, 2 bad usage, 78 bad settings.",
)


@app.callback()
def root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """A very fast MQTT 3.1, 3.1.1 and 5.0 broker, with clients and tools."""
