"""Writes the reference of all settings: `python -m penstock.settings.document > docs/settings.md`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator

from penstock.settings.aliases import ALIASES, KAFKA_OF_QUEUE, MEANINGLESS, RENAMED
from penstock.settings.environment import environment_name
from penstock.settings.schema import LISTS, Key, section_class, sections

_HEAD = """\
# Settings

<!-- Made by `python -m penstock.settings.document`: edit src/penstock/settings/model.py instead. -->

Settings come from one TOML file, are overridden by the environment, and that is overridden by flags. The file is the
one named by `--config`, else by `PENSTOCK_CONFIG`, else `./penstock.toml`, else `/etc/penstock/penstock.toml`; without
any the defaults hold. `penstock check-config` shows the effective value of every setting and where it came from.
An unknown key or a bad value stops the start with exit code 78 and a line that says what is allowed.

```toml
[[listeners]]
address = "127.0.0.1:1883"

[[listeners]]
name = "web"
transport = "ws"
address = "127.0.0.1:8083"

[limits]
max_packet_size = "2MiB"
connect_timeout = "10s"
```

The same from the environment and from flags:

```console
$ PENSTOCK_LIMITS__MAX_PACKET_SIZE=2MiB PENSTOCK_LISTENERS__0__ADDRESS=127.0.0.1:1884 penstock check-config
$ penstock check-config --set limits.max_packet_size=2MiB --listen 127.0.0.1:1884 --listen ws://127.0.0.1:8083/mqtt
```

Sizes may be written as a number of bytes or with KB, KiB, MB, MiB, GB, GiB (1 KB = 1 KiB = 1024 bytes); times as a
number of seconds or with ms, s, m, h, d. Relative paths start in the working directory of the broker. Every setting can
also be read from a file named by the environment, for secrets: `PENSTOCK_SECTION__KEY_FILE=/run/secrets/x`.
`PENSTOCK_LISTENERS` takes addresses separated by commas and replaces all listeners, as `--listen` does.

*Live* settings change on SIGHUP; the others need a restart. The files of passwords, ACL and certificates are read again
on every SIGHUP. When the new settings are bad the old ones stay.

A listener that the network can reach needs a way to authenticate (a password file, required client certificates or
enhanced authentication) or an explicit `anonymous = "allow"`; otherwise the broker does not start.
`PENSTOCK_INSECURE=1` in the environment makes such listeners accept clients without authentication, with a
warning: for a quick try in a container.
"""


def render() -> str:
    """The whole page."""
    parts = [_HEAD]
    for section, keys in sections().items():
        title = f"[[{section}]]" if section in LISTS else f"[{section}]"
        parts.append(f"\n## {title}\n\n{inspect.cleandoc(section_class(section).__doc__ or '')}\n")
        parts.append("\n| key | default | meaning | allowed | live |\n|---|---|---|---|---|\n")
        parts.extend(_row(name, key) for name, key in keys.items())
        for key in keys.values():
            parts.extend(_tables(key))
    parts.append(
        "\n## Other environment names\n\n"
        "For those who come from another broker these are accepted as well; our own names win.\n\n"
        "| name | setting | ours |\n|---|---|---|\n"
    )
    for name, alias in ALIASES.items():
        note = f" ({alias.note})" if alias.note else ""
        parts.append(f"| `{name}`{note} | `{alias.key}` | `{environment_name(alias.key)}` |\n")
    parts.append("\nThese are known and have no effect:\n\n| name | why |\n|---|---|\n")
    parts.extend(f"| `{name}` | {reason} |\n" for name, reason in MEANINGLESS.items())
    parts.append(
        "\n## Former names\n\n"
        "Settings with these names still work; at its start the broker says what they are called now, and so does "
        "`penstock check-config`. Hyphens in them are underscores now.\n\n| formerly | now |\n|---|---|\n"
    )
    parts.extend(f"| `{old}.…` | `{new}.…` |\n" for old, new in RENAMED.items())
    parts.append(f"| `{KAFKA_OF_QUEUE}…`, names of Kafka's Java client | `kafka.…` |\n")
    return "".join(parts)


def _tables(key: Key) -> Iterator[str]:
    """The keys of a list of tables."""
    if key.tables is None:
        return
    yield f"\n### [[{key.name}]]\n\nThe key {key.name} as tables of the file, each with these keys.\n"
    yield "\n| key | default | meaning | allowed | live |\n|---|---|---|---|---|\n"
    yield from (_row(name, inner) for name, inner in key.tables.items())


def _row(name: str, key: Key) -> str:
    live = "yes" if key.live else ""
    return f"| `{name}` | {_default(key)} | {_cell(key.description)} | {_cell(key.allowed)} | {live} |\n"


def _default(key: Key) -> str:
    value = key.default
    if value is None:
        return "required"
    if key.tables is not None:
        return ", ".join(f"`{table.name}`" for table in value)
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if key.unit == "bytes" and value and value % 1024 == 0:
        return f'`"{value // 1048576}MiB"`' if value % 1048576 == 0 else f'`"{value // 1024}KiB"`'
    if isinstance(value, tuple):
        return f"`{list(value)}`"
    if isinstance(value, str):
        return f'`"{value}"`'
    if isinstance(value, float) and value.is_integer():
        return f"`{int(value)}`"
    return f"`{value}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    sys.stdout.write(render())
