"""The flags of a command that are fields of a request: made of its declaration, put together as one value."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Annotated, Any

import msgspec
import typer

from tpuctl.cli.completion import slice_names
from tpuctl.cli.invocation import invocation
from tpuctl.errors import UsageError
from tpuctl.lib.options import Flag, Option, flags_of, hints_of, registry

_COMPLETIONS = {"--on": slice_names}


def with_requests(command: Callable[..., None]) -> Callable[..., None]:
    """Gives `command` the flags of each request among its parameters, in that parameter's place. A flag of two
    of them is one flag, and said to both."""
    own = inspect.signature(command, eval_str=True).parameters
    shapes = {name: item.annotation for name, item in own.items() if _is_request(item.annotation)}
    made: list[inspect.Parameter] = []
    for name, item in own.items():
        mine = _parameters(shapes[name]) if name in shapes else [item.replace(kind=_KEYWORD)]
        made += [each for each in mine if each.name not in {other.name for other in made}]

    @functools.wraps(command)
    def wrapper(**values: Any) -> None:
        typed = invocation(values["ctx"]).arguments
        typed = typed[: typed.index("--")] if "--" in typed else typed
        requests = {name: _request(shape, values, typed) for name, shape in shapes.items()}
        command(**{name: value for name, value in values.items() if name in own}, **requests)

    wrapper.__signature__ = inspect.Signature(made)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {item.name: item.annotation for item in made}
    return wrapper


_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def _is_request(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)


def _options(shape: Any) -> Iterator[tuple[str, Any, Option, tuple[Flag, ...]]]:
    """Name, type, meaning and flags of each field that is said by flags: those that have a group in help."""
    for name, option in registry(shape).items():
        if option.group:
            yield name, hints_of(shape)[name], option, flags_of(name, option)


def _parameters(shape: Any) -> Iterator[inspect.Parameter]:
    defaults = {field.name: field.default for field in msgspec.structs.fields(shape)}
    for name, hint, option, flags in _options(shape):
        if isinstance(hint, type) and issubclass(hint, Enum):
            for flag in flags:
                yield _parameter(_name_of(flag), bool, False, _switch(flag.name, flag.help, option))
        elif hint is bool:
            default = defaults[name]
            kind = bool if default is False else bool | None
            switch = _switch("/".join(flag.name for flag in flags), option.help, option)
            yield _parameter(name, kind, default, switch)
        elif typing.get_origin(hint) in (tuple, Mapping):
            yield _parameter(name, list[str] | None, None, _value(flags[0], option))
        else:
            kind = hint if defaults[name] is not None else hint | None
            yield _parameter(name, kind, defaults[name], _value(flags[0], option))


def _parameter(name: str, kind: Any, default: Any, option: Any) -> inspect.Parameter:
    return inspect.Parameter(name, _KEYWORD, default=default, annotation=Annotated[kind, option])


def _switch(names: str, help_text: str, option: Option) -> Any:
    return typer.Option(names, help=help_text, show_default=False, rich_help_panel=option.group)


def _value(flag: Flag, option: Option) -> Any:
    return typer.Option(
        flag.name,
        metavar=option.metavar,
        help=option.help,
        min=option.minimum,
        rich_help_panel=option.group,
        autocompletion=_COMPLETIONS.get(flag.name),
    )


def _name_of(flag: Flag) -> str:
    return flag.name.removeprefix("--").replace("-", "_")


def _request(shape: Any, values: dict[str, Any], typed: list[str]) -> Any:
    """The request that was typed. Raises UsageError."""
    said: dict[str, Any] = {}
    for name, hint, option, flags in _options(shape):
        if isinstance(hint, type) and issubclass(hint, Enum):
            given = [flag for flag in flags if values[_name_of(flag)]]
            _refuse_both([flag.name for flag in given])
            said[name] = hint(given[0].name.removeprefix("--")) if given else None
            continue
        value = values[name]
        if len(flags) > 1:
            # Of the two sides of one switch Typer hears only the last.
            _refuse_both([flag.name for flag in flags if flag.name in typed])
        if typing.get_origin(hint) is tuple:
            value = tuple(value or ())
        elif typing.get_origin(hint) is Mapping:
            value = dict(map(option.pair, value or ())) if option.pair else _pairs(flags[0].name, value)
        said[name] = value
    return shape(**said)


def _refuse_both(given: list[str]) -> None:
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} exclude each other", hint=f"keep {given[0]}")


def _pairs(flag: str, words: list[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words or []:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UsageError(f"{flag} {word!r} is not K=V", hint=f"{flag} team=vision")
        if key in found:
            raise UsageError(f"{flag} {key} is given twice", hint="give it once")
        found[key] = value
    return found
