"""Moving a store: everything is copied, compared, and only then is the new place the fleet's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from tpuctl.engine.ports import Document, Store, StoredBlob
from tpuctl.errors import BadConfigError, ConflictError, LeaseHeldError, TpuctlError, UsageError
from tpuctl.lib.text import counted
from tpuctl.model.records import MOVED as MOVED
from tpuctl.model.records import SliceState

T = TypeVar("T")
MANY = 50
"""Copying so many things may take a while: how far it is is told."""


class StoreTarget(Protocol):
    """A place that becomes a store."""

    def claim(self, identity: str) -> bool:
        """Keeps the place for the store `identity`; whether it is that store already. Raises ConflictError when
        it is kept for another, or is another."""
        ...

    def open_as(self, identity: str, project: str) -> None:
        """From now on the place is that store, of `project`. Raises ConflictError when it is another."""
        ...

    def take_document(self, key: str, data: Mapping[str, Any]) -> None:
        """Writes a document as it is, unless one of that key is there."""
        ...

    def put_blob(self, content: bytes) -> str: ...

    def list(self, prefix: str) -> list[Document]: ...

    def list_blobs(self) -> Iterable[StoredBlob]: ...


def refuse_moved(store: Store) -> None:
    """Raises BadConfigError where the fleet's store has moved elsewhere, or is about to."""
    moved = store.get(MOVED)
    if moved is None:
        return
    to = moved.data["to"]
    again = f"tpuctl config init --store {to}"
    if not moved.data["done"]:
        raise BadConfigError(
            f"this fleet's store is being moved to {to}", hint=f"{again}, or another place if {to} is lost"
        )
    raise BadConfigError(f"this fleet's store has moved to {to}", hint=f"{again} --join")


def check_joinable(source: Store, uri: str) -> None:
    """Raises UsageError when this machine's own store still answers for slices that would be forgotten."""
    left = [
        str(document.data["name"])
        for document in source.list("slices/")
        if document.data["state"] != SliceState.GONE
    ]
    if left:
        raise UsageError(
            f"the store on this machine still holds {', '.join(left)}; joining {uri} would forget them",
            hint=f"tpuctl down {' '.join(left)} --yes, then join",
        )


def check_quiet(source: Store, alive: Callable[[str], bool]) -> None:
    """Raises LeaseHeldError while another command works on a slice of `source`."""
    now = source.now()
    for document in source.list("leases/"):
        owner = str(document.data["owner"])
        if owner and float(document.data["expires"]) > now and alive(owner):
            name = document.key.removeprefix("leases/")
            raise LeaseHeldError(
                f"another tpuctl ({owner}) is at work on {name}", hint="let it end, then try again"
            )


def move_store(
    source: Store,
    target: StoreTarget,
    uri: str,
    project: str,
    *,
    alive: Callable[[str], bool],
    report: Callable[[str], None],
) -> int | None:
    """Makes `target`, at `uri`, what `source` is; how many documents were copied, None if it is that already.

    After a crash the same call goes on. Nothing of `source` changes while it is copied, and nobody finds a
    store at `uri` before all of it is there. Raises LeaseHeldError, ConflictError, or TpuctlError when
    something did not arrive.
    """
    check_quiet(source, alive)
    _moved_to(source, uri)
    opened = target.claim(source.identity())
    _announce(source, uri, done=False)  # from now on nothing else may change it
    # A place that is this store already has changed since; what was deleted there would come back.
    count = None if opened else copy_store(source, target, report)
    _announce(source, uri, done=True)
    if not opened:
        target.open_as(source.identity(), project)
    return count


def _moved_to(source: Store, uri: str) -> Document | None:
    """What `source` says of where it goes. Until all of it is there, that may become another place, because
    nobody can have found it. Raises ConflictError when it is at another than `uri` for good."""
    document = source.get(MOVED)
    if document is not None and document.data["to"] != uri and document.data["done"]:
        to = document.data["to"]
        raise ConflictError(f"this store already moved to {to}", hint=f"tpuctl config init --store {to} --join")
    return document


def _announce(source: Store, uri: str, *, done: bool) -> None:
    document, goes = _moved_to(source, uri), {"to": uri, "done": done}
    if document is None:
        source.put(MOVED, goes, if_generation=0)
    elif not document.data["done"] and document.data != goes:
        source.put(MOVED, goes, if_generation=document.generation)


def copy_store(source: Store, target: StoreTarget, report: Callable[[str], None]) -> int:
    """Copies documents and blobs, and compares; how many documents there are.

    Repeating it is harmless. Raises TpuctlError when something did not arrive.
    """
    documents = [document for document in source.list("") if document.key != MOVED]
    digests = [blob.sha256 for blob in source.list_blobs()]
    report(f"copying {counted(len(documents), 'document')} and {counted(len(digests), 'blob')}")
    there = {document.key for document in target.list("")}
    for document in _telling(documents, "document", report):
        if document.key not in there:
            target.take_document(document.key, dict(document.data))
    arrived = {blob.sha256 for blob in target.list_blobs()}
    for digest in _telling(digests, "blob", report):
        if digest not in arrived:
            target.put_blob(source.get_blob(digest))
    report("comparing")
    _compare(documents, target)
    return len(documents)


def _telling(items: Sequence[T], noun: str, report: Callable[[str], None]) -> Iterator[T]:
    """The items, with a word after each tenth of many."""
    step = len(items) // 10 if len(items) >= MANY else 0
    for done, item in enumerate(items, start=1):
        yield item
        if step and done % step == 0 and done < len(items):
            report(f"copied {done} of {counted(len(items), noun)}")


def _compare(documents: list[Document], target: StoreTarget) -> None:
    arrived = {document.key: document.data for document in target.list("")}
    wrong = [document.key for document in documents if arrived.get(document.key) != document.data]
    if wrong:
        raise TpuctlError(
            f"{counted(len(wrong), 'document')} did not arrive unchanged, {wrong[0]} among them",
            hint="is the prefix used by something else? choose another --store",
        )
