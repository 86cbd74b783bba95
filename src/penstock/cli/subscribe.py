"""`penstock subscribe`: the rows of query topics, as they arrive."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import typer

from penstock.cli import data_options as data
from penstock.cli.app import make_app
from penstock.cli.client_options import pick
from penstock.cli.client_runner import run, warn
from penstock.cli.data_options import DEFAULT_SERVER, DataConnection
from penstock.cli.tables import shown
from penstock.core import exit_codes
from penstock.core.errors import UsageError
from penstock.operate.inspect.records import as_text
from penstock_client.consumer import AsyncConsumer
from penstock_client.errors import TopicRefused
from penstock_client.messages import Block, Message
from penstock_client.partitions import TopicPartition

app = make_app()
SUBSCRIBE_MS = 10_000  # a user at a terminal should learn that the broker is unreachable
_ROWS = msgspec.json.Decoder(list[msgspec.Raw])
_VALUES = msgspec.json.Decoder(list[dict[str, Any]])

EXAMPLES = """
\b
  penstock sql 'CREATE TOPIC hot AS SELECT topic, payload.temp AS t FROM "sensors/#" WHERE payload.temp > 30'
  penstock subscribe hot                          look at what comes from now on
  penstock subscribe hot -g alarms --from earliest   read everything, and go on there the next time
  penstock subscribe hot -g alarms --json | jq .t
