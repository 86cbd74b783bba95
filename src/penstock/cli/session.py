"""`penstock session`: the sessions of a running broker, connected or not."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.cli.admin_options import Broker, Json, Yes, with_broker
from penstock.cli.app import make_app
from penstock.cli.tables import ask, describe_expiry, print_answer, print_entries, print_fields, print_json, shown
from penstock.core.text import counted
from penstock.operate.client import AdminClient, escape

app = make_app()

PATH = "/sessions"
Client = Annotated[str, typer.Argument(metavar="CLIENT", help="A client id.")]

_COLUMNS = (
    "client_id",
    "username",
    "client_type",
    "connected",
    "version",
    "peer",
    "subscriptions",
    "in_flight",
    "queued",
    "stored",
    "dropped",
)
_OF_A_FILTER = ("filter", "qos", "no_local", "retain_as_published", "retain_handling", "identifier")


@app.callback()
def session() -> None:
    """Show sessions, disconnect their clients, and end them.

    The broker must be running: it is found by its data directory, or by --url.
    """


@app.command("list")
@with_broker
def list_some(
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="Client ids to show: * matches any characters, ? matches one.")
    ] = "*",
    *,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, max=10_000, help="Maximum number to show.")] = 100,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """List sessions. Oldest first; quote a pattern, or the shell takes it for file names."""
    admin = broker()
    answer = admin.get(f"{PATH}?filter={escape(pattern)}&limit={limit}")
    if as_json:
        print_json(answer)
        return
    entries = answer["sessions"]
    print_entries(_COLUMNS, [{"stored": None, **entry, "dropped": sum(entry["dropped"].values())} for entry in entries])
    more = " (there are more: --limit)" if answer["truncated"] else ""
    typer.echo(f"{len(entries):,} of {counted(answer['total'], 'session')}{more}")


@app.command()
@with_broker
def show(
    client: Client,
    *,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """Show one session. Shows waiting messages, drops and subscriptions."""
    entry = _get(broker(), client)
    if as_json:
        print_json(entry)
        return
    plain = {name: value for name, value in entry.items() if not name.startswith("filters")}
    plain["session_expiry"] = describe_expiry(entry["session_expiry"])
    plain["dropped"] = ", ".join(f"{cause} {count:,}" for cause, count in entry["dropped"].items()) or None
    print_fields(plain)
    if entry["filters"]:
        print_entries(_OF_A_FILTER, entry["filters"])
    if entry["filters_truncated"]:
        typer.echo(f"the first {len(entry['filters']):,} subscriptions")


@app.command()
@with_broker
def kick(
    client: Client,
    *,
    is_sure: Yes = False,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """Disconnect a client. Its session stays, and it may reconnect at once."""
    admin = broker()
    if not is_sure:
        entry = _get(admin, client)
        ask(f"disconnect {shown(client)} ({shown(entry['peer'])})?", "nobody was disconnected")
    entry = admin.post(f"{PATH}/{escape(client)}/kick", {})
    if as_json:
        print_json(entry)
        return
    what = "its session stays" if entry["session_expiry"] else "its session ended with the connection"
    typer.echo(f"{shown(client)} disconnected, {what}")


@app.command()
@with_broker
def delete(
    client: Client,
    *,
    is_sure: Yes = False,
    broker: Broker,
    as_json: Json = False,
) -> None:
    """Delete a session. Disconnects the client and deletes its subscriptions and stored messages."""
    admin = broker()
    if not is_sure:
        entry = _get(admin, client)
        waiting = counted(entry["in_flight"] + entry["queued"] + (entry["stored"] or 0), "message")
        subscriptions = counted(entry["subscriptions"], "subscription")
        ask(f"delete the session of {shown(client)} with {subscriptions} and {waiting}?", "nothing was deleted")
    entry = admin.delete(f"{PATH}/{escape(client)}")
    print_answer(entry, as_json, f"the session of {shown(client)} is deleted")


def _get(admin: AdminClient, client: str) -> dict[str, Any]:
    entry: dict[str, Any] = admin.get(f"{PATH}/{escape(client)}")
    return entry
