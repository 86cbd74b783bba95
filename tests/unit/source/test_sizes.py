"""A class has one reason to change, and a function fits on a page: what is larger has its reason in sizes.toml.

`python -m tests.unit.source.test_sizes` writes the numbers of that table again, after a class was split or moved.

Methods are those of the class itself, properties included. Attributes are what its methods assign to `self`, and the
fields of a dataclass that changes; records (settings, frozen dataclasses) may have as many as what they describe.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.unit.source.prose import name_of, tracked

MOST_METHODS = 25
MOST_ATTRIBUTES = 15
LONGEST_FUNCTION = 60
REASONS = Path(__file__).with_name("sizes.toml")
HEAD = "# Classes above the limits of test_sizes.py, as large as they may be, and why they are not split."

Function = ast.FunctionDef | ast.AsyncFunctionDef


def test_classes_are_small() -> None:
    reasons = _reasons()
    large = [
        f"{name}: {methods} methods, {attributes} attributes"
        for name, methods, attributes in _large_classes()
        if methods > reasons.get(name, {}).get("methods", MOST_METHODS)
        or attributes > reasons.get(name, {}).get("attributes", MOST_ATTRIBUTES)
    ]
    assert not large, "\n".join([*large, f"more than {MOST_METHODS} methods or {MOST_ATTRIBUTES} attributes: split it"])


def test_every_reason_is_still_needed() -> None:
    """With the numbers of the class as it is now, so that it cannot grow again."""
    found = {name: _numbers(methods, attributes) for name, methods, attributes in _large_classes()}
    stale = [
        f"{name}: {found.get(name, 'small, or gone')} in the tree, {numbers} in sizes.toml"
        for name, entry in _reasons().items()
        if (numbers := {key: value for key, value in entry.items() if key != "reason"}) != found.get(name)
    ]
    assert not stale, "\n".join([*stale, "run python -m tests.unit.source.test_sizes"])


def test_every_reason_says_something() -> None:
    assert not [name for name, entry in _reasons().items() if len(entry.get("reason", "")) < 20]


def test_functions_are_short() -> None:
    long = {}
    for path in tracked("src/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, Function):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > LONGEST_FUNCTION:
                    long[f"{name_of(path)}:{node.name}"] = lines
    assert not long


def _reasons() -> dict[str, dict[str, Any]]:
    return tomllib.loads(REASONS.read_text())


def _numbers(methods: int, attributes: int) -> dict[str, int]:
    """What is above its limit."""
    both = {"methods": (methods, MOST_METHODS), "attributes": (attributes, MOST_ATTRIBUTES)}
    return {name: number for name, (number, most) in both.items() if number > most}


def _large_classes() -> Iterator[tuple[str, int, int]]:
    for path in tracked("src/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                methods = sum(isinstance(each, Function) for each in node.body)
                attributes = len(_attributes(node))
                if _numbers(methods, attributes):
                    yield f"{name_of(path)}:{node.name}", methods, attributes


def _attributes(node: ast.ClassDef) -> set[str]:
    assigned = {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
    }
    if any("dataclass" in text and "frozen=True" not in text for text in map(ast.unparse, node.decorator_list)):
        assigned |= {
            each.target.id
            for each in node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        }
    return assigned


def main() -> None:
    """Write the table again with the numbers of the tree; a class that is new in it needs its reason by hand."""
    known, lines = _reasons(), [HEAD]
    for name, methods, attributes in _large_classes():
        numbers = [f"{key} = {value}" for key, value in _numbers(methods, attributes).items()]
        lines += ["", f'["{name}"]', *numbers, f'reason = "{known.get(name, {}).get("reason", "")}"']
    REASONS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
