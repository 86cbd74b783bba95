"""Password and ACL files: can they be read, and by whom else."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from penstock.access import AclFile, PasswordFile
from penstock.core.errors import AccessFileError
from penstock.operate.doctor.finding import Finding, ok, problem, warning
from penstock.settings import Settings
from penstock.settings.checks import is_plugin


def check_access(settings: Settings) -> Iterator[Finding]:
    access = settings.access
    if access.password_file:
        yield from _check_passwords(Path(access.password_file))
    if access.acl_file:
        try:
            rules = AclFile.load(Path(access.acl_file))
        except AccessFileError as error:
            yield problem("acl", error.message, error.hint or "`penstock acl check` says more")
        else:
            yield ok("acl", f"{access.acl_file}: {len(rules.rules)} rules")
    plugins = [name for name in (*access.authenticators, *access.authorisers) if is_plugin(name)]
    if plugins:
        yield ok("access", f"providers of your own: {', '.join(plugins)}")
    elif not access.password_file and not access.acl_file:
        yield ok("access", "no password file and no ACL file: who may connect may do everything")


def _check_passwords(path: Path) -> Iterator[Finding]:
    try:
        passwords = PasswordFile.load(path)
    except AccessFileError as error:
        yield problem("passwords", error.message, error.hint or "`penstock passwd -c FILE USER` makes one")
        return
    count = len(passwords)
    if not count:
        yield warning("passwords", f"{path} has no users: nobody can log in", f"penstock passwd {path} USER")
    elif stat.S_IMODE(path.stat().st_mode) & 0o007:
        yield warning("passwords", f"everybody on this machine may read the hashes in {path}", f"chmod o= {path}")
    else:
        yield ok("passwords", f"{path}: {count} users")
