"""Packs of messages as commands of Redis."""

from __future__ import annotations

import struct

import hiredis
import pytest

from penstock._ext.device.commands import (
    IS_ANY,
    IS_DAMAGED,
    IS_SINGLE,
    kind_of,
    pack_addition,
    pack_singles,
    read_given,
    split_pack,
)
from penstock._ext.record.segment import RecordPack
from penstock.subscribers.device.store.base import build_source

Message = tuple[int, int, bytes | None]
HEAD = b"$2\r\nEV\r\n$1\r\n9\r\n"


def pack_of(*messages: Message, expires_at: int = 0, packet_id: int = 0) -> RecordPack:
    pack = RecordPack()
    for partition, offset, value in messages:
        pack.append(value, build_source(partition, offset, expires_at, packet_id, via=partition + 100))
    return pack


def words_of(command: bytes) -> list[bytes]:
    reader = hiredis.Reader()
    reader.feed(command)
    words = reader.gets()
    assert isinstance(words, list)
    assert reader.gets() is False
    return words


def place(partition: int, lowest: int, highest: int) -> bytes:
    return struct.pack("<iIqq", partition, partition + 100, lowest, highest)


def identity(partition: int, offset: int) -> bytes:
    return struct.pack("<qiI", offset, partition, partition + 100)


def test_messages_of_several_packs_are_one_command() -> None:
    packs = [pack_of((3, 7, b"a"), (-1, 2, b"")), pack_of((3, 9, b"x" * 1000), (3, 1 << 40, None))]
    words = words_of(pack_addition(2, HEAD, b"\1\0\2\0", packs))
    assert words == [
        b"EV",
        b"9",
        b"\1\0\2\0",
        b"1" + place(3, 7, 1 << 40) + place(-1, 2, 2),
        identity(3, 7) + identity(-1, 2) + identity(3, 9) + identity(3, 1 << 40),
        b"",
        b"a",
        b"",
        b"x" * 1000,
        b"",
    ]


@pytest.mark.parametrize("offsets", [(5, 5), (5, 4), (4, 6, 5)])
def test_offsets_that_do_not_grow_are_told(offsets: tuple[int, ...]) -> None:
    pack = pack_of(*((0, offset, b"x") for offset in offsets))
    assert words_of(pack_addition(2, HEAD, b"", [pack]))[3] == b"0" + place(0, min(offsets), max(offsets))


def test_details_are_told_when_any_message_has_some() -> None:
    packs = [pack_of((0, 1, b"a")), pack_of((0, 2, b"b"), expires_at=77), pack_of((0, 3, b"c"), packet_id=5)]
    details = words_of(pack_addition(2, HEAD, b"", packs))[5]
    assert list(struct.iter_unpack("<qH", details)) == [(0, 0), (77, 0), (0, 5)]


def test_one_message_for_each_of_several_queues() -> None:
    packs = [pack_of((1, 5, b"a")), pack_of((2, 6, None), expires_at=1_234_567_890_123)]
    words = words_of(pack_singles(2, HEAD, packs))
    assert words[2:] == [identity(1, 5), b"0", b"a", identity(2, 6), b"1234567890123", b""]


def test_kinds_of_packs() -> None:
    assert kind_of(pack_of((0, 1, b"x"))) == IS_SINGLE
    assert kind_of(pack_of((0, 1, b"x"), packet_id=1)) == IS_ANY
    assert kind_of(pack_of((0, 1, b"x"), (0, 2, b"y"))) == IS_ANY
    for key in (b"short", None):
        pack = pack_of((0, 1, b"x"))
        pack.append(b"y", key)
        assert kind_of(pack) == IS_DAMAGED


def test_a_pack_is_split() -> None:
    pack = pack_of(*((0, offset, b"%d" % offset) for offset in range(7)))
    parts = split_pack(pack, 3)
    assert [part.count for part in parts] == [3, 3, 1]
    assert [value for part in parts for value in part.values()] == pack.values()
    assert [key for part in parts for key in part.keys()] == pack.keys()  # noqa: SIM118 (a pack is no dictionary)


def test_packet_ids_as_the_script_tells_them() -> None:
    given = struct.pack("<HHHHHH", 65_534, 2, 0, 3, 1, 1)
    assert read_given(given) == [65_534, 65_535, 0, 0, 0, 1]
    assert read_given(b"") == []
