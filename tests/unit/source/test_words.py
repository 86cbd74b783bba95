"""Words that natural English does not use in this way: what is left of them is counted, and may only become less.

words.toml has the counts by file. `python -m tests.unit.source.test_words` writes it again after files were moved or
sentences rewritten; it refuses to when a word has become more frequent.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from typer.main import get_command

from penstock.cli.app import app
from tests.unit.source.prose import CODE, DOCUMENTS, docstrings_of, name_of, prose_of, tracked

BASELINE = Path(__file__).with_name("words.toml")
# Allowed nowhere: the names of documents that readers do not have.
INSIDERS = re.compile(
    r"\bthe seeds?\b|\bseed (?:00\d|documents?)\b|DESIGN\.md|\bthe original(?! (?:pace|topic|one|PUBLISH|auth))", re.I
)
WORDS = {
    "anew": r"\banew\b",
    "mend": r"\bmend(?:s|ed|ing)?\b",
    "to be had": r"\bto be had\b",
    "is told": r"\b(?:is|are|was|were) told\b",
    "is no": r"(?<!\bthere )\b(?:is|are) no\b(?! (?:longer|more|less|different|better|worse|effect)\b)",
    "so many": r"\bso (?:many|long|much)\b(?! as\b)",
    "behind": r"\bbehind\b(?! (?:a|the|one|any) (?:proxy|reverse proxy|load balancer|port|address|firewall)\b)",
    "somebody": r"\b(?:some|no|any|every)body\b",
}
QUOTING = ("docs/conformance.md", "docs/glossary.md")  # the specification, and these words
OPENINGS = ("Of", "What")  # of docstrings, which begin with what a caller gets
HELP = "--help"


@cache
def count() -> dict[str, Counter[str]]:
    """How often each word is in each file, and in the help texts of all commands together."""
    found: dict[str, Counter[str]] = {}
    for path in tracked(*CODE, *DOCUMENTS):
        if name_of(path) in QUOTING:
            continue
        words = Counter({word: len(re.findall(pattern, prose_of(path), re.I)) for word, pattern in WORDS.items()})
        if path.suffix != ".md":
            openings = [text.split(" ", 1)[0] for text in docstrings_of(path)]
            words += Counter({f"docstring {word}": openings.count(word) for word in OPENINGS})
        found[name_of(path)] = +words
    texts = "\n".join(help_texts())
    found[HELP] = +Counter({word: len(re.findall(pattern, texts, re.I)) for word, pattern in WORDS.items()})
    return {name: words for name, words in found.items() if words}


def help_texts() -> list[str]:
    """What `--help` says: of every command, its arguments and options."""
    texts: list[str] = []
    commands: list[Any] = [get_command(app)]
    while commands:
        command = commands.pop()
        context = command.make_context(command.name, [], resilient_parsing=True)
        if hasattr(command, "list_commands"):
            commands += [command.get_command(context, name) for name in command.list_commands(context)]
        texts.append(command.help or "")
        texts += [getattr(parameter, "help", "") or "" for parameter in command.params]
    return texts


def baseline() -> dict[str, Counter[str]]:
    return {name: Counter(words) for name, words in tomllib.loads(BASELINE.read_text()).items()}


def write_baseline(found: dict[str, Counter[str]]) -> None:
    head = "# Counted by test_words.py: a file may have fewer of these, not more.\n"
    tables = [
        "\n".join([f'["{name}"]', *(f'"{word}" = {number}' for word, number in sorted(words.items()))])
        for name, words in sorted(found.items())
    ]
    BASELINE.write_text("\n\n".join([head, *tables]) + "\n")


def test_no_file_has_more_of_these_words() -> None:
    known = baseline()
    more = [
        f"{name}: {word!r} {number} times, {known.get(name, Counter())[word]} allowed"
        for name, words in count().items()
        for word, number in words.items()
        if number > known.get(name, Counter())[word]
    ]
    assert not more, "\n".join([*more, "docs/glossary.md and CONTRIBUTING.md say how Penstock reads"])


def test_the_list_is_as_short_as_it_can_be() -> None:
    found = count()
    less = [
        f"{name}: {word!r} {found.get(name, Counter())[word]} times, {number} in words.toml"
        for name, words in baseline().items()
        for word, number in words.items()
        if number > found.get(name, Counter())[word]
    ]
    assert not less, "\n".join([*less, "run python -m tests.unit.source.test_words"])


def test_nothing_speaks_of_documents_that_are_not_here() -> None:
    for path in tracked(*CODE, *DOCUMENTS):
        found = INSIDERS.search(prose_of(path))
        assert not found, f"{name_of(path)}: {found and found[0]!r}"


def main() -> None:
    found = count()
    before, after = sum(baseline().values(), Counter()), sum(found.values(), Counter())
    if more := {word: (before[word], number) for word, number in after.items() if number > before[word]}:
        sys.exit(f"more than before: {more}")
    write_baseline(found)


if __name__ == "__main__":
    main()
