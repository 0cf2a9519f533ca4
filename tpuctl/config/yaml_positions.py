"""YAML whose every part knows its line and column, so that an error can point at the word that is wrong.

Only what configuration needs: mappings, lists, scalars, anchors, aliases and the merge key `<<`. Tags that
would make other objects are refused, and so is a key that stands twice in one mapping: YAML forbids it
(https://yaml.org/spec/1.2.2/#3211-nodes) and PyYAML quietly takes the last one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cache
from typing import Any

from msgspec import Struct

from tpuctl.errors import BadConfigError

MERGE_KEY = "<<"


class Position(Struct, frozen=True, order=True):
    """Line and column of a file, both from 1."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.line}:{self.column}"


class ScalarKind(StrEnum):
    """What an unquoted scalar reads as by YAML 1.1, which PyYAML speaks; anything quoted is text."""

    TEXT = "text"
    INTEGER = "whole number"
    NUMBER = "number"
    BOOLEAN = "truth value"
    NOTHING = "nothing"


class MarkedScalar(Struct, frozen=True):
    """`text` is what stands in the file, `value` what it reads as."""

    place: Position
    kind: ScalarKind
    text: str
    value: Any


class MarkedList(Struct, frozen=True):
    place: Position
    items: tuple[Marked, ...]


class MarkedMapping(Struct, frozen=True):
    """`keys` says where each key stands; `entries` are in the order of the file."""

    place: Position
    entries: Mapping[str, Marked]
    keys: Mapping[str, Position]

    def get(self, key: str) -> Marked | None:
        return self.entries.get(key)


Marked = MarkedScalar | MarkedList | MarkedMapping

_KINDS: Mapping[str, ScalarKind] = {
    "tag:yaml.org,2002:str": ScalarKind.TEXT,
    "tag:yaml.org,2002:timestamp": ScalarKind.TEXT,
    "tag:yaml.org,2002:int": ScalarKind.INTEGER,
    "tag:yaml.org,2002:float": ScalarKind.NUMBER,
    "tag:yaml.org,2002:bool": ScalarKind.BOOLEAN,
    "tag:yaml.org,2002:null": ScalarKind.NOTHING,
    "tag:yaml.org,2002:value": ScalarKind.TEXT,
}
MAX_DEPTH = 50
"""Lists and mappings within each other; what a fleet file needs has 6."""
_TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"
_COLLECTIONS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


def parse_marked(text: str, origin: str) -> Marked | None:
    """The document in `text`; None for an empty one. Raises BadConfigError with `origin`, line and column."""
    import yaml

    try:
        loader = _loader_class()(text)
        try:
            node = loader.get_single_node()
            return None if node is None else _Reader(loader, origin).read(node)
        finally:
            loader.dispose()
    except _TooDeepError as error:
        raise _error(origin, error.args[0], _TOO_DEEP) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = Position(mark.line + 1, mark.column + 1) if mark else Position(1, 1)
        raise _error(origin, at, f"not valid YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise _error(origin, Position(1, 1), f"not valid YAML: {' '.join(str(error).split())}") from error


class _TooDeepError(Exception):
    """With the place."""


@cache
def _loader_class() -> type[Any]:
    """PyYAML's, but it stops at MAX_DEPTH: it reads by recursion, and each level makes the next slower."""
    import yaml

    class Loader(yaml.SafeLoader):
        depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.depth > MAX_DEPTH:
                mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
                raise _TooDeepError(Position(mark.line + 1, mark.column + 1))
            self.depth += 1
            try:
                return super().compose_node(parent, index)
            finally:
                self.depth -= 1

    return Loader


def _error(origin: str, at: Position, message: str) -> BadConfigError:
    problem = {"file": origin, "line": at.line, "column": at.column, "message": message, "hint": None}
    return BadConfigError(f"{origin}:{at}: {message}", details={"problems": [problem]})


def plain(marked: Marked | None) -> Any:
    """The data without its places, as `yaml.safe_load` would give it."""
    if isinstance(marked, MarkedMapping):
        return {key: plain(value) for key, value in marked.entries.items()}
    if isinstance(marked, MarkedList):
        return [plain(item) for item in marked.items]
    return None if marked is None else marked.value


class _Reader:
    """PyYAML's nodes to ours. An alias gives the same object again, so that nothing is expanded twice."""

    def __init__(self, loader: Any, origin: str) -> None:
        self._loader = loader
        self._origin = origin
        self._done: dict[int, Marked] = {}
        self._open: set[int] = set()

    def read(self, node: Any) -> Marked:
        if id(node) in self._done:
            return self._done[id(node)]
        if id(node) in self._open:
            raise self._error(node, "an anchor that contains itself")
        if len(self._open) >= MAX_DEPTH:
            raise self._error(node, _TOO_DEEP)
        self._open.add(id(node))
        self._done[id(node)] = found = self._fresh(node)
        self._open.remove(id(node))
        return found

    def _fresh(self, node: Any) -> Marked:
        if isinstance(node.value, str):
            return self._scalar(node)
        if node.tag not in _COLLECTIONS:
            raise self._error(node, f"the tag {_shown(node.tag)} is not allowed")
        if node.id == "mapping":
            return self._mapping(node)
        return MarkedList(_place(node), tuple(self.read(item) for item in node.value))

    def _scalar(self, node: Any) -> MarkedScalar:
        if node.tag not in _KINDS:
            raise self._error(node, f"the tag {_shown(node.tag)} is not allowed")
        kind = _KINDS[node.tag]
        try:
            value = node.value if kind is ScalarKind.TEXT else self._loader.construct_object(node)
        except ValueError as error:
            raise self._error(node, f"{node.value!r} is not a {kind}") from error
        return MarkedScalar(_place(node), kind, node.value, value)

    def _mapping(self, node: Any) -> MarkedMapping:
        entries: dict[str, Marked] = {}
        keys: dict[str, Position] = {}
        merged: list[MarkedMapping] = []
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                merged += self._merged(value_node)
                continue
            if not isinstance(key_node.value, str):
                raise self._error(key_node, "a key must be a word")
            key = key_node.value
            if key in entries:
                raise self._error(
                    key_node, f"the key {key!r} stands here twice (first on line {keys[key].line})"
                )
            entries[key], keys[key] = self.read(value_node), _place(key_node)
        for source in merged:
            for key, value in source.entries.items():
                if key not in entries:
                    entries[key], keys[key] = value, source.keys[key]
        return MarkedMapping(_place(node), entries, keys)

    def _merged(self, node: Any) -> Sequence[MarkedMapping]:
        found = self.read(node)
        sources = found.items if isinstance(found, MarkedList) else (found,)
        mappings = [source for source in sources if isinstance(source, MarkedMapping)]
        if len(mappings) != len(sources):
            raise self._error(node, f"{MERGE_KEY} takes a mapping, such as an alias of one")
        return mappings

    def _error(self, node: Any, message: str) -> BadConfigError:
        return _error(self._origin, _place(node), message)


def _place(node: Any) -> Position:
    return Position(node.start_mark.line + 1, node.start_mark.column + 1)


def _shown(tag: str) -> str:
    return tag.replace("tag:yaml.org,2002:", "!!")
