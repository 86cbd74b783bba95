"""`penstock queue`: the durable queues and streams of a running broker."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from penstock.cli.admin_options import Broker, Json, Yes, with_broker
from penstock.cli.app import make_app
from penstock.cli.queue.messages import append, move, peek, replay
from penstock.cli.queue.options import (
    PATH,
    SETTINGS_HELP,
    GroupName,
    Name,
    Options,
    parse_options,
    path_of,
    read_definition,
    show_setting,
)
from penstock.cli.tables import ask, print_answer, print_entries, print_fields, print_json, shown
from penstock.core.errors import UsageError
from penstock.core.text import counted
from penstock.operate.client import escape
from penstock.settings.units import show_age

app = make_app()

_COLUMNS = (
    "name",
    "type",
    "depth",
    "oldest",
    "held_back_by",
    "pending",
    "groups",
    "consumers",
    "dead",
    "paused",
    "durable",
    "origin",
    "bytes",
)
_GROUP_COLUMNS = (
    "id",
    "consumers",
    "lag",
    "pending",
    "cursor",
    "committed",
    "delivered",
    "redelivered",
    "acked",
    "nacked",
    "rejected",
    "last_used",
)
_PENDING_COLUMNS = ("offset", "consumer", "deliveries", "state", "due_in")
_DEFINED = ("limits", "retry", "dlq", "retention", "replication")
_SHOWN_ABOVE = ("name", "type", "durable", "paused", "origin", "topics")


@app.callback()
def queue() -> None:
    """Manage durable queues and streams, and move their messages.

    The broker must be running: it is found by its data directory, or by --url.
    """


@app.command(epilog=SETTINGS_HELP)
@with_broker
def create(
    name: Name,
    *,
    kind: Annotated[
        Literal["classic", "stream"] | None,
        typer.Option("--type", help="classic: work for consumers; stream: a log to read.", show_default="classic"),
    ] = None,
    is_ephemeral: Annotated[
        bool, typer.Option("--ephemeral", help="Keep it in memory only, and delete it when unused.")
    ] = False,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "-t",
            "--topic",
            metavar="FILTER",
            help="Topic filter of messages to add besides $queue/QUEUE/#; repeatable.",
        ),
    ] = None,
    capture: Annotated[bool, typer.Option("--capture", help="Allow topics outside $queue/.")] = False,
    options: Options = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Settings of another queue as `show --json` prints them, - for standard input; options come on top.",
        ),
    ] = None,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """Create a queue. Running it again with the same settings does nothing."""
    given = {"type": kind, "capture": capture, "topics": topics}
    table = {} if source is None else read_definition(source)
    table |= {"name": name, **{key: value for key, value in given.items() if value}}
    if is_ephemeral:
        table["durable"] = False
    table |= parse_options(options)
    entry = broker().post(PATH, table)
    print_answer(entry, as_json, f"{entry['type']} queue {shown(name)}: publish to $queue/{shown(name)}/KEY")


@app.command(epilog=SETTINGS_HELP)
@with_broker
def update(
    name: Name,
    *,
    options: Options = None,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """Change settings of a queue. A queue from the settings file returns to the file's settings after a restart."""
    changes = parse_options(options)
    if not changes:
        raise UsageError("nothing to change", "Say what: -o limits.max_depth=1000")
    entry = broker().patch(path_of(name), changes)
    print_answer(entry, as_json, f"{shown(name)} changed: {', '.join(shown(each) for each in changes)}")


@app.command("list")
@with_broker
def list_some(
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="Names to show: * matches any characters, ? matches one.")
    ] = "*",
    *,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, max=10_000, help="Maximum number to show.")] = 100,
    offset: Annotated[int, typer.Option("--offset", min=0, help="Number of entries to skip.")] = 0,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """List queues. By name; quote a pattern, or the shell takes it for file names."""
    admin = broker()
    answer = admin.get(f"{PATH}?filter={escape(pattern)}&limit={limit}&offset={offset}&ages=1")
    if as_json:
        print_json(answer)
        return
    print_entries(_COLUMNS, [_row(entry) for entry in answer["queues"]], names=("name", "held_back_by"))
    more = " (there are more: --limit, --offset)" if answer["truncated"] else ""
    typer.echo(f"{len(answer['queues']):,} of {counted(answer['total'], 'queue')}{more}")


