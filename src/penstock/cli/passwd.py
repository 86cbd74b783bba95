"""`penstock passwd`: password files, with the flags of mosquitto_passwd."""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.access.mosquitto import parse_plain_passwords
from penstock.access.passwords import (
    LONGEST_PASSWORD,
    PasswordFile,
    check_user_name,
    hash_password,
    is_hashed,
    parse_stored,
)
from penstock.cli.app import make_app
from penstock.core.errors import PenstockError, UsageError
from penstock.core.text import counted
from penstock.settings.model import ClientType

app = make_app()


@app.command()
def passwd(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The password file (access.password_file).")],
    user: Annotated[str, typer.Argument(metavar="USER")] = "",
    password: Annotated[str | None, typer.Argument(metavar="[PASSWORD]", help="Only with -b.")] = None,
    *,
    create: Annotated[bool, typer.Option("-c", help="Create a new file, replacing an existing one.")] = False,
    batch: Annotated[
        bool, typer.Option("-b", help="Take the password from the command line, where other users can see it.")
    ] = False,
    delete: Annotated[bool, typer.Option("-D", help="Delete the user.")] = False,
    upgrade: Annotated[
        bool, typer.Option("-U", help="Hash the lines of FILE that are user:password in plain text, in place.")
    ] = False,
    client_type: Annotated[
        ClientType | None,
        typer.Option("--type", help="Type of this user's clients. [default: unchanged, or as in the settings]"),
    ] = None,
    keep: Annotated[bool, typer.Option("-k", "--keep", help="Keep the password: change the --type only.")] = False,
) -> None:
    """Add a user, change a password, or delete a user (-D). Asks twice for the password, without echo."""
    if upgrade:
        is_alone = not any((user, password, create, batch, delete, client_type, keep))
        _check_usage(is_alone, "-U takes FILE and nothing else")
        _hash_plain_file(file)
        return
    _check_usage(bool(user), "USER is missing")
    has_more = any((create, batch, password, client_type, keep))
    _check_usage(not (delete and has_more), "-D takes FILE and USER and nothing else")
    _check_usage(batch == (password is not None), "-b and PASSWORD go together")
    _check_usage(not keep or (client_type is not None and not create and not batch), "-k goes with --type alone")
    check_user_name(user)
    users = PasswordFile({}) if create else _load(file)
    if delete or keep:
        stored = users.stored_hash(user)
        if stored is None:
            raise PenstockError(f"user {user!r} is not in {file}")
        (users.without_user(user) if delete else users.with_user(user, stored, client_type)).save(file)
        return
    secret = os.fsencode(password) if password is not None else _ask_password(user)
    _check_usage(0 < len(secret) <= LONGEST_PASSWORD, f"a password has 1 to {LONGEST_PASSWORD} bytes")
    users.with_user(user, hash_password(secret), client_type).save(file)


def _check_usage(is_fine: bool, message: str) -> None:
    if not is_fine:
        raise UsageError(f"{message}: see penstock passwd --help")


def _load(file: Path) -> PasswordFile:
    if not file.exists():
        raise UsageError(f"{file} does not exist: use -c to create it")
    return PasswordFile.load(file)


def _ask_password(user: str) -> bytes:
    if not sys.stdin.isatty():
        # A script pipes it in, once.
        return sys.stdin.buffer.readline().rstrip(b"\r\n")
    first = getpass.getpass(f"Password of {user}: ")
    if getpass.getpass("Again: ") != first:
        raise PenstockError("the two passwords are not the same: nothing was changed")
    return first.encode()


def _hash_plain_file(file: Path) -> None:
    try:
        plain = parse_plain_passwords(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {file}: {error}") from None
    stored: dict[str, str] = {}
    types: dict[str, ClientType] = {}
    hashed = 0
    for user, password in plain.items():
        check_user_name(user)
        if is_hashed(password):
            stored[user], client_type = parse_stored(password, f"the password of {user!r}")
            if client_type is not None:
                types[user] = client_type
        else:
            stored[user] = hash_password(password.encode())
            hashed += 1
    if hashed:
        PasswordFile(stored, types).save(file)
    typer.echo(f"{file}: {counted(hashed, 'user')} hashed")
