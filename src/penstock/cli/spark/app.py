"""`penstock spark`: the jobs over the messages, SQL over them, and what a cluster needs to run them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.app import make_app
from penstock.cli.spark.options import (
    Choose,
    Json,
    Output,
    Repeat,
    choosing,
    choosing_a_span,
    choosing_all_topics,
    declared_tables,
    load_spark,
    part,
    repeating,
)
from penstock.cli.spark.progress import SparkProgress
from penstock.cli.spark.run import explained, run_job, started
from penstock.cli.spark.sinks import make_sink
from penstock.cli.tables import print_table
from penstock.core.errors import UsageError

app = make_app()
run = make_app()
app.add_typer(run, name="run")


@app.callback()
def spark() -> None:
    """Work on logged messages with Spark: jobs, SQL, packages for a cluster."""


@run.callback()
def jobs() -> None:
    """Run a job on all messages since its last run. It may be killed and run again at any time."""


@run.command()
@choosing
@repeating
def lake(
    output: Output,
    *,
    levels: Annotated[int, typer.Option(min=0, max=8, help="Topic levels that become directories.")] = 1,
    payload_json: Annotated[
        str,
        typer.Option(
            "--payload-json",
            metavar="SCHEMA",
            help="Columns of JSON payloads: infer, or as in 't DOUBLE, unit STRING'.",
        ),
    ] = "",
    event_time: Annotated[str, typer.Option(help="Field of the JSON payload to take the date from.")] = "",
    compact_below: Annotated[
        int, typer.Option(min=0, help="Merge files smaller than this many bytes; 0 = never.")
    ] = 33_554_432,
    most_directories: Annotated[
        int, typer.Option(min=1, help="Stop if a run would write to more directories than this.")
    ] = 5_000,
    chosen: Choose,
    repeat: Repeat,
    as_json: Json = False,
) -> None:
    """Messages to Parquet by date and topic, each exactly once."""
    load_spark()
    options = part("jobs.lake").LakeOptions(
        levels, payload_json, event_time, compact_below, most_directories=most_directories
    )
    run_job("lake", chosen(), output, options, repeat=repeat(), as_json=as_json)


@run.command()
@choosing
@repeating
def traffic(
    output: Output,
    *,
    levels: Annotated[int, typer.Option(min=1, help="Topic levels to group by.")] = 2,
    top: Annotated[int, typer.Option(min=1, help="Number of top talkers.")] = 20,
    chosen: Choose,
    repeat: Repeat,
    as_json: Json = False,
) -> None:
    """Messages, bytes, clients and sizes per topic prefix and minute, hour, day; top talkers."""
    load_spark()
    options = part("jobs.traffic").TrafficOptions(levels, top)
    run_job("traffic", chosen(), output, options, repeat=repeat(), as_json=as_json)


@run.command()
@choosing
@repeating
def devices(
    output: Output,
    *,
    gap: Annotated[float, typer.Option(help="Seconds of silence between two messages that count as a gap.")] = 300.0,
    silent: Annotated[float, typer.Option(help="Seconds without a message after which a client is silent.")] = 3600.0,
    duplicate: Annotated[float, typer.Option(help="Seconds within which the same payload is a duplicate.")] = 60.0,
    sequence: Annotated[str, typer.Option(help="A field of the JSON payload that rises, to find disorder.")] = "",
    chosen: Choose,
    repeat: Repeat,
    as_json: Json = False,
) -> None:
    """Last seen, gaps, silent clients, duplicates and disorder."""
    load_spark()
    options = part("jobs.devices").DeviceOptions(gap, silent, duplicate, sequence)
    run_job("devices", chosen(), output, options, repeat=repeat(), as_json=as_json)


@run.command()
@choosing_all_topics
@repeating
def delivery(
    output: Output,
    *,
    chosen: Choose,
    repeat: Repeat,
    as_json: Json = False,
) -> None:
    """Compare published messages with delivered, expired, dropped and dead-lettered ones, per client and topic."""
    load_spark()
    options = part("jobs.delivery").DeliveryOptions()
    run_job("delivery", chosen(), output, options, repeat=repeat(), as_json=as_json)


@run.command()
@choosing
@repeating
def sessions(
    output: Output,
    *,
    gap: Annotated[float, typer.Option(help="Seconds of silence that end a session.")] = 1800.0,
    value: Annotated[str, typer.Option(help="Numeric field of the JSON payload, for the table of features.")] = "",
    chosen: Choose,
    repeat: Repeat,
    as_json: Json = False,
) -> None:
    """Divide telemetry into sessions by silence; features for machine learning."""
    load_spark()
    options = part("jobs.sessions").SessionOptions(gap, value)
    run_job("sessions", chosen(), output, options, repeat=repeat(), as_json=as_json)


@run.command()
@choosing_a_span
def replay(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="mqtt://[USER:PASSWORD@]HOST:PORT, mqtts://…, kafka://HOST:PORT/TOPIC or log:TOPIC."
        ),
    ],
    *,
    to_topic: Annotated[
        str, typer.Option(help="Topic to publish to; {topic} stands for the original topic.")
    ] = "replay/{topic}",
    speed: Annotated[
        float, typer.Option(min=0, help="Speed relative to the original pace; 0 = as fast as possible.")
    ] = 1.0,
    rate: Annotated[float, typer.Option(min=0, help="Maximum messages per second; 0 = no limit.")] = 0.0,
    qos: Annotated[int | None, typer.Option(min=0, max=1, help="[default: as it was, at most 1]")] = None,
    keep_retain: Annotated[bool, typer.Option("--keep-retain", help="Keep the RETAIN flag.")] = False,
    limit: Annotated[int, typer.Option(min=0, help="Maximum number of messages; 0 = all.")] = 0,
    state: Annotated[
        str, typer.Option(metavar="DIR", help="Directory for the position of the replay; run again to continue.")
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be sent.")] = False,
    chosen: Choose,
    as_json: Json = False,
) -> None:
    """Replay stored messages to a broker or to a log, in their order and at their pace."""
    load_spark()
    options = part("jobs.replay").ReplayOptions(speed, rate, to_topic, qos, keep_retain, limit, state)
    sink = None if dry_run else make_sink(target, chosen())
    run_job("replay", chosen(), None, options, sink=sink, as_json=as_json)


@run.command("topic")
@choosing
def topic_of_rows(
    name: Annotated[str, typer.Option("--name", help="Name of the topic; its rows go to materialised/<name>.")],
    sql: Annotated[str, typer.Option("--sql", help="Query over the view `messages` and the tables of --table.")],
    state: Annotated[
        str, typer.Option("--state", metavar="DIR", help="Directory for the state of the query between runs.")
    ],
    *,
    to: Annotated[
        str, typer.Option("--to", metavar="TARGET", help="mqtt://[USER:PASSWORD@]HOST:PORT or mqtts://…")
    ] = "mqtt://127.0.0.1:1883",
    to_topic: Annotated[str, typer.Option(help="Topic to publish to instead of materialised/<name>.")] = "",
    tables: Annotated[
        list[str] | None, typer.Option("--table", metavar="STATEMENT", help="A CREATE TABLE statement; repeatable.")
    ] = None,
    mode: Annotated[
        str, typer.Option(help="update: rows that changed; append: final rows only; complete: all rows each time.")
    ] = "update",
    delay: Annotated[str, typer.Option(help="How late a message may be before its window is final.")] = "10 minutes",
    chosen: Choose,
    as_json: Json = False,
) -> None:
    """Rows of GROUP BY, windows, DISTINCT, published as a topic: what CREATE TOPIC cannot compute."""
    load_spark()
    options = part("jobs.topic").TopicOptions(name, sql, state, to_topic, mode, delay, declared_tables(tables or []))
    run_job("topic", chosen(), None, options, sink=make_sink(to, chosen()), as_json=as_json)


@app.command()
@choosing_a_span
def sql(
    query: Annotated[str, typer.Argument(metavar="SQL", help="Query over the view `messages`.")],
    *,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="Rows to print.")] = 100,
    chosen: Choose,
    as_json: Json = False,
) -> None:
    """Run SQL over the messages and print the result; a WHERE on time or topic limits what is read."""
    load_spark()
    picked = chosen()
    source = picked.source()
    with SparkProgress("spark sql", is_quiet=picked.quiet) as progress:

        def work() -> tuple[list[str], list[Any]]:
            session = started(picked, "sql", source, progress)
            found = part("reading").sql_over_messages(session, query, source.path, kafka=source.kafka, **source.options)
            return found.columns, found.limit(limit + 1).collect()

        columns, rows = explained(work)
    if as_json:
        for row in rows[:limit]:
            typer.echo(json.dumps(row.asDict(recursive=True), default=_plain, ensure_ascii=False))
        return
    print_table(columns, [[_cell(value) for value in row] for row in rows[:limit]])
    if len(rows) > limit:
        typer.echo(f"… and more: --limit shows more than {limit} rows", err=True)


def _cell(value: Any) -> Any:
    return _plain(value) if isinstance(value, bytes | bytearray | datetime) else value


def _plain(value: Any) -> str:
    if isinstance(value, datetime):
        # Spark hands a time out as that of this machine's zone, without saying so
        return str(value.astimezone(UTC).replace(tzinfo=None))
    return bytes(value).decode(errors="replace") if isinstance(value, bytes | bytearray) else str(value)


@app.command("submit-package")
def submit_package(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Created if it does not exist.")] = Path(
        "penstock-spark"
    ),
    *,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Write what a Spark cluster needs: the Python packages as a zip, jar coordinates, a script for spark-submit."""
    load_spark()
    if directory.exists() and any(directory.iterdir()) and not force:
        raise UsageError(f"{directory} is not empty", "--force writes all the same.")
    written = part("package").write(directory)
    print_table(("file", "what"), [(str(directory / name), what) for name, what in written.items()])
