"""Features of a Kafka cluster that are off until somebody switches them on; no client for Python can."""

from __future__ import annotations

import socket
import struct

UPDATE_FEATURES = 57
TIMEOUT_MS = 30_000
UPGRADE = 1


def upgrade_feature(bootstrap: str, name: str, level: int) -> None:
    """To this level, if it is not there already. Raises RuntimeError with what Kafka answers."""
    host, _, port = bootstrap.split(",", maxsplit=1)[0].partition(":")
    text = name.encode()
    # In the flexible form: lengths are one more than they are, and a zero ends each part: no tagged fields.
    feature = bytes([len(text) + 1]) + text + struct.pack(">hb", level, UPGRADE) + b"\0"
    body = struct.pack(">i", TIMEOUT_MS) + bytes([2]) + feature + b"\0\0"  # one feature; to be done, not only checked
    request = struct.pack(">hhih", UPDATE_FEATURES, 1, 1, -1) + b"\0" + body
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_MS / 1_000) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as answers:
            (size,) = struct.unpack(">i", answers.read(4))
            answer = answers.read(size)
    (error,) = struct.unpack_from(">h", answer, 4 + 1 + 4)  # behind correlation id, tags and throttle time
    if error:
        raise RuntimeError(f"Kafka does not upgrade {name}: error {error}, {answer!r}")
