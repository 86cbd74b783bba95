"""The protocol between a data listener and its clients.

A frame is a four-byte big-endian length and a MessagePack array. A request is `[id, method, parameters]`, parameters
being one of the structures below as a map; an answer is `[id, null, result]` or
`[id, Failure, null]`. Answers may come in any order (a parked fetch does not hold up a heartbeat); commits of one
connection are handled in their order. The first request is `hello`. Nothing is sent without having been asked for.
"""

from __future__ import annotations

from typing import Any

import msgspec

PROTOCOL = 1
MAX_REQUEST = 1 << 20  # a client's frame; the broker's frames end with the block that reached the limit of a fetch
DEFAULT_PORT = 6030


class Failure(msgspec.Struct, omit_defaults=True):
    code: str  # of penstock_client.errors
    message: str
    retryable: bool = False
    line: int = 0  # of a statement, from 1
    column: int = 0
    begin: int = -1  # out-of-range: what the partition has
    end: int = -1


class Hello(msgspec.Struct, omit_defaults=True):
    protocol: int = PROTOCOL
    user: str = ""
    password: str = ""
    client_id: str = ""


class Welcome(msgspec.Struct):
    protocol: int
    version: str
    node: str


class Execute(msgspec.Struct):
    """One statement."""

    sql: str


class Table(msgspec.Struct):
    """What a statement answers: rows of SHOW, or none and a sentence."""

    columns: list[str]
    rows: list[list[Any]]
    text: str = ""


class Subscribe(msgspec.Struct, omit_defaults=True):
    """Joins the group, or changes the topics. An empty list leaves it (after which the consumer is forgotten)."""

    group: str
    topics: list[str]
    consumer: str = ""  # empty: a new one, the answer has its id
    client_id: str = ""
    session_timeout_ms: int = 12_000
    max_poll_interval_ms: int = 300_000
    auto_offset_reset: str = "latest"  # earliest, latest, none
    replay: bool = False
    parameters: dict[str, str] = {}  # as shown by SHOW CONSUMERS


class Partition(msgspec.Struct):
    """One that a consumer owns. `offset` is where it starts: what was committed, else by auto.offset.reset; -1 with
    `none` and nothing committed."""

    topic: str
    partition: int
    offset: int
    begin: int
    end: int
    committed: int = -1


class Assignment(msgspec.Struct):
    consumer: str
    epoch: int
    state: str  # rebalancing or ready
    partitions: list[Partition]
    topics: list[str]
    schema: dict[str, list[tuple[str, int]]]  # of each topic: column, SqlType
    refused: dict[str, str] = {}  # topics dropped or no longer allowed, and why
    sources: dict[str, str] = {}  # of each topic: the MQTT filter that its query reads


class Ask(msgspec.Struct):
    """Every 500 ms while rebalancing, every second after. Answered with an Assignment, null if `epoch` is current."""

    consumer: str
    group: str
    epoch: int


class Heartbeat(msgspec.Struct, omit_defaults=True):
    """Answered with an Assignment like Ask. `positions` and `rows` are for the views: "topic", partition, position."""

    consumer: str
    group: str
    epoch: int
    polled: bool = False
    positions: list[tuple[str, int, int]] = []
    rows: int = 0
    counts: list[int] = []  # rows the application got of each of `positions`, since the partition was assigned


class Fetch(msgspec.Struct, omit_defaults=True):
    """Parked until rows are there or `max_wait_ms` is over; ends at min_rows, at max_bytes, at the time or at the end
    of the log."""

    consumer: str
    group: str
    epoch: int
    topic: str
    partition: int
    offset: int
    min_rows: int = 4096
    max_wait_ms: int = 1000
    max_bytes: int = 1 << 20
    replay: bool = False


class Fetched(msgspec.Struct, omit_defaults=True):
    """`next_offset` moves also when no row passed the filter."""

    next_offset: int
    begin: int
    end: int
    blocks: list[bytes] = []  # penstock._ext.query.evaluator: Block.encode
    wait_ms: float = 0  # replay: how long after the block before this one is due
    gap: int = 0  # records that retention had removed between the offset asked and the first found


class Commit(msgspec.Struct):
    """Next positions: topic, partition, offset. All or none; refused with stale-epoch if one is owned by another."""

    consumer: str
    group: str
    epoch: int
    offsets: list[tuple[str, int, int]]


class Positions(msgspec.Struct):
    """`committed`: of the group; `watermarks`: begin and end; `times`: the first offset at or after each of `times`
    (ms), which are as many as the partitions."""

    group: str
    partitions: list[tuple[str, int]]
    times: list[int] = []


class Leave(msgspec.Struct):
    consumer: str
    group: str


# What each method takes. Answers: hello Welcome, execute Table, subscribe Assignment, ask and heartbeat Assignment or
# null, fetch Fetched, commit and leave null; committed, watermarks and times a list in the order asked (int or null,
# [begin, end], int).
METHODS: dict[str, type[msgspec.Struct]] = {
    "hello": Hello,
    "execute": Execute,
    "subscribe": Subscribe,
    "ask": Ask,
    "heartbeat": Heartbeat,
    "fetch": Fetch,
    "commit": Commit,
    "committed": Positions,
    "watermarks": Positions,
    "times": Positions,
    "leave": Leave,
}
