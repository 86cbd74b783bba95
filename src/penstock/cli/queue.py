"""`penstock queue`: the durable queues and streams of a running broker."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from penstock.cli.admin_client import Broker, Json, Yes, escape, with_broker
from penstock.cli.app import make_app
from penstock.cli.client_runner import counted
from penstock.cli.queue_messages import append, move, peek, replay
from penstock.cli.queue_options import PATH, GroupName, Name, Options, parse_options, path_of
from penstock.cli.tables import ask, print_entries, print_fields, print_json, shown
from penstock.core.errors import UsageError

app = make_app()

_COLUMNS = ("name", "type", "durable", "paused", "depth", "pending", "group_count", "consumers", "dead", "bytes")
_GROUP_COLUMNS = ("id", "consumers", "lag", "pending", "cursor", "committed", "delivered", "redelivered", "acked")
_PENDING_COLUMNS = ("offset", "consumer", "deliveries", "state", "due_in")
_DEFINED = ("limits", "retry", "dlq", "retention", "replication")


@app.callback()
def queue() -> None:
    """Look at durable queues and streams, make and change them, and move their messages.

    The broker must be running: it is found by its data directory, or by --url.
    """


@app.command()
@with_broker
def create(
    name: Name,
    *,
    kind: Annotated[
        Literal["classic", "stream"], typer.Option("--type", help="Work for consumers, or a log to read.")
    ] = "classic",
    is_ephemeral: Annotated[bool, typer.Option("--ephemeral", help="In memory only, and gone when unused.")] = False,
    topics: Annotated[
        list[str] | None,
        typer.Option("-t", "--topic", metavar="FILTER", help="What enters besides $queue/QUEUE/#; may be repeated."),
    ] = None,
    capture: Annotated[bool, typer.Option("--capture", help="Topics may be ordinary ones, outside $queue/.")] = False,
    options: Options = None,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """Make a queue. Once more with the same settings does nothing."""
    table = {"name": name, "type": kind, "durable": not is_ephemeral, "capture": capture, **parse_options(options)}
    if topics:
        table["topics"] = topics
    entry = broker().post(PATH, table)
    if as_json:
        print_json(entry)
        return
    typer.echo(f"{entry['type']} queue {shown(name)}: publish to $queue/{shown(name)}/KEY")


@app.command()
@with_broker
def update(
    name: Name,
    *,
    options: Options = None,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """Change settings of a queue. A queue of the settings file has its file's settings again after a restart."""
    changes = parse_options(options)
    if not changes:
        raise UsageError("nothing to change", "Say what: -o limits.max_depth=1000")
    entry = broker().patch(path_of(name), changes)
    if as_json:
        print_json(entry)
        return
    typer.echo(f"{shown(name)} changed: {', '.join(shown(each) for each in changes)}")


@app.command("list")
@with_broker
def list_some(
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="Names to show: * stands for any text, ? for a character.")
    ] = "*",
    *,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, max=10_000, help="So many at most.")] = 100,
    offset: Annotated[int, typer.Option("--offset", min=0, help="So many are left out at the beginning.")] = 0,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """List queues. By name; quote a pattern, or the shell takes it for file names."""
    admin = broker()
    answer = admin.get(f"{PATH}?filter={escape(pattern)}&limit={limit}&offset={offset}")
    if as_json:
        print_json(answer)
        return
    print_entries(_COLUMNS, answer["queues"])
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
    """Show one queue. What is in it, its settings, and its groups."""
    entry = broker().get(path_of(name))
    if as_json:
        print_json(entry)
        return
    definition = entry["definition"]
    plain = {field: value for field, value in entry.items() if field not in ("definition", "groups", "bindings")}
    plain["bindings"] = ", ".join(entry["bindings"])
    for field in ("visibility_timeout", "max_pending", "expires_after", "ack_durability", "overflow", "primary_group"):
        plain[field] = definition[field] if definition[field] != "" else None
    for part in _DEFINED:
        plain[part] = ", ".join(f"{key} {shown(value)}" for key, value in definition[part].items() if value != "")
    print_fields(plain)
    if entry["groups"]:
        print_entries(_GROUP_COLUMNS, entry["groups"])


