"""The documents as tests see them: their fenced blocks, and which test runs which command of them.

Every command in a block `console`, `sh` or `cron` is either run by one test, or it is one of those that cannot be run
here, for a reason that is named. Tests take their commands from `commands_of`, so that a new one is run, or is found to
be nobody's by tests/unit/docs/test_inventory.py.
"""

from __future__ import annotations

import functools
import itertools
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FENCE = re.compile(r"^```(?P<language>[^\n`]*)\n(?P<body>.*?)^```[ \t]*$", re.M | re.S)
SENTENCE = re.compile(r"`((?:bench/[^`\s]+|make|penstock|python) [^`]+)`")
SHELLS = ("console", "sh", "cron")
# Five fields of the time, and the user.
CRON = re.compile(r"(?:\S+\s+){6}(?P<command>.*)")
# Their plain `console` blocks are complete in themselves, so they are run as well.
RUN_WHOLE = {"docs/access-control.md", "docs/monitoring.md", "docs/settings.md"}


@dataclass(frozen=True)
class Block:
    """One fenced block: where it is, its language and the words behind that, its text."""

    where: str
    language: str
    is_run: bool
    text: str


@dataclass(frozen=True)
class Command:
    """One line of a shell, with the comment behind it."""

    where: str
    line: str
    is_run: bool  # with its block, by test_examples.py
    language: str = SHELLS[0]

    @property
    def page(self) -> str:
        return self.where.partition(":")[0]

    @property
    def words(self) -> list[str]:
        """Without assignments in front and the comment behind."""
        words = shlex.split(self.line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words.pop(0)
        return words


def all_pages() -> list[str]:
    """Every Markdown file of the tree, by its path."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("docker/*.md"), *ROOT.glob("bench/*.md")]
    return sorted(str(path.relative_to(ROOT)) for path in found)


def blocks_of(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        language, _, rest = match["language"].strip().partition(" ")
        where = f"{page}:{text.count(chr(10), 0, match.start()) + 1}"
        assert rest in ("", "run"), f"{where}: ```{match['language']} is not known here"
        is_run = rest == "run" or (page in RUN_WHOLE and language == "console")
        found.append(Block(where, language, is_run, match["body"]))
    fences = re.findall(r"^[ \t>]*```", text, re.M)
    assert len(fences) == 2 * len(found), f"{page}: a block is not closed, or indented: this file does not see it"
    return found


def split_session(block: Block) -> tuple[list[str], list[str]]:
    """Commands and expected output; in `sh` everything is a command, in `cron` what is behind the user."""
    lines = [line for line in block.text.splitlines() if line.strip()]
    if block.language == "sh":
        return lines, []
    if block.language == "cron":
        return [found["command"].replace(r"\%", "%") for found in map(CRON.match, lines) if found], []
    commands = [line[2:] for line in lines if line.startswith("$ ")]
    return commands, [line for line in lines if not line.startswith("$ ")]


@functools.cache
def all_commands() -> tuple[Command, ...]:
    blocks = [block for page in all_pages() for block in blocks_of(page) if block.language in SHELLS]
    return tuple(
        Command(block.where, line, block.is_run, block.language) for block in blocks for line in split_session(block)[0]
    )


@functools.cache
def commands_in_sentences() -> dict[str, str]:
    """What begins like a command outside of blocks, and the page that has it. The changes are history."""
    found = {}
    for page in sorted({*all_pages()} - {"CHANGELOG.md"}):
        text = FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))
        found |= dict.fromkeys((re.sub(r"\s+", " ", line) for line in SENTENCE.findall(text)), page)
    return found


# ---- which test runs it ----

Rule = Callable[[Command], bool]
TREE = "tests/unit/docs/test_tree.py"
MAKE = "tests/unit/docs/test_make.py"
SERVICE = ("useradd", "tar", "ln", "install", "cp", "systemctl", "runuser")


def is_spark(command: Command) -> bool:
    return command.words[:2] == ["penstock", "spark"]


def is_on_yarn(command: Command) -> bool:
    return is_spark(command) and "yarn" in command.words


def is_on_kafka(command: Command) -> bool:
    return "log.provider=kafka" in command.words


def is_on_secure_kafka(command: Command) -> bool:
    """With TLS and passwords: docs/kafka-security.md."""
    return command.page == "docs/kafka-security.md"


def is_of_the_tree(command: Command) -> bool:
    """Given in a copy of the repository."""
    if is_on_secure_kafka(command):
        return False
    return command.words[0] in ("make", "python", "protoc", "export") or command.words[0].startswith(
        (".venv/", "bench/")
    )


def is_make_run(command: Command) -> bool:
    return command.words[:2] in (["make", "run"], ["make", "help"])


def is_of_the_service(command: Command) -> bool:
    """What makes it, what is done beside it, and what cron does for it."""
    return command.language == "cron" or command.words[0] in SERVICE


def is_in_the_manual(command: Command) -> bool:
    """`penstock`, also behind what feeds it."""
    if is_of_the_service(command) or is_on_secure_kafka(command):
        return False
    words = ["|", *command.words]
    is_ours = any(pair in (("|", "penstock"), ("&&", "penstock")) for pair in itertools.pairwise(words))
    return is_ours and not is_spark(command) and not is_on_kafka(command)


# By the file of the test; `run` in a block comes before all of them.
RUNNERS: dict[str, Rule] = {
    "tests/unit/docs/test_commands.py": is_in_the_manual,
    TREE: lambda command: is_of_the_tree(command) and not is_make_run(command),
    MAKE: is_make_run,
    "tests/unit/cli/test_log_kafka.py": is_on_kafka,
    "tests/wire/test_kafka_secure.py": is_on_secure_kafka,
    "tests/spark/test_docs.py": lambda command: is_spark(command) and not is_on_yarn(command),
    "tests/dist/test_service.py": is_of_the_service,
    "tests/dist/test_packages.py": lambda command: command.words[0] == "pip",
}
WITH_ITS_BLOCK = "tests/unit/docs/test_examples.py"
# Why it is not run as it stands, and what is done instead.
NOT_HERE: dict[str, Rule] = {
    "a Docker daemon: tests/unit/docker/test_documents.py goes as far as it can": lambda command: (
        command.words[0] == "docker"
    ),
    "a Kubernetes cluster: tests/unit/docker/test_documents.py goes as far as it can": lambda command: (
        command.words[0] == "kubectl"
    ),
    "YARN and HDFS: tests/spark/test_docs.py runs it with a local Spark and a directory": is_on_yarn,
}


# Those in sentences that are no command of `penstock`: test_tree.py gives them if that takes seconds, else it is said
# what is done instead.
IN_SENTENCES = {
    "make annotate": "compiles everything anew, for minutes",
    "make asan": "compiles everything with sanitizers, for ten minutes; the storms it runs are in tests/adversity",
    "make bench-check": TREE,
    "make bench-micro": TREE,
    "make conformance": TREE,
    "make dist": "minutes; tests/dist calls docker/binary/build.py, part by part",
    "make fuzz": "minutes; tests/fuzz calls the same program for seconds",
    "make image-check": "root, minutes; a test of its own",
    "make run": MAKE,
    "make test": TREE,
    "make tools-compose": "minutes, outside the tree, asks the network",
    'make test ARGS="tests/wire/test_will.py -k retained"': TREE,
    "python -m penstock": "most brokers of the tests are started so",
    "python -m tests.support.servers.kafka_cluster run": "until Ctrl-C; tests start theirs by the same class",
    "python -m tests.support.servers.kafka_secure run": "until Ctrl-C; tests start theirs by the same class",
    "python -m penstock.operate.metrics_document": TREE,
    "python -m penstock.settings.document": TREE,
    "python -m penstock.settings.document > docs/settings.md": TREE,
    "python bench/rpc_bench.py": TREE,
    "python bench/session_bench.py": TREE,
    "python bench/spark_bench.py --large --save": "a Spark of its own, minutes; tests/spark has what it measures",
    "python bench/spark_report.py": TREE,
    "python bench/touch_memory.py": TREE,
}


def runners_of(command: Command) -> list[str]:
    """Tests that run it, and reasons why none does: one of them, if all is well."""
    if command.is_run:
        return [WITH_ITS_BLOCK]
    return [name for name, rule in {**RUNNERS, **NOT_HERE}.items() if rule(command)]


@functools.cache
def commands_of(file: str) -> tuple[Command, ...]:
    """What the test in `file`, its __file__, has to run."""
    name = str(Path(file).resolve().relative_to(ROOT))
    return tuple(command for command in all_commands() if runners_of(command) == [name])
