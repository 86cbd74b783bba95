"""Options that many commands have: as if each command had said them itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from penstock.cli.option_groups import with_options

Where = Annotated[str, typer.Option("--where", help="A place.")]
Deep = Annotated[bool, typer.Option("--deep", help="All of it.")]


def find(where: Where = "here", deep: Deep = False) -> str:
    if where == "nowhere":
        raise typer.BadParameter("there is no such place")
    return f"{where}{' and below' if deep else ''}"


app = typer.Typer()


@app.command()
@with_options("look", find)
def show(name: str, *, count: int = 1, look: Callable[[], str], loud: bool = False) -> None:
    """Show it."""
    if count < 1:
        raise typer.BadParameter("nothing to show")
    typer.echo(f"{name} {count} {look()} {loud}")


@app.command()
@with_options("look", find, without=("deep",))
def shallow(*, look: Callable[[], str]) -> None:
    typer.echo(look())


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["show", "x"], "x 1 here False\n"),
        (["show", "x", "--deep", "--count", "2", "--where", "there", "--loud"], "x 2 there and below True\n"),
        (["shallow", "--where", "there"], "there\n"),
    ],
)
def test_the_options_of_the_function_are_those_of_the_command(arguments: list[str], printed: str) -> None:
    assert run(*arguments) == (0, printed)


def test_help_has_them_in_their_place() -> None:
    _, text = run("show", "--help")
    assert "Show it." in text
    at = [text.index(option) for option in ("--count", "--where", "--deep", "--loud")]
    assert at == sorted(at)
    assert "A place." in text
    assert "--look" not in text


def test_one_that_is_left_out_is_no_option() -> None:
    assert run("shallow", "--deep")[0] == 2


def test_the_command_decides_when_it_is_called() -> None:
    assert "nothing to show" in run("show", "x", "--count", "0", "--where", "nowhere")[1]
    assert "no such place" in run("show", "x", "--where", "nowhere")[1]
