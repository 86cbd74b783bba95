"""From sqlglot's tree to expressions of a plan. What is not in the tables of this file is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from sqlglot import exp

from penstock.subscribers.query.plan import Expression
from penstock.subscribers.query.sql import building as b
from penstock.subscribers.query.sql.calls import (
    SPARK,
    BadCall,
    call,
    json_extract,
    json_extract_string,
    plain_call,
)
from penstock.subscribers.query.sql.constants import GREATEST, LEAST
from penstock.subscribers.query.sql.conversions import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    NULL,
    TIMESTAMP,
    VARCHAR,
    NoConversion,
    convert,
    is_text_literal,
    type_of,
)
from penstock.subscribers.query.sql.intervals import BadInterval, parse_interval
from penstock.subscribers.query.sql.positions import refuse, start_of
from penstock.subscribers.query.sql.scope import PAYLOAD, Scope, Unknown, json_member, nullified
from penstock.subscribers.query.sql.tables import TYPE_NAMES, quote_text
from penstock_client.types import SqlType

MAX_DEPTH = 100
MOST_DIGITS = 9  # of an element's number, as in a path

_COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "eq",
    exp.NEQ: "ne",
    exp.LT: "lt",
    exp.LTE: "le",
    exp.GT: "gt",
    exp.GTE: "ge",
    exp.NullSafeEQ: "not_distinct",
    exp.NullSafeNEQ: "distinct",
}
_ARITHMETIC: dict[type[exp.Expr], str] = {
    exp.Mul: "mul",
    exp.Div: "div",
    exp.IntDiv: "intdiv",
    exp.Mod: "mod",
}
_TYPES: dict[str, SqlType] = {
    **TYPE_NAMES,
    "TIMESTAMPNTZ": SqlType.TIMESTAMP,
}
_MANY_ROWS: tuple[tuple[type[exp.Expr], str], ...] = (
    (exp.Window, "OVER"),
    (exp.Subquery, "a query inside of a query"),
    (exp.Select, "a query inside of a query"),
    (exp.SetOperation, "UNION, INTERSECT or EXCEPT"),
    (exp.Exists, "EXISTS"),
    (exp.Filter, "FILTER"),
    (exp.WithinGroup, "WITHIN GROUP"),
    (exp.Any, "ANY"),
    (exp.All, "ALL"),
)


class Translator:
    """One query's expressions. `start` is where the query begins, for what the parser has no place of."""

    def __init__(self, text: str, scope: Scope, start: int) -> None:
        self._text = text
        self._scope = scope
        self._start = start
        self._depth = 0

    def refuse(self, node: exp.Expr, message: str) -> NoReturn:
        refuse(self._text, start_of(node, self._start), message)

    def translate(self, node: exp.Expr) -> Expression:
        """Every mistake found inside is reported at the innermost place that is known."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self.refuse(node, f"the expression is nested deeper than {MAX_DEPTH}: simplify it")
        try:
            result: Expression = self._dispatch(node)
        except (NoConversion, BadCall, Unknown, BadInterval) as error:
            self.refuse(node, str(error))
        finally:
            self._depth -= 1
        return result

    def condition(self, node: exp.Expr) -> Expression:
        expression = self.translate(node)
        try:
            return b.boolean(expression)
        except NoConversion as error:
            self.refuse(node, str(error))

    def _dispatch(self, node: exp.Expr) -> Expression:
        kind = type(node)
        if kind in _COMPARISONS:
            return b.compare(_COMPARISONS[kind], self.translate(node.this), self.translate(node.expression))
        if kind in _ARITHMETIC:
            return b.arithmetic(_ARITHMETIC[kind], self.translate(node.this), self.translate(node.expression))
        handler = _HANDLERS.get(kind)
        if handler is not None:
            return handler(self, node)
        for many, name in _MANY_ROWS:
            if isinstance(node, many):
                self.refuse(node, f"{name} needs more than one row, and {SPARK}")
        self.refuse(node, f"{_shown(node)} is not part of the SQL of topics: see docs/data-subscription-sql.md")

    def _literal(self, node: exp.Expr) -> Expression:
        text = str(node.this)
        if node.args.get("is_string"):
            return b.literal(VARCHAR, text)
        if text.isdigit():
            value = int(text)
            if value > GREATEST:
                self.refuse(node, f"{text} is larger than a BIGINT: write {text}.0 for a DOUBLE")
            return b.literal(BIGINT, value)
        return b.literal(DOUBLE, float(text))

    def _boolean(self, node: exp.Expr) -> Expression:
        return b.literal(BOOLEAN, bool(node.this))

    def _null(self, node: exp.Expr) -> Expression:
        return b.literal(NULL, None)

    def _paren(self, node: exp.Expr) -> Expression:
        return self.translate(node.this)

    def _column(self, node: exp.Expr) -> Expression:
        """A column, or a path: a.b, payload.a[0].b, payload['a']."""
        parts = self._parts(node)
        if parts is None:
            return self._member_of_expression(node)
        try:
            return self._scope.resolve(parts)
        except Unknown as error:
            if len(parts) == 1 and isinstance(node.this, exp.Identifier) and node.this.quoted:
                raise Unknown(f"{error}; a text is written in single quotes: {quote_text(str(parts[0]))}") from None
            raise

    def _parts(self, node: exp.Expr) -> list[str | int] | None:
        if isinstance(node, exp.Column):
            if isinstance(node.this, exp.Star):
                self.refuse(node, "* is a column of its own, not a value")
            return [part.name for part in node.parts]
        if isinstance(node, exp.Dot):
            before = self._parts(node.this)
            if before is None or not isinstance(node.expression, exp.Identifier):
                return None
            return [*before, node.expression.name]
        if isinstance(node, exp.Bracket):
            before = self._parts(node.this)
            return None if before is None else [*before, self._index(node)]
        return None

    def _index(self, node: exp.Expr) -> str | int:
        index = node.expressions[0] if len(node.expressions) == 1 else None
        if isinstance(index, exp.Neg) and isinstance(index.this, exp.Literal) and index.this.name.isdigit():
            return -self._place(node, index.this.name)
        if isinstance(index, exp.Literal) and (index.is_string or index.name.isdigit()):
            return str(index.name) if index.is_string else self._place(node, index.name)
        if isinstance(index, exp.Column) and len(index.parts) == 1 and index.this.args.get("quoted"):
            return str(index.name)
        self.refuse(node, "the number or name in [ ] is written out: payload.list[0], payload['odd name']")

    def _place(self, node: exp.Expr, digits: str) -> int:
        if len(digits) > MOST_DIGITS:
            self.refuse(node, f"no list has so many elements: use at most {MOST_DIGITS} digits in [ ]")
        return int(digits)

    def _member_of_expression(self, node: exp.Expr) -> Expression:
        if isinstance(node, exp.Dot):
            if not isinstance(node.expression, exp.Identifier):
                self.refuse(node, "functions have no owner here: write the name alone")
            return nullified(json_member(self.translate(node.this), (node.expression.name,)))
        return nullified(json_member(self.translate(node.this), (self._index(node),)))

    def _and_or(self, node: exp.Expr) -> Expression:
        """A chain of them is as deep as it is long, so it is walked, not recursed into."""
        kind = type(node)
        parts: list[exp.Expr] = []
        waiting = [node]
        while waiting:
            part = waiting.pop()
            if type(part) is kind:
                waiting += [part.expression, part.this]
            else:
                parts.append(part)
        return b.all_of("and" if kind is exp.And else "or", [self.condition(part) for part in parts])

    def _not(self, node: exp.Expr) -> Expression:
        return b.negate(self.translate(node.this))

    def _is(self, node: exp.Expr) -> Expression:
        value, test = self.translate(node.this), node.expression
        if isinstance(test, exp.Null):
            return b.is_null(value)
        if isinstance(test, exp.Boolean):
            return b.compare("not_distinct", b.boolean(value), b.literal(BOOLEAN, bool(test.this)))
        self.refuse(node, "IS is followed by NULL, TRUE, FALSE or [NOT] DISTINCT FROM")

    def _like(self, node: exp.Expr, escape: str | None = None) -> Expression:
        operation = "ilike" if isinstance(node, exp.ILike) else "like"
        text, pattern = (self._text_of(side) for side in (node.this, node.expression))
        for side in (text, pattern):
            if side == b.literal(VARCHAR, None):
                return b.literal(BOOLEAN, None)
        if is_text_literal(pattern) and escape and _ends_in_escape(pattern[2], escape):
            self.refuse(node.expression, "the pattern ends with the escape character: write it twice, or remove it")
        result: Expression = (operation, int(BOOLEAN), text, pattern, escape)
        return b.negate(result) if node.args.get("negate") else result

    def _regex(self, node: exp.Expr) -> Expression:
        """Translate ~ and ~*, which match a part of the text, and SIMILAR TO, which matches all of it, as in DuckDB."""
        options = "i" if isinstance(node, exp.RegexpILike) else ""
        text, pattern = self.translate(node.this), self.translate(node.expression)
        return b.regex(text, pattern, options, is_full=isinstance(node, exp.SimilarTo))

    def _text_of(self, node: exp.Expr) -> Expression:
        value = self.translate(node)
        if type_of(value) not in (VARCHAR, NULL, SqlType.JSON):
            self.refuse(node, f"LIKE compares texts, not a {type_of(value).name}: cast it with CAST(… AS VARCHAR)")
        return convert(value, VARCHAR)

    def _escape(self, node: exp.Expr) -> Expression:
        sign = node.expression
        if not isinstance(node.this, exp.Like | exp.ILike) or not isinstance(sign, exp.Literal) or not sign.is_string:
            self.refuse(node, "ESCAPE follows LIKE or ILIKE and is one character in quotes")
        if len(sign.name) > 1:
            self.refuse(sign, "ESCAPE takes one character, or none")
        return self._like(node.this, sign.name or None)

    def _in(self, node: exp.Expr) -> Expression:
        for unexpected in ("query", "unnest", "field"):
            if node.args.get(unexpected) is not None:
                self.refuse(node, f"IN with a query needs more than one row, and {SPARK}")
        needle = self.translate(node.this)
        return b.one_of(needle, [self.translate(choice) for choice in node.expressions])

    def _between(self, node: exp.Expr) -> Expression:
        value = self.translate(node.this)
        low, high = self.translate(node.args["low"]), self.translate(node.args["high"])
        result = b.all_of("and", [b.compare("ge", value, low), b.compare("le", value, high)])
        return b.negate(result) if node.args.get("negate") else result

    def _neg(self, node: exp.Expr) -> Expression:
        inner = node.this
        if isinstance(inner, exp.Literal) and not inner.is_string and inner.name == str(-LEAST):
            return b.literal(BIGINT, LEAST)
        return b.negative(self.translate(inner))

    def _add_sub(self, node: exp.Expr) -> Expression:
        is_sub = isinstance(node, exp.Sub)
        left, right = node.this, node.expression
        if isinstance(left, exp.Interval) and not is_sub:
            left, right = right, left
        if isinstance(right, exp.Interval):
            return self._shift(self.translate(left), right, -1 if is_sub else 1)
        first, second = self.translate(left), self.translate(right)
        if is_sub and TIMESTAMP in (type_of(first), type_of(second)):
            return ("sub_ts", int(BIGINT), convert(first, TIMESTAMP), convert(second, TIMESTAMP))
        if TIMESTAMP in (type_of(first), type_of(second)):
            raise NoConversion("to a TIMESTAMP an INTERVAL is added: ts + INTERVAL 5 MINUTES")
        return b.arithmetic("sub" if is_sub else "add", first, second)

    def _months_and_nanoseconds(self, node: exp.Expr) -> tuple[int, int]:
        number, unit = node.this, node.args.get("unit")
        if not isinstance(number, exp.Literal):
            self.refuse(node, "the length of an INTERVAL is written out: INTERVAL 5 MINUTES")
        return parse_interval(number.name, unit.name if unit is not None else "")

    def _shift(self, time: Expression, interval: exp.Expr, sign: int) -> Expression:
        months, nanoseconds = self._months_and_nanoseconds(interval)
        if type_of(time) not in (TIMESTAMP, NULL, SqlType.JSON) and not is_text_literal(time):
            raise NoConversion(f"an INTERVAL is added to a TIMESTAMP, not to a {type_of(time).name}")
        result = convert(time, TIMESTAMP)
        if months:
            result = plain_call("add_months", [result, b.literal(BIGINT, sign * months)])
        if nanoseconds:
            result = ("add_ns", int(TIMESTAMP), result, b.literal(BIGINT, sign * nanoseconds))
        return result

    def _interval(self, node: exp.Expr) -> Expression:
        self.refuse(node, "an INTERVAL is added to or taken from a TIMESTAMP: ts + INTERVAL 5 MINUTES")

    def _concat(self, node: exp.Expr) -> Expression:
        parts: list[exp.Expr] = []
        waiting = [node]
        while waiting:
            part = waiting.pop()
            if type(part) is exp.DPipe:
                waiting += [part.expression, part.this]
            else:
                parts.append(part)
        return b.join([self.translate(part) for part in parts])

    def _power(self, node: exp.Expr) -> Expression:
        return plain_call("pow", [self.translate(node.this), self.translate(node.expression)])

    def _cast(self, node: exp.Expr) -> Expression:
        kind = self._type(node.args["to"], node)
        value = self.translate(node.this)
        if kind == SqlType.JSON and value == PAYLOAD:
            return json_member(PAYLOAD, ())
        return convert(value, kind, is_try=isinstance(node, exp.TryCast))

    def _type(self, node: exp.Expr, place: exp.Expr) -> SqlType:
        name = getattr(node.this, "value", str(node.this))
        kind = _TYPES.get(str(name).upper())
        if kind is None or node.args.get("nested"):
            known = ", ".join(dict.fromkeys(member.name for member in TYPE_NAMES.values()))
            self.refuse(place, f"there is no type {node.sql('duckdb')}: one of {known}")
        return kind

    def _case(self, node: exp.Expr) -> Expression:
        branches = []
        subject = self.translate(node.this) if node.this is not None else None
        for branch in node.args["ifs"]:
            test = self.translate(branch.this)
            condition = test if subject is None else b.compare("eq", subject, test)
            branches.append((condition, self.translate(branch.args["true"])))
        default = node.args.get("default")
        return b.case(branches, self.translate(default) if default is not None else None)

    def _if(self, node: exp.Expr) -> Expression:
        parts = [node.this, node.args.get("true"), node.args.get("false")]
        return call("if", [self.translate(part) for part in parts if part is not None])

    def _arrow(self, node: exp.Expr) -> Expression:
        arguments = [self.translate(node.this), self.translate(node.expression)]
        return json_extract_string(arguments) if isinstance(node, exp.JSONExtractScalar) else json_extract(arguments)

    def _call(self, node: exp.Expr) -> Expression:
        name = str(node.this)
        if any(isinstance(argument, exp.Star | exp.Distinct) for argument in node.expressions):
            return call(name, [])
        if name.lower() == "time_bucket":
            return self._time_bucket(node)
        return call(name, [self.translate(argument) for argument in node.expressions])

    def _time_bucket(self, node: exp.Expr) -> Expression:
        arguments = node.expressions
        if len(arguments) != 2 or not isinstance(arguments[0], exp.Interval):
            self.refuse(node, "time_bucket() takes an INTERVAL and a TIMESTAMP")
        months, nanoseconds = self._months_and_nanoseconds(arguments[0])
        if months or nanoseconds < 1:
            self.refuse(arguments[0], "the width of time_bucket() is above zero and in weeks, days, hours or less")
        return plain_call("time_bucket", [b.literal(BIGINT, nanoseconds), self.translate(arguments[1])])

    def _extract(self, node: exp.Expr) -> Expression:
        return call("date_part", [b.literal(VARCHAR, node.this.name), self.translate(node.expression)])

    def _substring(self, node: exp.Expr) -> Expression:
        parts = [node.this, node.args.get("start") or exp.Literal.number(1), node.args.get("length")]
        return call("substr", [self.translate(part) for part in parts if part is not None])

    def _position(self, node: exp.Expr) -> Expression:
        return call("strpos", [self.translate(node.this), self.translate(node.args["substr"])])

    def _trim(self, node: exp.Expr) -> Expression:
        name = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(node.args.get("position") or ""), "trim")
        parts = [node.this, node.args.get("expression")]
        return call(name, [self.translate(part) for part in parts if part is not None])

    def _now(self, node: exp.Expr) -> Expression:
        return call("now", [])


def _ends_in_escape(pattern: str, escape: str) -> bool:
    at = 0
    while at < len(pattern):
        if pattern[at] == escape:
            at += 1
            if at == len(pattern):
                return True
        at += 1
    return False


def _shown(node: exp.Expr) -> str:
    text = node.sql("duckdb")
    return repr(text if len(text) <= 40 else text[:39] + "…")


_HANDLERS: dict[type[exp.Expr], Callable[[Translator, Any], Expression]] = {
    exp.Literal: Translator._literal,
    exp.Boolean: Translator._boolean,
    exp.Null: Translator._null,
    exp.Paren: Translator._paren,
    exp.Column: Translator._column,
    exp.Dot: Translator._column,
    exp.Bracket: Translator._column,
    exp.And: Translator._and_or,
    exp.Or: Translator._and_or,
    exp.Not: Translator._not,
    exp.Is: Translator._is,
    exp.Like: Translator._like,
    exp.ILike: Translator._like,
    exp.Escape: Translator._escape,
    exp.RegexpLike: Translator._regex,
    exp.RegexpILike: Translator._regex,
    exp.SimilarTo: Translator._regex,
    exp.In: Translator._in,
    exp.Between: Translator._between,
    exp.Neg: Translator._neg,
    exp.Add: Translator._add_sub,
    exp.Sub: Translator._add_sub,
    exp.Interval: Translator._interval,
    exp.DPipe: Translator._concat,
    exp.Pow: Translator._power,
    exp.Cast: Translator._cast,
    exp.TryCast: Translator._cast,
    exp.Case: Translator._case,
    exp.If: Translator._if,
    exp.JSONExtract: Translator._arrow,
    exp.JSONExtractScalar: Translator._arrow,
    exp.Anonymous: Translator._call,
    exp.Extract: Translator._extract,
    exp.Substring: Translator._substring,
    exp.StrPosition: Translator._position,
    exp.Trim: Translator._trim,
    exp.CurrentTimestamp: Translator._now,
}
