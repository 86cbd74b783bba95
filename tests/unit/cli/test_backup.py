"""`penstock backup` and `penstock restore` of a broker that does not run: what they refuse, and what they leave."""

import asyncio
import bz2
import errno
import gzip
import io
import itertools
import json
import lzma
import os
import resource
import shutil
import signal
import tarfile
from pathlib import Path

import pytest

from penstock.__main__ import main
from penstock._ext.record.segment import RecordPack
from penstock.operate.backup import restore
from penstock.operate.backup.archive import open_sink
from penstock.operate.backup.save import Backup
from penstock.storage.log.base import Committed, TopicPartition
from penstock.storage.log.embedded import EmbeddedLog, files, open_reader
from penstock.storage.state.lmdb_kv import LmdbStore
from tests.support.brokers.broker import free_port

TOPIC = "demo"


@pytest.fixture(autouse=True)
def nothing_from_outside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("PENSTOCK_"):
            monkeypatch.delenv(name)


@pytest.fixture
def data(tmp_path):
    """A log of three segments with a group's offset, and a file that is none of the broker's."""

    async def write():
        store = LmdbStore(directory / "state")
        log = EmbeddedLog(directory, store.space("groups"))
        await log.start()
        await log.admin.create(TOPIC, 1, {"segment.bytes": "4096"})
        for number in range(10):
            pack = RecordPack()
            pack.append(b"%d" % number + b"." * 1000)
            await log.producer.send(TOPIC, 0, pack)
        await log.offsets.commit("readers", {TopicPartition(TOPIC, 0): Committed(7, "")})
        await log.close()
        store.close()

    directory = tmp_path / "data"
    directory.mkdir()
    asyncio.run(write())
    (directory / "passwords").touch()
    return directory


def segments(directory):
    return sorted((directory / "log" / TOPIC).glob("*.seg"))


def read_all(directory):
    reader = open_reader(directory, TOPIC)
    found = []
    while len(found) < reader.watermarks(0).end:
        found += [record.value for record in reader.read(0, len(found))]
    reader.close()
    return [int(value.rstrip(b".")) for value in found]


