"""Filters of list calls: the language of https://google.aip.dev/160, and Compute Engine's `eq` and `ne`.

What cannot be read is refused, never taken for "everything". Compute's `eq` and `ne` take a regular expression
that must match the whole value: https://cloud.google.com/compute/docs/reference/rest/v1/disks/list.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from typing import Any

from tpuctl.sim.wire.status import ApiError, Json, invalid_argument

Predicate = Callable[[Json], bool]
MAX_LENGTH = 4096
MAX_DEPTH = 32
_FIELD = re.compile(r'\s*([^\s()=!<>:"\']+|"[^"]*")')
_OPERATOR = re.compile(r"\s*(!=|<=|>=|=|<|>|:|\b(?:eq|ne)\b)")
_VALUE = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|\'((?:[^\'\\]|\\.)*)\'|([^\s()]+))')
_WORD = {word: re.compile(rf"\s*{word}(?=[\s(])") for word in ("AND", "OR")}
_NOT = re.compile(r"\s*(NOT(?=[\s(])|-(?=\S))")
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def parse_filter(text: str) -> Predicate:
    """What `text` selects; everything for nothing. Raises ApiError, INVALID_ARGUMENT."""
    if not text.strip():
        return lambda _: True
    if len(text) > MAX_LENGTH:
        raise _invalid(text)
    parser = _Parser(text)
    found = parser.expression()
    if parser.rest():
        raise _invalid(text)
    return found


def _invalid(text: str) -> ApiError:
    shown = text if len(text) < 200 else f"{text[:200]}..."
    return invalid_argument(f"Invalid value for field 'filter': '{shown}'. Invalid list filter expression.")


class _Parser:
    """Recursive descent; OR binds closer than AND, as the language says."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def rest(self) -> str:
        return self._text[self._at :].strip()

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self._text, self._at)
        if match is not None:
            self._at = match.end()
        return match

    def expression(self) -> Predicate:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _invalid(self._text)
        parts = [self._alternatives()]
        while (left := self.rest()) and not left.startswith(")"):
            self._take(_WORD["AND"])  # two expressions in a row mean the same
            parts.append(self._alternatives())
        self._depth -= 1
        return lambda data: all(part(data) for part in parts)

    def _alternatives(self) -> Predicate:
        parts = [self._term()]
        while self._take(_WORD["OR"]):
            parts.append(self._term())
        return lambda data: any(part(data) for part in parts)

    def _term(self) -> Predicate:
        negated = self._take(_NOT) is not None
        if self.rest().startswith("("):
            self._at = self._text.index("(", self._at) + 1
            inner = self.expression()
            if not self.rest().startswith(")"):
                raise _invalid(self._text)
            self._at = self._text.index(")", self._at) + 1
        else:
            inner = self._restriction()
        return (lambda data: not inner(data)) if negated else inner

    def _restriction(self) -> Predicate:
        field, sign = self._take(_FIELD), self._take(_OPERATOR)
        value = self._take(_VALUE)
        if field is None or sign is None or value is None:
            raise _invalid(self._text)
        quoted = value.group(1) if value.group(1) is not None else value.group(2)
        given = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else value.group(3)
        try:
            test = _test(
                sign.group(1), given if sign.group(1) not in ("eq", "ne") or quoted is None else quoted
            )
        except (re.error, OverflowError, RecursionError) as error:
            raise _invalid(self._text) from error
        path = [_camel(part) for part in field.group(1).strip('"').split(".")]
        return lambda data: test(list(_values(data, path)))


def _camel(part: str) -> str:
    return re.sub(r"_([a-z])", lambda match: match.group(1).upper(), part)


def _values(data: Any, path: list[str]) -> Iterator[Any]:
    """What is at `path`, each of it where a list is on the way; labels are found by their key as it is."""
    if isinstance(data, list):
        for each in data:
            yield from _values(each, path)
    elif not path:
        yield data
    elif isinstance(data, dict):
        for name in {path[0], re.sub(r"(?<=[a-z])([A-Z])", lambda m: f"_{m.group(1).lower()}", path[0])}:
            if name in data:
                yield from _values(data[name], path[1:])


def _test(sign: str, wanted: str) -> Callable[[list[Any]], bool]:
    """A test of all values of a field; a field that is not there equals nothing."""
    if sign in ("eq", "ne"):
        pattern = re.compile(wanted)
        return lambda values: any(pattern.fullmatch(_show(v)) for v in values) == (sign == "eq")
    if sign in _ORDER:
        return lambda values: any(_ordered(_ORDER[sign], v, wanted) for v in values)
    parts = [re.escape(part) for part in wanted.split("*")]
    whole = re.compile(".*".join(parts), re.DOTALL)
    if sign == ":":
        if wanted == "*":
            return bool
        has = re.compile(".*".join(parts), re.DOTALL | re.IGNORECASE)
        return lambda values: any(has.search(_show(v)) for v in values)
    return lambda values: any(whole.fullmatch(_show(v)) for v in values) == (sign == "=")


def _show(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _ordered(compare: Callable[[Any, Any], bool], value: Any, wanted: str) -> bool:
    try:
        return compare(float(value), float(wanted))
    except (TypeError, ValueError):
        return compare(_show(value), wanted)
