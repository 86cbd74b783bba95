"""Every example in the documents is run, loaded, or checked as far as it goes; none is left out by accident.

The language of a block says what happens to it:

    console run, sh run   run by bash in a directory of the page's own, against a real broker, whose port stands for
                          1883; lines of a `console` block without `$` must be in what was printed. What is started
                          with `&` has the time behind it that a reader needs who pastes the block: `& sleep 3`
    console, sh           each `penstock` command goes through the real parser, each `make` target must exist;
                          tests/support/documents/pages.py says which test runs them
    cron                  the command behind the user is run as one of `console`
    python                run
    toml                  loaded as settings or, with [[rules]], [[types]] …, as ACL; a first line `# x.toml` saves it
    ini, json             parsed
    sql                   statements of data subscription, parsed; their queries are compiled by tests/unit/datasub/sql
    text, mermaid         for people only
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from penstock.access import AclFile
from penstock.cli.app import app
from penstock.core.metrics import BY_BEGINNING, BY_CLIENT, BY_QUEUE, BY_SHARE, PREFIX
from penstock.settings import load_settings
from penstock.subscribers.query.sql.statements import parse_statement
from tests.support.brokers.broker import Broker, free_port
from tests.support.brokers.forked import write_command
from tests.support.documents.pages import FENCE, ROOT, Block, all_pages, blocks_of, split_session

LINK = re.compile(r"(?<!\\)\[[^\]\n]*\]\((?P<target>[^)\s]+)\)")
ONLY_FOR_PEOPLE = {"text", "mermaid"}
# What a page supposes to be there.
GIVEN = {"docs/access-control.md": {"mosquitto.acl": "topic read public/#\n\nuser carol\ntopic sensors/#\n"}}
# Their commands are given where the broker was started, with its data beside them.
AT_THE_BROKER = {"docs/access-control.md", "docs/monitoring.md"}
METRIC_PAGES = tuple(
    f"docs/{name}.md"
    for name in (
        "application-clients",
        "architecture",
        "device-clients",
        "flow-control",
        "monitoring",
        "operations",
        "queues",
        "security",
        "sizing",
        "troubleshooting",
    )
)
SECONDS = 60

# How the arguments of a page's commands are changed: see write_command.
PENSTOCK = """
given = {{word.split("=")[0] for word in arguments}}
if arguments[:1] in (["pub"], ["sub"]) and not given & {{"-p", "--port", "-L", "--url", "--unix"}}:
    arguments += ["-h", "127.0.0.1", "-p", "{port}"]
# A load test needs to show that it works, not how fast.
if arguments[:1] == ["bench"] and arguments[1:2] != ["--help"]:
    if "-d" in given:  # the others are over with their messages
        arguments += ["-d", "0.2"] + ([] if arguments[1] == "idle" else ["--warmup", "0"])
    if arguments[1] != "compare" and not given & {{"-p", "--port"}}:
        arguments += ["-h", "127.0.0.1", "-p", "{port}"]
# A broker of the page's own has an admin address if its file gives it one, and the data listener that it gives it.
if arguments[:1] == ["serve"]:
    texts = [open(word).read() for word in arguments if word.endswith(".toml") and os.path.exists(word)]
    if "--admin" not in given and not any("[admin]" in text for text in texts):
        arguments += ["--admin", ""]
    if any("[data_subscription]" in text for text in texts):
        del os.environ["PENSTOCK_DATA_SUBSCRIPTION__ADDRESS"]
"""
MOSQUITTO = """#!/bin/sh
case " $* " in *" -p "*) exec {real} "$@" ;; *) exec {real} -h 127.0.0.1 -p {port} "$@" ;; esac
"""
# Where the real one is missing.
CURL = """#!{python}
import sys, urllib.request
headers = dict(word.split(": ") for before, word in zip(sys.argv, sys.argv[1:]) if before == "-H")
request = urllib.request.Request("http://" + sys.argv[-1], headers=headers)
sys.stdout.write(urllib.request.urlopen(request, timeout=30).read().decode())
"""
# A command in the background has to be at work before the next line: a subscriber subscribed, a broker listening. A
# reader waits for it with `sleep`; here it is waited for until it is so, which is quicker, and right on a busy machine.
AWAIT = """#!{python} -SE
import pathlib, socket, sys, time
def is_there(wanted):
    if not wanted.isdigit():
        return "SUBACK" in pathlib.Path(wanted).read_text()
    try:
        socket.create_connection(("127.0.0.1", int(wanted)), 1).close()
        return True
    except OSError:
        return False
