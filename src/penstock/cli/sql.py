"""`penstock sql`: statements about query topics, run by a broker."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli import data_options as data
from penstock.cli.app import make_app
from penstock.cli.client_options import pick
from penstock.cli.data_options import DEFAULT_SERVER, DataConnection
from penstock.cli.statements import Statement, place_in_file, point_at, split_statements
from penstock.cli.tables import print_table
from penstock.core.errors import PenstockError, UsageError
from penstock_client.admin import Admin, Result
from penstock_client.errors import SqlError

app = make_app()

EXAMPLES = """
\b
Statements:
  CREATE TABLE meters FROM 'meters/+/state' (watt DOUBLE, site VARCHAR FROM TOPIC LEVEL 2 TAG)
  CREATE TOPIC hot AS SELECT ts, client_id, payload.temp AS t FROM "sensors/+/data" WHERE payload.temp > 30
  CREATE TOPIC everything AS DATABASE "#"
  RELOAD TOPIC hot AS SELECT …          DROP TOPIC [IF EXISTS] [FORCE] hot
  SHOW TOPICS    SHOW TABLES    SHOW CONSUMERS    SHOW SUBSCRIPTIONS    DESCRIBE hot
  DROP CONSUMER GROUP [FORCE] g ON hot    GRANT SUBSCRIBE ON hot TO alice    REVOKE …

Quote the statement for the shell: single quotes around it, or give a file. `penstock subscribe hot` shows the rows.
"""


@app.command(epilog=EXAMPLES)
def sql(
    ctx: typer.Context,
    statement: Annotated[
        str | None,
        typer.Argument(metavar="[STATEMENT]", help="Statements, separated by semicolons. [default: standard input]"),
    ] = None,
    *,
    file: Annotated[Path | None, typer.Option("-f", "--file", help="Read the statements from a file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print rows as a JSON array of objects.")] = False,
    server: data.Server = DEFAULT_SERVER,
    user: data.User = "",
    password: data.Password = "",
    password_file: data.PasswordFile = None,
    cafile: data.CaFile = "",
    cert: data.Cert = "",
    key: data.Key = "",
    tls: data.SystemCertificates = False,
    insecure: data.Insecure = False,
) -> None:
    """Run SQL statements about query topics: create, drop and show them and their consumers.

    A query topic is a SELECT over the messages of an MQTT filter. The broker evaluates it; consumers read its rows.
    """
    text = _read(statement, file)
    statements = list(split_statements(text))
    if not statements:
        raise UsageError("no statement", "Try: penstock sql 'SHOW TOPICS'")
    with Admin(pick(DataConnection, ctx.params).config()) as admin:
        for each in statements:
            _print(_execute(admin, each, file), as_json=as_json)


def _read(statement: str | None, file: Path | None) -> str:
    if statement is not None and file is not None:
        raise UsageError("a statement or --file, not both")
    if file is not None:
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--file {file}: {error}") from None
    if statement is not None and statement != "-":
        return statement
    if statement is None and sys.stdin.isatty():
        raise UsageError("no statement", "Try: penstock sql 'SHOW TOPICS', or penstock sql --help")
    return sys.stdin.read()


def _execute(admin: Admin, statement: Statement, file: Path | None) -> Result:
    try:
        return admin.execute(statement.text)
    except SqlError as error:
        line, column = place_in_file(statement, error.line, error.column)
        where = f"{file}:{line}:{column}" if file else f"line {line}, column {column}"
        what = error.message.removeprefix(f"line {error.line}, column {error.column}: ")
        raise PenstockError(f"{where}: {what}", point_at(statement, error.line, error.column)) from None


def _print(result: Result, *, as_json: bool) -> None:
    if as_json:
        document: Any = result.to_pylist() if result.columns else {"text": result.text}
        print(json.dumps(document, indent=2, default=str))
        return
    if result.columns:
        print_table(result.columns, [[_cell(value) for value in row] for row in result.rows])
    if result.text:
        print(result.text)


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value
