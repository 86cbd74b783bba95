"""`penstock sub`: subscribe and print what comes."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from penstock.cli import client_options as shared
from penstock.cli.app import make_app
from penstock.cli.client_options import Connect, Connection, MosquittoCommand, make_connection, pick, with_connection
from penstock.cli.client_runner import run, warn
from penstock.cli.output import make_printer
from penstock.core import exit_codes
from penstock.core.errors import UsageError
from penstock_client.mqtt.client import Client
from penstock_client.mqtt.packets import Message
from penstock_schema import topic_filter

app = make_app()
Settle = Annotated[
    Literal["ack", "nack", "reject"] | None,
    typer.Option("--settle", help="Settlement of each message of a durable queue after it is printed (MQTT 5)."),
]


@app.command(cls=MosquittoCommand)
@with_connection
def sub(
    ctx: typer.Context,
    *,
    topics: Annotated[list[str] | None, typer.Option("-t", "--topic", help="Filter; repeatable.")] = None,
    qos: shared.Qos = 0,
    count: Annotated[int | None, typer.Option("-C", min=1, help="Exit after N messages.")] = None,
    timeout: Annotated[
        float | None, typer.Option("-W", min=0.001, help="Exit after this many seconds, with code 27.")
    ] = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Print the topic before the payload.")] = False,
    no_newline: Annotated[bool, typer.Option("-N", help="Do not print a newline after each message.")] = False,
    format: Annotated[str | None, typer.Option("-F", help="Format: %t %p %q %r %l %m %x %j %I %U …")] = None,
    no_stale: Annotated[bool, typer.Option("-R", help="Do not print retained messages.")] = False,
    retained_only: Annotated[
        bool, typer.Option("--retained-only", help="Only retained messages; exit at the first other one.")
    ] = False,
    remove_retained: Annotated[
        bool, typer.Option("--remove-retained", help="Clear received retained messages.")
    ] = False,
    filter_out: Annotated[
        list[str] | None, typer.Option("-T", "--filter-out", help="Filter of topics not to print; repeatable.")
    ] = None,
    unsubscribe: Annotated[list[str] | None, typer.Option("-U", "--unsubscribe", help="Unsubscribe first.")] = None,
    exit_when_subscribed: Annotated[bool, typer.Option("-E", help="Exit after subscribing.")] = False,
    settle: Settle = None,
    connect: Connect,
    quiet: shared.Quiet = False,
) -> None:
    """Subscribe and print messages, with the flags of mosquitto_sub."""
    connection = make_connection(connect())
    filters = [*(topics or []), *([connection.topic] if connection.topic else [])]
    options = pick(SubscribeOptions, ctx.params)
    if not filters and not unsubscribe:
        raise UsageError("-t is missing: the filter to subscribe to")
    if options.settle and connection.request.version < 5:
        raise UsageError("--settle needs -V mqttv5")
    run(_run(connection, options, filters), quiet=quiet)


@dataclass(frozen=True)
class SubscribeOptions:
    """What is printed and when it ends; field names are those of the command's parameters."""

    qos: int
    count: int | None
    timeout: float | None
    verbose: bool
    no_newline: bool
    format: str | None
    no_stale: bool
    retained_only: bool
    remove_retained: bool
    filter_out: list[str] | None
    unsubscribe: list[str] | None
    exit_when_subscribed: bool
    settle: str | None
    debug: bool
    quiet: bool

    def __post_init__(self) -> None:
        if self.no_stale and self.retained_only:
            raise UsageError("-R and --retained-only leave nothing to print")

    def is_printed(self, message: Message) -> bool:
        if message.retain and self.no_stale:
            return False
        return not any(topic_filter.matches(name, message.topic) for name in self.filter_out or [])


async def _run(connection: Connection, options: SubscribeOptions, filters: list[str]) -> int:
    try:
        async with asyncio.timeout(options.timeout):
            return await _subscribe_and_print(connection, options, filters)
    except TimeoutError:
        warn("timed out", quiet=options.quiet)
        return exit_codes.TIMEOUT


async def _subscribe_and_print(connection: Connection, options: SubscribeOptions, filters: list[str]) -> int:
    client = await Client.connect(connection.target, connection.request, debug=options.debug)
    try:
        if options.unsubscribe:
            await client.unsubscribe(
                options.unsubscribe, user_properties=connection.properties["unsubscribe"].get("user_properties")
            )
        if not await _subscribe(client, connection, options, filters):
            return exit_codes.FAILURE
        if not options.exit_when_subscribed:
            await _print_messages(client, options)
        return exit_codes.OK
    finally:
        await client.close(**connection.properties["disconnect"])


async def _subscribe(client: Client, connection: Connection, options: SubscribeOptions, filters: list[str]) -> bool:
    """False when the broker refused every filter."""
    if not filters:
        return True
    properties = connection.properties["subscribe"]
    answer = await client.subscribe(
        filters,
        options.qos,
        identifier=properties.get("subscription_identifiers", 0),
        user_properties=properties.get("user_properties"),
    )
    refusals = [answer.refusal(number) for number in range(len(answer.reasons))]
    for name, refusal in zip(filters, refusals, strict=False):
        if refusal:
            why = refusal if connection.request.version == 5 else "refused"
            warn(f"subscribing to {name!r} failed: {why}", quiet=options.quiet)
    return not all(refusals)


async def _print_messages(client: Client, options: SubscribeOptions) -> None:
    render = make_printer(options.format, verbose=options.verbose, no_newline=options.no_newline)
    printed = 0
    async for message in client.messages():
        if options.retained_only and not message.retain:
            return
        if not options.is_printed(message):
            client.acknowledge(message)
            continue
        if options.remove_retained and message.retain:
            await client.publish(message.topic, b"", qos=message.qos, retain=True)
        sys.stdout.buffer.write(render(message))
        sys.stdout.buffer.flush()
        if options.settle:
            await _settle(client, message, options)
        client.acknowledge(message)
        printed += 1
        if printed == options.count:
            return


async def _settle(client: Client, message: Message, options: SubscribeOptions) -> None:
    """Tells the queue; what is no delivery of one is only printed."""
    found = dict(message.properties.get("user_properties", ()))
    if not {"queue", "message-id", "group-id"} <= set(found):
        return
    pairs = [(name, found[name]) for name in ("message-id", "group-id")]
    topic = f"$queue/{found['queue']}/${options.settle}"
    answer = await client.publish(topic, b"", qos=1, properties={"user_properties": pairs})
    if refusal := answer.refusal():
        warn(f"the {options.settle} of {found['message-id']} was refused: {refusal}", quiet=options.quiet)
