"""Options and arguments that need no conversion get none.

Typer (0.29) converts every value of every parameter with pydantic, the ones that were not given too: its import
and the building of converters take 70 ms of CPU, twice what all the rest of Typer takes. Only a value that is
not what its annotation says goes to Typer's converter here; that one alone says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def spare(command: Any) -> Any:
    """`command`, made to convert late, with all its verbs."""
    for verb in getattr(command, "commands", {}).values():
        spare(verb)
    listed = command.get_params
    command.get_params = lambda ctx: spared(listed(ctx))  # the one for --help is made here, at every call
    return command


def spared(params: list[Any]) -> list[Any]:
    """`params`, made to convert late. They ask `get_runtime_param` for their converter; should a later Typer
    not do so, everything works as without this module."""
    for param in params:
        convert = getattr(param, "get_runtime_param", None)
        if convert is None or isinstance(convert, _Spared):
            continue
        parsed = param.type_descriptor.parameter_info.parser is not None
        param.get_runtime_param = _Spared(convert, parsed=parsed)
    return params


class _Spared:
    """Stands for the converter of one parameter, which `convert` builds. `parsed`: every value goes there."""

    def __init__(self, convert: Callable[[], Any], *, parsed: bool) -> None:
        self._convert = convert
        self._parsed = parsed

    def __call__(self) -> _Spared:
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """As Typer's: None, and an empty tuple for a repeatable parameter, when there is no value."""
        many = param.multiple or param.nargs == -1
        if value is None:
            return () if many else None
        if not self._parsed and _is_settled(value, param.type_descriptor.annotation, many=many):
            return value
        return self._convert().coerce(value, param=param, ctx=ctx)


def _is_settled(value: Any, annotation: Any, *, many: bool) -> bool:
    """The value is of the annotated type already: text for text, or a default, which its author checked."""
    if many:
        words = isinstance(value, list | tuple) and all(type(item) is str for item in value)
        return words and annotation == list[str]
    return annotation in (str, int, float, bool) and type(value) is annotation
