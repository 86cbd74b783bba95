"""The statements of data subscription. Reading them needs sqlglot, which is loaded with the first statement."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.subscribers.query.sql.tables import Meta, TableDefinition

ON_ERROR = ("null", "skip", "dead-letter")
PRIVILEGES = ("subscribe", "create", "drop")
DEFAULT_SAMPLE = 1_000
MAX_SAMPLE = 100_000


@dataclass(frozen=True, slots=True)
class CreateTable:
    table: TableDefinition
    if_not_exists: bool
    text: str


@dataclass(frozen=True, slots=True)
class DropTable:
    name: str
    if_exists: bool


@dataclass(frozen=True, slots=True)
class CreateTopic:
    name: str
    if_not_exists: bool
    mode: str  # query, stable, database
    meta: Meta
    on_error: str
    text: str  # the whole statement: parsing it again gives an equal one
    query_at: int  # where in it the SELECT, the table's name or the filter begins


@dataclass(frozen=True, slots=True)
class ReloadTopic:
    name: str
    if_exists: bool
    on_error: str  # empty: as it was
    text: str
    query_at: int


@dataclass(frozen=True, slots=True)
class DropTopic:
    name: str
    if_exists: bool
    force: bool


@dataclass(frozen=True, slots=True)
class DropGroup:
    group: str
    topic: str
    if_exists: bool
    force: bool


@dataclass(frozen=True, slots=True)
class ShowTopics:
    pass


@dataclass(frozen=True, slots=True)
class ShowTables:
    pass


@dataclass(frozen=True, slots=True)
class ShowConsumers:
    pass


@dataclass(frozen=True, slots=True)
class ShowSubscriptions:
    pass


@dataclass(frozen=True, slots=True)
class ShowGrants:
    pass


@dataclass(frozen=True, slots=True)
class Describe:
    """The columns of a topic, else of a table of that name."""

    name: str


@dataclass(frozen=True, slots=True)
class Grant:
    privileges: tuple[str, ...]
    topic: str  # * for every one
    user: str


@dataclass(frozen=True, slots=True)
class Revoke:
    privileges: tuple[str, ...]
    topic: str
    user: str


@dataclass(frozen=True, slots=True)
class InferTable:
    """Answers with the CREATE TABLE statement that fits the newest messages of the filter; declares nothing."""

    name: str
    filter: str
    sample: int


Statement = (
    CreateTable
    | DropTable
    | CreateTopic
    | ReloadTopic
    | DropTopic
    | DropGroup
    | ShowTopics
    | ShowTables
    | ShowConsumers
    | ShowSubscriptions
    | ShowGrants
    | Describe
    | Grant
    | Revoke
    | InferTable
)


def parse_statement(text: str) -> Statement:
    """Raises SqlError with the position. The query of a topic is checked by `compile_topic`, which knows the tables."""
    from penstock.subscribers.query.sql.reader import read_statement  # noqa: PLC0415 - sqlglot costs half a second

    return read_statement(text)
