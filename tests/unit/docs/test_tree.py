"""Commands that are given at the top of the repository: `make`, benchmarks, the build of one module, `protoc`.

They write into the tree, so they are given in a copy of it; see tree_copy.py for what is short there.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bench.compare import chosen_scenarios, parse_arguments
from penstock_bench.targets import CASES
from tests.support.documents.pages import IN_SENTENCES, TREE, commands_in_sentences, commands_of
from tests.support.machine.tree_copy import ARGS, TreeCopy, tracked

SECONDS = 300
# Exit code 1, where not every target is reached: as a busy machine may not.
MAY_MISS = "--check"
COMPILED = ("src/penstock/_ext/match/trie.*.so", "build/lib.*/penstock/_ext/match/trie.*.so")

# Once, where several pages have it.
COMMANDS = {each.line.partition(" #")[0].strip(): each.where for each in commands_of(__file__)} | {
    line: page for line, page in commands_in_sentences().items() if IN_SENTENCES.get(line) == TREE
}

pytestmark = pytest.mark.timeout(SECONDS + 60)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> TreeCopy:
    return TreeCopy(tmp_path_factory.mktemp("tree"))


def perf_works(directory: Path) -> bool:
    """It is not installed everywhere, and not everybody may look at processes with it."""
    if shutil.which("perf") is None:
        return False
    command = ["perf", "record", "-q", "-o", str(directory / "perf.data"), "true"]
    return subprocess.run(command, capture_output=True, check=False, timeout=SECONDS).returncode == 0


def shorten(line: str) -> str:
    """What tree_copy.py does not do inside."""
    target = re.match(r"make ([a-z-]+)", line)
    if target and target[1] in ARGS and "ARGS=" not in line:
        return f'{target[0]} ARGS="{ARGS[target[1]]}"'
    return re.sub(r"^(bench/profile\.sh \w+ [\w-]+).*", r"\1 0.5", line)


def prepare(line: str, tree: TreeCopy) -> None:
    """What a command changes has to be another before it."""
    if line.startswith("make build"):
        (tree.root / ".stamps/build").unlink()
    elif "setup.py" in line:
        for pattern in COMPILED:
            for module in tree.root.glob(pattern):
                module.unlink()
    elif line.startswith("make format"):
        path = tree.root / "bench/parts.py"
        path.write_text(path.read_text().replace(" = ", "  =  "))
    elif "record.bin" in line:
        (tree.root / "record.bin").write_bytes(bytes.fromhex("0801 1205 612f622f63 1a02 6869 2001"))


def check(line: str, tree: TreeCopy, said: str, new: set[str]) -> None:
    """What a command has to leave behind, or say."""
    if "--save" in line or line.startswith("make bench "):
        assert [name for name in new if name.startswith("bench/results/")], f"nothing is saved: {new}"
    if "--check" in line:
        assert "| scenario |" in said
    if "report.py" in line:
        assert tree.run(f"{line} --check", SECONDS).returncode == 0
    if "--renew" in line:
        named = re.search(r"--baseline (\S+)", line)
        assert f"written: {named[1]}" in said if named else "bench/baseline.json" in said
    if "setup.py" in line:
        assert [*tree.root.glob(COMPILED[0])]
    if line.startswith("make build"):
        assert (tree.root / ".stamps/build").exists()
    if line.startswith("make format"):
        assert "  =  " not in (tree.root / "bench/parts.py").read_text()
    if line.startswith(("make test", "make lint", "make bench-micro")):
        assert " passed" in said
    if line.startswith("bench/profile.sh"):
        assert '"received"' in said
    if "_out=" in line:
        assert new & {"publish_pb2.py", "publish.desc"} or [*tree.root.glob("**/Publish*.java")]
    if "--decode" in line:
        assert 'topic: "a/b/c"' in said
    if line.startswith("export PATH"):
        assert said.strip() == str(tree.root / ".venv/bin/penstock")


@pytest.mark.parametrize("line", COMMANDS)
def test_command_works(line: str, tree: TreeCopy, tmp_path: Path) -> None:
    if line.startswith("make build") and not all([*tree.root.glob(pattern)] for pattern in COMPILED):
        pytest.skip("nothing is built by make here: it would take minutes")
    if "profile.sh perf" in line and not perf_works(tmp_path):
        pytest.skip("perf is not installed, or not allowed to look")
    prepare(line, tree)
    before = tree.files()
    given = f"{line} && command -v penstock" if line.startswith("export ") else shorten(line)
    done = tree.run(given, SECONDS)
    said = done.stdout + done.stderr
    assert done.returncode in ({0, 1} if MAY_MISS in line else {0}), f"{COMMANDS[line]}: {line}\n{said[-4000:]}"
    assert "Traceback" not in said, f"{COMMANDS[line]}: {line}\n{said[-4000:]}"
    check(line, tree, said, {name for name, written in tree.files().items() if before.get(name) != written})


def test_the_copy_has_everything(tree: TreeCopy) -> None:
    assert {"Makefile", "setup.py", "bench/compare.py", "docs/benchmarks.md"} <= set(tracked())
    assert [*tree.root.glob(COMPILED[0])]


def test_all_scenarios_are_all() -> None:
    """`--scenario all` is only one of them in the copy."""
    assert chosen_scenarios(parse_arguments(["--scenario", "all"]).scenario) == [*CASES.values()]
