"""Tables and query topics, and who was given what: durable, and the same at every node."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.datasub.plan import Plan


@dataclass(frozen=True, slots=True)
class QueryTopic:
    """A topic that is a query."""

    name: str
    sql: str  # the statement that made it, or that it was reloaded with
    plan: Plan
    mode: str  # query, stable or database
    meta: str  # "", with or only
    owner: str | None  # user name of who made it
    created: int  # ms
    version: int = 1  # grows with each RELOAD

    @property
    def schema(self) -> list[tuple[str, int]]:
        return [(name, int(type_)) for name, type_, _ in self.plan.columns]
