"""`penstock retained`: the retained messages of a running broker."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.cli.admin_options import Broker, Json, Yes, with_broker
from penstock.cli.app import make_app
from penstock.cli.tables import ask, print_answer, print_entries, print_fields, print_json, shown
from penstock.core.text import counted
from penstock.operate.client import escape

app = make_app()

PATH = "/retained"
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="A topic, without wildcards.")]
_COLUMNS = ("topic", "qos", "size", "expires", "payload")


@app.callback()
def retained() -> None:
    """Show and delete retained messages.

    The broker must be running: it is found by its data directory, or by --url.
    """


@app.command("list")
@with_broker
def list_some(
    topic_filter: Annotated[
        str, typer.Argument(metavar="FILTER", help="An MQTT topic filter; # does not match topics that begin with $.")
    ] = "#",
    *,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, max=10_000, help="Maximum number to show.")] = 100,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """List retained messages. Shows the first 64 bytes of each."""
    admin = broker()
    answer = admin.get(f"{PATH}?filter={escape(topic_filter)}&limit={limit}")
    if as_json:
        print_json(answer)
        return
    entries = answer["messages"]
    shortened = [
        {**entry, "payload": f"{entry['payload']}{'…' if entry['payload_truncated'] else ''}"} for entry in entries
    ]
    print_entries(_COLUMNS, shortened)
    more = " (there are more: --limit)" if answer["truncated"] else ""
    typer.echo(f"{_describe_count(answer, topic_filter)}{more}")


def _describe_count(answer: dict[str, Any], topic_filter: str) -> str:
    """Those of `$SYS` apart, which # does not match: else it looked as if most were left out."""
    shown, total, system = len(answer["messages"]), answer["total"], answer.get("system", 0)
    if topic_filter.startswith("$"):
        return f"{shown:,} of {counted(total, 'retained message')}"
    others = counted(total - system, "retained message")
    count = others if shown == total - system else f"{shown:,} of {others}"
    return f"{count} (and {system:,} of $SYS)" if system else count


@app.command()
@with_broker
def get(
    topic: Topic,
    *,
    most: Annotated[
        int, typer.Option("--bytes", min=1, max=16 * 1024 * 1024, help="Maximum bytes of the payload.")
    ] = 65_536,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """Show one retained message. A payload that is not text is shown in hexadecimal."""
    entry = broker().get(f"{PATH}/{escape(topic)}?bytes={most}")
    if as_json:
        print_json(entry)
        return
    fields = {name: entry[name] for name in ("topic", "qos", "size", "expires")}
    for name, value in entry["properties"].items():
        fields[name] = ", ".join(f"{key}={text}" for key, text in value) if name == "user_properties" else value
    is_cut = f" (the first {counted(most, 'byte')})" if entry["payload_truncated"] else ""
    print_fields({**fields, "payload": f"{entry['payload_encoding']}{is_cut}"})
    for line in entry["payload"].splitlines():
        typer.echo(shown(line))


@app.command()
@with_broker
def delete(
    topic: Topic,
    *,
    is_sure: Yes = False,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """Delete a retained message. Subscribers of the topic receive an empty message, as when a client deletes it."""
    admin = broker()
    if not is_sure:
        entry = admin.get(f"{PATH}/{escape(topic)}?bytes=1")
        ask(f"delete the retained message of {shown(topic)} ({counted(entry['size'], 'byte')})?", "nothing was deleted")
    entry = admin.delete(f"{PATH}/{escape(topic)}")
    print_answer(entry, as_json, f"the retained message of {shown(topic)} is deleted")
