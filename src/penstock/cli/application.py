"""`penstock app`: the persistent APPLICATION clients of a running broker, their topics and how far behind they are."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from penstock.cli.admin_options import Broker, Json, Yes, with_broker
from penstock.cli.app import make_app
from penstock.cli.tables import ask, describe_expiry, print_answer, print_entries, print_fields, print_json, shown
from penstock.core.text import counted
from penstock.operate.client import AdminClient, escape
from penstock.operate.inspect.places import FORMS, Place, parse_place

app = make_app()

PATH = "/applications"
Client = Annotated[str, typer.Argument(metavar="CLIENT", help="A client id.")]
MOST_SHOWN = 20

_COLUMNS = ("client_id", "connected", "lag", "in_flight", "retries", "expired", "delivered", "topic")


@app.callback()
def application() -> None:
    """Manage persistent APPLICATION clients: those with a topic of their own in the log.

    The broker must be running: it is found by its data directory, or by --url.
    """


@app.command("list")
@with_broker
def list_all(
    *,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """List the clients. The lag is the number of messages not acknowledged yet."""
    entries = broker().get(PATH)
    if as_json:
        print_json(entries)
        return
    print_entries(_COLUMNS, entries)
    typer.echo(f"{counted(len(entries), 'APPLICATION client')}")


@app.command()
@with_broker
def show(
    client: Client,
    *,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """Show one client. Shows its topic, offsets, messages in flight and shared subscriptions."""
    entry = _get(broker(), client)
    if as_json:
        print_json(entry)
        return
    plain = {name: value for name, value in entry.items() if name != "shared"}
    plain["session_expiry"] = describe_expiry(plain.get("session_expiry"))
    print_fields({name: _describe_list(value) if isinstance(value, list) else value for name, value in plain.items()})
    if entry["shared"]:
        typer.echo("shared subscriptions")
        columns = ("share", "filter", "partitions", "lag", "topic", "group")
        print_entries(columns, entry["shared"])


@app.command()
@with_broker
def lag(
    client: Annotated[str | None, typer.Argument(metavar="[CLIENT]", help="A client id; none = all.")] = None,
    *,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """Show the lag of each topic. The client's own topic and those of its shared subscriptions."""
    admin = broker()
    entries = admin.get(PATH) if client is None else [_get(admin, client)]
    rows = [row for entry in entries for row in _lag_rows(entry)]
    rows.sort(key=lambda row: -row["lag"])
    if as_json:
        print_json(rows)
        return
    columns = ("client_id", "topic", "committed_offset", "end_offset", "lag")
    print_entries(columns, rows)
    # A shared topic is the same for all its members, and its messages wait once.
    total = sum({row["group"] or row["topic"]: row["lag"] for row in rows}.values())
    typer.echo(f"{counted(total, 'message')} in all")


@app.command()
@with_broker
def reset(
    client: Client,
    *,
    to: Annotated[str, typer.Option("--to", metavar="PLACE", help=f"Where it goes on reading: {FORMS}.")],
    is_sure: Yes = False,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """Continue at another offset of the topic. Messages before it are skipped; messages after it are
    delivered, again if necessary."""
    place = place_for_api(to, parse_place(to, "--to"))
    admin = broker()
    entry = _get(admin, client)
    if not is_sure:
        now = f"committed offset {shown(entry['committed_offset'])}, end {shown(entry['end_offset'])}"
        ask(f"reset {shown(client)} ({now}) to {to}?", "nothing was reset")
    entry = admin.post(f"{PATH}/{escape(client)}/reset", {"to": place})
    print_answer(
        entry,
        as_json,
        f"{shown(client)} goes on at offset {shown(entry['committed_offset'])}, "
        f"{counted(entry['lag'], 'message')} before the end",
    )


@app.command()
@with_broker
def delete(
    client: Client,
    *,
    is_sure: Yes = False,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """Delete a client. Deletes its session, its topic with all messages, and its offsets."""
    admin = broker()
    entry = _get(admin, client)
    if not is_sure:
        waiting = counted(entry["lag"], "message")
        ask(
            f"delete {shown(client)} and its topic {entry['topic']} with {waiting} not acknowledged?",
            "nothing was deleted",
        )
    entry = admin.delete(f"{PATH}/{escape(client)}")
    print_answer(entry, as_json, f"{shown(client)} deleted, with {entry['topic']}")


def place_for_api(text: str, place: Place) -> str | int:
    """A place as the broker takes it: times as moments, whatever the zone of this machine is."""
    if place.time_ms is not None:
        return datetime.fromtimestamp(place.time_ms / 1000, UTC).isoformat()
    if place.is_end or text == "begin":
        return text
    return place.offset or 0


def _get(admin: AdminClient, client: str) -> dict[str, Any]:
    entry: dict[str, Any] = admin.get(f"{PATH}/{escape(client)}")
    return entry


def _lag_rows(entry: dict[str, Any]) -> list[dict[str, Any]]:
    own = {name: entry[name] for name in ("client_id", "topic", "committed_offset", "end_offset", "lag")}
    return [{**own, "group": None}] + [
        {
            "client_id": entry["client_id"],
            "topic": shared["topic"],
            "committed_offset": None,
            "end_offset": None,
            "lag": shared["lag"],
            "group": shared["group"],
        }
        for shared in entry["shared"]
    ]


def _describe_list(values: list[Any]) -> str | None:
    texts = [" ".join(map(str, value)) if isinstance(value, list) else str(value) for value in values[:MOST_SHOWN]]
    more = f" and {len(values) - MOST_SHOWN:,} more" if len(values) > MOST_SHOWN else ""
    return f"{', '.join(texts)}{more}" if values else None
