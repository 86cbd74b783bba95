"""A file of LMDB's that was cut short is refused with words: LMDB itself ends the process with SIGBUS."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest

from penstock import __main__
from penstock.storage.state.base import StoreError
from penstock.storage.state.lmdb_file import find_missing_page
from penstock.storage.state.lmdb_kv import LmdbStore

PAGE = 4_096
# Values within a page, over several pages, and many: leaves, overflow pages and branches, in two spaces.
PAIRS = [(b"key %05d" % number, b"v" * (20_000 if number % 50 == 0 else 200)) for number in range(500)]

READ_ALL = """
import sys
from pathlib import Path
import lmdb
from penstock.storage.state.base import StoreError
from penstock.storage.state.lmdb_kv import LmdbStore
for directory in map(Path, sys.argv[1:]):
    try:
        store = LmdbStore(directory)
        print(directory.name, *(len(store.space(name).scan()) for name in ("a", "b")), flush=True)
        store.space("a").write([(b"one more", b"x")])
        store.close()
    except StoreError as error:
        print(directory.name, error.message, flush=True)
"""


def make(path: Path) -> Path:
    store = LmdbStore(path)
    for name in ("a", "b"):
        space = store.space(name)
        for start in range(0, len(PAIRS), 100):
            space.write(PAIRS[start : start + 100])
    # pages that are free again, at the end of the file among others
    store.space("b").write([(key, None) for key, _ in PAIRS[250:]])
    store.close()
    return path / "data.mdb"


def test_whole_files_are_whole(tmp_path: Path) -> None:
    file = make(tmp_path / "store")
    assert find_missing_page(file) is None
    empty = tmp_path / "empty"
    LmdbStore(empty).close()
    assert find_missing_page(empty / "data.mdb") is None


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"x" * 3 * PAGE], ids=["empty", "short", "no LMDB"])
def test_what_is_no_file_of_lmdb_is_its_own_business(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "data.mdb"
    file.write_bytes(content)
    assert find_missing_page(file) is None


def test_wherever_it_is_cut_the_process_lives(tmp_path: Path) -> None:
    file = make(tmp_path / "whole")
    pages = file.stat().st_size // PAGE
    directories = []
    for number in range(2, pages, max(1, pages // 60)):
        directory = tmp_path / f"cut-{number}"
        directory.mkdir()
        shutil.copy(file, directory / "data.mdb")
        os.truncate(directory / "data.mdb", number * PAGE + 100)
        directories.append(str(directory))
    done = subprocess.run([sys.executable, "-c", READ_ALL, *directories], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    told = done.stdout.splitlines()
    assert len(told) == len(directories)
    refused = [line for line in told if "data.mdb is cut off, page " in line]
    assert len(refused) > len(told) // 2
    # what is opened has everything: only pages that nobody needs were cut off
    assert {tuple(line.split()[1:]) for line in told if line not in refused} <= {("500", "250")}


def test_what_to_do_is_said(tmp_path: Path) -> None:
    file = make(tmp_path / "store")
    os.truncate(file, 5 * PAGE)
    with pytest.raises(StoreError, match="is cut off") as caught:
        LmdbStore(file.parent)
    assert "restore a backup" in caught.value.hint


BUS_ERROR = """
import mmap, sys
from penstock.storage.state.lmdb_file import explain_damage
explain_damage(sys.argv[1])
with open(sys.argv[1], "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 0)
    file.truncate(0)
    mapped[5_000]
"""


def test_a_page_that_is_missing_ends_the_process_with_words(tmp_path: Path) -> None:
    file = tmp_path / "data.mdb"
    file.write_bytes(bytes(3 * PAGE))
    done = subprocess.run([sys.executable, "-c", BUS_ERROR, str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"a store below {tmp_path} is damaged" in done.stderr
    assert "penstock restore" in done.stderr


def test_damage_that_lmdb_notices_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """Wherever it shows: LMDB checks a page when it is used for the first time."""

    def fail(arguments: object) -> int:
        raise lmdb.CorruptedError("mdb_get: MDB_CORRUPTED: Located page was wrong type")

    monkeypatch.setattr(__main__, "_run", fail)
    assert __main__.main([]) == 1
    said = capsys.readouterr().err
    assert "MDB_CORRUPTED" in said
    assert "Restore a backup" in said


LATE_DAMAGE = {
    "a store that is open": """
store = LmdbStore(path)
os.truncate(path / "data.mdb", 2 * 4096)
store.space("a").scan()
""",
    "a backup of it": """
held = Snapshots([path])
os.truncate(path / "data.mdb", 2 * 4096)
held.copy(path.name, path.parent / "copy")
""",
    "the check of a copy": """
os.truncate(path / "data.mdb", 5 * 4096)
check_environment(path)
""",
}


@pytest.mark.parametrize("program", LATE_DAMAGE.values(), ids=LATE_DAMAGE.keys())
def test_whatever_opens_a_store_ends_with_words(tmp_path: Path, program: str) -> None:
    path = make(tmp_path / "store").parent
    head = (
        "import os, sys\nfrom pathlib import Path\nfrom penstock.storage.state.lmdb_kv import LmdbStore\n"
        "from penstock.storage.state.lmdb_copy import Snapshots, check_environment\npath = Path(sys.argv[1])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", head + program, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert f"a store below {tmp_path} is damaged" in done.stderr
