"""What Spark is doing at this moment, for who waits for it."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Doing:
    """The stages that run now, taken together."""

    what: str
    tasks_done: int
    tasks: int
    rows: int  # read so far


def say(spark: SparkSession, what: str | None) -> None:
    """What the following work of this thread is for."""
    # of an unset description Spark knows, of an empty one it does not
    spark.sparkContext.setLocalProperty("spark.job.description", what)  # type: ignore[arg-type] # None unsets it


def look(spark: SparkSession) -> Doing | None:
    """None while nothing runs. Rows are as many as Spark has been told of by its tasks: every ten seconds."""
    active = spark.sparkContext._jsc.sc().statusStore().activeStages()
    stages = [active.apply(number) for number in range(active.size())]
    if not stages:
        return None
    described = stages[0].description()
    text = str(described.get()) if described.isDefined() else ""
    return Doing(
        # what a stream says of itself has several lines
        what="" if "runId = " in text else text,
        tasks_done=sum(stage.numCompleteTasks() for stage in stages),
        tasks=sum(stage.numTasks() for stage in stages),
        rows=sum(stage.inputRecords() for stage in stages),
    )
