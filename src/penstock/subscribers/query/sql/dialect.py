"""How sqlglot reads a query: DuckDB's syntax, every function by its plain name, JSON paths and indices as written.

sqlglot knows hundreds of functions and turns each into a node of its own, differently from release to release. Here all
of them stay names, so that the list in `functions.py` alone decides what may be called.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.parsers.duckdb import DuckDBParser


class TopicSql(DuckDB):
    INDEX_OFFSET = 0  # elements of JSON arrays count from 0

    def to_json_path(self, path: exp.Expr | None) -> exp.Expr | None:
        return path

    class Parser(DuckDBParser):
        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        # payload.list[0] is a member's element, not a constructor.
        ARRAY_CONSTRUCTORS: ClassVar[dict[str, Any]] = {}
        # Those with a syntax of their own; the rest of them are ordinary calls.
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            name: parser
            for name, parser in DuckDBParser.FUNCTION_PARSERS.items()
            if name in ("CAST", "TRY_CAST", "EXTRACT", "POSITION", "SUBSTRING", "TRIM")
        }

        def _parse_interval_span(self, this: exp.Expr, parse_function_unit: bool = True) -> exp.Interval:
            # sqlglot takes of '1 day 03:04:05' what it knows and drops the rest: a text is read by intervals.py
            if isinstance(this, exp.Literal) and this.is_string and not this.name.strip().lstrip("+-").isdigit():
                return self.expression(exp.Interval(this=this))
            return super()._parse_interval_span(this, parse_function_unit)
