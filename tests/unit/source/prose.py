"""The text that people read, taken out of the tree: comments, docstrings and strings of code, documents, help texts."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CODE = ("src/**/*.py", "ext/**/*.px?", "ext/include/*.h", "src/**/*.lua", "src/**/*.proto")
DOCUMENTS = ("*.md", "docs/*.md", "docs/adr/*.md")


def tracked(*patterns: str) -> list[Path]:
    """Files of the tree, those not committed yet included."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted({ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()})


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def prose_of(path: Path) -> str:
    """Comments, docstrings and other strings of code; a document as it is."""
    text = path.read_text()
    if path.suffix == ".py":
        kinds = (tokenize.COMMENT, tokenize.STRING)
        found = tokenize.generate_tokens(io.StringIO(text).readline)
        return "\n".join(token.string for token in found if token.type in kinds)
    if path.suffix in {".pyx", ".pxd", ".pxi"}:
        return "\n".join(re.findall(r'"""[\s\S]*?"""|"[^"\n]*"|#.*', text))
    return text


def comments_of(path: Path) -> str:
    """Comments and docstrings of code, without its other strings; a document as it is."""
    if path.suffix != ".py":
        return prose_of(path)
    found = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    comments = [token.string for token in found if token.type == tokenize.COMMENT]
    return "\n".join([*comments, *docstrings_of(path)])


@cache
def docstrings_of(path: Path) -> list[str]:
    text = path.read_text()
    if path.suffix == ".py":
        tree = ast.parse(text)
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        return [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds)]
    return [found.strip() for found in re.findall(r'^\s*"""([\s\S]*?)"""', text, re.M)]
