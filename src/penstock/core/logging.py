"""Structured logs on the standard library: key=value for people, JSON lines for machines.

    log = get_logger("penstock.mqtt")
    log.info("client connected", client_id=client_id, peer=peer)

Values come from clients, so none of them can forge a line: everything unprintable is escaped, long values are cut, and
fields named like a secret are masked whatever they hold.

A storm of connections is two lines each. Lines of level info that follow each other closely are therefore written
together, a hundred times a second; everything else is written at once, with what came before it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import re
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TextIO

if TYPE_CHECKING:
    from logging import _SysExcInfoType as SysExcInfo

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR
ROOT = "penstock"
MASK = "***"
LONGEST_VALUE = 256
LONGEST_LIST = 32
DEEPEST = 4
TOGETHER_SECONDS = 0.01  # lines of level info wait no longer for others; the first after so much silence not at all
MOST_LINES = 1_000  # that wait

_LEVELS = {"debug": DEBUG, "info": INFO, "warning": WARNING, "error": ERROR}
_FIELDS = "penstock_fields"
_SECRET = re.compile(
    r"(?:^|_)(?:pass|passwd|password|passphrase|pw|secret|secrets|token|credential|credentials|authorization"
    r"|auth_data|authentication_data|key|keys|psk)$",
    re.IGNORECASE,
)
_BARE = re.compile(r"[A-Za-z0-9_.:/@+\-$#*%,\[\]]+")
_NAME = re.compile(r"[^A-Za-z0-9_.]")
_PLAIN = (int, bool, float, type(None))
_to_json = json.JSONEncoder().encode
_COLOURS = {DEBUG: "\x1b[2m", INFO: "\x1b[32m", WARNING: "\x1b[33m", ERROR: "\x1b[31m"}


# Other formatters than ours may want to show them.
_NOT_FOUND_OUT: dict[str, Any] = {
    **dict.fromkeys(("pathname", "filename", "module", "funcName"), ""),
    **dict.fromkeys(("thread", "threadName", "process", "processName", "taskName", "args", "exc_text", "stack_info")),
    "lineno": 0,
}


class Record(logging.LogRecord):
    """A line. The standard logger would find out thread, process, file and function as well, which no line shows."""

    def __init__(
        self, name: str, level: int, event: str, fields: Mapping[str, object], error: SysExcInfo | None = None
    ) -> None:
        self.__dict__.update(_NOT_FOUND_OUT)
        self.name = name
        self.msg = event
        self.levelno = level
        self.levelname = logging.getLevelName(level)
        self.exc_info = error
        self.created = time.time()
        self.msecs = self.created % 1 * 1000
        self.relativeCreated = 0.0
        self.penstock_fields = fields


class Logger:
    """Keyword fields on a standard logger. When the level is off a call costs one comparison."""

    __slots__ = ("_bound", "_logger")

    def __init__(self, logger: logging.Logger, bound: Mapping[str, object] | None = None) -> None:
        self._logger = logger
        self._bound = dict(bound or {})

    def bind(self, **fields: object) -> Logger:
        """The same logger with fields that go into every line."""
        return Logger(self._logger, {**self._bound, **fields})

    def is_enabled(self, level: int) -> bool:
        return self._logger.isEnabledFor(level)

    def debug(self, event: str, /, **fields: object) -> None:
        if self._logger.isEnabledFor(DEBUG):
            self._emit(DEBUG, event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        if self._logger.isEnabledFor(INFO):
            self._emit(INFO, event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        if self._logger.isEnabledFor(WARNING):
            self._emit(WARNING, event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        if self._logger.isEnabledFor(ERROR):
            self._emit(ERROR, event, fields)

    def exception(self, event: str, /, **fields: object) -> None:
        """An error with the traceback of the exception being handled."""
        if self._logger.isEnabledFor(ERROR):
            self._emit(ERROR, event, fields, exc_info=True)

    def _emit(self, level: int, event: str, fields: dict[str, object], *, exc_info: bool = False) -> None:
        if self._bound:
            fields = {**self._bound, **fields}
        self._logger.handle(Record(self._logger.name, level, event, fields, sys.exc_info() if exc_info else None))


def get_logger(name: str) -> Logger:
    return Logger(logging.getLogger(name))


def configure_logging(
    level: str = "info", format: Literal["auto", "text", "json"] = "auto", stream: TextIO | None = None
) -> None:
    """Send everything logged in this process to `stream` (standard error). Calling it again replaces what it did."""
    stream = sys.stderr if stream is None else stream
    is_terminal = stream.isatty()
    handler = BatchHandler(stream)
    if format == "json" or (format == "auto" and not is_terminal):
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(TextFormatter(colour=is_terminal and not os.environ.get("NO_COLOR")))
    root = logging.getLogger()
    for old in [old for old in root.handlers if getattr(old, _FIELDS, False)]:
        root.removeHandler(old)
        old.flush()
    setattr(handler, _FIELDS, True)
    root.addHandler(handler)
    # A reader of the log that went away must not cost the broker anything.
    logging.raiseExceptions = False
    set_level(level)


def set_level(level: str) -> None:
    """Libraries stay one step quieter than we are, unless everything is wanted."""
    logging.getLogger(ROOT).setLevel(_LEVELS[level])
    logging.getLogger().setLevel(_LEVELS[level] if level == "debug" else max(WARNING, _LEVELS[level]))


class BatchHandler(logging.StreamHandler[TextIO]):
    """One write for lines of level info that come shortly after others, in a thread with a loop.

    A process that is killed loses those of its last 10 ms; one that ends, with or without an error, loses none.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._lines: list[str] = []
        self._written_at = 0.0
        self._is_scheduled = False

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.append(self.format(record))
        except Exception:  # as the standard handlers: no field, whatever it is, costs more than its line
            self.handleError(record)
            return
        is_patient = record.levelno == INFO and 0 <= record.created - self._written_at < TOGETHER_SECONDS
        if not (is_patient and len(self._lines) < MOST_LINES and self._flush_soon()):
            self.flush()

    def _flush_soon(self) -> bool:
        # Asked for once and not for every line: before Python 3.12 it is a call of the kernel.
        if not self._is_scheduled:
            try:
                asyncio.get_running_loop().call_later(TOGETHER_SECONDS, self.flush)
            except RuntimeError:
                return False
            self._is_scheduled = True
        return True

    def flush(self) -> None:
        """Also called at the end of the process, by the standard library."""
        self.acquire()
        try:
            lines, self._lines = self._lines, []
            self._is_scheduled = False
            if lines:
                self._written_at = time.time()
                self.stream.write("\n".join(lines) + "\n")
            super().flush()
        except (OSError, ValueError):
            return  # whoever read it went away
        finally:
            self.release()