"""


@app.command(epilog=EXAMPLES)
def subscribe(
    ctx: typer.Context,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC…", help="Query topics: `penstock sql 'SHOW TOPICS'`.")],
    *,
    group: Annotated[
        str | None,
        typer.Option(
            "-g",
            "--group",
            help="Consumer group: shares the partitions with its other members, and goes on where it was. Without it, "
            "a group for this once, and nothing is committed.",
        ),
    ] = None,
    start: Annotated[
        Literal["earliest", "latest", "none"],
        typer.Option("--from", help="Where a group without a committed offset starts; none = report an error."),
    ] = "latest",
    commit: Annotated[
        Literal["auto", "none"],
        typer.Option("--commit", help="auto: commit printed rows; none: commit nothing."),
    ] = "auto",
    count: Annotated[int | None, typer.Option("-C", "--count", min=1, help="Exit after N rows.")] = None,
    timeout: Annotated[float | None, typer.Option("-W", min=0.001, help="Exit after seconds, with code 27.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    replay: Annotated[
        bool,
        typer.Option("--replay", help="Replay at the speed of the messages; commit nothing. Needs --from earliest."),
    ] = False,
    options: Annotated[
        list[str] | None,
        typer.Option("-o", "--option", metavar="KEY=VALUE", help="Consumer property, such as min.poll.rows=100."),
    ] = None,
    client_id: Annotated[str, typer.Option("-i", "--id", help="Client id, shown by SHOW CONSUMERS.")] = "",
    server: data.Server = DEFAULT_SERVER,
    user: data.User = "",
    password: data.Password = "",
    password_file: data.PasswordFile = None,
    cafile: data.CaFile = "",
    cert: data.Cert = "",
    key: data.Key = "",
    tls: data.SystemCertificates = False,
    insecure: data.Insecure = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not print error messages.")] = False,
) -> None:
    """Print the rows of query topics as they arrive.

    Ctrl-C commits the printed rows and leaves the group.
    """
    config: dict[str, Any] = {
        **pick(DataConnection, ctx.params).config(),
        "group.id": group or f"penstock-cli-{secrets.token_hex(4)}",
        "client.id": client_id,
        "auto.offset.reset": start,
        "auto.commit.interval.ms": 1_000,
        "enable.auto.commit": group is not None and commit == "auto" and not replay,
        "enable.replay": replay,
        "subscribe.timeout.ms": SUBSCRIBE_MS,
        **_parse(options or []),
    }
    run(_run(config, Wishes(topics, count, timeout, as_json, quiet)), quiet=quiet)


@dataclass(frozen=True)
class Wishes:
    topics: list[str]
    count: int | None
    timeout: float | None
    as_json: bool
    quiet: bool


def _parse(options: list[str]) -> dict[str, str]:
    pairs = [option.partition("=") for option in options]
    for name, equals, _ in pairs:
        if not equals or not name:
            raise UsageError(f"-o {name!r}: write KEY=VALUE")
    return {name.strip(): value.strip() for name, _, value in pairs}


async def _run(config: dict[str, Any], wishes: Wishes) -> int:
    consumer = AsyncConsumer(config)
    try:
        async with asyncio.timeout(wishes.timeout):
            await consumer.subscribe(wishes.topics)
            return await _print_rows(consumer, wishes)
    except TimeoutError:
        warn("timed out", quiet=wishes.quiet)
        return exit_codes.TIMEOUT
    finally:
        await consumer.close()


async def _print_rows(consumer: AsyncConsumer, wishes: Wishes) -> int:
    printer = JsonPrinter() if wishes.as_json else TablePrinter(is_named=len(wishes.topics) > 1)
    left = sys.maxsize if wishes.count is None else wishes.count
    refused: set[str] = set()
    while left > 0:
        message = await consumer.poll()
        if message is None:
            continue
        error = message.error()
        if error is not None:
            warn(str(error), quiet=wishes.quiet)
            refused |= {message.topic()} if isinstance(error, TopicRefused) else set()
            if refused >= set(wishes.topics):
                return exit_codes.FAILURE
            continue
        left -= _print_message(consumer, message, printer, left)
    return exit_codes.OK


def _print_message(consumer: AsyncConsumer, message: Message, printer: TablePrinter | JsonPrinter, most: int) -> int:
    """How many rows; what was printed may be committed, and not more."""
    printed = 0
    for block in message.value() or []:
        rows = min(block.nrows(), most - printed)
        printer.print(block, rows)
        printed += rows
        if rows < block.nrows() or printed == most:
            offsets = block.offsets()  # a message may have several rows: it is done when the last of them is
            position = offsets[rows] if rows < len(offsets) else offsets[-1] + 1
            break
    else:
        position = message.next_offset()
    sys.stdout.flush()
    consumer.store_offsets(offsets=[TopicPartition(message.topic(), message.partition(), position)])
    return printed


class JsonPrinter:
    def print(self, block: Block, rows: int) -> None:
        for row in _ROWS.decode(block.to_json())[:rows]:
            sys.stdout.write(f"{bytes(row).decode()}\n")


class TablePrinter:
    """Columns that grow when they must; a line of names whenever they change."""

    def __init__(self, *, is_named: bool) -> None:
        self._is_named = is_named  # each line begins with its topic
        self._names: list[str] = []
        self._widths: list[int] = []

    def print(self, block: Block, rows: int) -> None:
        names = [field.name for field in block.fields()]
        blobs = [number for number, field in enumerate(block.fields()) if field.type == "BLOB"]
        lines = [[_text(row.get(name)) for name in names] for row in _VALUES.decode(block.to_json())[:rows]]
        if blobs:
            _read_blobs(lines, blobs, block.fetchall())
        if self._is_named:
            names = ["", *names]
            lines = [[shown(block.table()), *line] for line in lines]
        if names != self._names:
            self._names, self._widths = names, [len(name) for name in names]
            self._grow(lines)
            self._write(names)
        self._grow(lines)
        for line in lines:
            self._write(line)

    def _grow(self, lines: list[list[str]]) -> None:
        for line in lines:
            self._widths = [max(width, len(cell)) for width, cell in zip(self._widths, line, strict=True)]

    def _write(self, cells: Sequence[str]) -> None:
        padded = [cell.ljust(width) for cell, width in zip(cells, self._widths, strict=True)]
        sys.stdout.write("  ".join(padded).rstrip() + "\n")


def _read_blobs(lines: list[list[str]], blobs: list[int], rows: list[tuple[Any, ...]]) -> None:
    """Payloads are BLOBs and mostly text: what is text is shown as such, the rest stays base64."""
    for line, row in zip(lines, rows, strict=False):
        for number in blobs:
            text = None if row[number] is None else as_text(row[number])
            if text is not None:
                line[number] = shown(text)


def _text(value: Any) -> str:
    if isinstance(value, dict | list):
        value = msgspec.json.encode(value).decode()
    return shown(value)