deadline = time.monotonic() + 30
while not is_there(sys.argv[1]):
    if time.monotonic() > deadline:
        sys.exit("nothing came of the command in the background: " + sys.argv[1])
    time.sleep(0.02)
"""


class Workshop:
    """A directory for one page, the broker its examples talk to, and commands that find it."""

    def __init__(self, directory: Path, broker: WatchedBroker) -> None:
        self.directory = directory / "page"
        self.directory.mkdir()
        self._admin_port = broker.admin_port
        self.data_dir = broker.directory / "data"
        self._ports = {"1883": broker.port, "9883": broker.admin_port, "6030": broker.data_port}
        self._ports |= {number: free_port() for number in ("1884", "9884", "8883", "8083", "6031")}
        commands = directory / "bin"
        commands.mkdir()
        here = {"python": sys.executable, "port": broker.port}
        write_command(commands / "penstock", PENSTOCK.format(**here))
        scripts = {"await-it": AWAIT.format(**here)}
        for name in ("mosquitto_pub", "mosquitto_sub"):
            scripts[name] = MOSQUITTO.format(real=shutil.which(name), **here)
        if shutil.which("curl") is None:
            scripts["curl"] = CURL.format(**here)
        for name, script in scripts.items():
            (commands / name).write_text(script)
            (commands / name).chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        self._environment = {
            **kept,
            "PATH": os.pathsep.join([str(commands), str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(ROOT / "src"),
            "PYTHONUNBUFFERED": "1",
            # Brokers that a page starts do not all listen on one port.
            "PENSTOCK_DATA_SUBSCRIPTION__ADDRESS": "127.0.0.1:0",
            "PENSTOCK_DATA_SERVER": f"127.0.0.1:{broker.data_port}",
        }

    def with_ports(self, text: str) -> str:
        ports = "|".join(self._ports)
        return re.sub(rf"\b(?:{ports})\b", lambda found: str(self._ports[found[0]]), text)

    def run(self, block: Block) -> None:
        if block.language == "python":
            self._execute(block, [sys.executable, "-c", self.with_ports(block.text)])
            return
        commands, expected = split_session(block)
        # Jobs that a block leaves behind end with it: a subscriber has a count, a broker is killed by the page itself.
        clean_up = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"
        script = ["set -eu -o pipefail", clean_up, *self._script(commands), "wait"]
        printed = self._execute(block, ["bash", "-c", self.with_ports("\n".join(script))])
        for line in expected:
            assert self.with_ports(line) in printed, f"{block.where}: {line!r} is not in the output:\n{printed}"

    def _script(self, commands: list[str]) -> Iterator[str]:
        for number, command in enumerate(commands):
            served = re.fullmatch(r"(penstock serve --config (\S+) &) sleep 3", command)
            subscribed = re.fullmatch(r"(penstock sub .*) & sleep 2", command)
            if served:
                yield served[1]
                # Here its ports are already those of the test.
                for port in re.findall(r'^address = ".*:(\d+)"', (self.directory / served[2]).read_text(), re.M):
                    yield f"await-it {port}"
            elif subscribed:
                yield f"{subscribed[1]} --debug 2>subscriber-{number}.log &"
                yield f"await-it subscriber-{number}.log"
            else:
                assert not re.search(r"[^&>]&(?![&>\d])", command), f"how does a reader wait for this one? {command}"
                yield command

    def _execute(self, block: Block, command: list[str]) -> str:
        process = subprocess.Popen(
            command,
            cwd=self.directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
        assert process.returncode == 0, f"{block.where} ended with {process.returncode}:\n{out}\n{err}"
        return out

    def save(self, block: Block) -> None:
        """A file whose first line says its name is there for the commands of the page."""
        name = re.match(r"# (?P<name>[\w.-]+\.toml)\n", block.text)
        if name:
            (self.directory / name["name"]).write_text(self.with_ports(block.text))

    def metrics(self) -> set[str]:
        url = f"http://127.0.0.1:{self._admin_port}/metrics"
        text = urllib.request.urlopen(url, timeout=30).read().decode()
        return set(re.findall(r"^(penstock_\w+)", text, re.M))


class WatchedBroker(Broker):
    """The broker of the tests, with its admin address."""

    def __init__(self, directory: Path) -> None:
        self.admin_port = free_port()
        super().__init__(directory)

    def _penstock_command(self) -> list[str]:
        return [word or f"127.0.0.1:{self.admin_port}" for word in super()._penstock_command()]


@pytest.fixture
def workshop(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Iterator[Workshop]:
    broker = WatchedBroker(tmp_path_factory.mktemp("broker"))
    try:
        broker.wait_until_listening()
        yield Workshop(tmp_path, broker)
    finally:
        broker.stop()


def simple_commands(line: str) -> Iterator[list[str]]:
    """The commands of a shell line as words, without assignments in front and redirections behind."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word and set(word) <= set("|&;"):
            while words and re.fullmatch(r"[A-Z_0-9]+=.*", words[0]):
                words.pop(0)
            if words:
                yield words
            words = []
        else:
            words.append(word)