def escape(text: str) -> str:
    """Everything unprintable (controls, terminal escapes, line separators, direction marks) as \\x or \\u."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape", "backslashreplace").decode()
        for character in text
    )


def clean(name: str, value: object, depth: int = 0) -> Any:
    """A value as it may be logged: secrets masked, long ones cut, only plain types."""
    if _SECRET.search(name) and value not in (None, "", b""):
        return MASK
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        value = bytes(value[: LONGEST_VALUE * 4]).decode("utf-8", "backslashreplace")
    if depth < DEEPEST and isinstance(value, Mapping):
        return {str(key): clean(str(key), entry, depth + 1) for key, entry in list(value.items())[:LONGEST_LIST]}
    if depth < DEEPEST and isinstance(value, list | tuple | set | frozenset):
        return [clean(name, entry, depth + 1) for entry in list(value)[:LONGEST_LIST]]
    text = value if isinstance(value, str) else str(value)
    if len(text) > LONGEST_VALUE:
        return f"{text[:LONGEST_VALUE]}…(+{len(text) - LONGEST_VALUE})"
    return text


@lru_cache(1_024)
def _field_name(name: str) -> tuple[str, bool]:
    """As it is shown, and whether its value may be. The names of fields are ours, and few."""
    return _NAME.sub("_", name), not _SECRET.search(name)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = {}
    for name, value in (getattr(record, _FIELDS, None) or {}).items():
        shown, is_open = _field_name(name)
        kind = type(value)
        is_plain = len(value) <= LONGEST_VALUE if kind is str else kind in _PLAIN
        fields[shown] = value if is_plain and is_open else clean(name, value)
    return fields


@lru_cache(4)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def _timestamp(record: logging.LogRecord) -> str:
    return f"{_second(int(record.created))}.{int(record.msecs):03d}Z"


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000Z info    mqtt: client connected client_id=a peer=127.0.0.1:5000`"""

    def __init__(self, *, colour: bool = False) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        level = f"{record.levelname.lower():<7}"
        if self._colour:
            level = f"{_COLOURS.get(record.levelno, '')}{level}\x1b[0m"
        name = record.name.removeprefix(f"{ROOT}.")
        fields = "".join(f" {key}={_as_text(value)}" for key, value in _fields(record).items())
        line = f"{_timestamp(record)} {level} {escape(name)}: {escape(record.getMessage())}{fields}"
        if record.exc_info:
            # Indented, so that no line of an exception's text can pass for a line of the log.
            trace = self.formatException(record.exc_info).splitlines()
            line = "\n".join([line, *(f"    | {escape(entry)}" for entry in trace)])
        return line


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        return escape(json.dumps(value, ensure_ascii=False))
    text = str(value)
    if _BARE.fullmatch(text):
        return text
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escape(quoted)}"'


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, event, then the fields. ASCII only, so nothing hides in it."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        for name, value in _fields(record).items():
            line[f"{name}_" if name in line else name] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _to_json(line)


