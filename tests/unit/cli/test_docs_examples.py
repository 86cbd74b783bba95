"""Every example of the pages about settings, the command and access control works."""

import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

from penstock.access import AclFile
from penstock.cli.app import app
from penstock.settings import load_settings
from tests.support.brokers.forked import write_command
from tests.unit.cli.conftest import clean_environment

DOCS = Path(__file__).parents[3] / "docs"
PAGES = ["settings.md", "cli.md", "access-control.md"]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Commands that end by themselves and need no broker are run; of the others the arguments are read.
OFFLINE = ("check-config", "passwd", "acl")


def blocks(page, language):
    return [text for found, text in BLOCK.findall((DOCS / page).read_text()) if found == language]


def commands(page):
    return [line[2:] for block in blocks(page, "console") for line in block.splitlines() if line.startswith("$ ")]


def penstock_arguments(line):
    """The words after `penstock`, wherever it stands in the line."""
    words = shlex.split(line)
    words = words[words.index("penstock") + 1 :]
    return words[: words.index(">")] if ">" in words else words


@pytest.mark.parametrize("page", PAGES)
def test_toml_blocks_load(page, tmp_path):
    found = blocks(page, "toml")
    for text in found:
        if "[[rules]]" in text or "[[types]]" in text:
            parsed = AclFile.parse(tomllib.loads(text), page)
            assert parsed.rules or parsed.types
        else:
            (tmp_path / "some.toml").write_text(text)
            loaded = load_settings(tmp_path / "some.toml", {}, check=False)
            assert any(origin.startswith("file") for origin in loaded.origins.values())
    assert found or page == "cli.md"


@pytest.mark.parametrize("page", PAGES)
def test_console_blocks_hold_nothing_but_commands(page):
    lines = [line for block in blocks(page, "console") for line in block.splitlines()]
    assert lines
    assert all(line.startswith("$ ") for line in lines)


@pytest.mark.parametrize("page", PAGES)
def test_commands_that_need_a_broker_are_read(page):
    group = get_command(app)
    for line in commands(page):
        if "penstock" not in shlex.split(line):
            continue
        name, *arguments = penstock_arguments(line)
        if name in OFFLINE or name.startswith("--"):
            continue
        command = group.get_command(None, name)
        assert command is not None, line
        command.make_context(name, arguments)


@pytest.mark.parametrize("page", PAGES)
def test_commands_that_need_no_broker_are_run(page, tmp_path):
    shim = tmp_path / "bin" / "penstock"
    shim.parent.mkdir()
    write_command(shim)
    environ = clean_environment()
    environ["PATH"] = f"{shim.parent}:{environ['PATH']}"
    for language in ("toml", "text"):
        for text in blocks(page, language):
            name = re.match(r"# (\S+)\n", text)
            if name:
                (tmp_path / name[1]).write_text(text)
    for line in commands(page):
        words = shlex.split(line)
        if "penstock" in words and penstock_arguments(line)[0] not in OFFLINE:
            continue
        if "penstock" in words or words[0] == "printf":
            done = subprocess.run(
                ["sh", "-c", line], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=30
            )
            assert done.returncode == 0, f"{line}\n{done.stderr}"
