"""The `penstock` commands of blocks without `run` are run too, page by page, in a broker that has what they ask for.

Blocks with `run` are those of test_examples.py; tests/support/documents/pages.py says which test runs the others.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.documents.manual import Manual, goes_on
from tests.support.documents.pages import SHELLS, all_pages, blocks_of, commands_of, split_session

# What a command may end with besides 0.
DOCTOR_FINDS_SOMETHING = {0, 1}
INTERRUPTED = {0, 130}
# It is the mistake that is shown.
MISTAKES = {"penstock sql 'CREATE TOPIC x AS SELECT payload.a, nothing FROM \"a/b\"'"}


def sessions(page: str) -> list[tuple[list[str], list[str]]]:
    """Of each block: the commands of ours in it, and what has to be printed."""
    found = []
    for block in blocks_of(page):
        if block.language in SHELLS and not block.is_run:
            _, expected = split_session(block)
            ours = [command.line for command in commands_of(__file__) if command.where == block.where]
            if ours:
                found.append((ours, expected))
    return found


PAGES = [page for page in all_pages() if sessions(page)]


@pytest.fixture
def manual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manual]:
    made = Manual(tmp_path_factory.mktemp("m"))  # short: the path of a unix socket has a hundred characters at most
    yield made
    made.stop()


@pytest.mark.parametrize("page", PAGES)
def test_commands_do_what_they_say(page: str, manual: Manual) -> None:
    for commands, expected in sessions(page):
        printed = ""
        for line in commands:
            code, said = manual.run(line)
            printed += said
            allowed = {0}
            if line.startswith("penstock doctor"):
                allowed = DOCTOR_FINDS_SOMETHING
            elif goes_on(line):
                allowed = INTERRUPTED
            elif line in MISTAKES:
                allowed = {1}
            assert code in allowed, f"{page}: {line}\nended with {code}:\n{said}"
            assert "Traceback" not in said, f"{page}: {line}\n{said}"
        for text in expected:
            assert text in printed, f"{page}: {text!r} is not in the output:\n{printed}"
