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
from penstock.cli.client_runner import counted
from penstock.core import exit_codes
from penstock.core.errors import UsageError

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
    client: Annotated[str, typer.Option("-i", "--client", help="Client id to ask for.")] = "",
    user: Annotated[str | None, typer.Option("-u", "--user", help="User name to ask for; none = anonymous.")] = None,
    publish: Annotated[str | None, typer.Option("--publish", help="Topic: may it publish there?")] = None,
    subscribe: Annotated[str | None, typer.Option("--subscribe", help="Filter: may it subscribe to it?")] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="ACTION:TOPIC", help="May it create, subscribe to or drop that query topic?"),
    ] = None,
    ask_type: Annotated[bool, typer.Option("--type", help="Say whether it is a DEVICE or an APPLICATION.")] = False,
    certificate: Annotated[
        bool, typer.Option("--certificate", help="The user name was taken from a client certificate.")
    ] = False,
) -> None:
    """Read an ACL file and, if asked, say what a client may do; exit code 1 when it may not. With --type also which
    type of client it is, as far as the [[types]] entries of the file say."""
    rules = AclFile.load(file)
    if publish is None and subscribe is None and data is None and not ask_type:
        _print_summary(file, rules)
        return
    if ask_type:
        found = rules.client_type(client, user, from_certificate=certificate)
        typer.echo(f"type: {found or _who_decides(user)}")
    program = rules.compile_for(client, user)
    answers: list[tuple[str, str, bool]] = []
    if publish is not None:
        answers.append(("publish to", publish, program.may_publish(publish.encode())))
    if subscribe is not None:
        answers.append(("subscribe to", subscribe, program.may_subscribe(subscribe.encode())))
    if data is not None:
        answers.append(_ask_data(rules, client, user, data))
    for action, topic, is_allowed in answers:
        typer.echo(f"{'allowed' if is_allowed else 'denied'}: {action} {topic}")
    if not all(is_allowed for _, _, is_allowed in answers):
        raise typer.Exit(exit_codes.FAILURE)


def _ask_data(rules: AclFile, client: str, user: str | None, question: str) -> tuple[str, str, bool]:
    action, colon, topic = question.partition(":")
    if action not in ACTIONS or not colon:
        raise UsageError(f"--data {question} is not allowed: use ACTION:TOPIC with {', '.join(ACTIONS)}")
    found = rules.data_access(client, user, action, topic)
    if found is None:
        typer.echo("no entry of [[data]] is about this: its owner may, and whoever was granted it", err=True)
    verb = "subscribe to" if action == "subscribe" else action
    return f"{verb} the query topic", topic, found is True


def _print_summary(file: Path, rules: AclFile) -> None:
    types = f", {counted(len(rules.types), 'type')}" if rules.types else ""
    data = f", {counted(len(rules.data), 'data rule')}" if rules.data else ""
    typer.echo(f"{file}: {counted(len(rules.rules), 'rule')}{types}{data}, no errors")
    if not rules.rules:
        print("penstock: without rules no client may publish or subscribe to anything", file=sys.stderr)


def _who_decides(user: str | None) -> str:
    if user is None:
        return "as access.anonymous_type says, no entry of [[types]] is about this client"
    return "as the password file or access.default_type says, no entry of [[types]] is about this client"
