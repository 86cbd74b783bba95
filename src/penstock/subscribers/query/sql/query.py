"""A topic's query read by sqlglot, checked, typed and resolved."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import NoReturn

from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from penstock.subscribers.query.plan import Expression, Plan
from penstock.subscribers.query.sql.building import literal
from penstock.subscribers.query.sql.calls import SPARK
from penstock.subscribers.query.sql.conversions import convert, type_of
from penstock.subscribers.query.sql.cursor import read_tokens
from penstock.subscribers.query.sql.dialect import TopicSql
from penstock.subscribers.query.sql.expressions import Translator
from penstock.subscribers.query.sql.names import BadName, check_column, check_filter
from penstock.subscribers.query.sql.normal import plan_key
from penstock.subscribers.query.sql.positions import refuse, start_of
from penstock.subscribers.query.sql.scope import ELEMENT, PAYLOAD, Scope, json_member, nullified
from penstock.subscribers.query.sql.tables import TableDefinition
from penstock_client.errors import SqlError
from penstock_client.types import SqlType

MAX_COLUMNS = 512
MAX_COLUMN_NAME = 64
MAX_REGEXES = 32  # each remembers up to a quarter of a MiB of states

# Clauses that need more than one row: the word to point at, and how sqlglot names the clause.
_MANY_ROWS = {
    "group": "GROUP BY",
    "having": "HAVING",
    "order": "ORDER BY",
    "sort": "SORT BY",
    "distinct": "DISTINCT",
    "limit": "LIMIT",
    "offset": "OFFSET",
    "joins": "JOIN",
    "laterals": "LATERAL",
    "windows": "WINDOW",
    "qualify": "QUALIFY",
    "with_": "WITH",
    "cluster": "CLUSTER BY",
    "distribute": "DISTRIBUTE BY",
    "pivots": "PIVOT",
    "connect": "CONNECT BY",
    "match": "MATCH_RECOGNIZE",
    "sample": "SAMPLE",
    "exclude": "EXCLUDE",
}
# Clauses of TDengine that sqlglot does not know: it reads some of them as another name of the source.
_WINDOWS = (
    *("INTERVAL", "SLIDING", "SESSION", "STATE_WINDOW", "EVENT_WINDOW", "COUNT_WINDOW", "ANOMALY_WINDOW", "FILL"),
    *("PARTITION", "PARTITION BY", "SLIMIT", "SOFFSET"),
)
_SELECT_PARTS = {"expressions", "from_", "where"}


class Query:
    def __init__(self, text: str, start: int, mode: str) -> None:
        self._text = text
        self._start = start
        self._mode = mode

    def _refuse(self, offset: int, message: str) -> NoReturn:
        refuse(self._text, offset, message)

    def _tokens(self) -> list[Token]:
        tokens = [token for token in read_tokens(self._text) if token.start >= self._start]
        if self._mode == "query":
            return tokens
        # a table or database topic is the same as SELECT * FROM it
        words = ((TokenType.SELECT, "SELECT"), (TokenType.STAR, "*"), (TokenType.FROM, "FROM"))
        head = [Token(kind, word, 1, 1, self._start, self._start) for kind, word in words]
        return [*head, *tokens]

    def _parse(self) -> exp.Select:
        tokens = self._tokens()
        try:
            trees = TopicSql().parser().parse(tokens, self._text)
        except ParseError as error:
            self._parse_failed(error)
        except SqlglotError as error:
            self._refuse(self._start, f"the query cannot be read: {str(error).splitlines()[0]}")
        tree = trees[0] if len(trees) == 1 else None
        if isinstance(tree, exp.SetOperation):
            self._refuse(self._word(r"UNION|INTERSECT|EXCEPT"), f"UNION needs more than one row, and {SPARK}")
        if not isinstance(tree, exp.Select):
            self._refuse(self._start, "a SELECT is expected here")
        return tree

    def _parse_failed(self, error: ParseError) -> NoReturn:
        self._check_bare_filter()
        self._check_windows()
        known = error.errors[0] if error.errors else {}
        reason = str(known.get("description") or "it cannot be read").rstrip(".")
        reason = re.sub(r" but got <Token.*", "", reason, flags=re.DOTALL)
        reason = re.sub(r"<class 'sqlglot\..*?(\w+)'>", r"\1", reason)
        near = str(known.get("highlight") or "")
        beside = f" at {near!r}" if near else ""
        line, end = int(known.get("line") or 1), int(known.get("col") or 1)
        column = max(1, end - len(near) + 1)
        raise SqlError(
            f"line {line}, column {column}: the query is not complete or not SQL{beside}: {reason}", line, column
        )

    def _check_bare_filter(self) -> None:
        """The first mistake that everybody makes: FROM sensors/+/data."""
        tokens = [token for token in read_tokens(self._text) if token.start >= self._start]
        for number, token in enumerate(tokens[:-2]):
            if token.token_type is TokenType.FROM:
                found = re.compile(r"[^\s'\"();,]*[/+#][^\s'\"();,]*").match(self._text, tokens[number + 1].start)
                if found is not None:
                    self._refuse(found.start(), f'an MQTT filter is written in quotes: FROM "{found[0]}"')

    def _check_windows(self) -> None:
        """What cannot be read, or is read as another name of the source with columns, may be one of them."""
        words = self._words()
        source = next((number for number, word in enumerate(words) if word.token_type is TokenType.FROM), len(words))
        for number, word in enumerate(words[source:], source):
            clause = word.text.upper()
            is_call = number + 1 < len(words) and words[number + 1].token_type is TokenType.L_PAREN
            if clause in _WINDOWS and (is_call or clause != "INTERVAL"):  # a length of time is no window
                self._refuse(word.start, f"{clause} needs more than one row, and {SPARK}")

    def _words(self) -> list[Token]:
        """Without what is in quotes."""
        quoted = (TokenType.STRING, TokenType.IDENTIFIER)
        return [one for one in read_tokens(self._text) if one.start >= self._start and one.token_type not in quoted]

    def _word(self, *patterns: str) -> int:
        """Where the first of these keywords is written that is there. A comma counts behind FROM."""
        words = self._words()
        source = next((word.start for word in words if word.token_type is TokenType.FROM), 0)
        for pattern in patterns:
            for word in words:
                is_comma = word.token_type is TokenType.COMMA
                if re.fullmatch(pattern, word.text.upper()) and (not is_comma or word.start > source):
                    return int(word.start)
        return self._start

    def compile(self, tables: Mapping[str, TableDefinition], on_error: str, *, has_rows: bool) -> Plan:
        """Without rows, as of a topic that is ONLY META, the condition is never true."""
        try:
            return self._compile(tables, on_error, has_rows=has_rows)
        except RecursionError:
            self._refuse(self._start, "the query is nested too deeply: simplify it")

    def _compile(self, tables: Mapping[str, TableDefinition], on_error: str, *, has_rows: bool) -> Plan:
        select = self._parse()
        self._check_clauses(select)
        topic_filter, scope = self._source(select, tables)
        unnest, scope = self._unnest(select, scope)
        translator = Translator(self._text, scope, self._start)
        columns = self._columns(select, scope, translator)
        where_node = select.args.get("where")
        where = None
        if where_node is not None:
            tags_only = replace(scope, has_only_tags=self._mode == "stable")
            where = Translator(self._text, tags_only, self._start).condition(where_node.this)
            if where == literal(SqlType.BOOLEAN, True):
                where = None
        if sum(_regexes(part) for part in [*(part for _, _, part in columns), where] if part is not None) > MAX_REGEXES:
            self._refuse(self._start, f"a topic has at most {MAX_REGEXES} regular expressions: join them with |")
        if not has_rows:
            where = literal(SqlType.BOOLEAN, False)
        key = plan_key(topic_filter, columns, where, on_error, unnest)
        return Plan(key, topic_filter, columns, where, on_error, unnest)

    def _check_clauses(self, select: exp.Select) -> None:
        for name, value in select.args.items():
            if not value or name in _SELECT_PARTS or (name == "joins" and _unnest_of(select) is not None):
                continue
            if name == "kind" or name not in _MANY_ROWS:
                self._refuse(self._start, f"{name.rstrip('_').upper()} is not part of the SQL of topics: remove it")
            clause = _MANY_ROWS[name]
            self._refuse(self._word(clause, "JOIN", ","), f"{clause} needs more than one row, and {SPARK}")

    def _source(self, select: exp.Select, tables: Mapping[str, TableDefinition]) -> tuple[str, Scope]:
        source = select.args.get("from_")
        if source is None:
            self._refuse(
                self._start, 'FROM is missing: name a table or an MQTT filter in quotes, FROM "sensors/+/data"'
            )
        table = source.this
        offset = start_of(table, self._start)
        if not isinstance(table, exp.Table):
            self._refuse(offset, f"one source stands after FROM, a table or an MQTT filter: {SPARK}")
        self._check_table(table, offset)
        name, alias = table.name, table.alias.casefold()
        definition = tables.get(name.lower())
        if self._mode == "database" or (definition is None and table.this.args.get("quoted")):
            try:
                check_filter(name)
            except BadName as error:
                self._refuse(offset, str(error))
            return name, Scope(None, alias)
        if definition is None:
            self._refuse(
                offset,
                f'there is no table {name!r}: declare it with CREATE TABLE, or write FROM "{name}" for an MQTT filter',
            )
        return definition.filter, Scope(definition, alias)

    def _unnest(self, select: exp.Select, scope: Scope) -> tuple[Expression | None, Scope]:
        """Return the array to unnest, and the scope with the names of its elements."""
        node = _unnest_of(select)
        if node is None:
            return None, scope
        offset = start_of(node, self._start)
        if len(node.expressions) != 1:
            self._refuse(offset, "UNNEST takes one array, such as UNNEST(payload.readings) AS r")
        alias = node.args.get("alias") or (node.parent.args.get("alias") if node.parent is not None else None)
        names = [alias.name, *(column.name for column in alias.columns)] if alias is not None else []
        number = node.args.get("offset")  # the parser takes the last name for the number
        if not names or len(names) > 2:
            self._refuse(offset, "name the elements: UNNEST(…) AS r, with numbers WITH ORDINALITY AS u(r, i)")
        if number and not isinstance(number, exp.Identifier):
            self._refuse(offset, "WITH ORDINALITY needs two names: UNNEST(…) WITH ORDINALITY AS u(r, i)")
        translator = Translator(self._text, scope, self._start)
        value = translator.translate(node.expressions[0])
        if value == PAYLOAD:
            value = json_member(PAYLOAD, ())
        if type_of(value) != SqlType.JSON:
            self._refuse(offset, f"UNNEST takes a JSON array, not a {type_of(value).name}")
        value = value[3] if value[:3] == ("call", int(SqlType.JSON), "json_nullify") else value
        return value, replace(
            scope,
            element=names[-1].casefold(),
            element_table=names[0].casefold(),
            ordinality=number.name.casefold() if number else "",
        )

    def _check_table(self, table: exp.Table, offset: int) -> None:
        if not isinstance(table.this, exp.Identifier):
            self._refuse(offset, "a table or an MQTT filter in quotes is expected here")
        alias = table.args.get("alias")
        if alias is not None and alias.args.get("columns"):
            self._check_windows()
            self._refuse(offset, "columns have no other names behind FROM: write AS after each of them")
        for part, value in table.args.items():
            if not value or part in ("this", "alias"):
                continue
            if part in ("db", "catalog"):
                self._refuse(offset, "a table has one name, without a database: write MQTT filters in double quotes")
            clause = _MANY_ROWS.get(part, part.upper())
            self._refuse(
                self._word(clause, r"\w*JOIN", ",", "TABLESAMPLE"), f"{clause} needs more than one row, and {SPARK}"
            )

    def _columns(
        self, select: exp.Select, scope: Scope, translator: Translator
    ) -> tuple[tuple[str, int, Expression], ...]:
        columns: dict[str, tuple[str, int, Expression]] = {}
        for node in select.expressions:
            offset = start_of(node, self._start)
            for name, expression in self._column(node, scope, translator):
                try:
                    check_column(name)
                except BadName as error:
                    self._refuse(offset, str(error))
                if name.casefold() in columns:
                    self._refuse(offset, f"there are two columns {name!r}: give one another name with AS")
                # a column that is only NULL is a text without a value
                shown = convert(expression, SqlType.VARCHAR) if type_of(expression) == SqlType.NULL else expression
                columns[name.casefold()] = (name, int(type_of(shown)), shown)
            if len(columns) > MAX_COLUMNS:
                self._refuse(offset, f"a topic has at most {MAX_COLUMNS} columns: leave some out")
        if not columns:
            self._refuse(self._start, "the columns are missing: name them after SELECT, or write * for all")
        return tuple(columns.values())

    def _column(self, node: exp.Expr, scope: Scope, translator: Translator) -> list[tuple[str, Expression]]:
        if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star)):
            star = node if isinstance(node, exp.Star) else node.this
            if any(star.args.values()):
                translator.refuse(node, "* has no EXCLUDE, REPLACE or RENAME here: name the columns")
            elements = [(scope.element, nullified(ELEMENT))] if scope.element else []
            return scope.star(is_table_topic=self._mode == "stable") + elements
        if isinstance(node, exp.Alias):
            return [(node.alias, translator.translate(node.this))]
        if isinstance(node, exp.Aliases):
            translator.refuse(node, "one name for one column")
        expression = translator.translate(node)
        return [(_name_of(node, expression, scope), expression)]


def _unnest_of(select: exp.Select) -> exp.Unnest | None:
    """Return the UNNEST after the source, written with a comma or CROSS JOIN; None if there is not exactly one."""
    joins = select.args.get("joins") or []
    if len(joins) != 1 or any(joins[0].args.get(part) for part in ("side", "on", "using", "method")):
        return None
    if str(joins[0].args.get("kind") or "CROSS").upper() != "CROSS":
        return None
    found = joins[0].this
    if isinstance(found, exp.Lateral):
        found = found.this
    return found if isinstance(found, exp.Unnest) else None


def _regexes(expression: Expression) -> int:
    """Count the regular expressions in it."""
    parts = (
        part for part in expression[2:] if isinstance(part, tuple) and part and expression[0] not in ("json", "element")
    )
    return int(expression[0] == "regex") + sum(_regexes(part) for part in parts)


def _name_of(node: exp.Expr, expression: Expression, scope: Scope) -> str:
    """What a column without AS is called: as the column it shows, else as its text, the same for every spelling."""
    if expression[0] == "field":
        return str(expression[2])
    if isinstance(node, exp.Column):
        if scope.table is not None and (column := scope.table.column(node.name)) is not None:
            return column.name
        return node.name
    if isinstance(node, exp.Dot):
        return str(node.expression.name)
    return str(node.sql(TopicSql, normalize_functions="lower", comments=False))[:MAX_COLUMN_NAME]
