"""Runs a job of penstock_spark for the command line: a bar, a table of what was done, an honest exit code."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import typer

from penstock.cli.spark.options import Chosen, Repetition, part
from penstock.cli.spark.progress import SparkProgress
from penstock.cli.tables import print_table
from penstock.core import exit_codes
from penstock.core.errors import PenstockError, UsageError


def explained(work: Callable[[], Any]) -> Any:
    """Runs something of Spark; what goes wrong is one sentence."""
    errors, base = part("errors"), part("jobs.base")
    try:
        return work()
    except errors.OptionError as error:
        raise UsageError(str(error)) from error
    except errors.PenstockSparkError as error:
        raise _told(error) from error
    except base.FAILURES as error:
        raise _told(base.translate(error)) from error


def _told(error: Exception) -> PenstockError:
    """With the flag of this command that is meant."""
    text = str(error)
    if "failOnDataLoss" in text:
        return PenstockError(text, "Here that is the flag --ignore-data-loss.")
    return PenstockError(text)


def run_job(
    name: str,
    chosen: Chosen,
    output: str | None,
    options: Any,
    *,
    repeat: Repetition | None = None,
    sink: Callable[[], Any] | None = None,
    as_json: bool = False,
) -> None:
    """The job by its name; `output` is None for the one that writes no tables."""
    source = chosen.source()
    repeat = repeat or Repetition()
    job = part(f"jobs.{name}")
    with SparkProgress(f"spark {name}", is_quiet=chosen.quiet) as progress:

        def work() -> Any:
            session = started(chosen, name, source, progress)
            if output is None:
                return job.run(session, source, sink, options, notify=progress.tell)
            again = {"checkpoint": repeat.checkpoint, "recover": repeat.recover}
            return job.run(session, source, output, options, **again, notify=progress.tell)

        outcome = explained(work)
    _show(outcome, as_json=as_json)
    if outcome.failed or (repeat.strict and outcome.bad):
        raise typer.Exit(exit_codes.FAILURE)


def started(chosen: Chosen, name: str, source: Any, progress: SparkProgress) -> Any:
    """A Spark that the progress shows."""
    session = chosen.session(name, is_kafka=source.kafka is not None)
    # that of PySpark asks Java to cancel what runs, in the middle of another question to it, and fails
    signal.signal(signal.SIGINT, signal.default_int_handler)
    progress.watch(lambda: part("watch").look(session))
    return session


def _place(path: str | None) -> str | None:
    """As people write it: a directory of this machine is no URL."""
    return path.removeprefix("file:") if path is not None else None


def _show(outcome: Any, *, as_json: bool) -> None:
    facts = {
        "messages": outcome.messages,
        "bad records": outcome.bad,
        "batches": outcome.batches,
        "seconds": round(outcome.seconds, 1),
        **outcome.facts,
        "output": _place(outcome.output),
        "report": _place(outcome.report),
    }
    if as_json:
        typer.echo(json.dumps({"job": outcome.job, **facts}, default=str, ensure_ascii=False))
        return
    rows = [(name, f"{value:,}" if isinstance(value, int | float) else value) for name, value in facts.items()]
    print_table((outcome.job, ""), [row for row in rows if row[1] is not None])
    if outcome.bad:
        typer.echo(
            f"{outcome.bad:,} records could not be read: they are in {_place(outcome.output)}/quarantine", err=True
        )
    if outcome.failed:
        typer.echo(f"{outcome.failed:,} messages were refused by the broker", err=True)