@pytest.mark.parametrize("target", ["saved", "saved.tar", "deep/saved.tar.gz"])
def test_there_and_back(target, data, tmp_path, capsys):
    (tmp_path / target).parent.mkdir(exist_ok=True)
    assert main(["backup", target]) == 0
    shown = capsys.readouterr()
    assert "1 topic, 10 records" in shown.out
    assert "not in the backup: passwords" in shown.err
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".") and path.is_dir()]
    assert main(["restore", target, "--data-dir", "again", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == 10
    assert sorted(path.name for path in (tmp_path / "again").iterdir()) == ["log", "state"]
    assert len(segments(tmp_path / "again")) == len(segments(data)) >= 3
    assert main(["log", "verify", "--data-dir", "again"]) == 0
    assert main(["log", "lag", "--data-dir", "again"]) == 0
    assert "readers" in capsys.readouterr().out
    assert read_all(tmp_path / "again") == list(range(10))

    async def go_on():
        store = LmdbStore(tmp_path / "again" / "state")
        log = EmbeddedLog(tmp_path / "again", store.space("groups"))
        await log.start()
        pack = RecordPack()
        pack.append(b"10")
        await log.producer.send(TOPIC, 0, pack)
        await log.close()
        store.close()

    asyncio.run(go_on())
    assert read_all(tmp_path / "again") == list(range(11))


def test_a_tail_that_a_crash_left_torn_is_saved_and_cut_at_the_next_start(data, tmp_path):
    with segments(data)[-1].open("ab") as file:
        file.write(b"PSB\1 and no more")
    assert main(["backup", "saved"]) == 0
    assert main(["restore", "saved", "--data-dir", "again"]) == 0
    assert read_all(tmp_path / "again") == list(range(10))


def test_damage_is_not_saved_but_named(data, tmp_path, capsys):
    first = segments(data)[0]
    content = bytearray(first.read_bytes())
    content[-10] ^= 1
    first.write_bytes(content)
    assert main(["backup", "saved"]) == 1
    assert "penstock log repair demo" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]
    assert not list((data / "log").glob(".backup-*"))
    assert main(["log", "verify"]) == 1
    assert "is damaged at byte" in capsys.readouterr().out


def test_nothing_is_overwritten(data, tmp_path, capsys):
    assert main(["backup", "saved"]) == 0
    assert main(["backup", "saved"]) == 1
    assert "saved is there already" in capsys.readouterr().err
    assert main(["restore", "saved"]) == 1
    assert "is not empty: there is log, passwords, state" in capsys.readouterr().err
    segments(data)[0].unlink()
    assert main(["restore", "saved", "--force"]) == 0
    (aside,) = data.glob(".before-restore-*")
    assert str(aside) in capsys.readouterr().out
    assert sorted(path.name for path in aside.iterdir()) == ["log", "state"]
    assert len(segments(aside)) == len(segments(data)) - 1
    assert (data / "passwords").exists()
    assert read_all(data) == list(range(10))


def test_a_broker_that_runs_is_left_alone(data, capsys):
    assert main(["backup", "saved"]) == 0
    lock = files.DirectoryLock(files.log_directory(data))
    assert main(["restore", "saved", "--force"]) == 1
    assert "a broker runs on" in capsys.readouterr().err
    assert main(["backup", "other", "--set", "admin.address="]) == 1
    assert "takes no commands" in capsys.readouterr().err
    lock.release()


def spoil(archive, change):
    """The archive with its members as `change(name, bytes)` gives them; None leaves one out."""
    with tarfile.open(archive) as tar:
        members = [(entry.name, tar.extractfile(entry).read()) for entry in tar]
    with tarfile.open(archive, "w") as tar:
        for name, content in members:
            changed = change(name, content)
            if changed is not None:
                entry = tarfile.TarInfo(changed[0])
                entry.size = len(changed[1])
                tar.addfile(entry, io.BytesIO(changed[1]))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda name, content: (name, content[:-1] + b"x") if name.endswith(".seg") else (name, content), "is damaged"),
        (lambda name, content: None if name.endswith("data.mdb") else (name, content), "is damaged: state/data.mdb"),
        (lambda name, content: None if name == "backup.json" else (name, content), "has no backup.json"),
        (lambda name, content: (name.replace("log/demo", "log/.."), content), "is not part of a Penstock backup"),
        (lambda name, content: (f"/etc/{name}", content), "is not part of a Penstock backup"),
        (
            lambda name, content: (name, content.replace(b'"format": 1', b'"format": 2')),
            "has the format 2, this version of Penstock knows 1",
        ),
        (
            lambda name, content: (name, content.replace(b'"version": "', b'"version": "\xff')),
            "backup.json of saved.tar",
        ),
    ],
    ids=["other bytes", "missing", "no manifest", "parent", "absolute", "newer", "no text"],
)
def test_what_is_no_whole_backup_is_not_restored(change, said, data, tmp_path, capsys):
    assert main(["backup", "saved.tar"]) == 0
    spoil("saved.tar", change)
    assert main(["restore", "saved.tar", "--data-dir", "again"]) == 1
    assert said in capsys.readouterr().err
    assert not (tmp_path / "again").exists() or not list((tmp_path / "again").iterdir())