@app.command()
@with_broker
def delete(
    name: Name,
    *,
    if_empty: Annotated[bool, typer.Option("--if-empty", help="Only when nothing waits in it.")] = False,
    if_unused: Annotated[bool, typer.Option("--if-unused", help="Only when nobody consumes it.")] = False,
    is_sure: Yes = False,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """Delete a queue. With its messages and groups; dead letters of it stay until their queue is deleted."""
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
        reserved = "there are [[queues]] in the settings file, or queue_manager.default_queue = false"
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
    """Remove all messages of a queue. Those delivered and not settled, too; its groups stay."""
    admin = broker()
    if not is_sure:
        entry = admin.get(path_of(name))
        ask(f"remove {counted(entry['messages'], 'message')} of {shown(name)}?", "nothing was removed")
    entry = admin.post(f"{path_of(name)}/purge", {})
    if as_json:
        print_json(entry)
        return
    typer.echo(f"{counted(entry['purged'], 'message')} removed from {shown(name)}")


@app.command()
@with_broker
def pause(
    name: Name,
    *,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """Stop deliveries. Messages and settlements are still taken; it stays so over a restart."""
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
    """Start deliveries again."""
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
    """List the groups of a queue. How far each is, and its consumers."""
    answer = broker().get(f"{path_of(name)}/groups")
    if as_json:
        print_json(answer)
        return
    print_entries(_GROUP_COLUMNS, answer["groups"])
    members = [{"group": group["id"], **member} for group in answer["groups"] for member in group["members"]]
    if members:
        print_entries(("group", "client_id", "prefetch", "unsettled", "since"), members)
    typer.echo(f"{counted(len(answer['groups']), 'group')}, offsets {answer['head']} to {answer['tail']}")


@app.command()
@with_broker
def pending(
    name: Name,
    group: GroupName,
    *,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, max=1_000, help="So many at most.")] = 100,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """List deliveries of a group that are not settled. With whom, how often, and when they are due again."""
    admin = broker()
    answer = admin.get(f"{path_of(name)}/pending?group={escape(group)}&limit={limit}")
    if as_json:
        print_json(answer)
        return
    print_entries(_PENDING_COLUMNS, answer["entries"])
    typer.echo(f"{len(answer['entries']):,} of {counted(answer['pending'], 'unsettled message')}")


@app.command()
@with_broker
def settle(
    name: Name,
    group: GroupName,
    verb: Annotated[
        Literal["ack", "nack", "reject", "claim"],
        typer.Argument(help="Done, later, to the dead letters, or now to whoever has room."),
    ],
    offsets: Annotated[list[int], typer.Argument(metavar="OFFSET...", min=0, help="As `pending` shows them.")],
    *,
    is_sure: Yes = False,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """Settle deliveries in place of their consumers. These can settle them no more."""
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
    before: Annotated[int, typer.Option("--before", metavar="OFFSET", min=0, help="The first one that stays.")],
    is_sure: Yes = False,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """Remove the messages before an offset. Those delivered and not settled, too."""
    admin = broker()
    if not is_sure:
        ask(f"remove what is before offset {before} of {shown(name)}?", "nothing was removed")
    entry = admin.post(f"{path_of(name)}/truncate", {"before": before})
    if as_json:
        print_json(entry)
        return
    typer.echo(f"{counted(entry['removed'], 'message')} removed from {shown(name)}, {entry['depth']:,} left")


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
    """Let a group go on elsewhere. What lies before that place is passed over, what lies after it comes again."""
    admin = broker()
    if not is_sure:
        ask(f"let group {shown(group)} of {shown(name)} go on at {shown(to)}?", "nothing was changed")
    entry = admin.post(f"{path_of(name)}/seek", {"group": group, "to": to})
    if as_json:
        print_json(entry)
        return
    typer.echo(f"{shown(entry['id'])} goes on at offset {entry['cursor']}, {counted(entry['lag'], 'message')} to go")


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
    """Delete a group nobody is in. It no longer holds back messages, and begins anew if somebody joins it."""
    admin = broker()
    if not is_sure:
        ask(f"delete group {shown(group)} of {shown(name)} and forget where it was?", "nothing was deleted")
    entry = admin.delete(f"{path_of(name)}/groups?group={escape(group)}")
    if as_json:
        print_json(entry)
        return
    typer.echo(f"group {shown(entry['id'])} of {shown(name)} deleted, {counted(entry['lag'], 'message')} behind")


for command in (peek, append, move, replay):
    app.command()(command)


def _say_paused(entry: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(entry)
        return
    state = "is paused" if entry["paused"] else "delivers"
    typer.echo(f"{shown(entry['name'])} {state}, {counted(entry['depth'], 'message')} in it")
