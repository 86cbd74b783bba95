"""`penstock pub`: publish messages."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli import client_options as shared
from penstock.cli.app import make_app
from penstock.cli.client_options import Connect, Connection, MosquittoCommand, make_connection, pick, with_connection
from penstock.cli.client_runner import run, stdin_lines, warn
from penstock.core import exit_codes
from penstock.core.errors import UsageError
from penstock.core.text import counted
from penstock_client.mqtt.client import Client, ConnectionClosed

app = make_app()


@app.command(cls=MosquittoCommand)
@with_connection
def pub(
    ctx: typer.Context,
    *,
    topic: Annotated[str | None, typer.Option("-t", "--topic", help="Topic to publish to.")] = None,
    message: Annotated[str | None, typer.Option("-m", "--message", help="Payload.")] = None,
    file: Annotated[Path | None, typer.Option("-f", "--file", help="Send the contents of a file.")] = None,
    lines: Annotated[bool, typer.Option("-l", "--stdin-line", help="Send each line of standard input.")] = False,
    null: Annotated[bool, typer.Option("-n", "--null-message", help="Send an empty payload.")] = False,
    stdin: Annotated[bool, typer.Option("-s", "--stdin-file", help="Send standard input as one message.")] = False,
    qos: shared.Qos = 0,
    retain: Annotated[bool, typer.Option("-r", "--retain", help="Retain the message.")] = False,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Publish N times.")] = 1,
    repeat_delay: Annotated[float, typer.Option("--repeat-delay", min=0, help="Seconds between repeats.")] = 0.0,
    max_inflight: Annotated[
        int, typer.Option("-M", "--max-inflight", min=1, max=65535, help="QoS 1 and 2 messages under way at once.")
    ] = 20,
    connect: Connect,
    quiet: shared.Quiet = False,
) -> None:
    """Publish messages, with the flags of mosquitto_pub."""
    connection = make_connection(connect())
    options = pick(PublishOptions, ctx.params)
    work = _publish_all(connection, options, _checked_topic(topic or connection.topic))
    # Who ends what comes from standard input has sent all he wanted; else a signal means that something was not sent.
    run(work, quiet=quiet, is_endless=options.lines)


@dataclass(frozen=True)
class PublishOptions:
    """What is published and how; field names are those of the command's parameters."""

    message: str | None
    file: Path | None
    lines: bool
    null: bool
    stdin: bool
    qos: int
    retain: bool
    repeat: int
    repeat_delay: float
    max_inflight: int
    debug: bool
    quiet: bool

    def __post_init__(self) -> None:
        if sum((self.message is not None, self.file is not None, self.lines, self.null, self.stdin)) != 1:
            raise UsageError("say what to publish with one of -m, -f, -l, -n and -s")
        if self.lines and self.repeat > 1:
            raise UsageError("--repeat cannot be used with -l")


def _checked_topic(topic: str | None) -> str:
    if not topic:
        raise UsageError("-t is missing: the topic to publish to")
    if "+" in topic or "#" in topic:
        raise UsageError(f"-t {topic!r}: a topic to publish to has no + or #")
    return topic


async def _publish_all(connection: Connection, options: PublishOptions, topic: str) -> int:
    payloads = _payloads(options)
    client = await Client.connect(
        connection.target, connection.request, max_inflight=options.max_inflight, debug=options.debug
    )
    tally = Tally()
    running: set[asyncio.Task[None]] = set()
    try:
        async for payload in payloads:
            publishing = _publish_one(client, connection, options, tally, topic=topic, payload=payload)
            if options.qos == 0:
                await publishing
                continue
            running.add(asyncio.create_task(publishing))
            # The client limits what is under way; this limits what waits for it.
            if len(running) >= options.max_inflight:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                # All of them are asked how they ended: asyncio reports each failure that nobody has looked at.
                await _finish(done, running)
        await _finish(running, set())
    except ConnectionClosed as lost:
        raise tally.explain(lost, options) from None
    finally:
        await client.close(**connection.properties["disconnect"])
    return exit_codes.FAILURE if tally.refused else exit_codes.OK


@dataclass
class Tally:
    """What became of the messages so far; those of QoS 0 are answered as soon as they are sent."""

    started: int = 0
    accepted: int = 0
    refused: int = 0

    def note(self, *, is_accepted: bool) -> None:
        if is_accepted:
            self.accepted += 1
        else:
            self.refused += 1

    def explain(self, lost: ConnectionClosed, options: PublishOptions) -> ConnectionClosed:
        """The same end of the connection, with what it meant for the messages."""
        answered = self.accepted + self.refused
        if options.qos == 0:
            hint = f"{counted(answered, 'message')} sent before; QoS 0 is not acknowledged, so some may be lost"
        else:
            hint = f"{counted(answered, 'message')} acknowledged, {self.started - answered:,} not"
        if options.lines:
            hint += "; what followed on standard input was not sent"
        return ConnectionClosed(lost.message, hint, exit_code=lost.exit_code)


async def _finish(done: set[asyncio.Task[None]], others: set[asyncio.Task[None]]) -> None:
    """Waits for `done`; when one of them failed, for the others as well, and raises the first failure."""
    failures = [end for end in await asyncio.gather(*done, return_exceptions=True) if end is not None]
    if failures:
        # The connection is gone: the others fail at once, or have just been answered.
        await asyncio.gather(*others, return_exceptions=True)
        raise failures[0]


async def _publish_one(
    client: Client, connection: Connection, options: PublishOptions, tally: Tally, *, topic: str, payload: bytes
) -> None:
    tally.started += 1
    properties: dict[str, Any] = connection.properties["publish"]
    answer = await client.publish(topic, payload, qos=options.qos, retain=options.retain, properties=properties)
    refusal = answer.refusal()
    if refusal:
        warn(f"publishing to {topic!r} failed: {refusal}", quiet=options.quiet)
    tally.note(is_accepted=not refusal)


async def _payloads(options: PublishOptions) -> AsyncIterator[bytes]:
    if options.lines:
        async for line in stdin_lines():
            yield line
        return
    payload = await asyncio.to_thread(_one_payload, options)
    for number in range(options.repeat):
        if number and options.repeat_delay:
            await asyncio.sleep(options.repeat_delay)
        yield payload


def _one_payload(options: PublishOptions) -> bytes:
    if options.message is not None:
        return os.fsencode(options.message)
    if options.stdin:
        return sys.stdin.buffer.read()
    if options.file is not None:
        try:
            return options.file.read_bytes()
        except OSError as error:
            raise UsageError(f"-f {options.file}: {error.strerror}") from None
    return b""
