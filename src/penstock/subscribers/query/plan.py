"""A query after parsing and type checking: what the compiled evaluator (`penstock._ext.query.evaluator`) is made from.

An expression is a nested tuple `(operation, type, *arguments)`; `type` is a SqlType as int, arguments are expressions
or constants as each operation says. Everything is typed: conversions that SQL makes by itself are `cast` nodes.

Leaves
  ("literal", type, value)      None, bool, int, float, str, bytes; TIMESTAMP as int nanoseconds
  ("field", type, name)         topic, client_id, username, content_type, response_topic: VARCHAR;
                                payload, correlation_data: BLOB; qos, partition, offset: BIGINT; retain: BOOLEAN;
                                ts (received), expires_at: TIMESTAMP; user_properties: PROPERTIES
  ("level", VARCHAR, number)    level of the topic, from 1; NULL when there are fewer
  ("property", VARCHAR, name)   the first user property of that name, or NULL
  ("json", JSON, path)          path = tuple of str (member) and int (element, from 0) into the payload, or NULL
  ("json_of", JSON, e, path)    the same into a VARCHAR or JSON expression
  ("element", JSON, path)       the same into the element of the plan's `unnest` that the row is of
  ("ordinality", BIGINT)        the number of that element, from 1

Operations (argument types as after inserted casts)
  and or (2+ args), not; eq ne lt le gt ge distinct not_distinct (2); is_null (1)
  in (needle, literal…): three-valued; like ilike (text, pattern, escape text or None)
  regex (VARCHAR, program of penstock.subscribers.query.sql.regex as bytes)
  add sub mul neg (BIGINT or DOUBLE), div (DOUBLE; x/0 is NULL), intdiv mod (BIGINT or DOUBLE; by 0 is NULL)
  add_ns (TIMESTAMP, BIGINT) and sub_ts (TIMESTAMP, TIMESTAMP) → BIGINT
  concat (VARCHAR…), case (condition, value, condition, value, …, else), coalesce, nullif
  cast, try_cast (expression): to `type`; DuckDB's rules; a failing cast is a row error, try_cast is NULL
  call (name, argument…): the functions of `penstock.subscribers.query.sql.functions`
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Expression = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """One distinct query. Equal `key`s mean equal results: topics with the same key share one evaluation."""

    key: str  # the normalised SQL with everything resolved, and the error policy
    filter: str  # the MQTT filter of the source
    columns: tuple[tuple[str, int, Expression], ...]  # name, SqlType, expression
    where: Expression | None  # BOOLEAN
    # "skip": the row is left out; "null": an operation that fails is NULL; "dead-letter": left out and reported
    on_error: str
    unnest: Expression | None = None  # JSON, an array: each of its elements is a row
