"""Structs as the shape of a file: marked data in, an instance out, and every problem with its place.

The struct is the only description: its type hints say what a value must be, the `Option` beside the type what
the key means. Everything that is wrong is collected, so that one look at a file finds all of it.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from msgspec import Struct

from tpuctl.config.yaml_positions import Marked, MarkedList, MarkedMapping, MarkedScalar, Position, ScalarKind
from tpuctl.errors import UsageError
from tpuctl.lib.options import Option, hints_of, names_of, registry, required
from tpuctl.lib.text import suggest


class Problem(Struct, frozen=True):
    """Something wrong at one place of a file."""

    place: Position
    message: str
    hint: str | None = None
    path: str = ""
    """Of the keys that hold what is wrong, where the file was decoded: `fleet.runs.train`."""


class Decoder:
    """Makes instances of shapes; what is wrong ends up in `problems` and its key keeps its default."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._done: dict[tuple[int, Any], Any] = {}

    def decode(self, shape: Any, marked: Marked, path: str, at: Position) -> Any:
        """An instance of `shape`, or None where not even that can be made. `at` is where its key stands.

        What an alias repeats is looked at once, and complained of once.
        """
        known = (id(marked), shape)
        if known not in self._done:
            self._done[known] = self._decode(shape, marked, path, at)
        return self._done[known]

    def _decode(self, shape: Any, marked: Marked, path: str, at: Position) -> Any:
        if not isinstance(marked, MarkedMapping):
            self._wrong(at, path, "must hold keys and values", f"known keys: {_listed(registry(shape))}")
            return None
        values: dict[str, Any] = {}
        for name, value in marked.entries.items():
            if name not in registry(shape):
                self._unknown(shape, name, path, marked.keys[name])
                continue
            found = self._value(
                hints_of(shape)[name], registry(shape)[name], value, f"{path}.{name}", marked.keys[name]
            )
            if found is not None:
                values[name] = found
        missing = sorted(name for name in required(shape) if marked.get(name) is None)
        for name in missing:
            self._wrong(at, path, f"lacks the key {name!r}", _example(name, registry(shape)[name]))
        return None if required(shape) - set(values) else shape(**values)

    def _value(self, hint: Any, option: Option, marked: Marked, path: str, at: Position) -> Any:
        origin = typing.get_origin(hint)
        if origin is not None and issubclass(origin, Mapping):
            return self._mapping(typing.get_args(hint)[1], option, marked, path, at)
        if isinstance(marked, MarkedScalar) and marked.kind is ScalarKind.NOTHING:
            self._wrong(at, path, "has no value", "give it one, or leave the key out")
            return None
        if _is_shape(hint):
            return self.decode(hint, marked, path, at)
        if origin is tuple and _is_shape(typing.get_args(hint)[0]):
            return self._objects(typing.get_args(hint)[0], option, marked, path, at)
        if origin is tuple:
            return self._list(option, marked, path, at)
        return self._checked(option, self._scalar(hint, option, marked, path, at), path, marked.place)

    def _mapping(self, inner: Any, option: Option, marked: Marked, path: str, at: Position) -> Any:
        if isinstance(marked, MarkedScalar) and marked.kind is ScalarKind.NOTHING:
            return {}
        if not isinstance(marked, MarkedMapping):
            self._wrong(at, path, "must hold keys and values", _example(path.rpartition(".")[2], option))
            return None
        found: dict[str, Any] = {}
        for name, value in marked.entries.items():
            where = marked.keys[name]
            if option.check_key is not None:
                self._check(option.check_key, name, path, where)
            entry = self._value(inner, Option("", text=option.text), value, f"{path}.{name}", where)
            if entry is not None:
                found[name] = entry
        return found

    def _list(self, option: Option, marked: Marked, path: str, at: Position) -> tuple[str, ...] | None:
        if isinstance(marked, MarkedMapping) or (isinstance(marked, MarkedScalar) and not option.single):
            self._wrong(at, path, "must be a list", _example(path.rpartition(".")[2], option))
            return None
        items = marked.items if isinstance(marked, MarkedList) else (marked,)
        found = []
        for item in items:
            text = self._scalar(str, option, item, path, item.place)
            if text is not None:
                found.append(self._checked(option, text, path, item.place))
        return tuple(text for text in found if text is not None)

    def _objects(self, shape: Any, option: Option, marked: Marked, path: str, at: Position) -> Any:
        if not isinstance(marked, MarkedList):
            self._wrong(at, path, "must be a list", _example(path.rpartition(".")[2], option))
            return None
        found = [
            self.decode(shape, item, f"{path}[{number}]", item.place)
            for number, item in enumerate(marked.items)
        ]
        return tuple(each for each in found if each is not None)

    def _scalar(self, hint: Any, option: Option, marked: Marked, path: str, at: Position) -> Any:
        if not isinstance(marked, MarkedScalar):
            self._wrong(at, path, f"must be {_called(hint)}", _example(path.rpartition(".")[2], option))
            return None
        if isinstance(hint, type) and issubclass(hint, Enum):
            return self._choice(hint, marked, path)
        kinds = _KINDS[hint]
        if option.text and marked.kind is not ScalarKind.NOTHING:
            return marked.text
        if marked.kind not in kinds:
            text = f"must be {_called(hint)}, not {marked.text or marked.kind}"
            self._wrong(marked.place, path, text, _as_text(path, option, marked.text) if hint is str else None)
            return None
        if option.minimum is not None and marked.value < option.minimum:
            self._wrong(marked.place, path, f"must be {option.minimum:g} or more, not {marked.text}")
            return None
        return hint(marked.value)

    def _choice(self, hint: type[Enum], marked: MarkedScalar, path: str) -> Any:
        values = [str(item.value) for item in hint]
        if marked.text in values:
            return hint(marked.text)
        near = suggest(marked.text, values)
        guess = f"; did you mean {near!r}?" if near else ""
        self._wrong(marked.place, path, f"{marked.text!r} is not known{guess}", f"one of: {', '.join(values)}")
        return None

    def _checked(self, option: Option, value: Any, path: str, place: Position) -> Any:
        if value is not None and option.check is not None:
            self._check(option.check, value, path, place)
        return value

    def _check(self, check: Callable[[Any], Any], value: Any, path: str, place: Position) -> None:
        """Adds a problem where `check` refuses the value; the value stays, for other checks."""
        try:
            check(value)
        except UsageError as error:
            self._wrong(place, path, error.message, error.hint, separator=": ")

    def _unknown(self, shape: Any, name: str, path: str, place: Position) -> None:
        near = flag_key(shape, name) or suggest(name, list(registry(shape)))
        guess = f"; did you mean {near!r}?" if near else ""
        known = f"known keys: {_listed(registry(shape))}"
        hint = f"change it to {near!r}; {known}" if near else known
        self.problems.append(Problem(place, f"unknown key {name!r} in {path}{guess}", hint, path))

    def _wrong(
        self, place: Position, path: str, message: str, hint: str | None = None, *, separator: str = " "
    ) -> None:
        self.problems.append(Problem(place, f"{path}{separator}{message}", hint, path))