def test_half_an_archive_and_none(data, tmp_path, capsys):
    assert main(["backup", "saved.tar.gz"]) == 0
    with open("saved.tar.gz", "r+b") as file:
        file.truncate(os.path.getsize("saved.tar.gz") // 2)
    assert main(["restore", "saved.tar.gz", "--data-dir", "again"]) == 1
    assert "not whole" in capsys.readouterr().err
    assert main(["restore", "nothing.tar", "--data-dir", "again"]) == 1
    assert "nothing.tar does not exist" in capsys.readouterr().err
    (tmp_path / "letter.txt").write_text("Dear operator,\n")
    assert main(["restore", "letter.txt", "--data-dir", "again"]) == 1
    assert capsys.readouterr().err == "penstock: letter.txt is not a backup: it is not an archive\n"


@pytest.mark.parametrize("library", [bz2, gzip, lzma])
def test_an_archive_that_was_compressed_by_somebody_and_damaged(library, data, tmp_path, capsys):
    assert main(["backup", "saved.tar"]) == 0
    packed = bytearray(library.compress((tmp_path / "saved.tar").read_bytes()))
    (tmp_path / "saved").write_bytes(packed)
    assert main(["restore", "saved", "--data-dir", "again"]) == 0
    packed[len(packed) // 2 : len(packed) // 2 + 100] = bytes(100)
    (tmp_path / "saved").write_bytes(packed)
    assert main(["restore", "saved", "--data-dir", "other"]) == 1
    assert "penstock: saved" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()  # nothing is made for it


def test_where_there_is_nothing_to_save_it_says_what_to_save(data, capsys):
    assert main(["backup", "saved", "--set", "log.provider=kafka", "--set", "device.store=redis"]) == 1
    said = capsys.readouterr().err
    assert "msg-all-consumer-group" in said
    assert "Redis, where what waits for DEVICE clients is" in said
    assert main(["backup", "saved", "--set", "log.provider=memory"]) == 1
    assert "nothing to save" in capsys.readouterr().err
    assert main(["backup", "saved", "--data-dir", "elsewhere"]) == 1
    assert "there is no data directory" in capsys.readouterr().err
    assert main(["restore", "saved", "--set", "log.provider=kafka"]) == 1
    assert main(["backup", "saved", "--set", "device.store=redis"]) == 0
    assert "is in Redis, not in this backup" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["backup/saved", "backup/deep/saved.tar.gz"])
def test_what_is_not_mounted_is_not_made(target, data, tmp_path, capsys):
    """A disk for backups that is away: they do not fill the one below its directory."""
    assert main(["backup", target]) == 1
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "there is no" in line]
    assert said == f"penstock: there is no directory {(tmp_path / target).parent}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]
    assert not list((data / "log").glob(".backup-*"))


def owners(directory):
    status = [path.lstat() for path in (directory, *directory.rglob("*"))]
    return {(one.st_uid, one.st_gid) for one in status}


root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
SOMEBODY = (12_345, 12_346)