def parse_penstock(words: list[str]) -> None:
    """Fails as the command itself would: an unknown command or flag, a value out of its range."""
    command: Any = get_command(app)
    arguments = list(words)
    while hasattr(command, "resolve_command"):
        known = {flag for parameter in command.params for flag in parameter.opts}
        assert arguments, "a command is missing"
        if arguments[0].startswith("-"):
            # Options of a group act as soon as they are parsed, as --install-completion does: look at their names only.
            assert arguments[0] in {*known, "--help"}, f"{arguments[0]} is not an option"
            return
        context = command.make_context("penstock", [], resilient_parsing=True)
        _, command, arguments = command.resolve_command(context, arguments)
    command.make_context(command.name, arguments)


def check_commands(block: Block, targets: set[str]) -> None:
    for line in split_session(block)[0]:
        for words in simple_commands(line):
            if words[0] == "penstock" and len(words) > 1:
                redirected = next((at for at, word in enumerate(words) if word in ("<", ">", ">>")), len(words))
                try:
                    parse_penstock(words[1:redirected])
                except Exception as error:
                    raise AssertionError(f"{block.where}: {line}: {error}") from error
            elif words[0] == "make":
                wanted = [word for word in words[1:] if "=" not in word and not word.startswith(("-", "#"))]
                assert set(wanted[:1]) <= targets, f"{block.where}: make {wanted} is not in the Makefile"
            elif words[0].startswith(("bench/", ".venv/", "tests/")):
                assert words[0].startswith(".venv/") or (ROOT / words[0]).exists(), f"{block.where}: no {words[0]}"


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.M))


def needs_broker(block: Block) -> bool:
    return block.is_run or block.language == "python"


@pytest.mark.parametrize("page", all_pages())
def test_examples_are_checked(page: str, tmp_path: Path) -> None:
    """All that needs no broker, and that every block has a language this file knows."""
    for block in blocks_of(page):
        if needs_broker(block) or block.language in ("toml", "cron", *ONLY_FOR_PEOPLE):
            continue
        if block.language in ("console", "sh"):
            check_commands(block, make_targets())
        elif block.language == "ini":
            configparser.ConfigParser(strict=False, interpolation=None).read_string(block.text)
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "sql":
            for statement in re.sub(r"--.*", "", block.text).split(";")[:-1]:
                parse_statement(statement)
        else:
            pytest.fail(f"{block.where}: ```{block.language} is not known here: see the top of {Path(__file__).name}")


