"""All sources put together: the defaults, the file, the environment, the flags; later ones win."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from penstock.core.errors import SettingsError
from penstock.settings.address import TRANSPORTS
from penstock.settings.aliases import OLD_SECTIONS, current
from penstock.settings.checks import check_settings, open_insecure_listeners, unused_bindings
from penstock.settings.environment import Assignment, environment_name, meaningless_names, read_environment
from penstock.settings.model import Settings
from penstock.settings.schema import (
    LISTS,
    FileText,
    Key,
    bad_value,
    convert,
    hide_contents,
    leaves,
    sections,
    without_secrets,
)
from penstock.settings.toml_file import SettingsFile, choose_path, read_file

DEFAULT = "default"
LISTENERS = "listeners"
QUEUES = "queues"


@dataclass(frozen=True)
class Loaded:
    """The effective settings, where each came from, and what should be said about them when the broker starts."""

    settings: Settings
    path: Path | None
    warnings: list[str]
    _given: dict[str, str] = field(repr=False)
    _request: tuple[Path | None, dict[str, str], dict[str, str], dict[str, str]] = field(repr=False)

    @property
    def origins(self) -> dict[str, str]:
        """Origin of every key there is, in the order of the model. Made when it is asked for: thousands of queues have
        very many keys."""
        return {key: self._given.get(key, DEFAULT) for key, _ in flatten(self.settings)}

    def reload(self) -> Loaded:
        """Read the same sources again (SIGHUP); raises SettingsError and leaves this object as it is."""
        path, environ, overrides, flags = self._request
        return load_settings(path, environ, overrides, flags=flags)


def load_settings(
    path: Path | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, str] | None = None,
    *,
    flags: Mapping[str, str] | None = None,
    check: bool = True,
) -> Loaded:
    """Settings from the file at `path` (or the usual places), `environ` and `overrides` (dotted key to text).

    `flags` names the command line flag of an override, for its origin; --set when it is not there. `check=False` leaves
    out the checks between settings and of the files they name.
    """
    environ = dict(os.environ if environ is None else environ)
    overrides, flags = dict(overrides or {}), dict(flags or {})
    tree = _Tree()
    found = choose_path(path, environ)
    if found is not None:
        tree.take_file(read_file(found))
    tree.take(read_environment(environ))
    tree.take(_read_overrides(overrides, flags))
    try:
        settings = tree.build()
        warnings = [*tree.renamed_keys(), *meaningless_names(environ), *unused_bindings(settings)]
        if check:
            settings = open_insecure_listeners(settings, environ, tree.origins, warnings)
            check_settings(settings, tree.where)
    except SettingsError as error:
        error.message, error.hint = (hide_contents(text, tree.contents) for text in (error.message, error.hint))
        raise
    return Loaded(settings, found, warnings, tree.origins, (path, environ, overrides, flags))


def _read_overrides(overrides: Mapping[str, str], flags: Mapping[str, str]) -> Iterable[Assignment]:
    for key, value in overrides.items():
        flag = flags.get(key, "--set")
        yield Assignment(key, value, f"flag {flag}", f"{flag} {key}" if flag == "--set" else f"{flag} (setting {key})")


class _Tree:
    """Values given so far, checked one by one as they come, so that an error can name its source."""

    def __init__(self) -> None:
        self.values: dict[str, dict[str, Any]] = {}
        self.listeners: list[dict[str, Any]] = []
        self.queues: list[dict[str, Any]] = []
        self.origins: dict[str, str] = {}
        self._where: dict[str, str] = {}
        self._renamed: dict[str, str] = {}  # names that were used, and what they are called now
        self.contents: set[FileText] = set()

    def where(self, key: str) -> str:
        """How an error about this key names it: with its source if it has one."""
        return self._where.get(key, key)

    def renamed_keys(self) -> Iterable[str]:
        """Yield one warning for each old section that was used, with the names that its keys have now."""
        for section in OLD_SECTIONS:
            pairs = [f"{old} is {new}" for old, new in self._renamed.items() if old.partition(".")[0] == section]
            if pairs:
                yield f"[{section}] has a new name, the old one still works: {', '.join(pairs)}"

    def take_file(self, file: SettingsFile) -> None:
        origin = f"file {file.path}"
        # A setting that is also given by its present name has the value of that.
        for section, table in sorted(file.document.items(), key=lambda item: item[0] not in OLD_SECTIONS):
            if section not in sections() and section not in OLD_SECTIONS:
                raise _unknown(file.where(section), section, list(sections()), "a section of the settings")
            if section in LISTS:
                self._take_list(section, table, file, origin)
                continue
            if not isinstance(table, dict):
                raise SettingsError(f"{file.where(section)} must be a table: write [{section}] and its keys below")
            given = _flattened(table) if section in OLD_SECTIONS else leaves(sections()[section], table)
            for name, value in given:
                self._set(f"{section}.{name}", value, origin, file.where(f"{section}.{name}"))

    def _take_list(self, section: str, tables: object, file: SettingsFile, origin: str) -> None:
        if not isinstance(tables, list) or not all(isinstance(entry, dict) for entry in tables):
            noun = section.removesuffix("s")
            raise SettingsError(f"{file.where(section)} must be written as [[{section}]], once for each {noun}")
        if section == LISTENERS and not tables:
            raise SettingsError(f"{file.where(section)} is empty: a broker needs at least one listener")
        for index, entry in enumerate(tables):
            self._list_of(section).append({})
            for name, value in leaves(sections()[section], entry):
                self._set(f"{section}.{index}.{name}", value, origin, file.where(f"{section}.{index}.{name}"))

    def _list_of(self, section: str) -> list[dict[str, Any]]:
        return self.listeners if section == LISTENERS else self.queues

    def take(self, assignments: Iterable[Assignment]) -> None:
        for key, value, origin, where in sorted(assignments, key=_turn):
            if isinstance(value, FileText):
                self.contents |= {value, *(FileText(part.strip()) for part in value.split(","))}
            if key == LISTENERS:
                self._replace_listeners(value, origin, where)
            else:
                self._set(key, value, origin, where)

    def _replace_listeners(self, text: str, origin: str, where: str) -> None:
        """`host:port,ws://host:port/path,unix:/path`: exactly these listeners, whatever the file says."""
        for known in [known for known in self.origins if known.startswith(f"{LISTENERS}.")]:
            del self.origins[known]
        self.listeners = []
        kind = type(text)  # FileText: errors do not show the contents of a file
        for index, address in enumerate(filter(None, (kind(part.strip()) for part in text.split(",")))):
            prefix = f"{LISTENERS}.{index}"
            transport, scheme, rest = address.partition("://")
            if not scheme:
                transport, rest = ("unix", address[5:]) if address.startswith("unix:") else ("tcp", address)
            if transport not in TRANSPORTS:
                raise bad_value(where, address, "host:port, or a URL with " + ", ".join(f"{t}://" for t in TRANSPORTS))
            if transport in ("ws", "wss") and "/" in rest:
                rest, _, path = rest.partition("/")
                self._set(f"{prefix}.path", f"/{path}", origin, where)
            self._set(f"{prefix}.transport", transport, origin, where)
            self._set(f"{prefix}.address", rest, origin, where)
        if not self.listeners:
            raise bad_value(where, text, "at least one host:port")

    def _set(self, dotted: str, value: object, origin: str, where: str) -> None:
        old, (dotted, value) = dotted, current(dotted, value)
        if dotted != old:
            self._renamed[old] = dotted
        key, target = self._find(dotted, where)
        name = key.name.rpartition(".")[2]
        for table in key.name.split(".")[1:-1]:
            target = target.setdefault(table, {})
        if key.kind == dict[str, str]:
            # `access.enhanced.NAME` adds one entry of the table that `access.enhanced` is.
            entry, dotted = dotted[len(key.name) + 1 :], key.name
            target[name] = {**target.get(name, {}), **_table_of_texts(key, {entry: value} if entry else value, where)}
        else:
            target[name] = convert(key, value, where)
        self.origins[dotted] = origin
        self._where[dotted] = where

    def _find(self, dotted: str, where: str) -> tuple[Key, dict[str, Any]]:
        section, _, rest = dotted.partition(".")
        if section not in sections():
            raise _unknown(where, dotted, _all_keys(), "a setting")
        if section in LISTS:
            number, _, rest = rest.partition(".")
            entries, noun = self._list_of(section), section.removesuffix("s")
            if not number.isdigit():
                example = f"{section}.0.{'address' if section == LISTENERS else 'name'}"
                raise SettingsError(f"{where} is not a setting: name the {noun} by its number, as in {example}")
            if int(number) > len(entries):
                raise SettingsError(f"{where}: {noun} {len(entries)} before it is missing")
            if int(number) == len(entries):
                entries.append({})
            target = entries[int(number)]
            known = {f"{section}.{number}.{name}": key for name, key in sections()[section].items()}
        else:
            target = self.values.setdefault(section, {})
            known = {f"{section}.{name}": key for name, key in sections()[section].items()}
        found = known.get(dotted)
        if found is None:
            table = known.get(f"{section}.{rest.partition('.')[0]}")
            if table is None or table.kind != dict[str, str]:
                raise _unknown(where, dotted, list(known), "a setting")
            found = table
        return found, target

    def build(self) -> Settings:
        tree: dict[str, Any] = {name: dict(values) for name, values in self.values.items()}
        listeners = self.listeners or [{}]
        taken = {listener["name"] for listener in listeners if "name" in listener}
        for listener in listeners:
            if "name" not in listener:
                listener["name"] = _free_name(taken)
                taken.add(listener["name"])
        tree[LISTENERS] = listeners
        tree[QUEUES] = self.queues
        return msgspec.convert(tree, Settings)


def _turn(given: Assignment) -> int:
    """The whole list of listeners comes before settings of one of them, and an old name before the present one."""
    if given.key == LISTENERS:
        return 0
    return 1 if given.key.partition(".")[0] in OLD_SECTIONS else 2


def _flattened(table: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, object]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _table_of_texts(key: Key, given: object, where: str) -> dict[str, str]:
    """TOML reads `sasl.username = "me"` without quotes as a table in a table: it is one name all the same."""
    table = dict(_flattened(given)) if isinstance(given, dict) else None
    texts = {name: text for name, text in (table or {}).items() if isinstance(text, str)}
    if table is None or len(texts) < len(table):
        shown = without_secrets(key.name, given if table is None else table)
        raise bad_value(where, shown, f'a table of strings, such as {key.name}.NAME = "text"')
    return texts


def _free_name(taken: set[object]) -> str:
    name, number = "mqtt", 1
    while name in taken:
        number += 1
        name = f"mqtt-{number}"
    return name


def flatten(settings: Settings, without: Container[str] = ()) -> Iterable[tuple[str, object]]:
    """Every dotted key with its value, in the order of the model."""
    for section, keys in sections().items():
        if section in without:
            continue
        table = getattr(settings, section)
        if section in LISTS:
            for index, entry in enumerate(table):
                for name, key in keys.items():
                    yield f"{section}.{index}.{name}", attrgetter(key.attribute)(entry)
        else:
            for name, key in keys.items():
                value = attrgetter(key.attribute)(table)
                yield f"{section}.{name}", value if key.tables is None else msgspec.to_builtins(value)


def _all_keys() -> list[str]:
    return [key.name for keys in sections().values() for key in keys.values()]


def _unknown(where: str, dotted: str, known: list[str], noun: str) -> SettingsError:
    near = get_close_matches(dotted, known, n=1, cutoff=0.6)
    if near:
        name = environment_name(near[0]) if where.startswith("environment ") else near[0]
        return SettingsError(f"{where} is not {noun}: did you mean {name}?")
    section = dotted.partition(".")[0]
    among = [name for name in known if name.startswith(f"{section}.")]
    among = among or sorted({name.partition(".")[0] for name in known})
    return SettingsError(f"{where} is not {noun}: there are {', '.join(among)}")
