"""One entrance to every parser of the codec, and memory in which reading one byte too far ends the process."""

import ctypes
import mmap
from collections.abc import Callable
from typing import Any

from penstock._ext.wire import codec, packets

Body = bytes | memoryview

PARSERS: dict[int, Callable[[int, Body, int], Any]] = {
    1: lambda _flags, body, _version: packets.parse_connect(body),
    3: lambda flags, body, version: _raise_reason(codec.debug_parse_publish(flags, body, version)),
    4: lambda flags, body, version: _raise_reason(codec.debug_parse_ack(4, flags, body, version)),
    5: lambda flags, body, version: _raise_reason(codec.debug_parse_ack(5, flags, body, version)),
    6: lambda flags, body, version: _raise_reason(codec.debug_parse_ack(6, flags, body, version)),
    7: lambda flags, body, version: _raise_reason(codec.debug_parse_ack(7, flags, body, version)),
    8: packets.parse_subscribe,
    10: packets.parse_unsubscribe,
    14: packets.parse_disconnect,
    15: packets.parse_auth,
}


def parse_any(first_byte: int, body: Body, version: int) -> Any:
    """What a server makes of a client's packet; None for types without a body. Raises ProtocolViolation."""
    parser = PARSERS.get(first_byte >> 4)
    return parser(first_byte & 15, body, version) if parser else None


def attempt(parser: Callable[..., Any], *arguments: Any) -> tuple[Any, packets.ProtocolViolation | None]:
    """What a parser gives, and how it refuses: one of the two is None."""
    try:
        return parser(*arguments), None
    except packets.ProtocolViolation as violation:
        return None, violation


def _raise_reason(answer: Any) -> Any:
    if isinstance(answer, int):
        raise packets.ProtocolViolation(answer, "refused by the codec")
    return answer


class GuardedMemory:
    """Room for a body that ends where an inaccessible page begins."""

    def __init__(self, capacity: int = 1 << 16) -> None:
        self._usable = -(-capacity // mmap.PAGESIZE) * mmap.PAGESIZE
        self._map = mmap.mmap(-1, self._usable + mmap.PAGESIZE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(start + self._usable), ctypes.c_size_t(mmap.PAGESIZE), 0) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
        self._view = memoryview(self._map)

    def place(self, body: bytes) -> memoryview:
        """The body at the very end of the memory; valid until the next call."""
        end = self._usable
        self._view[end - len(body) : end] = body
        return self._view[end - len(body) : end]

    def address_of_end(self) -> int:
        """Where the inaccessible page begins."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._map)) + self._usable
