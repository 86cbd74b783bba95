"""Runs a job of penstock_spark for the command line: a bar, a table of what was done, an honest exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import typer

from penstock.cli.progress import Progress
from penstock.cli.spark_options import Chosen, Repetition, part
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
        raise PenstockError(str(error)) from error
    except base.PySparkException as error:
        raise PenstockError(str(base.translate(error))) from error


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
    done = 0
    with Progress(f"spark {name}", unit="messages") as progress:

        def notify(_: str, count: int) -> None:
            nonlocal done
            progress.advance(count - done)
            progress.look()
            done = count

        def work() -> Any:
            session = chosen.session(name, is_kafka=source.kafka is not None)
            if output is None:
                return job.run(session, source, sink, options, notify=notify)
            return job.run(
                session, source, output, options, checkpoint=repeat.checkpoint, recover=repeat.recover, notify=notify
            )

        outcome = explained(work)
    _show(outcome, as_json=as_json)
    if repeat.strict and outcome.bad:
        raise typer.Exit(exit_codes.FAILURE)


def _show(outcome: Any, *, as_json: bool) -> None:
    facts = {
        "messages": outcome.messages,
        "bad records": outcome.bad,
        "batches": outcome.batches,
        "seconds": round(outcome.seconds, 1),
        **outcome.facts,
        "output": outcome.output,
        "report": outcome.report,
    }
    if as_json:
        typer.echo(json.dumps({"job": outcome.job, **facts}, default=str, ensure_ascii=False))
        return
    rows = [(name, f"{value:,}" if isinstance(value, int | float) else value) for name, value in facts.items()]
    print_table((outcome.job, ""), [row for row in rows if row[1] is not None])
    if outcome.bad:
        typer.echo(f"{outcome.bad:,} records could not be read: they are in {outcome.output}/quarantine", err=True)
