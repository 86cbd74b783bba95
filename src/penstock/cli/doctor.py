"""`penstock doctor`: looks at everything a broker with these settings needs, and says what to change."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.admin_options import Json
from penstock.cli.app import make_app
from penstock.cli.settings_options import Config, DataDir, Listen, Port, Set, load_from_flags
from penstock.cli.tables import print_json, shown
from penstock.core import exit_codes
from penstock.core.errors import PenstockError, SettingsError
from penstock.operate.doctor.examine import examine
from penstock.operate.doctor.finding import Finding, State, ok, problem, warning
from penstock.settings import Settings

app = make_app()

NARROWEST = 20
MARKS: dict[State, str] = {"ok": "ok      ", "warning": "warning ", "problem": "PROBLEM "}
STYLES: dict[State, str] = {"ok": "green", "warning": "yellow", "problem": "bold red"}


@app.command()
def doctor(
    *,
    config: Config = None,
    listen: Listen = None,
    port: Port = None,
    data_dir: DataDir = None,
    assignments: Set = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 1 for warnings, too.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Show only problems and warnings.")] = False,
    as_json: Json = False,
) -> None:
    """Check limits, clock, disk, ports, TLS, passwords, Kafka and Redis, and say what to change. Changes nothing.

    Run it as the user, and with the settings, that the broker has; it may run meanwhile. Exit code 0 without
    problems, 1 with one, 78 when the settings themselves are wrong.
    """
    flags = {"listen": listen, "port": port, "data_dir": data_dir, "assignments": assignments}
    findings: list[Finding] = []

    def tell(found: Iterable[Finding]) -> None:
        """Each at once: a server that does not answer takes seconds."""
        for finding in found:
            findings.append(finding)
            if not as_json and not (quiet and finding.state == "ok"):
                _print(finding)

    code = exit_codes.OK
    try:
        loaded = load_from_flags(config, **flags)  # type: ignore[arg-type] # each has the type of its parameter
        import_module("penstock.broker.check").check(loaded.settings)  # what only the parts themselves can judge
        tell(warning("settings", text, "see docs/settings.md") for text in loaded.warnings)
        tell([ok("settings", "all of them can be used together")])
        settings: Settings | None = loaded.settings
    except PenstockError as error:
        tell([problem("settings", error.message, error.hint or "`penstock check-config` says the same")])
        code = exit_codes.CONFIGURATION
        settings = _load_unchecked(config, flags)
    if settings is not None:
        tell(examine(settings))
    states = Counter(finding.state for finding in findings)
    if code == exit_codes.OK and (states["problem"] or (strict and states["warning"])):
        code = exit_codes.FAILURE
    if as_json:
        print_json({"findings": [asdict(finding) for finding in findings], **_count(states)})
    else:
        typer.echo(", ".join(f"{number} {what}" for what, number in _count(states).items()))
    raise typer.Exit(code)


def _count(states: Counter[State]) -> dict[str, int]:
    return {"ok": states["ok"], "warnings": states["warning"], "problems": states["problem"]}


def _load_unchecked(config: Path | None, flags: Mapping[str, object]) -> Settings | None:
    """Settings that contradict each other still say where to look for more."""
    try:
        return load_from_flags(config, **flags, check=False).settings  # type: ignore[arg-type] # as above
    except SettingsError:
        return None


def _print(finding: Finding) -> None:
    mark, line = MARKS[finding.state], f"{finding.area}: {shown(finding.what)}"
    if sys.stdout.isatty():
        text = import_module("rich.text").Text
        first, *others = _wrap(line)
        marked = text(mark, STYLES[finding.state]).append(first, "default")
        import_module("rich.console").Console(highlight=False).print(marked, soft_wrap=True)
        lines = [*others, *_wrap(shown(finding.advice))]
    else:
        typer.echo(mark + line)
        lines = [shown(finding.advice)] if finding.advice else []
    for each in lines:
        typer.echo(" " * len(mark) + each)


def _wrap(text: str) -> list[str]:
    """Lines of whole words for the terminal, right of the marks; names and commands stay whole where they can."""
    room = shutil.get_terminal_size().columns - len(MARKS["ok"])
    return textwrap.wrap(text, max(room, NARROWEST), break_on_hyphens=False)
