"""`penstock log`: look into the logs, on either provider, and change them where no broker is in the way."""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from typing import Annotated, Any, Literal

import typer

from penstock._ext.wire.packets import split_share
from penstock.cli import client_runner
from penstock.cli.app import make_app
from penstock.cli.log.access import LoadSettings, with_settings
from penstock.cli.log.append import NewRecord, check_length, is_text, parse_headers
from penstock.cli.log.commands import (
    ReadOptions,
    append_records,
    list_topics,
    read_topic,
    repair_topics,
    show_offsets,
    show_topic,
    truncate_topic,
    verify_topics,
)
from penstock.cli.log.queues import parse_services, parse_tenant, show_queues
from penstock.core.errors import UsageError
from penstock.operate.inspect.places import FORMS, parse_place

app = make_app()


def _check_text(parameter: typer.CallbackParam, value: Any) -> Any:
    """Names are text: other bytes would only fail further down."""
    if isinstance(value, str) and not is_text(value):
        name = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar
        raise UsageError(f"{name} {value!r} is not UTF-8")
    return value


Topic = Annotated[
    str,
    typer.Argument(metavar="TOPIC", help="A topic of the log, as in `penstock log topics`.", callback=_check_text),
]
OneOrAll = Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="None = every topic.", callback=_check_text)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Partitions = Annotated[
    list[int] | None, typer.Option("-p", "--partition", min=0, help="Only this partition; repeatable.")
]
Group = Annotated[
    str | None, typer.Argument(metavar="[GROUP]", help="A consumer group; none = all of them.", callback=_check_text)
]
OfTopic = Annotated[str | None, typer.Option("-t", "--topic", help="Only this topic.", callback=_check_text)]


@app.callback()
def log() -> None:
    """Inspect the broker's logs: topics with partitions of records, in segment files or in Kafka.

    Reading and verifying work while the broker is running.
    """


def _run(work: Coroutine[Any, Any, int], *, is_endless: bool = False) -> None:
    try:
        client_runner.run(work, quiet=False, is_endless=is_endless)
    except BrokenPipeError:
        # `penstock log read … | head` has seen enough; nothing is left to be flushed at the exit either.
        sys.stdout = None
        raise typer.Exit from None


@app.command()
@with_settings
def topics(*, load: LoadSettings, as_json: Json = False) -> None:
    """List the topics with their partitions and how many records they hold."""
    _run(list_topics(load(), as_json=as_json))


@app.command()
@with_settings
def queues(
    *,
    create: Annotated[bool, typer.Option("--create", help="Create missing topics.")] = False,
    services: Annotated[
        list[str] | None,
        typer.Option(
            "--service",
            metavar="KIND=ID",
            help="Instance whose own topics to list, such as TB_CORE=core-1; repeatable. [default: this broker]",
        ),
    ] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", metavar="UUID", help="The queues of an isolated tenant instead.")
    ] = None,
    load: LoadSettings,
    as_json: Json = False,
) -> None:
    """List the queues between services, section [services] of the settings, and create their topics."""
    settings = load()
    ids = parse_services(services or (), settings.server.node_id)
    _run(show_queues(settings, ids, parse_tenant(tenant), create=create, as_json=as_json))


@app.command()
@with_settings
def describe(topic: Topic, *, load: LoadSettings, as_json: Json = False) -> None:
    """Show a topic's properties and the first and next offset of each partition."""
    _run(show_topic(load(), topic, as_json=as_json))


