"""Documents of a store as they are read: what is damaged is said when it is looked into."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from tpuctl.engine.ports import Document
from tpuctl.errors import DamagedRecordError
from tpuctl.lib.codec import parse_json


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

    __getitem__ = __iter__ = __len__ = __contains__ = _raise


class RecordData(dict[str, Any]):
    """The data of a document: a key that is not there makes the record a damaged one."""

    def __init__(self, key: str, data: Mapping[str, Any]) -> None:
        super().__init__(data)
        self._key = key

    def __missing__(self, name: str) -> NoReturn:
        raise DamagedRecordError(self._key, f"{name} is missing")


def parse_document(key: str, generation: int, text: str | bytes) -> Document:
    """A document from its JSON; one that holds no object has `DamagedData`."""
    try:
        data = parse_json(text)
        if isinstance(data, dict):
            return Document(key, generation, RecordData(key, data))
        return Document(key, generation, DamagedData(key, "it is no JSON object"))
    except (ValueError, RecursionError) as error:
        return Document(key, generation, DamagedData(key, f"it is not JSON: {error}"))