class RateLimited:
    """Lets one warning per key and interval through and counts the rest. The oldest keys are forgotten past a limit.

    if (suppressed := limited.try_pass(client_id)) is not None:
        log.warning("publish dropped", client_id=client_id, suppressed=suppressed)
    """

    def __init__(
        self, interval: float = 60.0, max_keys: int = 1_024, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._interval = interval
        self._max_keys = max_keys
        self._clock = clock
        self._seen: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()

    def try_pass(self, key: Hashable) -> int | None:
        """How many were held back since the last one that passed, or None when this one is to be held back."""
        now = self._clock()
        passed, suppressed = self._seen.get(key, (None, 0))
        if passed is not None and now - passed < self._interval:
            self._seen[key] = (passed, suppressed + 1)
            return None
        self._seen[key] = (now, 0)
        self._seen.move_to_end(key)
        if len(self._seen) > self._max_keys:
            self._seen.popitem(last=False)
        return suppressed

    def hold_back(self, key: Hashable, count: int) -> None:
        """Count warnings that were held back elsewhere: the next one of the key that passes has them, too."""
        passed, suppressed = self._seen.get(key, (-math.inf, 0))
        self._seen[key] = (passed, suppressed + count)
        if len(self._seen) > self._max_keys:
            self._seen.popitem(last=False)


class Throttled:
    """A logger that writes one line per event and interval; `suppressed` counts the lines left out before it.

    warnings = Throttled(get_logger("penstock.ingest"), interval=10.0)
    warnings.error("publishes were not logged", error=str(error))
    """

    def __init__(self, log: Logger, interval: float = 60.0, max_keys: int = 1_024) -> None:
        self._log = log
        self._limited = RateLimited(interval, max_keys)

    def warning(self, event: str, /, per: Hashable = None, **fields: object) -> int | None:
        """Log a warning, limited by `per` instead of the event if given; None if the line was left out."""
        return self._write(self._log.warning, event, per, fields)

    def error(self, event: str, /, per: Hashable = None, **fields: object) -> int | None:
        return self._write(self._log.error, event, per, fields)

    def exception(self, event: str, /, per: Hashable = None, **fields: object) -> int | None:
        return self._write(self._log.exception, event, per, fields)

    def _write(self, write: Callable[..., None], event: str, per: Hashable, fields: dict[str, object]) -> int | None:
        suppressed = self._limited.try_pass(event if per is None else per)
        if suppressed is not None:
            write(event, **fields, suppressed=suppressed)
        return suppressed
