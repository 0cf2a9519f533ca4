"""The grid of a sweep: from a file to one row for each run.

A key with a list is a variable of the program, below `args:` an argument. All values of all keys are combined;
keys below `zip:` go together, entry by entry, and `list:` has parts of rows written out.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from tpuctl.config.yaml_positions import (
    Marked,
    MarkedList,
    MarkedMapping,
    MarkedScalar,
    Position,
    ScalarKind,
    parse_marked,
)
from tpuctl.errors import UsageError
from tpuctl.lib.names import MAX_TAG, VARIABLE

ROWS_MAX = 1_000
"""More are no sweep that anybody reads, and a store lists all runs again and again."""
_ARGS, _ZIP, _LIST = "args", "zip", "list"
_ARGUMENT = re.compile(r"-{0,2}[A-Za-z][\w.\-/]*=?")
_EXAMPLE = "SEED: [1, 2], or args: {lr: [1e-3, 3e-4]}"


class MatrixValue(Struct, frozen=True):
    """One value in one row; `key` is an argument or the name of a variable."""

    key: str
    text: str
    argument: bool
    truth: bool | None = None
    """Of an unquoted true or false."""

    @property
    def words(self) -> tuple[str, ...]:
        """The words of an argument: `lr` is `--lr 0.1`, `model.lr=` is `model.lr=0.1`; one that is true stands
        alone, one that is false is left out."""
        if not self.argument:
            return ()
        if self.key.endswith("="):
            return (f"{self.key}{self.text}",)
        flag = self.key if self.key.startswith("-") else f"--{self.key}"
        if self.truth is not None:
            return (flag,) if self.truth else ()
        return (flag, self.text)

    @property
    def tag(self) -> str:
        """What it is found by; tags have no commas, and an end."""
        name = self.key.strip("-_=")
        return f"{name}={self.text}".replace(",", ";").replace("\n", " ")[:MAX_TAG]


class MatrixRow(Struct, frozen=True):
    """What one run has beside what all have."""

    settings: tuple[MatrixValue, ...]

    @property
    def args(self) -> tuple[str, ...]:
        return tuple(word for each in self.settings for word in each.words)

    @property
    def variables(self) -> Mapping[str, str]:
        return {each.key: each.text for each in self.settings if not each.argument}

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(each.tag for each in self.settings)


Axis = Sequence[tuple[MatrixValue, ...]]
"""What one part of the file may be: one of these in each row."""


def parse_matrix(text: str, path: str) -> tuple[MatrixRow, ...]:
    """The rows of a grid, the last key changing fastest. Raises UsageError or BadConfigError with the place."""
    return _Matrix(path).read(parse_marked(text, path))


class _Matrix:
    def __init__(self, path: str) -> None:
        self._path = path
        self._known: dict[tuple[bool, str], Position] = {}

    def read(self, marked: Marked | None) -> tuple[MatrixRow, ...]:
        if not isinstance(marked, MarkedMapping) or not marked.entries:
            raise self._error(Position(1, 1), "there are no keys with lists in it", _EXAMPLE)
        axes = list(self._axes(marked))
        count = math.prod(len(axis) for axis in axes)
        if count > ROWS_MAX:
            sizes = " x ".join(str(len(axis)) for axis in axes)
            raise self._error(
                Position(1, 1), f"{sizes} are {count} rows; at most {ROWS_MAX} are run", "fewer values"
            )
        rows = tuple(MatrixRow(tuple(itertools.chain(*parts))) for parts in itertools.product(*axes))
        for first, second in itertools.combinations(range(len(rows)), 2) if len(set(rows)) < len(rows) else ():
            if rows[first] == rows[second]:
                raise self._error(
                    Position(1, 1), f"rows {first + 1} and {second + 1} are the same", "leave one out"
                )
        return rows

    def _axes(self, marked: MarkedMapping) -> Iterator[Axis]:
        for key, value in marked.entries.items():
            place = marked.keys[key]
            if key == _ARGS:
                inner = self._mapping(value, place, _ARGS)
                for name, values in inner.entries.items():
                    yield [(each,) for each in self._values(name, inner.keys[name], values, argument=True)]
            elif key == _ZIP:
                yield self._zipped(self._mapping(value, place, _ZIP), place)
            elif key == _LIST:
                yield self._listed(value, place)
            else:
                yield [(each,) for each in self._values(key, place, value, argument=False)]

    def _zipped(self, marked: MarkedMapping, place: Position) -> Axis:
        columns = []
        for key, value in marked.entries.items():
            if key == _ARGS:
                inner = self._mapping(value, marked.keys[key], f"{_ZIP}.{_ARGS}")
                columns += [
                    self._values(name, inner.keys[name], each, argument=True)
                    for name, each in inner.entries.items()
                ]
            else:
                columns.append(self._values(key, marked.keys[key], value, argument=False))
        if len({len(column) for column in columns}) > 1:
            lengths = ", ".join(f"{column[0].key} has {len(column)}" for column in columns)
            raise self._error(place, f"keys below zip go together, and {lengths}", "lists of the same length")
        return list(zip(*columns, strict=True))

    def _listed(self, marked: Marked, place: Position) -> Axis:
        if not isinstance(marked, MarkedList) or not marked.items:
            raise self._error(place, "list: has rows", "list: [{SEED: 1}, {SEED: 2}]")
        rows = []
        for item in marked.items:
            row = self._mapping(item, place, _LIST)
            found = [
                self._setting(key, row.keys[key], each, argument=False)
                for key, each in row.entries.items()
                if key != _ARGS
            ]
            if _ARGS in row.entries:
                inner = self._mapping(row.entries[_ARGS], row.keys[_ARGS], f"{_LIST}.{_ARGS}")
                found += [
                    self._setting(key, inner.keys[key], each, argument=True)
                    for key, each in inner.entries.items()
                ]
            rows.append(tuple(found))
        for setting in {(each.argument, each.key) for row in rows for each in row}:
            self._take(*setting, place)
        return rows

    def _values(self, key: str, place: Position, marked: Marked, *, argument: bool) -> list[MatrixValue]:
        self._take(argument, key, place)
        if not isinstance(marked, MarkedList) or not marked.items:
            raise self._error(place, f"{key} has no list of values", f"{key}: [1, 2]")
        return [self._setting(key, place, item, argument=argument) for item in marked.items]

    def _setting(self, key: str, place: Position, marked: Marked, *, argument: bool) -> MatrixValue:
        if argument and not _ARGUMENT.fullmatch(key):
            raise self._error(place, f"{key!r} is no argument", "lr, --lr, or model.lr= for model.lr=VALUE")
        if not argument and not VARIABLE.fullmatch(key):
            hint = f"below args: it is an argument: args: {{{key}: [...]}}"
            raise self._error(place, f"{key!r} is no name of a variable", hint)
        if not isinstance(marked, MarkedScalar) or marked.kind is ScalarKind.NOTHING:
            raise self._error(place, f"a value of {key} is no word or number", f"{key}: [1, 2]")
        truth = bool(marked.value) if argument and marked.kind is ScalarKind.BOOLEAN else None
        return MatrixValue(key, marked.text, argument, truth)

    def _take(self, argument: bool, key: str, place: Position) -> None:
        if (argument, key) in self._known:
            raise self._error(place, f"{key} stands at {self._known[argument, key]}, too", "name it once")
        self._known[argument, key] = place

    def _mapping(self, marked: Marked, place: Position, name: str) -> MarkedMapping:
        if not isinstance(marked, MarkedMapping) or not marked.entries:
            raise self._error(place, f"{name} has keys and values below it", _EXAMPLE)
        return marked

    def _error(self, place: Position, message: str, hint: str) -> UsageError:
        return UsageError.of("matrix", f"{self._path}:{place}: {message}", hint)
