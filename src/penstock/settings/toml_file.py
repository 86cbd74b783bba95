"""The settings file: which one it is, its contents, and the line each key stands on."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from penstock.core.errors import SettingsError
from penstock.settings.environment import CONFIG

DEFAULT_PATHS = (Path("penstock.toml"), Path("/etc/penstock/penstock.toml"))

YAML_HINT = 'The file looks like YAML: write settings as TOML, such as [[queues]] and then name = "orders".'
_YAML = re.compile(r"^\w[\w-]*:(?:\s|$)", re.MULTILINE)
_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")


class SettingsFile(NamedTuple):
    """A file that was read. `lines` is where a key was seen; a reading aid for error messages, not a parser."""

    path: Path
    document: dict[str, Any]
    lines: dict[str, int]

    def where(self, key: str) -> str:
        """`file:line: key`, with the line of the nearest table when the key's own is not known."""
        name = key
        while name and name not in self.lines:
            name = name.rpartition(".")[0]
        line = f":{self.lines[name]}" if name else ""
        return f"{self.path}{line}: {key}"


def choose_path(path: Path | None, environ: Mapping[str, str]) -> Path | None:
    """The flag's, else PENSTOCK_CONFIG's, else the first default that exists; None = no file at all."""
    if path is not None:
        return path
    if environ.get(CONFIG):
        return Path(environ[CONFIG])
    return next((candidate for candidate in DEFAULT_PATHS if _is_there(candidate)), None)


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except PermissionError:
        return True  # reading it says what is wrong; who starts without its settings starts another broker


def read_file(path: Path) -> SettingsFile:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"cannot read the settings file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path} is not UTF-8 text, so it cannot be TOML") from None
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        hint = YAML_HINT if path.suffix.lower() in (".yaml", ".yml") or _YAML.search(text) else ""
        raise SettingsError(f"{path} is not valid TOML: {error}", hint) from None
    return SettingsFile(path, document, _locate(text))


def _locate(text: str) -> dict[str, int]:
    lines: dict[str, int] = {}
    tables: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.match(line)
        if header:
            table = _plain(header[2])
            if header[1] == "[[":
                tables[table] = tables.get(table, -1) + 1
                table = f"{table}.{tables[table]}"
            else:
                # [queues.limits] belongs to the [[queues]] it follows
                first, dot, rest = table.partition(".")
                table = f"{first}.{tables[first]}.{rest}" if dot and first in tables else table
            lines.setdefault(table, number)
            continue
        key = _KEY.match(line)
        if key:
            lines.setdefault(f"{table}.{_plain(key[1])}" if table else _plain(key[1]), number)
    return lines


def _plain(dotted: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in dotted.split("."))
