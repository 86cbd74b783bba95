#!/usr/bin/env python3
"""Write docs/conformance.md from the statement tags in the sources and the tests.

A tag is the number of a normative statement in square brackets: prefix MQTT for MQTT 5.0, prefix MQTT3 for MQTT 3.1.1.
The catalogues beside this script say which numbers exist; a tag that is in neither is an error.

    python docs/conformance/generate.py            write the page
    python docs/conformance/generate.py --check    exit 1 if the page is old, a tag wrong or a statement forgotten
    python docs/conformance/generate.py --gaps     print the statements that lack code or a test

The page names files and functions, not lines, so that it changes only when the coverage does.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
CATALOGUES = ("mqtt-3.1.1.toml", "mqtt-5.0.toml")
EXCEPTIONS = "exceptions.toml"
CODE_FOLDERS = ("src", "ext")
TEST_FOLDERS = ("tests",)
SUFFIXES = {".py", ".pyx", ".pxd", ".pxi", ".h"}  # not .c: Cython's output repeats the comments of its source
ROLES = {"server", "client", "both"}

# Anything that begins like a tag is looked at, so that a misspelt one is reported instead of passed over.
TAG_START = re.compile(r"\[(MQTT\d?-\d[^\]\s]*)(\]?)")
TAG = re.compile(r"MQTT3?-\d+\.\d+\.\d+-\d+")
CYTHON_HEADER = re.compile(
    r"^(?P<indent>[ ]*)(?:(?:async\s+)?def|cpdef|cdef|class)\b(?P<rest>[^=]*?)(?P<name>\w+)\s*(?:\(|:)"
)


@dataclass(frozen=True)
class Statement:
    """One normative statement; `tag` is its number with the prefix of its version."""

    tag: str
    role: str
    text: str


@dataclass(frozen=True)
class Catalogue:
    title: str
    version: str
    sections: tuple[tuple[str, tuple[Statement, ...]], ...]

    def statements(self) -> Iterator[Statement]:
        for _title, statements in self.sections:
            yield from statements


@dataclass
class Coverage:
    """Where a statement is cited: file to the functions in it (an empty name: outside any function)."""

    code: dict[str, set[str]] = field(default_factory=dict)
    tests: dict[str, set[str]] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        if self.code and self.tests:
            return "code and test"
        if self.code:
            return "code only"
        return "test only" if self.tests else "none"


@dataclass(frozen=True)
class Scope:
    first: int
    last: int
    name: str


def load_catalogue(path: Path) -> Catalogue:
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    sections = []
    for section in data["section"]:
        statements = tuple(
            Statement(f"{data['prefix']}-{entry['id']}", entry["role"], entry["text"])
            for entry in section["statements"]
        )
        sections.append((section["title"], statements))
    catalogue = Catalogue(data["title"], data["version"], tuple(sections))
    seen: set[str] = set()
    for statement in catalogue.statements():
        if statement.tag in seen or statement.role not in ROLES or not TAG.fullmatch(statement.tag):
            raise SystemExit(f"{path.name}: {statement.tag} is listed twice, has a bad role or a bad number")
        seen.add(statement.tag)
    return catalogue


def load_exceptions(path: Path) -> dict[str, str]:
    """Tag to the reason why a statement needs no code or no test of its own."""
    if not path.exists():
        return {}
    reasons: dict[str, str] = {}
    for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("exception", []):
        for tag in entry["tags"]:
            if tag in reasons:
                raise SystemExit(f"{path.name}: {tag} is listed twice")
            reasons[tag] = entry["reason"]
    return reasons


def python_scopes(text: str) -> list[Scope]:
    """Functions and classes with their decorators, and tables; methods are named Class.method."""
    scopes: list[Scope] = []

    def visit(node: ast.AST, outer: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{outer}.{child.name}" if outer else child.name
                first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
                scopes.append(Scope(first, child.end_lineno or child.lineno, name))
                # A function inside a function is a detail of the outer one.
                if isinstance(child, ast.ClassDef):
                    visit(child, name)
            elif isinstance(child, ast.Assign | ast.AnnAssign) and not outer:
                # a table of cases, which some test is run with
                target = child.targets[0] if isinstance(child, ast.Assign) else child.target
                name = target.id if isinstance(target, ast.Name) else ""
                scopes.append(Scope(child.lineno, child.end_lineno or child.lineno, name))
            else:
                visit(child, outer)

    visit(ast.parse(text), "")
    return scopes


def cython_scopes(text: str) -> list[Scope]:
    """The same by indentation: a scope lasts until a line that is not indented more than its header."""
    lines = text.splitlines()
    scopes: list[Scope] = []
    open_scopes: list[tuple[int, int, str]] = []

    def close(indent: int, last: int) -> None:
        while open_scopes and open_scopes[-1][0] >= indent:
            _indent, first, name = open_scopes.pop()
            scopes.append(Scope(first, last, name))

    last_code = 0
    for number, line in enumerate(lines, 1):
        stripped = line.strip()
        if not stripped or stripped.startswith(("#", ")")):
            continue
        indent = len(line) - len(line.lstrip(" "))
        close(indent, last_code)
        last_code = number
        header = CYTHON_HEADER.match(line)
        if header and "extern" not in header["rest"].split():
            owner = open_scopes[-1][2] if open_scopes else ""
            name = f"{owner}.{header['name']}" if owner else header["name"]
            open_scopes.append((indent, number, name))
    close(0, last_code)
    return scopes


def scope_of(line: int, lines: list[str], scopes: list[Scope]) -> str:
    """The innermost scope around a line; a comment directly above a header belongs to what it stands above."""
    probe = line
    while probe < len(lines) and lines[probe - 1].lstrip().startswith("#"):
        probe += 1
    starts_here = [scope for scope in scopes if scope.first == probe and probe != line]
    inside = starts_here or [scope for scope in scopes if scope.first <= line <= scope.last]
    return min(inside, key=lambda scope: scope.last - scope.first).name if inside else ""


def find_tags(path: Path) -> Iterator[tuple[int, str, str]]:
    """Every tag of a file as (line, tag, function); a misspelt one as it stands there."""
    text = path.read_text(encoding="utf-8")
    if "[MQTT" not in text:
        return
    lines = text.splitlines()
    scopes = python_scopes(text) if path.suffix == ".py" else cython_scopes(text)
    for number, line in enumerate(lines, 1):
        for match in TAG_START.finditer(line):
            tag = match[1] if match[2] else f"{match[1]} (no closing bracket)"
            yield number, tag, scope_of(number, lines, scopes)


def source_files(root: Path, folders: tuple[str, ...]) -> Iterator[Path]:
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                yield path


def scan(root: Path, known: set[str]) -> tuple[dict[str, Coverage], list[str]]:
    """Coverage of every known tag, and one line of complaint for every other."""
    coverage = {tag: Coverage() for tag in known}
    errors: list[str] = []
    for folders, kind in ((CODE_FOLDERS, "code"), (TEST_FOLDERS, "tests")):
        for path in source_files(root, folders):
            place = path.relative_to(root).as_posix()
            for line, tag, function in find_tags(path):
                if tag not in known:
                    errors.append(f"{place}:{line}: no such statement: [{tag}]")
                elif kind == "code":
                    coverage[tag].code.setdefault(place, set()).add(function)
                elif path.name.startswith("test_"):  # helpers of the tests prove nothing by themselves
                    coverage[tag].tests.setdefault(place, set()).add(function)
    return coverage, errors


def find_forgotten(catalogues: list[Catalogue], coverage: dict[str, Coverage], exceptions: dict[str, str]) -> list[str]:
    """Statements that bind the broker, have neither code nor test, and no reason is given; and stale reasons."""
    errors = []
    known = {statement.tag for catalogue in catalogues for statement in catalogue.statements()}
    for tag in exceptions:
        if tag not in known:
            errors.append(f"{EXCEPTIONS}: no such statement: {tag}")
        elif coverage[tag].kind == "code and test":
            errors.append(f"{EXCEPTIONS}: {tag} now has code and a test; remove it")
    for catalogue in catalogues:
        for statement in catalogue.statements():
            covered = statement.role == "client" or coverage[statement.tag].kind != "none"
            if not covered and statement.tag not in exceptions:
                errors.append(f"[{statement.tag}] has no code, no test and no reason in {EXCEPTIONS}: {statement.text}")
    return errors


def render_places(places: dict[str, set[str]]) -> str:
    cells = []
    for place in sorted(places):
        names = sorted(name for name in places[place] if name)
        shown = ", ".join(f"`{name}`" for name in names)
        link = f"[{Path(place).name}](../{place})"
        cells.append(f"{link}: {shown}" if shown else link)
    return "<br>".join(cells)


def render_row(statement: Statement, coverage: Coverage, reason: str | None) -> str:
    code = render_places(coverage.code)
    tests = render_places(coverage.tests)
    if statement.role == "client" and not code:
        code = "binds clients only"
    elif reason and not code:
        code = f"_{reason}_"
    elif reason and not tests:
        tests = f"_{reason}_"
    text = statement.text.replace("|", "\\|")
    return f"| {statement.tag} | {text} | {statement.role} | {code or '-'} | {tests or '-'} |"


def render_summary(catalogues: list[Catalogue], coverage: dict[str, Coverage], exceptions: dict[str, str]) -> list[str]:
    lines = [
        "| version | statements | code and test | code only | test only | with reason | neither | clients only |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for catalogue in catalogues:
        counts = dict.fromkeys(("code and test", "code only", "test only", "reason", "none", "client"), 0)
        for statement in catalogue.statements():
            kind = "client" if statement.role == "client" else coverage[statement.tag].kind
            if kind == "none" and statement.tag in exceptions:
                kind = "reason"
            counts[kind] += 1
        cells = " | ".join(str(count) for count in counts.values())
        lines.append(f"| {catalogue.title} | {sum(counts.values())} | {cells} |")
    return lines


def render(catalogues: list[Catalogue], coverage: dict[str, Coverage], exceptions: dict[str, str]) -> str:
    lines = [
        "# Conformance",
        "",
        "<!-- Generated by docs/conformance/generate.py from the tags in src/, ext/ and tests/. Do not edit. -->",
        "",
        "Every numbered normative statement of MQTT 3.1.1 and MQTT 5.0, in our own short words, with the code that",
        "obeys it and the tests that show it. In the sources a statement of MQTT 5.0 is cited with the prefix MQTT and",
        "one of MQTT 3.1.1 with the prefix MQTT3, because the same number often means something else in the other",
        "version. The role says whom a statement binds; `both` includes rules for clients that the broker checks.",
        "Where a statement needs no code or test of its own, the reason stands in its place.",
        "",
        *render_summary(catalogues, coverage, exceptions),
    ]
    for catalogue in catalogues:
        lines += ["", f"## {catalogue.title}"]
        for title, statements in catalogue.sections:
            lines += ["", f"### {title}", "", "| statement | says | role | code | tests |", "|---|---|---|---|---|"]
            lines += [render_row(each, coverage[each.tag], exceptions.get(each.tag)) for each in statements]
    return "\n".join(lines) + "\n"


def print_gaps(catalogues: list[Catalogue], coverage: dict[str, Coverage], exceptions: dict[str, str]) -> None:
    for catalogue in catalogues:
        for statement in catalogue.statements():
            kind = coverage[statement.tag].kind
            if statement.role != "client" and kind != "code and test" and statement.tag not in exceptions:
                print(f"{kind:9}  [{statement.tag}] {statement.text}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write docs/conformance.md from the statement tags.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if anything is not as it should be")
    parser.add_argument("--gaps", action="store_true", help="print the statements that lack code or a test")
    parser.add_argument("--root", type=Path, default=HERE.parent.parent, help="project folder (default: this one)")
    options = parser.parse_args(arguments)

    folder = options.root / "docs" / "conformance"
    page = options.root / "docs" / "conformance.md"
    catalogues = [load_catalogue(folder / name) for name in CATALOGUES]
    exceptions = load_exceptions(folder / EXCEPTIONS)
    known = {statement.tag for catalogue in catalogues for statement in catalogue.statements()}
    coverage, errors = scan(options.root, known)

    if options.gaps:
        print_gaps(catalogues, coverage, exceptions)
        return 0
    if not errors:
        text = render(catalogues, coverage, exceptions) if set(exceptions) <= known else ""
        if options.check:
            errors = find_forgotten(catalogues, coverage, exceptions)
            if not page.exists() or page.read_text(encoding="utf-8") != text:
                errors.append("docs/conformance.md is out of date: run python docs/conformance/generate.py")
        else:
            page.write_text(text, encoding="utf-8")
    for error in errors:
        print(error, file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
