"""`penstock queue peek|append|move|replay`: messages of durable queues."""

from __future__ import annotations

import base64
import os
from typing import Annotated, Any

import typer

from penstock.cli.admin_options import Broker, Json, Yes, with_broker
from penstock.cli.queue.options import Count, Filter, Name, path_of
from penstock.cli.tables import ask, print_answer, print_entries, print_json, shown
from penstock.core.errors import UsageError
from penstock.core.text import counted
from penstock.operate.client import AdminClient, escape

_COLUMNS = ("offset", "key", "client_id", "published", "size", "payload")


@with_broker
def peek(
    name: Name,
    *,
    start: Annotated[
        int | None,
        typer.Option(
            "--from",
            metavar="OFFSET",
            help="Offset to start at, -N = N before the end. [default: the oldest waiting message]",
        ),
    ] = None,
    group: Annotated[
        str | None, typer.Option("-g", "--group", help="Start with the next message of this group.")
    ] = None,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, max=1_000, help="Maximum number to show.")] = 10,
    most_bytes: Annotated[
        int, typer.Option("--bytes", min=1, max=16 * 1024 * 1024, help="Maximum bytes of each payload.")
    ] = 64,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """Look at messages without taking them. With all their properties as JSON."""
    query = f"limit={limit}&bytes={most_bytes}"
    query += "" if start is None else f"&from={start}"
    query += "" if group is None else f"&group={escape(group)}"
    answer = broker().get(f"{path_of(name)}/messages?{query}")
    if as_json:
        print_json(answer)
        return
    print_entries(_COLUMNS, [_shorten(message) for message in answer["messages"]])
    more = " (there are more: --limit, --from)" if answer["truncated"] else ""
    shown_messages = counted(len(answer["messages"]), "message")
    typer.echo(f"{shown_messages}, offsets {answer['head']} to {answer['tail']}{more}")


@with_broker
def append(
    name: Name,
    *,
    message: Annotated[str, typer.Option("-m", "--message", help="The payload.")],
    key: Annotated[str, typer.Option("-k", "--key", help="The routing key: what follows $queue/QUEUE/.")] = "",
    properties: Annotated[
        list[str] | None, typer.Option("-P", "--user-property", metavar="NAME=VALUE", help="Repeatable.")
    ] = None,
    expiry: Annotated[
        float, typer.Option("--expiry", min=0, help="Seconds until it expires; 0 = the default of the queue.")
    ] = 0.0,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """Append a message to this queue only, whatever its topic is bound to. It is durable when this returns."""
    pairs = [_pair(text) for text in properties or []]
    payload = base64.b64encode(os.fsencode(message)).decode()
    document = {"key": key, "payload_base64": payload, "user_properties": pairs, "expiry": expiry}
    answer = broker().post(f"{path_of(name)}/messages", document)
    print_answer(answer, as_json, f"appended {shown(answer['message_id'])}")


@with_broker
def move(
    source: Name,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Another queue.")],
    *,
    count: Count = None,
    topic_filter: Filter = "",
    is_sure: Yes = False,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """Move messages to another queue, the oldest first. Consumers of the first queue no longer receive them."""
    admin = broker()
    if not is_sure:
        ask(f"move {_selected(count, topic_filter)} of {shown(source)} to {shown(target)}?", "nothing was moved")
    total = _repeat(admin, f"{path_of(source)}/move", {"to": target}, count, topic_filter)
    print_answer(
        {"source": source, "target": target, **total},
        as_json,
        f"{counted(total['moved'], 'message')} moved from {shown(source)} to {shown(target)}{_stayed(total)}",
    )


@with_broker
def replay(
    name: Name,
    *,
    count: Count = None,
    topic_filter: Filter = "",
    is_sure: Yes = False,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """Return dead letters to the queues they came from. They are delivered there again, to all groups."""
    admin = broker()
    if not is_sure:
        ask(f"replay {_selected(count, topic_filter)} of {shown(name)}?", "nothing was replayed")
    total = _repeat(admin, f"{path_of(name)}/replay", {}, count, topic_filter)
    print_answer(
        {"source": name, **total},
        as_json,
        f"{counted(total['moved'], 'message')} of {shown(name)} replayed{_stayed(total)}",
    )


def _repeat(
    admin: AdminClient, path: str, document: dict[str, Any], count: int | None, topic_filter: str
) -> dict[str, Any]:
    """The broker moves some thousands at a time; this goes on until all are moved."""
    total = {"moved": 0, "skipped": 0}
    while True:
        wanted = {} if count is None else {"count": count - total["moved"]}
        answer = admin.post(path, {**document, **wanted, "filter": topic_filter})
        total["moved"] += answer["moved"]
        total["skipped"] = answer["skipped"]
        is_done = not answer["truncated"] or total["moved"] == count
        if is_done or answer["moved"] == 0:
            return {**total, "left": answer["left"]}


def _selected(count: int | None, topic_filter: str) -> str:
    what = "all messages" if count is None else f"up to {counted(count, 'message')}"
    return f"{what} with keys {shown(topic_filter)}" if topic_filter else what


def _stayed(total: dict[str, Any]) -> str:
    skipped = f", {total['skipped']:,} had nowhere to go" if total["skipped"] else ""
    return f"{skipped}, {total['left']:,} left"


def _pair(text: str) -> list[str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"-P {text!r}: write NAME=VALUE")
    return [name, value]


def _shorten(message: dict[str, Any]) -> dict[str, Any]:
    if "error" in message:
        return {**dict.fromkeys(_COLUMNS), "offset": message["offset"], "payload": message["error"]}
    return {**message, "payload": f"{message['payload']}{'…' if message['payload_truncated'] else ''}"}
