"""Code asks a provider for a capability, never for its name: only the factory compares names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.settings.providers import DEVICE_STORES, LOGS

SOURCE = Path(__file__).resolve().parents[3] / "src"
# Provider names are compared here only.
FACTORY = {"penstock/broker/providers.py"}
NAMES = {*LOGS, *DEVICE_STORES}
SETTINGS = {"provider", "store"}  # attributes that hold a name: settings.log.provider, settings.device.store
CLASSES = {"EmbeddedLog", "KafkaLog", "MemoryLog", "LmdbDeviceStore", "RedisDeviceStore"}


def find_name_tests(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Comparisons of a provider's name, matches on it, and tests of a provider's class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(map(_holds_a_name, sides)) and any(map(_is_a_name, sides)):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Match) and _holds_a_name(node.subject):
            yield node.lineno, ast.unparse(node.subject)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"isinstance", "issubclass", "type"}:
            used = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
            used |= {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
            if used & CLASSES:
                yield node.lineno, ast.unparse(node)


def _holds_a_name(node: ast.expr) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr in SETTINGS) or (
        isinstance(node, ast.Name) and node.id in {"provider", "store"}
    )


def _is_a_name(node: ast.expr) -> bool:
    """Whether it is the name of a provider, or a collection with one."""
    return any(isinstance(part, ast.Constant) and part.value in NAMES for part in ast.walk(node))


@pytest.mark.parametrize(
    "code",
    [
        "settings.log.provider == 'kafka'",
        "'embedded' != settings.log.provider",
        "settings.device.store in ('redis', 'other')",
        "(kind == 'kafka') == (provider == 'kafka')",
        "isinstance(self.log, EmbeddedLog)",
        "isinstance(log, (str, memory.MemoryLog))",
        "match settings.log.provider:\n    case 'kafka':\n        pass",
    ],
)
def test_a_test_of_a_name_is_found(code: str) -> None:
    assert list(find_name_tests(ast.parse(code)))


@pytest.mark.parametrize("code", ["log.is_shared", "parts.scheme == 'kafka'", "f'{settings.log.provider}: no'"])
def test_other_code_passes(code: str) -> None:
    assert not list(find_name_tests(ast.parse(code)))


def test_no_name_of_a_provider_is_tested() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{line}: {text}"
        for path in sorted(SOURCE.rglob("*.py"))
        if str(path.relative_to(SOURCE)) not in FACTORY
        for line, text in find_name_tests(ast.parse(path.read_text()))
    ]
    assert not found
