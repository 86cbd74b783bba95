"""The `penstock` command and `python -m penstock`."""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence

from penstock.broker.starting import no_collections
from penstock.core import exit_codes
from penstock.core.errors import PenstockError

# Of files, and for the user to fix; everything else that the system refuses is a fault of ours.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
REFUSALS = (errno.EACCES, errno.EPERM, errno.EROFS, *NO_ROOM)


RESTORE = (
    "Restore a backup (penstock restore), or move the store's directory away: docs/backup.md lists what that loses."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; what we know how to explain is one line on standard error, never a traceback."""
    try:
        code = _run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()  # at the interpreter's end nobody could explain it any more
    except PenstockError as error:
        print(f"penstock: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
    except OSError as error:
        if error.filename is None and error.errno in NO_ROOM:
            sys.stdout = None  # what it still has would fail once more
            print(f"penstock: cannot write output: {error.strerror}", file=sys.stderr)
            return exit_codes.FAILURE
        if error.errno not in REFUSALS or error.filename is None:
            raise
        print(f"penstock: {error.filename}: {error.strerror}", file=sys.stderr)
        if isinstance(error, PermissionError):
            print("Run the command as the file's owner, or chown the file to your user.", file=sys.stderr)
        return exit_codes.FAILURE
    except Exception as error:
        if not _is_of_store(error):
            raise
        print(f"penstock: a store in the data directory is damaged: {error}", file=sys.stderr)
        print(RESTORE, file=sys.stderr)
        return exit_codes.FAILURE
    return code


def _is_of_store(error: BaseException) -> bool:
    """Return whether LMDB raised the error. It checks little when it opens a file, so damage shows wherever a page is
    first used."""
    return type(error).__module__.partition(".")[0] == "lmdb"


def _run(arguments: Sequence[str] | None) -> int:
    try:
        with no_collections():
            from penstock.cli.app import app  # noqa: PLC0415 - so that Ctrl-C during the imports is handled as well
        app(args=None if arguments is None else list(arguments), prog_name="penstock")
    except SystemExit as leaving:
        return _exit_code(leaving)
    return exit_codes.OK


def _exit_code(leaving: SystemExit) -> int:
    if leaving.code is None:
        return exit_codes.OK
    return leaving.code if isinstance(leaving.code, int) else exit_codes.FAILURE


if __name__ == "__main__":
    sys.exit(main())
