"""Whether LMDB's file has every page that its newest state needs.

LMDB maps the file and trusts it. A page behind the end of one that was cut short (a copy that broke off, a bad disk)
ends the process with SIGBUS, without a word. The file may well be shorter than LMDB's own count of pages, since those
at its end may be free and never written: so the trees are walked then, and only then.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

from penstock._ext.record.segment import explain_bus_errors
from penstock.core import exit_codes

MAGIC = 0xBEEFC0DE
NO_PAGE = 0xFFFF_FFFF_FFFF_FFFF
PAGE_HEADER = 16
BRANCH, LEAF = 0x01, 0x02
BIG_DATA, SUB_DATA = 0x01, 0x02

_META = struct.Struct("<II16x")  # magic, version; then the two databases, the last page and the transaction
_DATABASE = struct.Struct("<IHH4QQ")  # page size (of the first), flags, depth, four counts, root
_LAST = struct.Struct("<QQ")
_PAGE = struct.Struct("<QHHHH")  # number, unused, flags, lower, upper
_NODE = struct.Struct("<HHHH")  # two halves of a size or page number, flags, size of the key


def explain_damage(path: Path | str) -> None:
    """Print an explanation if LMDB needs a page that the file does not have or the disk cannot read.

    The kernel then ends the process with SIGBUS, which explains nothing.
    """
    where = str(Path(path).absolute().parent)
    text = (
        f"penstock: a store below {where[:200]} is damaged, or its disk cannot read it (SIGBUS).\n"
        "Check the disk, then restore a backup with `penstock restore`: docs/backup.md.\n"
    )
    explain_bus_errors(text.encode(errors="replace"), exit_codes.FAILURE)


def find_missing_page(path: Path | str) -> int | None:
    """The number of a page that is needed and not in the file, or None. What is no file of LMDB's is left to LMDB."""
    with Path(path).open("rb") as file:
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _find_missing(data)
        except (ValueError, struct.error, ArithmeticError):
            return None  # empty, or not even two pages


def _find_missing(data: mmap.mmap) -> int | None:
    size = _DATABASE.unpack_from(data, PAGE_HEADER + _META.size)[0]
    metas = [found for at in (0, size) if (found := _read_meta(data, at)) is not None]
    if not metas:
        return None
    _, last, roots = max(metas)
    there = len(data) // size
    if last < there:
        return None
    waiting = [(root, True) for root in roots if root != NO_PAGE]
    # No page is in a tree twice, unless it is damaged in another way than this one.
    for _ in range(last + 1):
        if not waiting:
            break
        number, has_nodes = waiting.pop()
        if number >= there:
            return number
        if has_nodes:
            waiting += _pages_below(data, number * size, size)
    return None


def _read_meta(data: mmap.mmap, page: int) -> tuple[int, int, list[int]] | None:
    """Transaction, last page and roots."""
    at = page + PAGE_HEADER
    magic, _ = _META.unpack_from(data, at)
    if magic != MAGIC:
        return None
    at += _META.size
    roots = [_DATABASE.unpack_from(data, at + number * _DATABASE.size)[-1] for number in range(2)]
    last, transaction = _LAST.unpack_from(data, at + 2 * _DATABASE.size)
    return transaction, last, roots


def _pages_below(data: mmap.mmap, page: int, size: int) -> Iterator[tuple[int, bool]]:
    """Their numbers, and whether they have nodes in turn."""
    _, _, flags, lower, _ = _PAGE.unpack_from(data, page)
    if not flags & (BRANCH | LEAF):
        return
    for place in struct.unpack_from(f"<{(lower - PAGE_HEADER) // 2}H", data, page + PAGE_HEADER):
        low, high, extra, key_size = _NODE.unpack_from(data, page + place)
        if flags & BRANCH:
            yield low | high << 16 | extra << 32, True
            continue
        value = page + place + _NODE.size + key_size
        if extra & BIG_DATA:
            # it goes on over as many pages as it needs: the last one is missing first
            first = struct.unpack_from("<Q", data, value)[0]
            yield first + (PAGE_HEADER + (low | high << 16) - 1) // size, False
        elif extra & SUB_DATA and (root := _DATABASE.unpack_from(data, value)[-1]) != NO_PAGE:
            yield root, True
