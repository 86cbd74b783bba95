"""Paths into JSON values: `$.a.b[0]`, `$."a b"`, `/a/b/0` or the plain name of a member, as DuckDB reads them."""

from __future__ import annotations

import re

Path = tuple[str | int, ...]

MAX_STEPS = 32
_STEP = re.compile(
    r'\.(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^.\[\]"*]+))|\[(?:(?P<last>#-)?(?P<number>-?\d{1,9})|"(?P<member>(?:[^"\\]|\\.)*)")\]'
)


class BadPath(ValueError):
    """The text says what is wrong."""


def parse_path(text: str) -> Path:
    if text.startswith("$"):
        path = _steps(text)
    elif text.startswith("/"):
        path = tuple(_pointer_step(step) for step in text[1:].split("/"))
    else:
        path = (text,)
    if len(path) > MAX_STEPS:
        raise BadPath(f"the path has more than {MAX_STEPS} steps")
    return path


def _pointer_step(step: str) -> str | int:
    return int(step) if step.isdigit() and len(step) < 10 else step.replace("~1", "/").replace("~0", "~")


def _steps(text: str) -> Path:
    steps: list[str | int] = []
    at = 1
    while at < len(text):
        found = _STEP.match(text, at)
        if found is None:
            raise BadPath(
                f'{text!r} is no path this evaluates: write $.member, $."odd member" or $[0] (wildcards are not '
                "supported)"
            )
        member = found["quoted"] if found["quoted"] is not None else found["member"]
        if found["number"] is not None:
            steps.append(-int(found["number"]) if found["last"] else int(found["number"]))
        elif member is not None:
            steps.append(re.sub(r"\\(.)", r"\1", member))
        else:
            steps.append(found["plain"])
        at = found.end()
    return tuple(steps)


def path_text(path: Path) -> str:
    """The path written so that `parse_path` reads the same."""
    parts = []
    for step in path:
        if isinstance(step, int):
            parts.append(f"[{step}]")
        elif re.fullmatch(r"[^\W\d]\w*", step):
            parts.append(f".{step}")
        else:
            parts.append('."' + step.replace("\\", "\\\\").replace('"', '\\"') + '"')
    return "$" + "".join(parts)
