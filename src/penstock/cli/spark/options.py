"""Flags of the `penstock spark` commands, and the Spark and the source that they mean."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.log.access import load_log_settings
from penstock.cli.option_groups import with_options
from penstock.cli.settings_options import Config, DataDir, Set, load_from_flags
from penstock.cli.spark.kafka import java_options
from penstock.core.errors import PenstockError, UsageError
from penstock.settings.providers import log_capabilities
from penstock.subscribers.query.sql.statements import CreateTable, parse_statement
from penstock_client.errors import SqlError

Output = Annotated[str, typer.Option("-o", "--output", metavar="DIR", help="Directory for the tables and the report.")]
Filter = Annotated[
    list[str] | None,
    typer.Option("--filter", metavar="FILTER", help="Only messages whose topic matches (MQTT, + and #); repeatable."),
]
Start = Annotated[
    str | None,
    typer.Option("--from", metavar="PLACE", help="earliest, a time as 2026-11-16T12:30Z, or offsets in JSON."),
]
Stop = Annotated[str | None, typer.Option("--to", metavar="PLACE", help="latest, or as --from.")]
Topics = Annotated[str | None, typer.Option("--topics", help="Topics of the log.  [default: tbmq.msg.all]")]
Checkpoint = Annotated[
    str | None, typer.Option("--checkpoint", metavar="DIR", help="[default: in the output directory]")
]
Recover = Annotated[
    bool, typer.Option("--recover", help="Start a new checkpoint after the last batch that was written.")
]
Loose = Annotated[
    bool, typer.Option("--ignore-data-loss", help="Continue where retention has removed records; the gap is counted.")
]
Strict = Annotated[bool, typer.Option("--fail-on-bad", help="Exit with code 1 if records were quarantined.")]
Master = Annotated[str | None, typer.Option("--master", help="Spark master.  [default: local[*], or SPARK_MASTER]")]
Conf = Annotated[list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="Spark property; repeatable.")]
Jars = Annotated[
    str | None,
    typer.Option(
        "--jars",
        metavar="DIR",
        help="Jars of Spark's Kafka connector; without them Spark downloads it.  [default: PENSTOCK_SPARK_JARS]",
    ),
]
Kafka = Annotated[
    str | None, typer.Option("--kafka", metavar="HOST:PORT", help="Kafka servers, instead of those in the settings.")
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Do not show progress.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


INSTALL_SPARK = (
    "Install the wheel with its Spark extra: pip install './penstock-VERSION-….whl[spark]' (make dist builds it). "
    "The project of this name on PyPI is another one."
)


def load_spark() -> None:
    """Raises PenstockError that says what to install."""
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        raise PenstockError("this command needs Spark", INSTALL_SPARK)
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        raise PenstockError("Spark needs Java 17 or newer", "Install it, as in: apt install default-jre-headless.")


def part(name: str) -> Any:
    """A module of penstock_spark, which is imported only by who runs a job."""
    return import_module(f"penstock_spark.{name}")


def declared_tables(statements: list[str]) -> tuple[Any, ...]:
    """CREATE TABLE statements as views of the job `topic`; UsageError for anything else."""
    job = part("jobs.topic")
    views = []
    for text in statements:
        try:
            statement = parse_statement(text)
        except SqlError as error:
            raise UsageError(f"--table: {error}") from None
        if not isinstance(statement, CreateTable):
            raise UsageError("--table takes a CREATE TABLE statement", f"It is {text[:60]!r}.")
        columns = tuple(job.TableColumn(*column.parts()) for column in statement.table.columns)
        views.append(job.TableView(statement.table.name, statement.table.filter, columns))
    return tuple(views)


@dataclass(frozen=True)
class Chosen:
    """Where the messages are and how Spark runs, as the flags and the settings say."""

    config: Config = None
    data_dir: DataDir = None
    assignments: Set = None
    kafka: Kafka = None
    topics: Topics = None
    filters: Filter = None
    start: Start = None
    stop: Stop = None
    loose: Loose = False
    master: Master = None
    conf: Conf = None
    jars: Jars = None
    quiet: Quiet = False

    def source(self) -> Any:
        """A penstock_spark.jobs.base.MessageSource."""
        options: dict[str, Any] = {}
        if self.filters:
            options["topic_filter"] = self.filters
        for name, value in (("topics", self.topics), ("start", self.start), ("end", self.stop)):
            if value is not None:
                options[name] = value
        if self.loose:
            options["failOnDataLoss"] = "false"
        source = part("jobs.base").MessageSource
        if self.kafka is not None:
            flags = load_from_flags(self.config, data_dir=self.data_dir, assignments=self.assignments, check=False)
            return source(kafka=self.kafka, options=options | java_options(flags.settings.kafka))
        settings = load_log_settings(self.config, self.data_dir, self.assignments)
        can = log_capabilities(settings)
        if can.uses_kafka:
            found = settings.kafka
            return source(kafka=found.bootstrap_servers, options=options | java_options(found))
        if not can.has_files:
            raise PenstockError(
                f"log.provider = {settings.log.provider}: Spark reads logs in files or in Kafka",
                "Set log.provider to embedded or kafka.",
            )
        return source(path=str(Path(settings.server.data_dir).resolve()), options=options)

    def session(self, name: str, *, is_kafka: bool) -> Any:
        """A SparkSession; its log is for errors only."""
        home = Path(part("session").__file__).parent
        settings = {"spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{home / 'log4j2.properties'}"}
        for assignment in self.conf or []:
            key, equals, value = assignment.partition("=")
            if not equals:
                raise UsageError(f"--conf {assignment!r}: write KEY=VALUE, as in spark.driver.memory=4g")
            settings[key.strip()] = value
        jars = self._jars()
        if is_kafka and not jars and "spark.jars" not in settings:
            settings.setdefault("spark.jars.packages", ",".join(part("connector").PACKAGES))
        return part("session").make_session(f"penstock {name}", master=self.master, conf=settings, jars=jars)

    def _jars(self) -> list[str]:
        directory = self.jars or os.environ.get("PENSTOCK_SPARK_JARS")
        if not directory:
            return []
        found = sorted(str(path) for path in Path(directory).glob("*.jar"))
        if not found:
            raise UsageError(f"--jars {directory}: there are no jars in it")
        return found


@dataclass(frozen=True)
class Repetition:
    """How a job goes on where it was the last time, and what it says of records it could not read."""

    checkpoint: Checkpoint = None
    recover: Recover = False
    strict: Strict = False


Choose = Callable[[], Chosen]
Repeat = Callable[[], Repetition]
choosing_a_span = with_options("chosen", Chosen)
choosing = with_options("chosen", Chosen, without=("stop",))
choosing_all_topics = with_options("chosen", Chosen, without=("stop", "topics", "filters"))
repeating = with_options("repeat", Repetition)
