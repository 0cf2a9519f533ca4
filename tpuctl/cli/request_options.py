"""The flags of a command: made of its declaration, and put together as what its function takes."""

from __future__ import annotations

import functools
import inspect
import os
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import PurePath
from typing import Annotated, Any

import msgspec
import typer

from tpuctl.cli.completion import run_ids, slice_names
from tpuctl.cli.invocation import invocation
from tpuctl.errors import UsageError
from tpuctl.lib.options import Flag, Option, flags_of, hints_of, option_in, registry, without_none

_COMPLETIONS = {"--on": slice_names, "RUN": run_ids, "[RUN]": run_ids}
_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_NONE = inspect.Parameter.empty


def with_requests(command: Callable[..., None], *, label: str = "") -> Callable[..., None]:
    """`command` as Typer calls it. Each parameter with an `Option` is a flag, and of a request each field that
    is typed, in that parameter's place; a flag of two requests is one flag, said to both. `context` is opened
    for it and closed after it; `console`, with `label`, is for where no profile is needed; `ctx` is Typer's."""
    # A module that seldom needs a context imports its type for checks alone.
    own = inspect.signature(command, eval_str=True, locals={"AppContext": object}).parameters
    shapes = {name: item.annotation for name, item in own.items() if _is_request(item.annotation)}
    made = {"ctx": inspect.Parameter("ctx", _KEYWORD, annotation=typer.Context)}
    for name, item in own.items():
        if name not in ("ctx", "console", "context"):
            for each in _parameters(shapes[name]) if name in shapes else _own_parameters(item):
                made.setdefault(each.name, each)

    @functools.wraps(command)
    def wrapper(ctx: typer.Context, **values: Any) -> None:
        shared = invocation(ctx)
        typed = shared.arguments
        typed = typed[: typed.index("--")] if "--" in typed else typed
        requests = {name: _request(shape, values, typed) for name, shape in shapes.items()}
        given = {**{name: values[name] for name in own if name in values}, **requests}
        if "ctx" in own:
            given["ctx"] = ctx
        if "console" in own:
            from tpuctl.cli.console import Console

            given["console"] = Console(json_mode=shared.json, quiet=shared.quiet, label=label)
        if "context" not in own:
            command(**given)
            return
        from tpuctl.cli.context import AppContext

        with AppContext(shared) as context:
            command(context=context, **given)

    wrapper.__signature__ = inspect.Signature(list(made.values()))  # type: ignore[attr-defined]
    wrapper.__annotations__ = {item.name: item.annotation for item in made.values()}
    return wrapper


def _is_request(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)


def _own_parameters(item: inspect.Parameter) -> Iterator[inspect.Parameter]:
    option = option_in(item.annotation)
    if option is None:
        yield item.replace(kind=_KEYWORD)
        return
    hint = without_none(typing.get_args(item.annotation)[0])
    yield from _made(item.name, hint, item.default, option, flags_of(item.name, option))


def _options(shape: Any) -> Iterator[tuple[str, Any, Option, tuple[Flag, ...]]]:
    """Name, type, meaning and flags of each field that is typed: switches, and what help can name. Others are
    for files, or worked out of the words of the command line."""
    for name, option in registry(shape).items():
        hint = hints_of(shape)[name]
        if option.group or option.metavar or hint is bool:
            yield name, hint, option, flags_of(name, option)


def _parameters(shape: Any) -> Iterator[inspect.Parameter]:
    fields = {field.name: field for field in msgspec.structs.fields(shape)}
    for name, hint, option, flags in _options(shape):
        default = _NONE if fields[name].required else fields[name].default
        yield from _made(name, hint, default, option, flags)
    for part in _parts(shape).values():
        yield from _parameters(part)


def _parts(shape: Any) -> dict[str, Any]:
    """The fields that are requests themselves."""
    read = {name for name, option in registry(shape).items() if option.parse is not None}
    return {name: hint for name, hint in hints_of(shape).items() if _is_request(hint) and name not in read}


def _made(
    name: str, hint: Any, default: Any, option: Option, flags: tuple[Flag, ...]
) -> Iterator[inspect.Parameter]:
    if _is_choice(hint, flags):
        for flag in flags:
            yield _parameter(_name_of(flag), bool, False, _switch(flag.name, flag.help, option, False))
    elif hint is bool:
        kind = bool if isinstance(default, bool) else bool | None
        names = "/".join(flag.name for flag in flags)
        yield _parameter(name, kind, default, _switch(names, option.help, option, default is True))
    elif typing.get_origin(hint) in (tuple, Mapping):
        many = list[str] if default is _NONE else list[str] | None
        default = default if default is _NONE else None
        yield _parameter(name, many, default, _value(flags, option, default))
    else:
        default = None if option.parse is not None and default is not _NONE else default
        kind = hint if default is not None else hint | None
        yield _parameter(name, kind, default, _value(flags, option, default))


def _is_choice(hint: Any, flags: tuple[Flag, ...]) -> bool:
    """Each of its values has a flag."""
    return isinstance(hint, type) and issubclass(hint, Enum) and len(flags) > 1


def _parameter(name: str, kind: Any, default: Any, option: Any) -> inspect.Parameter:
    return inspect.Parameter(name, _KEYWORD, default=default, annotation=Annotated[kind, option])


def _switch(names: str, help_text: str, option: Option, shown: bool) -> Any:
    short = (option.short,) if option.short else ()
    return typer.Option(names, *short, help=help_text, show_default=shown, rich_help_panel=option.group)


def _value(flags: tuple[Flag, ...], option: Option, default: Any) -> Any:
    names = [flag.name for flag in flags]
    complete = option.complete or _COMPLETIONS.get(names[0])
    if not names[0].startswith("-"):
        return typer.Argument(
            metavar=names[0],
            help=option.help,
            autocompletion=complete,
            min=option.minimum,
            parser=option.parse,
            show_default=False,
        )
    return typer.Option(
        *names,
        *((option.short,) if option.short else ()),
        metavar=option.metavar or None,
        help=option.help,
        min=option.minimum,
        max=option.maximum,
        parser=option.parse,
        show_default=default != "",
        rich_help_panel=option.group,
        autocompletion=complete,
    )


def _name_of(flag: Flag) -> str:
    return flag.name.removeprefix("--").replace("-", "_")


def _request(shape: Any, values: dict[str, Any], typed: list[str]) -> Any:
    """The request that was typed. Raises UsageError."""
    said: dict[str, Any] = {name: _request(part, values, typed) for name, part in _parts(shape).items()}
    for name, hint, option, flags in _options(shape):
        if _is_choice(hint, flags):
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
        if value is not None or option.parse is None:
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


def program_of(before: Sequence[str], behind: Sequence[str], module: str | None) -> dict[str, Any]:
    """The words before and behind `--` as fields of the request: a script or module with its
    arguments, or a command."""
    if module is not None:
        return {"module": module, "args": (*before, *behind)}
    if before:
        return {"script": _below(before[0]), "args": (*before[1:], *behind)}
    return {"command": tuple(behind)}


def _below(script: str) -> str:
    """`script` as seen from this directory: on the hosts its parents have other names."""
    path = PurePath(script)
    return os.path.relpath(script) if ".." in path.parts or path.is_absolute() else script
