"""The `Objects` port in memory: names, contents and the times at which they were written."""

from __future__ import annotations

import itertools
from base64 import b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import google_crc32c

from tpuctl.engine.ports import Clock
from tpuctl.errors import ConflictError, NotFoundError
from tpuctl.model.cloud import ObjectHeaders, ObjectInfo
from tpuctl.model.facts import BucketSpec
from tpuctl.sim.wire.timestamps import rfc3339


@dataclass(frozen=True)
class _Object:
    content: bytes
    info: ObjectInfo


class MemoryObjects:
    """Implements `cloud_ports.Objects`; `clock` is the server's. Every bucket exists."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._generations = itertools.count(1)
        self._buckets: dict[str, dict[str, _Object]] = {}

    def bucket_exists(self, bucket: str, *, timeout_s: float | None = None) -> bool:
        del timeout_s
        return bool(bucket)

    def create_bucket(self, spec: BucketSpec) -> None:
        if spec.name in self._buckets:
            raise ConflictError(f"there is a bucket gs://{spec.name}")
        self._buckets[spec.name] = {}

    def read(self, uri: str) -> tuple[bytes, int]:
        bucket, name = _split(uri)
        found = self._buckets.get(bucket, {}).get(name)
        if found is None:
            raise NotFoundError(f"{uri} does not exist")
        return found.content, found.info.generation

    def write(
        self,
        uri: str,
        content: bytes,
        *,
        if_generation: int | None = None,
        headers: ObjectHeaders | None = None,
    ) -> int:
        bucket, name = _split(uri)
        self._expect(uri, if_generation)
        generation = next(self._generations)
        checksum = b64encode(google_crc32c.Checksum(content).digest()).decode()
        notes = {} if headers is None else headers.metadata
        info = ObjectInfo(name, generation, len(content), rfc3339(self._clock.now()), checksum, metadata=notes)
        self._buckets.setdefault(bucket, {})[name] = _Object(content, info)
        return generation

    def delete(self, uri: str, *, if_generation: int | None = None) -> None:
        bucket, name = _split(uri)
        self._expect(uri, if_generation)
        self._buckets.get(bucket, {}).pop(name, None)

    def upload(
        self, uri: str, pieces: Iterable[bytes], size: int, *, if_generation: int | None = None
    ) -> ObjectInfo:
        content = b"".join(pieces)
        assert len(content) == size
        self.write(uri, content, if_generation=if_generation)
        bucket, name = _split(uri)
        return self._buckets[bucket][name].info

    def read_pieces(self, uri: str) -> Iterator[bytes]:
        yield self.read(uri)[0]

    def list(self, prefix_uri: str, *, limit: int | None = None, glob: str = "") -> tuple[ObjectInfo, ...]:
        bucket, prefix = _split(prefix_uri)
        found = self._buckets.get(bucket, {})
        ends = glob.removeprefix("**")
        names = [name for name in sorted(found) if name.startswith(prefix) and name.endswith(ends)]
        return tuple(found[name].info for name in names[:limit])

    def is_public(self, bucket: str) -> bool | None:
        del bucket
        return False

    def server_time(self, bucket: str) -> float:
        del bucket
        return self._clock.now()

    def _expect(self, uri: str, generation: int | None) -> None:
        bucket, name = _split(uri)
        found = self._buckets.get(bucket, {}).get(name)
        if generation is not None and (found.info.generation if found else 0) != generation:
            raise ConflictError(f"{uri} was changed by somebody else")


def _split(uri: str) -> tuple[str, str]:
    bucket, _, name = uri.removeprefix("gs://").partition("/")
    return bucket, name