@pytest.mark.parametrize("page", [page for page in all_pages() if any(b.language == "toml" for b in blocks_of(page))])
def test_settings_are_loaded(page: str, tmp_path: Path) -> None:
    """As a broker would; certificates and the like, which the reader supplies, are not asked for."""
    for number, block in enumerate(block for block in blocks_of(page) if block.language == "toml"):
        path = tmp_path / f"{number}.toml"
        path.write_text(block.text)
        try:
            if set(tomllib.loads(block.text)) <= {"rules", "types", "data", "client_ids"}:
                AclFile.load(path)
            else:
                load_settings(path, {}, check=False)
        except Exception as error:
            raise AssertionError(f"{block.where}: {error}") from error


@pytest.mark.parametrize("page", [page for page in all_pages() if any(map(needs_broker, blocks_of(page)))])
def test_examples_run(page: str, workshop: Workshop) -> None:
    for name, text in GIVEN.get(page, {}).items():
        (workshop.directory / name).write_text(text)
    if page in AT_THE_BROKER:
        (workshop.directory / "data").symlink_to(workshop.data_dir)
    blocks = blocks_of(page)
    for block in blocks:
        if block.language == "toml":
            workshop.save(block)
    for block in blocks:
        if needs_broker(block):
            workshop.run(block)


def test_metrics_that_are_named_exist(workshop: Workshop) -> None:
    # A labelled metric is there from its first sample on.
    exported = workshop.metrics()
    labelled = [*BY_BEGINNING.values(), *BY_CLIENT.values(), *BY_SHARE.values(), *BY_QUEUE.values()]
    exported |= {f"{PREFIX}{each.name}{'_total' if each.kind == 'counter' else ''}" for each in labelled}
    for page in METRIC_PAGES:
        named = set(re.findall(r"\bpenstock_(?!bench|client|schema|spark)[a-z_]+[a-z]\b", (ROOT / page).read_text()))
        assert named <= exported, f"{page}: {sorted(named - exported)} are not exported"


def anchors_of(path: Path) -> set[str]:
    """The anchors GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", path.read_text(encoding="utf-8")), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", all_pages())
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for found in LINK.finditer(FENCE.sub("", path.read_text(encoding="utf-8"))):
        target, _, anchor = found["target"].partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        linked = (path.parent / target).resolve() if target else path
        assert linked.exists(), f"{page}: {found[0]} leads nowhere"
        if anchor and linked.suffix == ".md":
            assert anchor in anchors_of(linked), f"{page}: {found[0]} has no such heading"


def test_every_document_is_in_the_index() -> None:
    """docs/index.md is the table of contents: a page that is not in it is not found."""
    index = (ROOT / "docs/index.md").read_text()
    for page in ROOT.glob("docs/**/*.md"):
        name = str(page.relative_to(ROOT / "docs"))
        assert name in ("index.md", "adr/template.md") or f"]({name})" in index, f"docs/{name} is not in docs/index.md"


@pytest.mark.parametrize(
    "page",
    [page for page in all_pages() if any("penstock serve --config" in b.text for b in blocks_of(page) if b.is_run)],
)
def test_brokers_of_a_page_stand_beside_the_first_one(page: str) -> None:
    """A reader still has the one of `make run`: data directory and addresses of others must not be the usual ones.
    Here they would differ anyway, so that running the page does not show it."""
    blocks = blocks_of(page)
    files = {text.partition("\n")[0][2:]: text for text in (block.text for block in blocks if block.language == "toml")}
    served = re.findall(r"^\$ penstock serve --config (\S+) & sleep 3$", "".join(block.text for block in blocks), re.M)
    assert served
    usual = load_settings(None, {}, check=False).settings
    for name in served:
        tables = tomllib.loads(files[name])
        assert tables["server"]["data_dir"] != usual.server.data_dir
        assert tables["admin"]["address"] != usual.admin.address
        assert tables["data_subscription"]["address"] != usual.data_subscription.address
        assert "127.0.0.1:1883" not in {listener["address"] for listener in tables["listeners"]}
