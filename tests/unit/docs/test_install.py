"""`penstock` on PyPI is another project: no text of ours may tell anybody to install it."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.support.documents.pages import ROOT

# The bare name, with or without extras or a version, as an argument of an installer. A path or a wheel is ours.
FOREIGN = re.compile(
    r"""(?:pip[\d.]*\s+(?:install|download|wheel)|pipx\s+(?:install|run)|uvx|uv\s+(?:add|tool\s+\w+)|"""
    r"""(?:poetry|pdm|hatch)\s+add|conda\s+install)\b(?:[^`\n]|\\\n)*?"""
    r"""(?<![\w./*-])penstock(?=\[|[=<>~!@]|[\s'"`),.;]|$)"""
)


@pytest.mark.parametrize(
    ("text", "is_foreign"),
    [
        ("pip install penstock", True),
        ("`pip install 'penstock[spark]'`", True),
        ("pip install -U penstock==0.1.0", True),
        ("pip install paho-mqtt penstock.", True),
        ("pip install \\\n    penstock", True),
        ("pip3.11 install penstock>0.1", True),
        ("python -m pip wheel penstock", True),
        ("uv pip install penstock", True),
        ("uv tool install penstock", True),
        ("uv add 'penstock[spark]'", True),
        ("uvx penstock serve", True),
        ("pipx install penstock", True),
        ("poetry add penstock", True),
        ("pip install dist/penstock-*.whl", False),
        ("pip install './penstock-VERSION-….whl[spark]'", False),
        ("pip install penstock-broker", False),
        ("`pip install` and then penstock", False),
    ],
)
def test_the_pattern(text: str, is_foreign: bool) -> None:
    assert (FOREIGN.search(text) is not None) == is_foreign


def test_no_text_installs_another_project() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    names = listed.stdout.splitlines() if listed.returncode == 0 else []
    found = []
    for name in names or [str(path.relative_to(ROOT)) for path in ROOT.rglob("*.md")]:
        path = ROOT / name
        if name == "tests/unit/docs/test_install.py" or not path.is_file():
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [f"{name}:{text.count(chr(10), 0, at.start()) + 1}: {at[0]}" for at in FOREIGN.finditer(text)]
    assert not found, "\n".join(found)
