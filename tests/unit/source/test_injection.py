"""Dependencies are visible in constructors: no object sets a callback or a part of another one after it was made.

Plain state may be set from outside (`session.will = None`); what is looked for here is an attribute of another object
that becomes a function, a bound method, or an object with a class of its own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "src"
PACKAGES = ("penstock",)
REVIEWED = {
    # The compiled hub and its connections: their callbacks are C attributes.
    "penstock/mqtt/frontend.py: hub.on_retained_full",
    # Records of work under way, each made and filled by one class.
    "penstock/storage/log/embedded/producer.py: job[1].on_all_done",
    "penstock/storage/log/embedded/producer.py: job[1].on_done",
    "penstock/storage/log/local_consumer.py: place.position",
    "penstock/subscribers/device/delivery.py: backlog.on_drained",
    "penstock/subscribers/query/groups/group.py: member.topics",
    "penstock/subscribers/queue/group.py: core.auto_commit",
}


def find_injections(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Assignments to an attribute of another object than `self` whose value is a function or a part."""
    methods = {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    } - _properties(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            for single in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(single, ast.Attribute) and not _is_own(single) and _is_part(single, node.value, methods):
                    yield node.lineno, ast.unparse(single)


def _properties(tree: ast.AST) -> set[str]:
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and any("property" in ast.unparse(each) for each in node.decorator_list)
    }


def _is_own(target: ast.Attribute) -> bool:
    return isinstance(target.value, ast.Name) and target.value.id in {"self", "cls"}


def _is_part(target: ast.Attribute, value: ast.expr, methods: set[str]) -> bool:
    if target.attr.startswith("on_") or isinstance(value, ast.Lambda):
        return True
    if isinstance(value, ast.Attribute):
        return value.attr in methods and not isinstance(value.value, ast.Call)
    if isinstance(value, ast.Name):
        return value.id in methods
    # `other.part = self._make_part()` and `other.part = Part(…)`: a class has a capital letter.
    return isinstance(value, ast.Call) and _makes_a_part(value)


def _makes_a_part(value: ast.Call) -> bool:
    name = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
    return name.startswith(("_make_", "make_"))


@pytest.mark.parametrize(
    "code",
    [
        "def f(self): other.on_end = self.x",
        "def f(self): self.registry.on_end = None",
        "def f(self): other.read = lambda: 1",
        "class A:\n    def g(self): pass\n    def f(self): other.note = self.g",
        "def f(self): self.cluster = self.front.cluster = self._make_cluster()",
        "def g(): pass\ndef f(self): other.call = g",
    ],
)
def test_an_injection_is_found(code: str) -> None:
    assert list(find_injections(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        "def f(self): self.on_end = on_end",
        "def f(self): session.will = None",
        "def f(self): kept.disconnected_at = self.now_ms()",
        "class A:\n    @property\n    def g(self): pass\n    def f(self): other.note = self.g",
    ],
)
def test_plain_state_is_not(code: str) -> None:
    assert not list(find_injections(ast.parse(code)))


def test_nothing_is_set_on_another_object_after_it_was_made() -> None:
    found = set()
    for package in PACKAGES:
        for path in sorted((SOURCE / package).rglob("*.py")):
            for _, target in find_injections(ast.parse(path.read_text())):
                found.add(f"{path.relative_to(SOURCE)}: {target}")
    assert sorted(found - REVIEWED) == []
    assert sorted(REVIEWED - found) == [], "no longer needed"
