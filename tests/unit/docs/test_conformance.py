"""The conformance page is complete and current, and its generator says what is wrong by file and line."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "docs" / "conformance" / "generate.py"

CATALOGUE = """
version = "{version}"
title = "MQTT {version}"
prefix = "{prefix}"

[[section]]
title = "9 Only section"
statements = [
  {{ id = "9.0.0-1", role = "server", text = "The first." }},
  {{ id = "9.0.0-2", role = "both", text = "The second | with a bar." }},
  {{ id = "9.0.0-3", role = "client", text = "The third." }},
]
"""


def tag(number: str, prefix: str = "MQTT") -> str:
    """A tag put together here, so that the scan of this file does not find it."""
    return f"[{prefix}-{number}]"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("conformance_generate", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


class Tree:
    """A tiny project: two catalogues, and whatever sources a test writes."""

    def __init__(self, root: Path, generator: ModuleType) -> None:
        self.root = root
        self.generator = generator
        self.page = root / "docs" / "conformance.md"
        self.write("docs/conformance/mqtt-3.1.1.toml", CATALOGUE.format(version="3.1.1", prefix="MQTT3"))
        self.write("docs/conformance/mqtt-5.0.toml", CATALOGUE.format(version="5.0", prefix="MQTT"))

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def cite_everything(self) -> None:
        numbers = ("9.0.0-1", "9.0.0-2")
        tags = " ".join(tag(number, prefix) for prefix in ("MQTT", "MQTT3") for number in numbers)
        self.write("src/penstock/all.py", f"def obey():\n    return 1  # {tags}\n")
        self.write("tests/test_all.py", f'def test_obeys():\n    """{tags}"""\n')

    def run(self, *options: str) -> int:
        return int(self.generator.main(["--root", str(self.root), *options]))

    def row(self, name: str) -> str:
        lines = self.page.read_text(encoding="utf-8").splitlines()
        return next(line for line in lines if line.startswith(f"| {name} |"))


@pytest.fixture
def tree(tmp_path: Path, generator: ModuleType) -> Tree:
    return Tree(tmp_path, generator)


def test_page_of_this_project_is_current_and_no_statement_is_forgotten() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "count", "first", "last"),
    [
        ("mqtt-3.1.1.toml", 141, "MQTT3-1.5.3-1", "MQTT3-7.1.2-1"),
        ("mqtt-5.0.toml", 251, "MQTT-1.5.4-1", "MQTT-6.0.0-4"),
    ],
)
def test_catalogues_hold_every_statement_of_appendix_b(
    generator: ModuleType, name: str, count: int, first: str, last: str
) -> None:
    tags = [each.tag for each in generator.load_catalogue(SCRIPT.parent / name).statements()]
    assert len(tags) == count
    assert (tags[0], tags[-1]) == (first, last)


def test_code_and_tests_are_linked_by_file_and_function(tree: Tree) -> None:
    tree.write("ext/penstock/codec.pyx", f"cdef int parse(char* data) noexcept:\n    return 0  # {tag('9.0.0-1')}\n")
    tree.write("tests/wire/test_it.py", f'class TestIt:\n    def test_one(self):\n        """{tag("9.0.0-1")}"""\n')
    assert tree.run() == 0
    row = tree.row("MQTT-9.0.0-1")
    assert "[codec.pyx](../ext/penstock/codec.pyx): `parse`" in row
    assert "[test_it.py](../tests/wire/test_it.py): `TestIt.test_one`" in row
    assert tree.row("MQTT3-9.0.0-1").endswith("| - | - |")


def test_prefixes_keep_the_versions_apart(tree: Tree) -> None:
    tree.write("src/penstock/one.py", f"x = 1  # {tag('9.0.0-1', 'MQTT3')}\n")
    assert tree.run() == 0
    assert "one.py" in tree.row("MQTT3-9.0.0-1")
    assert "one.py" not in tree.row("MQTT-9.0.0-1")


def test_page_does_not_change_when_lines_move(tree: Tree) -> None:
    tree.cite_everything()
    tree.run()
    before = tree.page.read_text(encoding="utf-8")
    source = tree.root / "src/penstock/all.py"
    source.write_text('"""Longer now."""\n\nx = 1\n\n\n' + source.read_text(encoding="utf-8"), encoding="utf-8")
    assert tree.run("--check") == 0
    tree.run()
    assert tree.page.read_text(encoding="utf-8") == before


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("# {tag}\ndef after_comment():\n    pass\n", "after_comment"),
        ("@decorated(  # {tag}\n    1\n)\ndef with_decorator():\n    pass\n", "with_decorator"),
        ("def outer():\n    def inner():\n        pass  # {tag}\n", "outer"),
        ("class Box:\n    # {tag}\n    size = 1\n\n    def get(self):\n        pass\n", "Box"),
        ("async def waits():\n    '''{tag}'''\n", "waits"),
        ("def before():\n    pass\n\n\nTABLE = [\n    1,  # {tag}\n]\n", "TABLE"),
    ],
)
def test_python_function_of_a_tag(generator: ModuleType, tmp_path: Path, source: str, expected: str) -> None:
    path = tmp_path / "x.py"
    path.write_text(source.format(tag=tag("9.0.0-1")), encoding="utf-8")
    assert [function for _line, _tag, function in generator.find_tags(path)] == [expected]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('cdef extern from "x.h" nogil:\n    int zero(int a)  # {tag}\n', ""),
        ("cdef inline int one(int a) noexcept nogil:\n    # {tag}\n    return a\n", "one"),
        (
            "cdef class Conn:\n    cdef int two(\n        self,\n    ) except -1:\n        return 0  # {tag}\n",
            "Conn.two",
        ),
        (
            "cdef class Conn:\n    def a(self):\n        pass\n\n    # {tag}\n    cdef int b(self):\n        pass\n",
            "Conn.b",
        ),
        ("cdef int f():\n    return 1\n\ncdef int LIMIT = 3  # {tag}\n", ""),
        ("cpdef object three(object x):\n    cdef int y = g(x)\n    return y  # {tag}\n", "three"),
    ],
)
def test_cython_function_of_a_tag(generator: ModuleType, tmp_path: Path, source: str, expected: str) -> None:
    path = tmp_path / "x.pyx"
    path.write_text(source.format(tag=tag("9.0.0-1")), encoding="utf-8")
    assert [function for _line, _tag, function in generator.find_tags(path)] == [expected]


@pytest.mark.parametrize("wrong", ["MQTT-9.0.0-9]", "MQTT5-9.0.0-1]", "MQTT-9.0-1]", "MQTT-9.0.0-1, 2]"])
@pytest.mark.parametrize("options", [(), ("--check",)])
def test_unknown_tag_is_named_with_file_and_line(
    tree: Tree, capsys: pytest.CaptureFixture[str], wrong: str, options: tuple[str, ...]
) -> None:
    tree.cite_everything()
    tree.run()
    tree.write("src/penstock/bad.py", f"x = 1\ny = 2  # [{wrong}\n")
    assert tree.run(*options) == 1
    assert "src/penstock/bad.py:2: no such statement" in capsys.readouterr().err


def test_check_fails_until_the_page_is_written(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.cite_everything()
    assert tree.run("--check") == 1
    assert "out of date" in capsys.readouterr().err
    assert tree.run() == 0
    assert tree.run("--check") == 0
    tree.write("src/penstock/more.py", f"x = 1  # {tag('9.0.0-1')}\n")
    assert tree.run("--check") == 1


def test_statement_without_code_test_or_reason_is_forgotten(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.cite_everything()
    tree.write("src/penstock/all.py", "")
    tree.write("tests/test_all.py", f"# {tag('9.0.0-1')} {tag('9.0.0-1', 'MQTT3')} {tag('9.0.0-2', 'MQTT3')}\n")
    tree.run()
    assert tree.run("--check") == 1
    complaints = capsys.readouterr().err.splitlines()
    assert len(complaints) == 1
    assert complaints[0].startswith(tag("9.0.0-2"))

    tree.write("docs/conformance/exceptions.toml", '[[exception]]\ntags = ["MQTT-9.0.0-2"]\nreason = "a MAY"\n')
    tree.run()
    assert tree.run("--check") == 0
    assert "_a MAY_" in tree.row("MQTT-9.0.0-2")


@pytest.mark.parametrize(
    ("listed", "complaint"), [("MQTT-9.0.0-1", "remove it"), ("MQTT-9.0.0-9", "no such statement")]
)
def test_stale_and_unknown_exceptions_are_errors(
    tree: Tree, capsys: pytest.CaptureFixture[str], listed: str, complaint: str
) -> None:
    tree.cite_everything()
    tree.write("docs/conformance/exceptions.toml", f'[[exception]]\ntags = ["{listed}"]\nreason = "none"\n')
    assert tree.run("--check") == 1
    assert complaint in capsys.readouterr().err


def test_helpers_of_the_tests_do_not_count_as_tests(tree: Tree) -> None:
    tree.write("tests/support/helper.py", f"x = 1  # {tag('9.0.0-1')}\n")
    assert tree.run() == 0
    assert tree.row("MQTT-9.0.0-1").endswith("| - | - |")


def test_gaps_lists_what_lacks_code_or_test(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.cite_everything()
    tree.write("tests/test_all.py", "")
    assert tree.run("--gaps") == 0
    out = capsys.readouterr().out
    assert out.count("code only") == 4
    assert "9.0.0-3" not in out
