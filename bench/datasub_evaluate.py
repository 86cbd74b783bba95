"""SQL topics, evaluation alone: messages in packs of 100, as they arrive, through a QuerySet; no broker.

The CPU is that of one core: nothing here has a second thread, and DuckDB is told to use one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from penstock._ext.query.evaluator import QuerySet
from penstock._ext.record import envelope
from penstock._ext.record.segment import RecordPack
from penstock.subscribers.query.plan import Plan
from penstock_client.types import SqlType

BATCH = 100
PACKS = 100  # different ones, so that nothing is measured that only a cache of one pack explains
QUERIES = 1_000
MATCHING = 50
FILTER = "sensors/+/data"
BIGINT, DOUBLE, VARCHAR, JSON, BOOLEAN = (
    int(kind) for kind in (SqlType.BIGINT, SqlType.DOUBLE, SqlType.VARCHAR, SqlType.JSON, SqlType.BOOLEAN)
)
DUCKDB_QUERY = """
SELECT CAST(p ->> '$.id' AS BIGINT), CAST(p ->> '$.temp' AS DOUBLE), p ->> '$.name'
FROM (SELECT unnest($1::VARCHAR[]) AS p) WHERE CAST(p ->> '$.temp' AS DOUBLE) > 30
"""


def number_at(*path: str) -> tuple[Any, ...]:
    return ("cast", DOUBLE, ("json", JSON, path))


# SELECT payload.id::BIGINT, payload.temp::DOUBLE, payload.name FROM 'sensors/+/data'
COLUMNS = (
    ("id", BIGINT, ("cast", BIGINT, ("json", JSON, ("id",)))),
    ("temp", DOUBLE, number_at("temp")),
    ("name", VARCHAR, ("call", VARCHAR, "json_text", ("json", JSON, ("name",)))),
)


def make_payload(number: int) -> str:
    """About 120 bytes; a temperature over 30 in half of them."""
    return json.dumps(
        {
            "id": number,
            "temp": 20.5 + number * 7 % 20,
            "hum": 40 + number % 50,
            "zone": number % (QUERIES // MATCHING),
            "name": f"sensor-{number}",
            "state": {"on": True, "errors": []},
        }
    )


def make_packs() -> tuple[list[RecordPack], list[list[str]]]:
    packs, payloads = [], []
    for first in range(0, PACKS * BATCH, BATCH):
        pack = RecordPack()
        texts = [make_payload(number) for number in range(first, first + BATCH)]
        for number, text in enumerate(texts):
            record = envelope.encode(
                f"sensors/{number}/data", text, client_id=f"c{number}", received_at=1_700_000_000_000
            )
            pack.append(record, timestamp=0)
        pack.place(first)
        packs.append(pack)
        payloads.append(texts)
    return packs, payloads


def per_cpu_second(evaluate: Callable[[int], int], secs: float) -> tuple[float, int]:
    """How many messages of the packs, evaluated one after the other; and the rows of one round over all of them."""
    rows = sum(evaluate(number) for number in range(PACKS))
    done, began = 0, time.process_time()
    while (spent := time.process_time() - began) < secs:
        for number in range(PACKS // 10):
            evaluate((done + number) % PACKS)
        done += PACKS // 10
    return done * BATCH / spent, rows


def over(conditions: list[tuple[Any, ...]]) -> QuerySet:
    queries = QuerySet()
    for number, condition in enumerate(conditions):
        queries.add(Plan(str(number), FILTER, COLUMNS, condition, "skip"))
    return queries


def measure_set(queries: QuerySet, packs: list[RecordPack], secs: float) -> tuple[float, int]:
    return per_cpu_second(lambda number: sum(block.rows for _, block in queries.evaluate(packs[number], 0)), secs)


def measure_one(secs: float) -> dict[str, Any]:
    """A filter and three columns, beside DuckDB with the same query over the same batches."""
    import duckdb  # noqa: PLC0415  # only this scenario needs it, and it is not installed with the broker

    packs, payloads = make_packs()
    hot = ("gt", BOOLEAN, number_at("temp"), ("literal", DOUBLE, 30.0))
    rate, rows = measure_set(over([hot]), packs, secs)
    database = duckdb.connect()
    database.execute("SET threads = 1")
    base, base_rows = per_cpu_second(
        lambda number: len(database.execute(DUCKDB_QUERY, [payloads[number]]).fetchall()), secs
    )
    faults = {} if rows == base_rows else {"error": f"{rows} rows, and DuckDB has {base_rows}"}
    return {
        "msgs_per_cpu_s": round(rate),
        "duckdb_per_cpu_s": round(base),
        "times_duckdb": round(rate / base, 1),
        **faults,
    }


def measure_many(condition_of: Callable[[int], tuple[Any, ...]], secs: float) -> dict[str, Any]:
    """1,000 queries of one filter, each message a row of 50 of them."""
    packs, _ = make_packs()
    rate, rows = measure_set(over([condition_of(number) for number in range(QUERIES)]), packs, secs)
    wanted = PACKS * BATCH * MATCHING
    faults = {} if rows == wanted else {"error": f"{rows} rows, not {wanted}"}
    return {"msgs_per_cpu_s": round(rate), "rows_per_cpu_s": round(rate * MATCHING), **faults}


def zone_is(number: int) -> tuple[Any, ...]:
    constant = ("literal", DOUBLE, float(number % (QUERIES // MATCHING)))
    return ("eq", BOOLEAN, number_at("zone"), constant)


def zone_between(number: int) -> tuple[Any, ...]:
    """The same rows without an equality that an index can find."""
    zone = float(number % (QUERIES // MATCHING))
    return (
        "and",
        BOOLEAN,
        ("gt", BOOLEAN, number_at("zone"), ("literal", DOUBLE, zone - 0.5)),
        ("lt", BOOLEAN, number_at("zone"), ("literal", DOUBLE, zone + 0.5)),
    )


def measure_equalities(secs: float) -> dict[str, Any]:
    return measure_many(zone_is, secs)


def measure_ranges(secs: float) -> dict[str, Any]:
    return measure_many(zone_between, secs)
