"""The environment read as settings: PENSTOCK_SECTION__KEY, PENSTOCK_SECTION__KEY_FILE and the aliases."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from penstock.core.errors import SettingsError
from penstock.settings.aliases import ALIASES, MEANINGLESS, current
from penstock.settings.schema import FileText, find_key

PREFIX = "PENSTOCK_"
# Whose entries are librdkafka's, which has none with _file at its end: a password may come in a file.
KAFKA_TABLES = ("kafka.common.", "kafka.producer.", "kafka.consumer.", "kafka.admin.")
CONFIG = "PENSTOCK_CONFIG"
INSECURE = "PENSTOCK_INSECURE"
DATA_SERVER = "PENSTOCK_DATA_SERVER"  # of the commands that are clients
TESTS = "PENSTOCK_TEST_"
# Names with our prefix that are not settings: these three, those of the build, and those of the tests.
NOT_SETTINGS = frozenset(
    (
        CONFIG,
        INSECURE,
        DATA_SERVER,
        "PENSTOCK_DEBUG",
        "PENSTOCK_SANITIZE",
        "PENSTOCK_COVERAGE",
        "PENSTOCK_ANNOTATE",
        "PENSTOCK_MODULES",
    )
)
# Kubernetes and Docker links put these into every container beside a service called penstock or penstock-something.
_SERVICE_LINK = re.compile(
    r"PENSTOCK_(?:[A-Z0-9]+_)*?"
    r"(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9]+)*|PORT|PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?|NAME)"
)


class Assignment(NamedTuple):
    """One setting given from outside the file."""

    key: str
    value: str
    origin: str
    where: str  # how an error names it


def read_environment(environ: Mapping[str, str]) -> Iterator[Assignment]:
    """Every assignment, the weaker ones first. A name with our prefix that means nothing is still given out: the
    loader knows the settings and reports it."""
    for name, alias in ALIASES.items():
        if name in environ:
            where = f"environment {name} (setting {alias.key})"
            try:
                value = alias.translate(environ[name])
            except ValueError as error:
                raise SettingsError(f"{where} = {environ[name]!r} is not allowed: {error}") from None
            yield Assignment(alias.key, value, f"environment {name}", where)
    for name in sorted(environ, key=_natural):
        if not name.startswith(PREFIX) or name in NOT_SETTINGS or name.startswith(TESTS):
            continue
        if "__" not in name and _SERVICE_LINK.fullmatch(name):
            continue
        yield _read_one(name, environ)


def meaningless_names(environ: Mapping[str, str]) -> Iterator[str]:
    """A warning for each name that is known and has no meaning here."""
    for name, reason in MEANINGLESS.items():
        if name in environ:
            yield f"environment {name} has no effect: {reason}"


def environment_name(key: str) -> str:
    """The environment's name of a dotted key."""
    return PREFIX + key.replace(".", "__").upper()


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    # Listener 10 comes after listener 9.
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in name.split("__"))


def _read_one(name: str, environ: Mapping[str, str]) -> Assignment:
    key = _key(name)
    if name.endswith("_FILE") and _names_a_file(key):
        plain = name[: -len("_FILE")]
        if plain in environ:
            raise SettingsError(f"environment {plain} and {name} are both set: keep one of them")
        try:
            value = FileText(Path(environ[name]).read_text().rstrip("\r\n"))
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"environment {name}: cannot read {environ[name]!r}: {_reason(error)}") from None
        return Assignment(_key(plain), value, f"environment {name}", f"environment {name} (setting {_key(plain)})")
    return Assignment(key, environ[name], f"environment {name}", f"environment {name}")


def _key(name: str) -> str:
    section, _, rest = name[len(PREFIX) :].partition("__")
    # The keys of a table of strings are the user's own words and keep their case.
    parts = rest.split("__", 1)
    if section == "ACCESS" and parts[0] == "ENHANCED" and len(parts) == 2:
        return f"access.enhanced.{parts[1]}"
    return ".".join([section.lower(), *(part.lower() for part in rest.split("__") if rest)])


def _names_a_file(key: str) -> bool:
    """Whether the value of the setting in front of _file is in the file."""
    return key.startswith(KAFKA_TABLES) or (not _is_setting(key) and _is_setting(key.removesuffix("_file")))


def _is_setting(key: str) -> bool:
    return find_key(current(key, "")[0]) is not None


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "it is not UTF-8 text"
