"""Failures that the broker names become exceptions again."""

from __future__ import annotations

from penstock_client import errors
from penstock_client.wire import Failure

_BY_CODE: dict[str, type[errors.DataError]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.DataError) and kind is not errors.DataError
}


def make_error(failure: Failure) -> errors.DataError:
    """An unknown code, of a newer broker, is a DataError that carries it."""
    kind = _BY_CODE.get(failure.code, errors.DataError)
    error: errors.DataError
    if kind is errors.SqlError:
        error = errors.SqlError(failure.message, failure.line, failure.column)
    else:
        error = kind(failure.message)
    error.code = failure.code
    error.is_retryable = failure.retryable or kind.is_retryable
    if isinstance(error, errors.OutOfRange):
        error.begin, error.end = failure.begin, failure.end
    return error


class TopicRefused(errors.DataError):
    """A topic of the subscription was dropped, or may no longer be read; the others go on."""

    code = "refused"


class PollTooLate(errors.DataError):
    """The application did not poll for max.poll.interval.ms: its partitions went to others. Polling joins again."""

    code = "poll-too-late"
