"""What a specification refers to: things that slices and runs have on their hosts."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from tpuctl.model.disks import DiskMode


class DiskRef(Struct, frozen=True):
    """A disk of a slice, mounted at `path` on every host."""

    name: str
    path: str
    mode: DiskMode


class MountRef(Struct, frozen=True):
    """A bucket of a slice, or a folder of it, mounted at `path` on every host. `options` are by the keys of
    gcsfuse's configuration file, over those of the profile. `program` is the sha256 of a gcsfuse in the store,
    of `program_bytes`; empty for the one of Google's packages. `fleet` names the fleet file that asked for it;
    empty for one made by hand. `leaving`: no pass mounts it, because a command is about to mount it, or because
    it is to be unmounted and then forgotten. `cross_region`: a bucket of another region is meant."""

    bucket: str
    path: str
    profile: str
    directory: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    read_only: bool = False
    program: str = ""
    program_bytes: int = 0
    fleet: str = ""
    leaving: bool = False
    cross_region: bool = False

    @property
    def source(self) -> str:
        """`gs://BUCKET/DIR`."""
        return f"gs://{self.bucket}" + (f"/{self.directory}" if self.directory else "")


class EnvironmentRef(Struct, frozen=True):
    """The pinned environment of a run or slice: `spec` is the SHA-256 of its definition, which is a blob."""

    name: str
    spec: str
