"""Opens the log of the settings for the `log` commands: to read while a broker runs, or to write."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path

from penstock.cli.option_groups import with_options
from penstock.cli.settings_options import Config, DataDir, Set, load_from_flags
from penstock.core.data_dir import prepare_data_dir
from penstock.core.errors import PenstockError, UsageError
from penstock.core.logging import configure_logging
from penstock.operate.inspect.rows import ReadFiles
from penstock.settings import Settings
from penstock.settings.providers import log_capabilities
from penstock.storage.log.base import Log, LogError, LogUnavailable, TopicNotFound, TopicPartition

MOST_NAMED = 20


async def list_names(settings: Settings) -> tuple[list[str], Mapping[str, LogError]]:
    """All topics of an embedded log, and what is wrong with those that cannot be opened."""
    async with open_log(settings) as log:
        return await log.admin.list(), dict(log.bad) if isinstance(log, ReadFiles) else {}


def name_some(names: Sequence[str]) -> str:
    """`There are: a, b.`, of many only the first."""
    more = f" and {len(names) - MOST_NAMED:,} more" if len(names) > MOST_NAMED else ""
    return f"There are: {', '.join(names[:MOST_NAMED])}{more}."


def load_log_settings(config: Config = None, data_dir: DataDir = None, assignments: Set = None) -> Settings:
    """As `serve` does, without looking at what has nothing to do with logs. Raises SettingsError or UsageError."""
    settings = load_from_flags(config, data_dir=data_dir, assignments=assignments, check=False).settings
    # What the provider has to say is for the person at the terminal, if it is important.
    configure_logging("error" if settings.logging.level == "info" else settings.logging.level, "text")
    if not log_capabilities(settings).is_durable:
        raise PenstockError(
            f"log.provider = {settings.log.provider}: the log lives inside the broker, no other process can see it",
            "Set log.provider to embedded or kafka, in the settings file or with --set log.provider=embedded.",
        )
    return settings


LoadSettings = Callable[[], Settings]
with_settings = with_options("load", load_log_settings)
"""Decorates a command with a parameter `load: LoadSettings`."""


@contextlib.asynccontextmanager
async def open_log(settings: Settings, *, to_write: bool = False) -> AsyncIterator[Log]:
    """The provider of the settings. Files are read while a broker may write them, unless `to_write`."""
    has_files = log_capabilities(settings).has_files
    if has_files and not to_write:
        check_exists(settings)
    if has_files and to_write:
        prepare_data_dir(settings.server.data_dir)
        check_unlocked(settings.server.data_dir)
    opened = _open_beside(settings) if has_files and not to_write else _open_as_broker(settings)
    with opened as log:
        await log.start()
        try:
            state = log.check()
            if state is not True:
                raise LogUnavailable(f"the log cannot be used now: {state}")
            yield log
        finally:
            await log.close()


@contextlib.contextmanager
def _open_beside(settings: Settings) -> Iterator[Log]:
    # What each provider needs is imported only by who uses it.
    outside = import_module("penstock.operate.inspect.outside_log")
    data_dir = settings.server.data_dir
    yield outside.OutsideLog(data_dir, Path(data_dir) / "state", "groups")


@contextlib.contextmanager
def _open_as_broker(settings: Settings) -> Iterator[Log]:
    """As the composition root makes it, whether or not the broker itself is to log anything."""
    providers = import_module("penstock.broker.providers")
    # librdkafka tells of every attempt to connect; what is wrong is said once, by the command itself
    client_lines = logging.getLogger("penstock.logs.kafka.client")
    client_lines.disabled = settings.logging.level != "debug"
    opened = providers.make_log(settings)
    try:
        yield opened.log
    finally:
        client_lines.disabled = False
        opened.close_rest()


def is_there(settings: Settings) -> bool:
    """Whether there is a directory for the embedded log to be in; of Kafka that is assumed."""
    return not log_capabilities(settings).has_files or Path(settings.server.data_dir).is_dir()


def check_exists(settings: Settings) -> None:
    """Raises PenstockError that names the directory when there is none for the embedded log to be in."""
    if not is_there(settings):
        directory = Path(settings.server.data_dir).resolve()
        raise PenstockError(f"no log in {directory}: start the broker there or name it with --data-dir")


def describe_emptiness(settings: Settings) -> str:
    """For a log without topics: where it was looked for."""
    if not log_capabilities(settings).has_files:
        return "the log has no topics yet"
    directory = Path(settings.server.data_dir).resolve()
    if not import_module("penstock.storage.log.embedded.files").log_directory(directory).is_dir():
        return f"no log in {directory}: start the broker there or name it with --data-dir"
    return f"the log in {directory} has no topics yet"


def note_emptiness(settings: Settings) -> None:
    print(f"penstock: {describe_emptiness(settings)}", file=sys.stderr)


def check_unlocked(data_dir: str) -> None:
    """Raises PenstockError that says what to do when a broker has the embedded log open."""
    files = import_module("penstock.storage.log.embedded.files")
    try:
        files.DirectoryLock(files.log_directory(data_dir)).release()
    except LogError as error:
        raise PenstockError(
            error.message,
            "Only one process may write an embedded log: stop the broker first. Reading works while it runs, and "
            "`penstock pub` publishes through it.",
        ) from None


async def find_partitions(
    log: Log, settings: Settings, topic: str, wanted: Sequence[int] | None, advice: str = ""
) -> list[TopicPartition]:
    """The partitions of a topic, all or those that were asked for.

    Raises PenstockError when there are none such; `advice` is what else to do about a topic that does not exist.
    """
    try:
        count = (await log.admin.describe(topic)).partitions
    except TopicNotFound:
        known = await log.admin.list()
        hint = name_some(known) if known else f"{describe_emptiness(settings)}."
        raise PenstockError(f"there is no topic {topic!r}", f"{hint}\n{advice}".rstrip()) from None
    for number in wanted or ():
        if number >= count:
            raise UsageError(f"-p {number}: topic {topic!r} has the partitions 0 to {count - 1}")
    return [TopicPartition(topic, number) for number in sorted(set(wanted or range(count)))]