@root_only
def test_what_root_restores_belongs_to_the_owner_of_the_data_directory(data, tmp_path, capsys):
    assert main(["backup", "saved.tar"]) == 0
    (mine := tmp_path / "mine").mkdir(mode=0o700)
    os.chown(mine, *SOMEBODY)
    capsys.readouterr()
    assert main(["restore", "saved.tar", "--data-dir", "mine"]) == 0
    assert f"all of it belongs to 12345, as {mine} does" in capsys.readouterr().out
    assert owners(mine) == {SOMEBODY}
    assert main(["restore", "saved.tar", "--data-dir", "mine", "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["owner"] == "12345"
    assert owners(mine) == {SOMEBODY}
    assert list(mine.glob(".before-restore-*"))


@root_only
def test_a_new_directory_belongs_to_the_owner_of_the_one_above(data, tmp_path, capsys):
    assert main(["backup", "saved.tar"]) == 0
    (home := tmp_path / "home").mkdir()
    os.chown(home, *SOMEBODY)
    assert main(["restore", "saved.tar", "--data-dir", "home/deep/data"]) == 0
    assert owners(home) == {SOMEBODY}
    assert (home / "deep/data").stat().st_mode & 0o777 == 0o700
    capsys.readouterr()
    assert main(["restore", "saved.tar", "--data-dir", "again"]) == 0
    assert "all files belong to root: if the broker runs as another user, chown them" in capsys.readouterr().out


def test_sigterm_leaves_nothing_behind(data, tmp_path, monkeypatch):
    def be_ended(self):
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("penstock.storage.log.embedded.backup.StagedTopic.verify", be_ended)
    before = signal.getsignal(signal.SIGTERM)
    assert main(["backup", "saved.tar"]) == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]
    assert not list((data / "log").glob(".backup-*"))


@pytest.mark.parametrize("name", ["backup.tar", "backup.tgz", "backup"])
def test_where_there_is_no_room_nothing_is_left_behind(name, tmp_path):
    """A file may not be larger than the limit, as if the disk were full: also not when it is closed."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    sink = open_sink(tmp_path / name)

    def put_all():
        for number, size in enumerate((*(20 * (1_000,)), 20_000)):
            sink.put(f"file-{number}", io.BytesIO(os.urandom(size)), size)

    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            put_all()
        sink.discard()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["backup.tar", "backup"])
def test_one_backup_at_a_time_to_a_target(name, data, capsys, tmp_path):
    """Else the first to end would give its name to what the other one has not finished."""
    sink = open_sink(tmp_path / name)
    assert main(["backup", name]) == 1
    assert f"another backup to {name} is at work" in capsys.readouterr().err
    sink.discard()
    assert names_in(tmp_path) == ["data"]
    assert main(["backup", name]) == 0


def test_the_next_backup_removes_what_one_left_that_was_killed(data, tmp_path, monkeypatch):
    child = os.fork()
    if child == 0:
        monkeypatch.setattr(Backup, "_copy", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        main(["backup", "monday.tar"])
        os._exit(0)
    os.waitpid(child, 0)
    assert [name for name in names_in(tmp_path) if name.startswith(".")]
    assert main(["backup", "tuesday.tar"]) == 0
    assert names_in(tmp_path) == ["data", "monday.tar.partial", "tuesday.tar"]
    assert main(["backup", "monday.tar"]) == 0
    assert names_in(tmp_path) == ["data", "monday.tar", "tuesday.tar"]


def names_in(directory):
    return sorted(path.name for path in directory.iterdir())


def test_a_restore_that_was_killed_is_not_started_on_and_can_be_repeated(data, tmp_path, monkeypatch, capsys):
    """Just when some of the files are old and some are new."""
    assert main(["backup", "saved.tar"]) == 0
    before = names_in(data)
    child = os.fork()
    if child == 0:
        moves = itertools.count()
        rename = Path.rename

        def rename_or_die(self, to):
            if next(moves) == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return rename(self, to)

        Path.rename = rename_or_die
        main(["restore", "saved.tar", "--force"])
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert names_in(data) != before
    for command in (["serve", "--port", str(free_port())], ["backup", "other.tar"]):
        capsys.readouterr()
        assert main(command) == 78
        assert "has not ended" in capsys.readouterr().err
    assert main(["restore", "saved.tar", "--force"]) == 0
    assert {"log", "state", "passwords"} <= set(names_in(data))
    assert ".restoring" not in names_in(data)
    assert len(read_all(data)) == 10


@pytest.mark.parametrize("number", range(4))
def test_a_restore_that_cannot_move_a_file_changes_nothing(number, data, monkeypatch, capsys):
    assert main(["backup", "saved.tar"]) == 0
    before, inode = names_in(data), (data / "log").stat().st_ino
    moves, rename = itertools.count(), Path.rename

    def refuse_one(self, to):
        if next(moves) == number:
            raise OSError(errno.EIO, "Input/output error", str(self))
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", refuse_one)
    assert main(["restore", "saved.tar", "--force"]) == 1
    assert "Input/output error" in capsys.readouterr().err
    assert names_in(data) == before
    assert (data / "log").stat().st_ino == inode


def test_a_broker_that_starts_while_a_restore_is_at_work_keeps_its_data(data, tmp_path, monkeypatch, capsys):
    assert main(["backup", "saved.tar"]) == 0
    lock = None

    def start(staging):
        nonlocal lock
        lock = files.DirectoryLock(files.log_directory(data))

    monkeypatch.setattr("penstock.operate.backup.restore._verify", start)
    before = names_in(data)
    assert main(["restore", "saved.tar", "--force"]) == 1
    assert "a broker runs on" in capsys.readouterr().err
    assert names_in(data) == before
    lock.release()


def test_one_restore_at_a_time(data, tmp_path, monkeypatch, capsys):
    assert main(["backup", "saved.tar"]) == 0
    codes = []

    def restore_as_well(staging):
        codes.append(main(["restore", "saved.tar", "--data-dir", "again"]))

    monkeypatch.setattr("penstock.operate.backup.restore._verify", restore_as_well)
    assert main(["restore", "saved.tar", "--data-dir", "again"]) == 0
    assert codes == [1]
    assert "another restore into" in capsys.readouterr().err
    assert len(read_all(tmp_path / "again")) == 10


def test_a_new_disk_is_empty_though_it_has_a_directory(data, tmp_path, capsys):
    (data / "passwords").unlink()
    for directory in (data, tmp_path / "disk"):
        (directory / "lost+found").mkdir(mode=0o700, parents=True)
    assert main(["backup", "saved.tar"]) == 0
    assert main(["restore", "saved.tar", "--data-dir", "disk"]) == 0
    assert "lost+found" not in capsys.readouterr().err
    assert names_in(tmp_path / "disk") == ["log", "lost+found", "state"]


def bomb(name, size, archive, *, is_sparse=False):
    """An archive with one file of zeros, which packs to next to nothing."""
    with tarfile.open(archive, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        entry = tarfile.TarInfo(name)
        entry.size = size
        if is_sparse:
            entry.size = 0
            entry.pax_headers = {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(size), "GNU.sparse.numblocks": "0"}
            tar.addfile(entry)
        else:
            tar.addfile(entry, io.BytesIO(bytes(size)))


@pytest.mark.parametrize("is_sparse", [False, True])
def test_an_archive_that_is_not_a_backup_writes_nothing(tmp_path, monkeypatch, capsys, is_sparse):
    """However large it says that it is: the manifest is looked for before anything is written."""
    monkeypatch.chdir(tmp_path)
    bomb("log/demo/00000000000000000000.seg", 50_000_000, "bomb.tar.gz", is_sparse=is_sparse)
    written = []
    monkeypatch.setattr(restore, "write_file", lambda path, source: written.append(path))
    assert main(["restore", "bomb.tar.gz", "--data-dir", "again"]) == 1
    said = capsys.readouterr().err
    assert ("is not part of a Penstock backup" if is_sparse else "has no backup.json") in said
    assert not written
    assert not (tmp_path / "again").exists()


def test_a_manifest_that_is_too_large_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    bomb("backup.json", 65 * 1_048_576, "bomb.tar.gz")
    assert main(["restore", "bomb.tar.gz", "--data-dir", "again"]) == 1
    assert "larger than" in capsys.readouterr().err


def test_a_manifest_that_is_nested_deeply_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    contents = b'{"format": 1, "files": ' + b"[" * 100_000
    with tarfile.open("nested.tar.gz", "w:gz") as tar:
        entry = tarfile.TarInfo("backup.json")
        entry.size = len(contents)
        tar.addfile(entry, io.BytesIO(contents))
    assert main(["restore", "nested.tar.gz", "--data-dir", "again"]) == 1
    assert "backup.json of nested.tar.gz is damaged" in capsys.readouterr().err


def test_a_backup_that_does_not_fit_is_refused_before_it_is_written(data, monkeypatch, capsys, tmp_path):
    assert main(["backup", "saved.tar"]) == 0
    monkeypatch.setattr(restore.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1_000, 1_000, 5))
    assert main(["restore", "saved.tar", "--data-dir", "again"]) == 1
    assert "has 5 free" in capsys.readouterr().err
    assert not (tmp_path / "again").exists()
