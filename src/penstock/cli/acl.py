"""`penstock acl`: check ACL files, ask them questions, import those of mosquitto."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.access.acl_file import AclFile
from penstock.access.data_rules import ACTIONS
from penstock.access.mosquitto import convert_acl
from penstock.cli.app import make_app
from penstock.core import exit_codes
from penstock.core.errors import UsageError
from penstock.core.text import counted

app = make_app()

File = Annotated[Path, typer.Argument(metavar="FILE")]


@app.callback()
def acl() -> None:
    """Check ACL files and import those of mosquitto."""


@app.command()
def import_mosquitto(file: File) -> None:
    """Convert mosquitto's acl_file to TOML rules on standard output."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {file}: {error}") from None
    typer.echo(convert_acl(text, str(file)), nl=False)


@app.command()
def check(
    file: File,
    *,
    client: Annotated[str, typer.Option("-i", "--client", help="Client id to check.")] = "",
    user: Annotated[str | None, typer.Option("-u", "--user", help="User name to check. [default: anonymous]")] = None,
    publish: Annotated[
        list[str] | None, typer.Option("--publish", metavar="TOPIC", help="May it publish to this topic? Repeatable.")
    ] = None,
    subscribe: Annotated[
        list[str] | None,
        typer.Option("--subscribe", metavar="FILTER", help="May it subscribe to this filter? Repeatable."),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            metavar="ACTION:TOPIC",
            help="May it create, subscribe to or drop this query topic? Repeatable.",
        ),
    ] = None,
    connect: Annotated[bool, typer.Option("--connect", help="May it connect with its client id?")] = False,
    ask_type: Annotated[bool, typer.Option("--type", help="Print whether it is a DEVICE or an APPLICATION.")] = False,
    certificate: Annotated[
        bool, typer.Option("--certificate", help="The user name was taken from a client certificate.")
    ] = False,
) -> None:
    """Check an ACL file and, optionally, what a client may do; exit code 1 if it may not. With --type also which
    type of client it is, as far as the [[types]] entries of the file say."""
    rules = AclFile.load(file)
    if not publish and not subscribe and not data and not ask_type and not connect:
        _print_summary(file, rules)
        return
    if ask_type:
        found = rules.client_type(client, user, from_certificate=certificate)
        typer.echo(f"type: {found or _who_decides(user)}")
    program = rules.compile_for(client, user)
    # What was asked, whether it is allowed, and why if it is not.
    answers: list[tuple[str, bool, str]] = []
    if connect:
        answers.append((f"connect with client id {client}", rules.may_use_client_id(client, user), ""))
    for topic in publish or ():
        why = rules.explain(client, user, "publish", topic.encode())
        answers.append((f"publish to {topic}", program.may_publish(topic.encode()), why))
    for topic in subscribe or ():
        why = rules.explain(client, user, "subscribe", topic.encode())
        answers.append((f"subscribe to {topic}", program.may_subscribe(topic.encode()), why))
    answers += [_ask_data(rules, client, user, question) for question in data or ()]
    for action, is_allowed, why in answers:
        typer.echo(f"allowed: {action}" if is_allowed else f"denied: {action}{f' ({why})' if why else ''}")
    if not all(is_allowed for _, is_allowed, _ in answers):
        raise typer.Exit(exit_codes.FAILURE)


def _ask_data(rules: AclFile, client: str, user: str | None, question: str) -> tuple[str, bool, str]:
    action, colon, topic = question.partition(":")
    if action not in ACTIONS or not colon:
        raise UsageError(f"--data {question} is not allowed: use ACTION:TOPIC with {', '.join(ACTIONS)}")
    found = rules.data_access(client, user, action, topic)
    if found is None:
        typer.echo("no entry of [[data]] is about this: its owner may, and whoever was granted it", err=True)
    verb = "subscribe to" if action == "subscribe" else action
    return f"{verb} the query topic {topic}", found is True, ""


def _print_summary(file: Path, rules: AclFile) -> None:
    types = f", {counted(len(rules.types), 'type')}" if rules.types else ""
    data = f", {counted(len(rules.data), 'data rule')}" if rules.data else ""
    ids = f", {counted(len(rules.client_ids), 'client id rule')}" if rules.client_ids else ""
    typer.echo(f"{file}: {counted(len(rules.rules), 'rule')}{types}{data}{ids}, no errors")
    if not rules.rules:
        print("penstock: without rules no client may publish or subscribe to anything", file=sys.stderr)


def _who_decides(user: str | None) -> str:
    if user is None:
        return "as access.anonymous_type says, no entry of [[types]] is about this client"
    return "as the password file or access.default_type says, no entry of [[types]] is about this client"
