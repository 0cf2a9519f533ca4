"""Documents of a store as they are read: what is damaged is said when it is looked into. Keys of appended
entries have the same shape in every store, so that they are known again after a move."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, TypeVar

from tpuctl.engine.ports import Document
from tpuctl.errors import ConflictError, DamagedRecordError
from tpuctl.lib.codec import from_data, from_json, parse_json, parse_json_parts

T = TypeVar("T")


class DamagedData(Mapping[str, Any]):
    """Stands for the data of a document that cannot be read, so that the documents beside it can be listed.

    Every look into it raises DamagedRecordError.
    """

    def __init__(self, key: str, why: str, hint: str | None = None) -> None:
        self._key = key
        self._why = why
        self._hint = hint

    def _raise(self, *_: object) -> NoReturn:
        raise DamagedRecordError(self._key, self._why, hint=self._hint)

    __getitem__ = __iter__ = __len__ = __contains__ = record = _raise


class RecordData(dict[str, Any]):
    """The data of a document: a key that is not there makes the record a damaged one."""

    def __init__(self, key: str, data: Mapping[str, Any]) -> None:
        super().__init__(data)
        self._key = key

    def __missing__(self, name: str) -> NoReturn:
        raise DamagedRecordError(self._key, f"{name} is missing")


class UnreadData(Mapping[str, Any]):
    """The data of a document that is still text. Of the thousands that are listed, most are wanted for one
    value, or as records, which `record` makes of the text itself: plain data of all of them takes longer."""

    def __init__(self, key: str, text: str) -> None:
        self._key = key
        self._text = text
        self._whole: Mapping[str, Any] | None = None

    def record(self, cls: type[T]) -> T:
        """Raises ValueError or DamagedRecordError for what is none."""
        if self._whole is None:
            try:
                return from_json(cls, self._text)
            except ValueError:
                pass  # NaN, which the standard library reads; or it is said below what is wrong
        whole = self._read()
        return whole.record(cls) if isinstance(whole, DamagedData) else from_data(cls, whole)

    def _read(self) -> Mapping[str, Any]:
        if self._whole is None:
            self._whole = parse_document(self._key, 1, self._text).data
        return self._whole

    def get(self, name: str, default: Any = None) -> Any:
        parts = parse_json_parts(self._text) if self._whole is None else None
        if parts is None:
            return self._read().get(name, default)
        return parse_json(bytes(parts[name])) if name in parts else default

    def __getitem__(self, name: str) -> Any:
        return self._read()[name]

    def __contains__(self, name: object) -> bool:
        return name in self._read()

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and dict(self) == dict(other)

    def __hash__(self) -> int:
        return hash(self._text)


def parse_document(key: str, generation: int, text: str | bytes) -> Document:
    """A document from its JSON; one that holds no object has `DamagedData`."""
    try:
        data = parse_json(text)
        if isinstance(data, dict):
            return Document(key, generation, RecordData(key, data))
        return Document(key, generation, DamagedData(key, "it is no JSON object"))
    except (ValueError, RecursionError) as error:
        return Document(key, generation, DamagedData(key, f"it is not JSON: {error}"))


_ENTRY = re.compile(r"(?:^|/)\d{16}(?:-[0-9a-f]{8})?$")


def is_entry(key: str) -> bool:
    """Whether a key was made by `append`, of whichever store: such documents never change."""
    return _ENTRY.search(key) is not None


def check_entry(key: str) -> None:
    """Raises ConflictError for the key of a document, which goes only in a known generation."""
    if not is_entry(key):
        raise ConflictError(f"{key} in the store is no appended entry")
