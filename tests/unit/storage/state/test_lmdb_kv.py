"""Key-value state in LMDB."""

from __future__ import annotations

from pathlib import Path

import lmdb
import pytest

from penstock.storage.state.base import StoreError
from penstock.storage.state.lmdb_kv import SMALLEST_MAP, LmdbStore


def test_changes_survive(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "state")
    space, other = store.space("a"), store.space("b")
    space.write([(b"k1", b"1"), (b"k2", b"2"), (b"l", b"3")])
    other.write([(b"k1", b"other")])
    space.write([(b"k2", None), (b"never there", None), (b"k3", b"")])
    store.close()
    store = LmdbStore(tmp_path / "state")
    space = store.space("a")
    assert space.scan() == [(b"k1", b"1"), (b"k3", b""), (b"l", b"3")]
    assert space.scan(b"k") == [(b"k1", b"1"), (b"k3", b"")]
    assert space.scan(b"x") == []
    assert (space.get(b"k1"), space.get(b"k2")) == (b"1", None)
    assert store.space("b").get(b"k1") == b"other"
    store.close()


def test_all_or_nothing(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "state")
    space = store.space("a")
    space.write([(b"k", b"1")])
    with pytest.raises(lmdb.BadValsizeError):
        space.write([(b"k", b"2"), (b"", b"an empty key is refused")])
    assert space.scan() == [(b"k", b"1")]
    store.close()


def test_the_file_grows(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "state")
    space = store.space("a")
    value = b"x" * 1_000_000
    for number in range(2 * SMALLEST_MAP // len(value)):
        space.write([(b"%04d" % number, value)])
    assert len(space.scan()) == 2 * SMALLEST_MAP // len(value)
    store.close()
    store = LmdbStore(tmp_path / "state")
    store.space("a").write([(b"more", value)])
    store.close()


def test_a_creation_that_was_cut_off_leaves_nothing(tmp_path: Path) -> None:
    left = tmp_path / ".state.new"
    left.mkdir()
    (left / "data.mdb").write_bytes(b"half")
    store = LmdbStore(tmp_path / "state")
    store.space("a").write([(b"k", b"1")])
    store.close()
    assert not left.exists()


def test_what_is_no_store_is_named(tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "data.mdb").write_bytes(bytes(16_384))
    with pytest.raises(StoreError, match=r"the store cannot be opened: .*/state: ") as raised:
        LmdbStore(tmp_path / "state")
    assert "restore a backup" in raised.value.hint
