"""`python -m penstock_bench.load`: one run of the load generator, fine-grained flags, a JSON object on standard output.

`penstock bench` is the command for people; this one has a flag for everything that the cases of `make bench` vary.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import MISSING, fields
from typing import Any

from penstock._ext.load.generator import Load, LoadError
from penstock.core.errors import PenstockError
from penstock_bench.options import LoadOptions
from penstock_bench.system import allow_open_files

STEP_SECONDS = 1.0
LEFT_OUT = {"scenario", "tls", "pids", "password", "host", "connect_limit"}


def parse_arguments(argv: list[str] | None) -> LoadOptions:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenario", required=True)
    parser.add_argument("--pids", default="", help="broker processes to account, separated by commas")
    for field in fields(LoadOptions):
        if field.name in LEFT_OUT:
            continue
        assert field.default is not MISSING
        flag = f"--{field.name.replace('_', '-')}"
        if isinstance(field.default, bool):
            parser.add_argument(flag, action="store_true")
        else:
            parser.add_argument(flag, type=type(field.default or "") if field.default is None else type(field.default))
    given = {name: value for name, value in vars(parser.parse_args(argv)).items() if value is not None}
    given["pids"] = tuple(map(int, filter(None, given["pids"].split(","))))
    try:
        return LoadOptions(**given)
    except PenstockError as error:
        parser.error(error.message)


def run_options(argv: list[str] | None) -> dict[str, Any]:
    """The result of the run that the flags ask for, or its error."""
    options = parse_arguments(argv)
    try:
        allow_open_files(options.n + options.subs * options.groups)
        load = Load(options)
        try:
            while load.step(STEP_SECONDS):
                pass
            return load.result()
        finally:
            load.close()
    except (LoadError, PenstockError) as error:
        return {"error": str(error)}


def main(argv: list[str] | None = None) -> int:
    result = run_options(argv)
    print(json.dumps(result))
    return 1 if "error" in result else 0


if __name__ == "__main__":
    sys.exit(main())
