"""Is every command of the documents run by one test, or one of the few that cannot be run here?

tests/support/documents/pages.py has the table. Superfluous entries, and blocks that no test covers, are found too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from penstock.cli.app import app
from tests.support.documents.pages import (
    IN_SENTENCES,
    NOT_HERE,
    ROOT,
    RUNNERS,
    SHELLS,
    WITH_ITS_BLOCK,
    Command,
    all_commands,
    all_pages,
    blocks_of,
    commands_in_sentences,
    runners_of,
)
from tests.unit.docs.test_examples import simple_commands

# What begins so is a command, also in a block for people.
COMMAND = re.compile(
    r"^\s*(?:\$ |(?:apt-get|bench/\S+|cp|curl|docker|export|kubectl|make|mosquitto_\w+|openssl|penstock|perf|pip|protoc"
    r"|python3?|redis-cli|sudo|sysctl|systemctl|tar|useradd|\.venv/\S+) (?!soft |hard ))",
    re.M,
)


NO_COMMANDS = {"penstock version …"}  # what $SYS says


@pytest.mark.parametrize("page", all_pages())
def test_every_command_is_run_or_it_is_said_why_not(page: str) -> None:
    for command in all_commands():
        if command.page == page:
            found = runners_of(command)
            assert found, f"{command.where}: no test runs it: {command.line}\nsee tests/support/documents/pages.py"
            assert len(found) == 1, f"{command.where}: {command.line} is everybody's: {found}"


@pytest.mark.parametrize("page", all_pages())
def test_no_command_hides_in_another_block(page: str) -> None:
    for block in blocks_of(page):
        if block.language not in SHELLS:
            hidden = COMMAND.search(block.text)
            assert not hidden, f"{block.where}: {hidden[0]!r} looks like a command: ```{SHELLS[1]}"


def test_every_entry_of_the_table_is_needed() -> None:
    needed = Counter(name for command in all_commands() for name in runners_of(command))
    assert set(needed) == {WITH_ITS_BLOCK, *RUNNERS, *NOT_HERE}
    # Most are run; a new exception is looked at by a person.
    assert sum(needed[reason] for reason in NOT_HERE) <= 18


def command_of(words: list[str]) -> tuple[str, ...] | None:
    """The words that name a command of ours; None if there is no such command."""
    command: Any = get_command(app)
    name: tuple[str, ...] = ()
    while words and hasattr(command, "get_command") and words[0][0].isalpha():
        command = command.get_command(command.make_context("penstock", [], resilient_parsing=True), words[0])
        if command is None:
            return None
        name, words = (*name, words[0]), words[1:]
    return name


def all_names(command: Any, name: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if not hasattr(command, "get_command"):
        yield name
        return
    context = command.make_context("penstock", [], resilient_parsing=True)
    for each in command.list_commands(context):
        yield from all_names(command.get_command(context, each), (*name, each))


def names_that_are_run() -> set[tuple[str, ...]]:
    given = [words for command in all_commands() for words in simple_commands(command.line)]
    return {name for words in given if words[0] == "penstock" and (name := command_of(words[1:]))}


def test_every_command_of_ours_is_in_a_document() -> None:
    """And so it is run."""
    assert set(all_names(get_command(app))) <= names_that_are_run()


def test_commands_of_ours_in_sentences() -> None:
    """They exist, and a block somewhere has them."""
    run = names_that_are_run()
    for line, page in commands_in_sentences().items():
        words = line.split()[1:]
        has_holes = any(word.isupper() or "|" in word for word in words[:2])
        if line.startswith("penstock ") and line not in NO_COMMANDS and not has_holes:
            name = command_of(words)
            assert name is not None, f"{page}: there is no {line!r}"
            assert any(each[: len(name)] == name for each in run), f"{page}: {line!r} is in no block: no test runs it"


def test_other_commands_in_sentences() -> None:
    others = {line for line in commands_in_sentences() if not line.startswith("penstock ")}
    assert others == set(IN_SENTENCES), "see IN_SENTENCES in tests/support/documents/pages.py"


@pytest.mark.parametrize("name", [*RUNNERS])
def test_runners_take_what_is_theirs(name: str) -> None:
    """None of them may have a list of its own, which would be another one."""
    assert "commands_of(__file__)" in (ROOT / name).read_text()


def test_an_unknown_command_is_nobodys() -> None:
    for line in ("rabbitmqctl status", "sh run.sh", "sudo systemctl start penstock"):
        assert runners_of(Command("README.md:1", line, False)) == []