_KINDS: Mapping[Any, frozenset[ScalarKind]] = {
    str: frozenset({ScalarKind.TEXT}),
    bool: frozenset({ScalarKind.BOOLEAN}),
    int: frozenset({ScalarKind.INTEGER}),
    float: frozenset({ScalarKind.INTEGER, ScalarKind.NUMBER}),
}


def flag_key(shape: Any, name: str) -> str | None:
    """The key that says what a flag of this name says: `spot` is `tier`."""
    flag = f"--{name.replace('_', '-')}"
    return next((found for found, option in registry(shape).items() if flag in names_of(option)), None)


def _is_shape(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Struct)


def _called(hint: Any) -> str:
    names = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}
    return names.get(hint, "one word")


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(names)


def _as_text(path: str, option: Option, text: str) -> str | None:
    """How a number or truth value that should have been text may have been meant."""
    quoted = f"put it in quotes: '{text}'" if text else None
    return "; ".join(filter(None, [quoted, _example(path.rpartition(".")[2], option)])) or None


def _example(name: str, option: Option) -> str | None:
    return f"{name}: {render_example(option.examples[0])}" if option.examples else None


def render_example(value: Any) -> str:
    """An example as it stands in a file, on one line."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(render_example(item) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {render_example(item)}" for name, item in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)
