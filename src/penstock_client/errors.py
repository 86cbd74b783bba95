"""What can go wrong in data subscription, with the code that travels to clients."""

from __future__ import annotations

from penstock.core.errors import PenstockError
from penstock_client.wire import Failure


class DataError(PenstockError):
    """The base; `code` is stable and part of the wire protocol, the text says what to do."""

    code = "error"
    is_retryable = False


class SqlError(DataError):
    """A statement that cannot be run; the position counts lines and columns from 1."""

    code = "sql"

    def __init__(self, message: str, line: int = 1, column: int = 1) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


class NotFound(DataError):
    code = "not-found"


class AlreadyExists(DataError):
    code = "already-exists"


class NotAllowed(DataError):
    code = "not-allowed"


class NotAMember(DataError):
    """The consumer is not known to its group any more: it was removed for silence, or the group was dropped."""

    code = "not-a-member"


class StaleEpoch(DataError):
    """The partition belongs to another consumer now: ask for the assignment again."""

    code = "stale-epoch"
    is_retryable = True


class OutOfRange(DataError):
    """The offset is not in the log any more (or not yet); `auto.offset.reset` decides what happens. What the partition
    has is from `begin` to `end`."""

    code = "out-of-range"
    begin = -1
    end = -1


class Unavailable(DataError):
    """The log or the store cannot answer now; the same request may succeed later."""

    code = "unavailable"
    is_retryable = True


class BadRequest(DataError):
    code = "bad-request"


_BY_CODE: dict[str, type[DataError]] = {kind.code: kind for kind in DataError.__subclasses__()}


def make_error(failure: Failure) -> DataError:
    """Return the exception for a failure that the broker names; an unknown code makes a DataError that carries it."""
    kind = _BY_CODE.get(failure.code, DataError)
    error: DataError = (
        SqlError(failure.message, failure.line, failure.column) if kind is SqlError else kind(failure.message)
    )
    error.code = failure.code
    error.is_retryable = failure.retryable or kind.is_retryable
    if isinstance(error, OutOfRange):
        error.begin, error.end = failure.begin, failure.end
    return error


class TopicRefused(DataError):
    """A topic of the subscription was dropped, or may no longer be read; the others go on."""

    code = "refused"


class PollTooLate(DataError):
    """The application did not poll for max.poll.interval.ms: its partitions went to others. Polling joins again."""

    code = "poll-too-late"
