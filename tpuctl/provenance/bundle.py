"""A run in one file: its manifest with the code and the environment that it names, as a tar."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tpuctl.engine.ports import Store
from tpuctl.errors import BadManifestError, NotFoundError
from tpuctl.lib.input_files import naming
from tpuctl.lib.output_files import write_output
from tpuctl.provenance.manifest import Row, parse_manifest
from tpuctl.transfer.tree import list_blobs, parse_tree

MANIFEST_NAME, BLOBS = "run.json", "blobs"
_MAGIC_AT = 257
"""Where a block of a tar says what it is."""


def blobs_of(read: Callable[[str], bytes], manifest: Row) -> Iterator[str]:
    """The digests of all content that a manifest names; `read` gives the content of one. Raises NotFoundError
    where the code is gone."""
    code, environment = manifest["code"], manifest.get("environment")
    yield code["bundle_sha256"]
    yield from sorted({each.sha256 for each in list_blobs(parse_tree(read(code["bundle_sha256"])))})
    if code.get("diff_sha256"):
        yield code["diff_sha256"]
    if environment:
        yield environment["spec_sha256"]


def write_bundle(store: Store, manifest: Row, path: Path) -> int:
    """Writes the file; how many contents are in it. It is there whole or not at all."""
    names = list(dict.fromkeys(blobs_of(store.get_blob, manifest)))
    with open_bundle(path, "--to") as bundle:
        bundle.add(MANIFEST_NAME, json.dumps(manifest, indent=1).encode())
        for digest in names:
            bundle.add(f"{BLOBS}/{digest}", store.get_blob(digest))
    return len(names)


class BundleWriter:
    """Files for a tar that is not compressed, one after the other."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive

    def add(self, name: str, content: bytes) -> None:
        """A file with this content."""
        self._archive.addfile(_row(name, len(content)), io.BytesIO(content))

    def add_file(self, name: str, path: Path) -> None:
        """A file with the content of that at `path`, in pieces."""
        with path.open("rb") as file:
            self._archive.addfile(_row(name, path.stat().st_size), file)


def _row(name: str, size: int) -> tarfile.TarInfo:
    row = tarfile.TarInfo(name)
    row.size = size
    return row


@contextmanager
def open_bundle(path: Path, flag: str, *, private: bool = False) -> Iterator[BundleWriter]:
    """A tar that is at `path` when the block ends, whole or not at all; `private`: nobody else may read it.
    `flag` is what named it. Raises as `write_output` does."""
    with (
        write_output(path, flag, private=private) as file,
        tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        yield BundleWriter(archive)


def begins_bundle(head: bytes, first: str = MANIFEST_NAME) -> bool:
    """Whether the first bytes of a file are those of a bundle whose `first` file this is."""
    return head.startswith(first.encode() + b"\0")


def is_bundle(path: Path) -> bool:
    """Whether a file may be a bundle, by its form: a tar that is not compressed (POSIX, ustar). Only its first
    block is read."""
    if not path.is_file():
        return False
    with naming(path), path.open("rb") as file:
        head = file.read(tarfile.BLOCKSIZE)
    return begins_bundle(head) or head[_MAGIC_AT:].startswith(b"ustar")


def read_bundle(path: Path) -> dict[str, Any] | None:
    """The manifest in a bundle; None for a file that is no tar. Raises BadManifestError for one without, or cut
    off."""
    if not is_bundle(path):
        return None
    content = dict(_members(path, MANIFEST_NAME)).get(MANIFEST_NAME)
    if content is None:
        raise BadManifestError(f"{path} is no bundle of a run: it has no {MANIFEST_NAME}")
    return parse_manifest(content, f"{path}")


def store_bundle(store: Store, path: Path) -> int:
    """Puts the contents of a bundle into the store; how many. Raises BadManifestError for content that is not
    what its name says."""
    return sum(1 for _, content in read_contents(path) if store.put_blob(content))


def read_contents(path: Path) -> Iterator[tuple[str, bytes]]:
    """The contents of a bundle, each after its digest. Raises BadManifestError for one that is not what its
    name says."""
    for name, content in _members(path, f"{BLOBS}/"):
        digest = hashlib.sha256(content).hexdigest()
        if digest != name.rpartition("/")[2]:
            raise BadManifestError(f"{path}: {name} was changed")
        yield digest, content


def _members(path: Path, prefix: str) -> Iterator[tuple[str, bytes]]:
    try:
        with tarfile.open(path, "r:") as archive:
            for row in archive:
                if row.size > path.stat().st_size:  # what has holes would become larger than its file
                    raise BadManifestError(f"{path}: {row.name} is larger than the file that it is in")
                held = archive.extractfile(row) if row.isreg() and row.name.startswith(prefix) else None
                if held is not None:
                    yield row.name, held.read()
    except (tarfile.TarError, EOFError) as error:
        raise BadManifestError(f"{path} is cut off or no tar: {error}") from error


def code_problem(store: Store, manifest: Row) -> str:
    """Why the code of a run cannot be had; empty where all of it is there."""
    try:
        listed = list(blobs_of(store.get_blob, manifest))
        for digest in listed:
            store.get_blob(digest)
    except NotFoundError as error:
        return f"it is not in this store: {error.message}"
    return ""
