"""Options that many commands have: said once, as the parameters of the function that makes something of them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any

Command = Callable[..., None]


def with_options(name: str, make: Callable[..., Any], *, without: Collection[str] = ()) -> Callable[[Command], Command]:
    """A decorator: the command has the options of `make`, but for those `without`, in the place of its parameter
    `name`, and gets a function there that calls `make` with them. What a command checks before that comes first."""
    known = inspect.signature(make, eval_str=True).parameters
    options = {option: parameter for option, parameter in known.items() if option not in without}

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def run(**given: Any) -> None:
            chosen = {option: given.pop(option) for option in options}
            command(**given, **{name: functools.partial(make, **chosen)})

        parameters = list(_replaced(inspect.signature(command, eval_str=True), name, options.values()))
        del run.__wrapped__  # whoever looks at the command sees the parameters below
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # inspect looks for it
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _replaced(signature: inspect.Signature, name: str, options: Any) -> Any:
    for parameter in signature.parameters.values():
        if parameter.name == name:
            yield from (option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in options)
        else:
            yield parameter