@app.command()
@with_settings
def read(
    topic: Topic,
    *,
    partitions: Partitions = None,
    start: Annotated[str, typer.Option("--from", metavar="PLACE", help=f"Where to begin: {FORMS}.")] = "begin",
    stop: Annotated[str, typer.Option("--to", metavar="PLACE", help="Stop before this position; as --from.")] = "end",
    count: Annotated[int | None, typer.Option("-n", "--count", min=1, help="Stop after N records.")] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Wait for new records, until Ctrl-C.")] = False,
    decode: Annotated[
        Literal["publish", "raw", "auto"],
        typer.Option("--decode", help="Show publishes decoded, records as they are, or decide for each."),
    ] = "auto",
    topic_filter: Annotated[
        str | None,
        typer.Option(
            "--filter",
            metavar="FILTER",
            help="Only publishes whose topic matches (MQTT, + and #).",
            callback=_check_text,
        ),
    ] = None,
    load: LoadSettings,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Print records, oldest first, with the publish that each contains."""
    if follow and stop != "end":
        raise UsageError("--to and --follow contradict each other")
    if topic_filter is not None:
        _check_filter(topic_filter, decode)
    options = ReadOptions(
        topic=topic,
        partitions=partitions,
        start=parse_place(start, "--from"),
        stop=parse_place(stop, "--to"),
        count=count,
        follow=follow,
        decode=decode,
        topic_filter=topic_filter,
        as_json=as_json,
    )
    _run(read_topic(load(), options), is_endless=follow)


def _check_filter(topic_filter: str, decode: str) -> None:
    levels = topic_filter.split("/")
    is_wrong = any(("#" in level or "+" in level) and len(level) > 1 for level in levels) or "#" in levels[:-1]
    if is_wrong or not topic_filter or split_share(topic_filter.encode())[0] is not None:
        raise UsageError(f"--filter {topic_filter!r} is not a topic filter: + and # stand alone, # at the end")
    if decode == "raw":
        raise UsageError("--filter looks at publishes: it does not go with --decode raw")


@app.command()
@with_settings
def append(
    topic: Topic,
    *,
    messages: Annotated[list[str] | None, typer.Option("-m", "--message", help="The record's value.")] = None,
    from_lines: Annotated[
        bool, typer.Option("-l", "--stdin-line", help="Append one record for each line of standard input.")
    ] = False,
    partition: Annotated[
        int | None, typer.Option("-p", "--partition", min=0, help="[default: by the MQTT topic or the key, else 0]")
    ] = None,
    key: Annotated[str | None, typer.Option("-k", "--key", help="The record's key.", callback=_check_text)] = None,
    headers: Annotated[
        list[str] | None, typer.Option("-H", "--header", metavar="NAME=VALUE", help="A header; repeatable.")
    ] = None,
    mqtt_topic: Annotated[
        str | None,
        typer.Option(
            "-t", "--mqtt-topic", help="Append a publish to this topic, as the broker logs it.", callback=_check_text
        ),
    ] = None,
    qos: Annotated[int, typer.Option("-q", "--qos", min=0, max=2, help="QoS of the publish.")] = 0,
    retain: Annotated[bool, typer.Option("-r", "--retain", help="RETAIN flag of the publish.")] = False,
    client_id: Annotated[
        str, typer.Option("-i", "--id", help="Client id in the publish.", callback=_check_text)
    ] = "penstock-log",
    username: Annotated[
        str | None, typer.Option("-u", "--username", help="User name in the publish.", callback=_check_text)
    ] = None,
    create: Annotated[
        int | None, typer.Option("--create", metavar="PARTITIONS", min=1, help="Create the topic if it does not exist.")
    ] = None,
    load: LoadSettings,
    as_json: Json = False,
) -> None:
    """Append records and wait until they are durable.

    Careful: a publish (-t) of QoS 1 or 2 in tbmq.msg.all is delivered to persistent clients that have subscribed: on
    Kafka at once, else after the broker's next start. Clean sessions get nothing. To publish, use `penstock pub`."""
    if bool(messages) == from_lines:
        raise UsageError("say what to append with one of -m and -l")
    if messages and len(messages) > 1:
        raise UsageError("-m is there more than once: it is one record, and several come as lines with -l")
    if mqtt_topic is not None and (not mqtt_topic or "+" in mqtt_topic or "#" in mqtt_topic):
        raise UsageError(f"-t {mqtt_topic!r}: a topic to publish to is not empty and has no + or #")
    for flag, text in (("-t", mqtt_topic), ("-i", client_id), ("-u", username)):
        check_length(flag, text)
    message = messages[0] if messages else None
    record = NewRecord(
        topic=topic,
        partition=partition,
        key=None if key is None else key.encode(),
        headers=parse_headers(headers),
        mqtt_topic=mqtt_topic,
        qos=qos,
        retain=retain,
        client_id=client_id,
        username=username,
    )
    settings = load()
    _run(append_records(settings, record, message, from_lines=from_lines, create=create, as_json=as_json))


@app.command()
@with_settings
def truncate(
    topic: Topic,
    *,
    before: Annotated[str, typer.Option("--before", metavar="PLACE", help=f"What is kept begins here: {FORMS}.")],
    partitions: Partitions = None,
    is_sure: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
    load: LoadSettings,
    as_json: Json = False,
) -> None:
    """Delete the records before a position, in all partitions or in those given."""
    place = parse_place(before, "--before")
    settings = load()
    _run(truncate_topic(settings, topic, partitions, place, is_sure=is_sure, as_json=as_json))


@app.command()
@with_settings
def offsets(
    group: Group = None,
    *,
    topic: OfTopic = None,
    load: LoadSettings,
    as_json: Json = False,
) -> None:
    """Show the offsets that consumer groups have committed."""
    settings = load()
    _run(show_offsets(settings, group, topic, with_lag=False, as_json=as_json))


@app.command()
@with_settings
def lag(
    group: Group = None,
    *,
    topic: OfTopic = None,
    load: LoadSettings,
    as_json: Json = False,
) -> None:
    """Show how many records each consumer group has yet to read."""
    settings = load()
    _run(show_offsets(settings, group, topic, with_lag=True, as_json=as_json))


@app.command()
@with_settings
def repair(
    topic: OneOrAll = None,
    *,
    load: LoadSettings,
    as_json: Json = False,
) -> None:
    """Repair the files of an embedded log: set damaged bytes aside and report which records are lost."""
    settings = load()
    _run(repair_topics(settings, topic, as_json=as_json))


@app.command()
@with_settings
def verify(
    topic: OneOrAll = None,
    *,
    load: LoadSettings,
    as_json: Json = False,
) -> None:
    """Read all files of an embedded log and verify the checksums; exit code 1 if any are damaged."""
    settings = load()
    _run(verify_topics(settings, topic, as_json=as_json))