@app.command()
@with_broker
def show(
    name: Name,
    *,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """Show one queue. Shows its messages, settings and groups."""
    entry = broker().get(path_of(name))
    if as_json:
        print_json(entry)
        return
    plain = {field: value for field, value in entry.items() if field not in ("definition", "groups", "bindings")}
    plain["oldest_age"] = _age(entry["oldest_age"])
    plain["bindings"] = ", ".join(entry["bindings"])
    print_fields({**plain, **_settings(entry["definition"])})
    if entry["groups"]:
        _print_groups(entry["groups"])
    if entry["held_back_by"] is not None:
        group, since = shown(entry["held_back_by"]), entry["held_back_since"]
        typer.echo(f"held back by group {group}, no consumer since {since}")
        typer.echo(f"if it is no longer used: penstock queue delete-group {shown(name)} {group}")


def _row(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "oldest": _age(entry["oldest_age"]), "groups": entry["group_count"]}


def _age(seconds: float | None) -> str | None:
    return None if seconds is None else show_age(seconds)


def _print_groups(groups: list[dict[str, Any]]) -> None:
    """The time of the last use as an age, by the clock of this machine."""
    rows = [{**group, "last_used": "in use" if group["idle_since"] is None else _ago(group)} for group in groups]
    print_entries(_GROUP_COLUMNS, rows, names=("id",))


def _ago(group: dict[str, Any]) -> str:
    return f"{show_age(time.time() - datetime.fromisoformat(group['idle_since']).timestamp())} ago"


def _settings(definition: dict[str, Any]) -> dict[str, object]:
    """Return the settings of a queue, with times and sizes as -o takes them and one line for each table."""
    found: dict[str, object] = {}
    for name, value in definition.items():
        if name in _DEFINED:
            inner = {key: show_setting(f"{name}.{key}", each) for key, each in value.items() if each != ""}
            found[name] = ", ".join(f"{key} {each}" for key, each in inner.items())
        elif name not in _SHOWN_ABOVE:
            found[name] = show_setting(name, value) if value != "" else None
    return found


@app.command()
@with_broker
def delete(
    name: Name,
    *,
    if_empty: Annotated[bool, typer.Option("--if-empty", help="Only if it has no messages.")] = False,
    if_unused: Annotated[bool, typer.Option("--if-unused", help="Only if it has no consumers.")] = False,
    is_sure: Yes = False,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """Delete a queue. Deletes its messages and groups; its dead letters stay until their queue is deleted."""
    admin = broker()
    if not is_sure:
        entry = admin.get(path_of(name))
        waiting, users = counted(entry["depth"], "message"), counted(entry["consumers"], "consumer")
        ask(f"delete {shown(name)} with {waiting} and {users}?", "nothing was deleted")
    entry = admin.delete(f"{path_of(name)}?if_empty={int(if_empty)}&if_unused={int(if_unused)}")
    if as_json:
        print_json(entry)
        return
    messages = counted(entry["messages"], "message")
    if entry.get("deleted", True):
        typer.echo(f"{shown(name)} deleted, with {messages}")
    else:
        typer.echo(f"{shown(name)} is being deleted, with {messages}")
        typer.echo("its log cannot be removed now, that is tried again; until then no other queue has this name")
    if entry["origin"] == "config":
        # the reserved queue is in no file
        reserved = "there are [[queues]] in the settings file, or durable_queues.default_queue = false"
        way = reserved if name == "mqtt" else "it is taken out of the settings file"
        typer.echo(f"it comes back with the next start, unless {way}")


@app.command()
@with_broker
def purge(
    name: Name,
    *,
    is_sure: Yes = False,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """Remove all messages of a queue. Includes delivered messages that are not settled; its groups stay."""
    admin = broker()
    if not is_sure:
        entry = admin.get(path_of(name))
        ask(f"remove {counted(entry['messages'], 'message')} of {shown(name)}?", "nothing was removed")
    entry = admin.post(f"{path_of(name)}/purge", {})
    print_answer(entry, as_json, f"{counted(entry['purged'], 'message')} removed from {shown(name)}")


@app.command()
@with_broker
def pause(
    name: Name,
    *,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """Stop deliveries. Messages and settlements are still accepted; the queue stays paused across a restart."""
    entry = broker().post(f"{path_of(name)}/pause", {})
    _say_paused(entry, as_json=as_json)


@app.command()
@with_broker
def resume(
    name: Name,
    *,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """Resume deliveries."""
    entry = broker().post(f"{path_of(name)}/resume", {})
    _say_paused(entry, as_json=as_json)


@app.command()
@with_broker
def groups(
    name: Name,
    *,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """List the groups of a queue. Shows the position and the consumers of each."""
    answer = broker().get(f"{path_of(name)}/groups")
    if as_json:
        print_json(answer)
        return
    _print_groups(answer["groups"])
    members = [{"group": group["id"], **member} for group in answer["groups"] for member in group["members"]]
    if members:
        columns = ("group", "client_id", "prefetch", "unsettled", "since")
        print_entries(columns, members, names=("group", "client_id"))
    typer.echo(f"{counted(len(answer['groups']), 'group')}, offsets {answer['head']} to {answer['tail']}")


@app.command()
@with_broker
def pending(
    name: Name,
    group: GroupName,
    *,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, max=1_000, help="Maximum number to show.")] = 100,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """List deliveries of a group that are not settled. Shows the consumer, the count, and when each is due again."""
    admin = broker()
    answer = admin.get(f"{path_of(name)}/pending?group={escape(group)}&limit={limit}")
    if as_json:
        print_json(answer)
        return
    print_entries(_PENDING_COLUMNS, answer["entries"], names=("consumer",))
    typer.echo(f"{len(answer['entries']):,} of {counted(answer['pending'], 'unsettled message')}")


@app.command()
@with_broker
def settle(
    name: Name,
    group: GroupName,
    verb: Annotated[
        Literal["ack", "nack", "reject", "claim"],
        typer.Argument(help="ack: done; nack: retry later; reject: dead-letter; claim: deliver now to any consumer."),
    ],
    offsets: Annotated[list[int], typer.Argument(metavar="OFFSET...", min=0, help="Offsets, as shown by `pending`.")],
    *,
    is_sure: Yes = False,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """Settle deliveries on behalf of their consumers. The consumers can no longer settle them."""
    admin = broker()
    if not is_sure:
        what = counted(len(offsets), "message")
        ask(f"{verb} {what} of group {shown(group)} of {shown(name)}?", "nothing was settled")
    answer = admin.post(f"{path_of(name)}/{verb}", {"group": group, "offsets": offsets})
    if as_json:
        print_json(answer)
        return
    unknown = f", not pending: {', '.join(map(str, answer['unknown']))}" if answer["unknown"] else ""
    typer.echo(f"{verb} of {counted(answer['settled'], 'message')}, {answer['pending']:,} unsettled{unknown}")


@app.command()
@with_broker
def truncate(
    name: Name,
    *,
    before: Annotated[int, typer.Option("--before", metavar="OFFSET", min=0, help="First offset to keep.")],
    is_sure: Yes = False,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """Remove the messages before an offset. Includes delivered messages that are not settled."""
    admin = broker()
    if not is_sure:
        ask(f"remove what is before offset {before} of {shown(name)}?", "nothing was removed")
    entry = admin.post(f"{path_of(name)}/truncate", {"before": before})
    print_answer(
        entry, as_json, f"{counted(entry['removed'], 'message')} removed from {shown(name)}, {entry['depth']:,} left"
    )


@app.command()
@with_broker
def seek(
    name: Name,
    group: GroupName,
    *,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="PLACE", help="first, last, an offset, -N (before the end), or timestamp=MILLISECONDS."
        ),
    ],
    is_sure: Yes = False,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """Move a group to another position. Messages before it are skipped, messages after it are delivered again."""
    admin = broker()
    if not is_sure:
        ask(f"let group {shown(group)} of {shown(name)} go on at {shown(to)}?", "nothing was changed")
    entry = admin.post(f"{path_of(name)}/seek", {"group": group, "to": to})
    print_answer(
        entry,
        as_json,
        f"{shown(entry['id'])} goes on at offset {entry['cursor']}, {counted(entry['lag'], 'message')} to go",
    )


@app.command("delete-group")
@with_broker
def delete_group(
    name: Name,
    group: GroupName,
    *,
    is_sure: Yes = False,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """Delete a group without consumers. It no longer holds back messages, and starts over when a consumer joins it."""
    admin = broker()
    if not is_sure:
        ask(f"delete group {shown(group)} of {shown(name)} and forget where it was?", "nothing was deleted")
    entry = admin.delete(f"{path_of(name)}/groups?group={escape(group)}")
    print_answer(
        entry,
        as_json,
        f"group {shown(entry['id'])} of {shown(name)} deleted, {counted(entry['lag'], 'message')} behind",
    )


for command in (peek, append, move, replay):
    app.command()(command)


def _say_paused(entry: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(entry)
        return
    state = "is paused" if entry["paused"] else "delivers"
    typer.echo(f"{shown(entry['name'])} {state}, {counted(entry['depth'], 'message')} in it")
