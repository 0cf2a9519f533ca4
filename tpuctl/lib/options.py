"""Options of a user: what each means is said once beside its type, and flags, file keys, schema and reference
documents are made of that.

A field `network: Annotated[str | None, Option("VPC network.")] = None` of a msgspec.Struct is the flag
`--network` and the key `network`. A field without an `Option` is nothing that a user writes. A parameter of a
command is declared in the same way.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct


class Flag(Struct, frozen=True):
    """One flag of an option that has several, or whose flag is not `--its-name`. Empty `help` and `api` are the
    option's."""

    name: str
    help: str = ""
    api: str = ""


class Option(Struct, frozen=True):
    """What one thing that a user may write means.

    `short` is its flag of one letter, `group` and `metavar` are for the help of flags, `complete` offers values
    to shells, `parse` reads the value of a flag, `pair` the K=V of that of a mapping; `api` names the field of
    Google's API that it ends up in. The rest is for files: `text` takes numbers and truth values as they are
    written; `single` takes one value for a list of one; `check` raises UsageError for a value, `check_key` for
    a key of a mapping.
    """

    help: str
    flags: tuple[Flag, ...] = ()
    short: str = ""
    group: str = ""
    metavar: str = ""
    api: str = ""
    text: bool = False
    single: bool = False
    minimum: float | None = None
    maximum: float | None = None
    check: Callable[[Any], Any] | None = None
    check_key: Callable[[str], Any] | None = None
    key_pattern: str | None = None
    pair: Callable[[str], tuple[str, str]] | None = None
    parse: Callable[[str], Any] | None = None
    complete: Callable[..., list[str]] | None = None
    examples: tuple[Any, ...] = ()
    in_place: bool = False
    """It changes on what is there, without making another thing of it."""


def argument(name: str, help_text: str, **more: Any) -> Option:
    """A word of the command line, without a flag; `name` is its place in the usage."""
    return Option(help_text, flags=(Flag(name),), metavar=name, **more)


@cache
def registry(shape: Any) -> Mapping[str, Option]:
    """The options of a shape, in the order of its fields."""
    hints = typing.get_type_hints(shape, include_extras=True)
    found = {name: option_in(hints[name]) for name in shape.__struct_fields__}
    return {name: option for name, option in found.items() if option is not None}


@cache
def hints_of(shape: Any) -> Mapping[str, Any]:
    """The type of each field, without `| None`."""
    return {name: without_none(hint) for name, hint in typing.get_type_hints(shape).items()}


@cache
def required(shape: Any) -> frozenset[str]:
    """The fields without a default."""
    return frozenset(field.name for field in msgspec.structs.fields(shape) if field.required)


def help_of(shape: Any, name: str) -> str:
    """The one help text of an option."""
    return registry(shape)[name].help


def flags_of(name: str, option: Option) -> tuple[Flag, ...]:
    """Its flags, with their help and API fields; positional arguments are in capitals."""
    own = option.flags or (Flag(f"--{name.replace('_', '-')}"),)
    return tuple(Flag(flag.name, flag.help or option.help, flag.api or option.api) for flag in own)


def names_of(option: Option) -> tuple[str, ...]:
    """The flags that it has beside `--its-name`, or in its place."""
    return tuple(flag.name for flag in option.flags)


def option_in(hint: Any) -> Option | None:
    """The option of an annotation `Annotated[T, Option(...)]`."""
    return next((item for item in getattr(hint, "__metadata__", ()) if isinstance(item, Option)), None)


def without_none(hint: Any) -> Any:
    """The type without `| None`."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return next(arg for arg in typing.get_args(hint) if arg is not type(None))
    return hint
