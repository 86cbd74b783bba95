"""Structured logs on the standard library: key=value for people, JSON lines for machines.

    log = get_logger("penstock.mqtt")
    log.info("client connected", client_id=client_id, peer=peer)

Values come from clients, so none of them can forge a line: everything unprintable is escaped, long values are cut, and
fields named like a secret are masked whatever they hold.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Literal, TextIO

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR
ROOT = "penstock"
MASK = "***"
LONGEST_VALUE = 256
LONGEST_LIST = 32
DEEPEST = 4

_LEVELS = {"debug": DEBUG, "info": INFO, "warning": WARNING, "error": ERROR}
_FIELDS = "penstock_fields"
_SECRET = re.compile(
    r"(?:^|_)(?:pass|passwd|password|passphrase|pw|secret|secrets|token|credential|credentials|authorization"
    r"|auth_data|authentication_data|key|keys|psk)$",
    re.IGNORECASE,
)
_BARE = re.compile(r"[A-Za-z0-9_.:/@+\-$#*%,\[\]]+")
_NAME = re.compile(r"[^A-Za-z0-9_.]")
_COLOURS = {DEBUG: "\x1b[2m", INFO: "\x1b[32m", WARNING: "\x1b[33m", ERROR: "\x1b[31m"}


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
        self._logger.log(level, "%s", event, extra={_FIELDS: {**self._bound, **fields}}, exc_info=exc_info)


def get_logger(name: str) -> Logger:
    return Logger(logging.getLogger(name))


def configure_logging(
    level: str = "info", format: Literal["auto", "text", "json"] = "auto", stream: TextIO | None = None
) -> None:
    """Send everything logged in this process to `stream` (standard error). Calling it again replaces what it did."""
    stream = sys.stderr if stream is None else stream
    is_terminal = stream.isatty()
    handler = logging.StreamHandler(stream)
    if format == "json" or (format == "auto" and not is_terminal):
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(TextFormatter(colour=is_terminal and not os.environ.get("NO_COLOR")))
    root = logging.getLogger()
    for old in [old for old in root.handlers if getattr(old, _FIELDS, False)]:
        root.removeHandler(old)
    setattr(handler, _FIELDS, True)
    root.addHandler(handler)
    # A reader of the log that went away must not cost the broker anything.
    logging.raiseExceptions = False
    set_level(level)


def set_level(level: str) -> None:
    """Libraries stay one step quieter than we are, unless everything is wanted."""
    logging.getLogger(ROOT).setLevel(_LEVELS[level])
    logging.getLogger().setLevel(_LEVELS[level] if level == "debug" else max(WARNING, _LEVELS[level]))


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


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    given = getattr(record, _FIELDS, None) or {}
    return {_NAME.sub("_", name): clean(name, value) for name, value in given.items()}


def _timestamp(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


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
        return json.dumps(line)


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
