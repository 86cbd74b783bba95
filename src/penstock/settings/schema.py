"""The model read as data: one `Key` per setting, for the loader, the reference in docs/ and the reload."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

from penstock.core.errors import SettingsError
from penstock.settings.model import ListenerSettings, Settings
from penstock.settings.queues import QueueSettings
from penstock.settings.section import Section
from penstock.settings.units import parse_duration, parse_size

# Sections written once for each of what they describe: [[listeners]].
LISTS: dict[str, type[Section]] = {"listeners": ListenerSettings, "queues": QueueSettings}
# Shown instead of a secret.
HIDDEN = "***"
# Names in a table of strings whose values are hidden: librdkafka has several, and plug-ins more.
SECRET_NAME = re.compile(r"password|passphrase|secret|jaas|key[._]?pem|ssl[._]key$|oauthbearer\.config")

_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")


@dataclass(frozen=True, slots=True)
class Key:
    """One setting. `name` is dotted, without the number of the listener or queue it belongs to."""

    name: str
    attribute: str  # dotted, within the section: a key need not be called as its attribute
    annotation: Any  # what msgspec checks the value against, with its bounds
    kind: Any  # the bare type: int, float, bool, str, a Literal, tuple[str, ...] or dict[str, str]
    default: Any
    description: str
    unit: str
    live: bool
    low: float | None
    high: float | None
    is_secret: bool = False
    words: str = ""  # the allowed values, where the type does not state them
    is_above: bool = False  # `low` itself is not allowed
    tables: dict[str, Key] | None = None  # of a list of tables: the keys of each

    @property
    def choices(self) -> tuple[str, ...]:
        if isinstance(self.kind, type) and issubclass(self.kind, Enum):
            return tuple(choice.value for choice in self.kind)
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def allowed(self) -> str:
        """The allowed values, in words."""
        if self.words:
            return self.words
        if self.choices:
            return "one of " + ", ".join(f'"{choice}"' for choice in self.choices)
        if self.kind is bool:
            return "true or false"
        if self.kind in (int, float):
            noun = {"bytes": "a size in bytes such as 65536 or 64KiB", "seconds": "a time in seconds such as 10 or 10s"}
            text = noun.get(self.unit, "a whole number" if self.kind is int else "a number")
            if self.high is None:
                return text
            low = f"above {self.low or 0:,.0f}, up" if self.is_above else f"from {self.low or 0:,.0f}"
            return f"{text}, {low} to {self.high:,.0f}"
        if self.tables is not None:
            return f"a list of tables, [[{self.name}]] in the settings file"
        if get_origin(self.kind) is tuple:
            return "a list of strings"
        return "a table of strings" if get_origin(self.kind) is dict else "a string"


def describe(section: type[Section], prefix: str = "", path: str = "") -> dict[str, Key]:
    """The keys of a section by their names, those of the tables in it among them: `limits.max_depth`."""
    hints = typing.get_type_hints(section, include_extras=True)
    keys: dict[str, Key] = {}
    for struct_field in msgspec.structs.fields(section):
        annotation = hints[struct_field.name]
        kind, *_ = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
        name, attribute = f"{prefix}{struct_field.encode_name}", f"{path}{struct_field.name}"
        if _is_section(kind):
            keys.update(describe(kind, f"{name}.", f"{attribute}."))
        else:
            keys[name] = _make_key(name, attribute, annotation, _default_of(struct_field))
    return keys


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


def _make_key(name: str, attribute: str, annotation: Any, default: Any) -> Key:
    kind, *metas = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    extra: dict[str, Any] = next((meta.extra for meta in metas if meta.extra), {})
    entry: Any = get_args(kind)[0] if get_origin(kind) is tuple else None
    is_above = any(meta.gt is not None for meta in metas)
    return Key(
        name=name,
        attribute=attribute,
        annotation=annotation,
        kind=kind,
        default=default,
        description=next((meta.description for meta in metas if meta.description), ""),
        unit=extra.get("unit", ""),
        live=bool(extra.get("live", False)),
        low=next((low for meta in metas if (low := meta.gt if is_above else meta.ge) is not None), None),
        high=next((meta.le for meta in metas if meta.le is not None), None),
        is_secret=bool(extra.get("secret", False)),
        words=extra.get("allowed", ""),
        is_above=is_above,
        tables=describe(entry) if _is_section(entry) else None,
    )


def _default_of(struct_field: msgspec.structs.FieldInfo) -> Any:
    """Return the default, None for a key that a table must have."""
    if struct_field.default is not msgspec.NODEFAULT:
        return struct_field.default
    return None if struct_field.required else struct_field.default_factory()


@cache
def sections() -> dict[str, dict[str, Key]]:
    """Section name to its keys by their names in it, in the order of the model; `listeners` stands for each of them."""
    described = {}
    for section in msgspec.structs.fields(Settings):
        prefix = f"{section.name}."
        keys = describe(section_class(section.name), prefix)
        described[section.name] = {name.removeprefix(prefix): key for name, key in keys.items()}
    return described


def find_key(dotted: str) -> Key | None:
    """The key of a dotted name, with the number of its listener or queue where it has one."""
    section, _, rest = dotted.partition(".")
    if section in LISTS:
        rest = rest.partition(".")[2]
    return sections().get(section, {}).get(rest)


def is_secret(dotted: str) -> bool:
    """Whether the value of this key is hidden."""
    key = find_key(dotted)
    return key is not None and key.is_secret


def without_secrets(name: str, value: object) -> object:
    """Return a value as it may be shown: without secrets, also those in a table whose names say so."""
    if isinstance(value, dict):
        return {
            entry: HIDDEN if text and SECRET_NAME.search(entry) else without_secrets(f"{name}.{entry}", text)
            for entry, text in value.items()
        }
    return HIDDEN if value and is_secret(name) else value


@cache
def section_class(name: str) -> type[Section]:
    if name in LISTS:
        return LISTS[name]
    cls = typing.get_type_hints(Settings)[name]
    assert isinstance(cls, type)
    assert issubclass(cls, Section)
    return cls


def convert(key: Key, value: object, where: str) -> object:
    """The value as the model wants it; texts from the environment and flags, or with a unit, are read here."""
    if key.tables is not None:
        return _convert_tables(key, value, where)
    try:
        plain = _from_text(key, str(value)) if isinstance(value, str) else value
        if key.kind is float and isinstance(plain, int) and not isinstance(plain, bool):
            plain = float(plain)
        return msgspec.convert(plain, key.annotation)
    except (ValueError, msgspec.ValidationError) as error:
        raise bad_value(where, HIDDEN if key.is_secret else value, key.allowed, _detail(key, error)) from None


def _convert_tables(key: Key, value: object, where: str) -> list[dict[str, Any]]:
    """Convert each table of a list, with the keys of its inner tables; the error names the number of the table."""
    assert key.tables is not None
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise bad_value(where, value, key.allowed)
    converted = []
    for index, entry in enumerate(value):
        table: dict[str, Any] = {}
        for name, given in leaves(key.tables, entry):
            found = key.tables.get(name)
            if found is None:
                raise SettingsError(f"{where}: {name} is not a setting: there are {', '.join(key.tables)}")
            *inner, last = name.split(".")
            target = table
            for part in inner:
                target = target.setdefault(part, {})
            target[last] = convert(found, given, f"{where}.{index}.{name}")
        missing = [name for name, found in key.tables.items() if found.default is None and name not in table]
        if missing:
            raise SettingsError(f"{where}.{index}: {missing[0]} is missing")
        converted.append(table)
    return converted


def leaves(keys: Mapping[str, Key], table: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, object]]:
    """The keys of a table and of the tables in it that hold settings, not texts: `limits.max_depth`."""
    for name, value in table.items():
        dotted = f"{before}{name}"
        if isinstance(value, dict) and any(known.startswith(f"{dotted}.") for known in keys):
            yield from leaves(keys, value, f"{dotted}.")
        else:
            yield dotted, value


def _from_text(key: Key, text: str) -> object:
    if key.kind is bool:
        lowered = text.strip().lower()
        if lowered in _TRUE or lowered in _FALSE:
            return lowered in _TRUE
        raise ValueError
    if key.unit == "bytes":
        return parse_size(text)
    if key.unit == "seconds":
        seconds = parse_duration(text)
        if key.kind is int:
            if not seconds.is_integer():
                raise ValueError
            return int(seconds)
        return seconds
    if key.kind in (int, float):
        return key.kind(text)
    if get_origin(key.kind) is tuple:
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def _detail(key: Key, error: Exception) -> str:
    # msgspec's words help where the bounds are not numbers (the length or pattern of a text).
    return f"{error}" if key.kind is str and not key.words and isinstance(error, msgspec.ValidationError) else ""


class FileText(str):
    """The value of a setting that was read from a file. It may be a secret, so errors never show it."""

    __slots__ = ()


CONTENTS = "(the contents of the file)"
SHORTEST_HIDDEN = 4  # what is shorter is not a secret, and may be part of any word


def hide_contents(text: str, contents: Iterable[FileText]) -> str:
    """Return the text of an error without the contents of files, wherever the value was checked."""
    for each in sorted(contents, key=len, reverse=True):
        if len(each) >= SHORTEST_HIDDEN:
            for form in (repr(str(each)), repr(str(each))[1:-1], str(each)):
                text = text.replace(form, CONTENTS)
    return text


def bad_value(where: str, value: object, allowed: str, detail: str = "") -> SettingsError:
    """The one form every bad value is reported in: where it came from, what it is, what is allowed."""
    shown = CONTENTS if isinstance(value, FileText) else repr(value)
    shown = f"{shown[:80]}…" if len(shown) > 80 else shown
    return SettingsError(f"{where} = {shown} is not allowed: use {allowed}{f' ({detail})' if detail else ''}")
