"""What goes wrong here, said so that the reader of the message knows the way out."""

from __future__ import annotations


class PenstockSparkError(Exception):
    """A message for people, and what they can do."""

    def __init__(self, message: str, way_out: str = "") -> None:
        super().__init__(f"{message}. {way_out}" if way_out else message)

    def __reduce__(self) -> tuple[type[PenstockSparkError], tuple[str]]:
        # it crosses from Spark's workers to the driver
        return type(self), (str(self),)


class OptionError(PenstockSparkError):
    """An option of the data source or of a job makes no sense."""


class TopicMissing(PenstockSparkError):
    """There is no such topic in the log."""


class DataLost(PenstockSparkError):
    """Records that were asked for are not there any more."""


class LogDamaged(PenstockSparkError):
    """The files of the log are damaged."""


class BadRecord(PenstockSparkError):
    """A record is not a publish, and badRecords=fail."""


class CheckpointError(PenstockSparkError):
    """A job's checkpoint does not fit what it finds."""


class Busy(PenstockSparkError):
    """Another run has the output, or what a job remembers."""
