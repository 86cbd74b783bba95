#!/usr/bin/env python3
"""Writes to the machine's free memory once, so that no benchmark is the first to do so.

A virtual machine gets a page from its host when it is written to for the first time. That takes longer than copying a
page full of messages, and it looks like time of the process that sends: on a fresh machine the copying in `send` was up
to 70 % of the load generator's time, for half a second at a time, and about 10 % afterwards.

  python bench/touch_memory.py              what is free, but for 2 GiB
  python bench/touch_memory.py --gib 4
"""

from __future__ import annotations

import argparse
import mmap
import re
import sys
from collections.abc import Iterator
from pathlib import Path

GIB = 1 << 30
LEFT_FREE = 2  # GiB: whoever needs memory meanwhile must not have to wait for ours


def free_gib(described: str) -> int:
    """Whole GiB that nobody uses, not even for files, by the text of /proc/meminfo."""
    found = re.search(r"^MemFree:\s*(\d+) kB$", described, re.MULTILINE)
    return int(found[1]) * 1024 // GIB if found else 0


def touch(gib: int) -> Iterator[int]:
    """The memory is kept until all is written to: what is given back at once would be given to us again."""
    kept = []
    for number in range(gib):
        kept.append(mmap.mmap(-1, GIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE))
        yield number + 1


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=int, help=f"default: what is free, but for {LEFT_FREE}")
    options = parser.parse_args(argv)
    allowed = max(0, free_gib(Path("/proc/meminfo").read_text()) - LEFT_FREE)
    if options.gib is not None and not 0 <= options.gib <= allowed:
        parser.error(f"--gib {options.gib}: 0 to {allowed}, because so much is free, but for {LEFT_FREE}")
    wanted = allowed if options.gib is None else options.gib
    for done in touch(wanted):
        print(f"\r{done} of {wanted} GiB", end="", file=sys.stderr, flush=True)
    print(f"\r{wanted} GiB of memory have been written to", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
