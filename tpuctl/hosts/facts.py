"""What a host is and has: the agent's verb `facts`, read into types.

A section that was not asked for, or that the host could not find out, is None; `failed` says why. Fields that
we do not know are passed over: an agent may tell more. Times are by the host's own clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Self, TypeVar

import msgspec
from msgspec import Struct

from tpuctl.hosts.protocol import Chips, HostFacts, HostReply, MalformedReplyError, parse_as

R = TypeVar("R")


class Section(StrEnum):
    """What can be asked for alone; the fields of `FactsReply`."""

    JOBS = "jobs"
    HOST = "host"
    PYTHONS = "pythons"
    SPACE = "space"
    DISKS = "disks"
    POINTS = "points"
    GCSFUSE = "gcsfuse"
    ENGINE = "engine"
    CHIPS = "chips"
    ENVS = "envs"
    KERNEL = "kernel"
    VARIABLES = "variables"


class FailedOperation(Struct, frozen=True):
    """`permanent`: in vain until something else changes. `hint`: what to type next, if the host can tell, or
    what for: then `on_host` is a command for that host."""

    title: str
    message: str
    permanent: bool = False
    hint: str = ""
    on_host: str = ""


class HostJob(Struct, frozen=True):
    """A provisioning job on this host; `done` of its operations ended well, with `results`."""

    run: str
    attempt: str
    state: str
    exit_status: int | None = None
    detail: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    tries: int = 1
    of: int = 0
    done: int = 0
    doing: str = ""
    failed: FailedOperation | None = None
    results: tuple[Any, ...] = ()

    @property
    def going(self) -> bool:
        return self.state in {"starting", "running"}

    @property
    def succeeded(self) -> bool:
        return self.state == "exited" and self.exit_status == 0


class Host(Struct, frozen=True):
    """`root` is how this user becomes root: `root`, `sudo` (without a password), or not at all. `nics` are its
    network interfaces, without those that are no devices."""

    hostname: str
    user: str
    home: str
    root: str
    kernel: str
    os: str
    worker_id: str | None = None
    numa_nodes: int = 0
    nics: int = 0


class Interpreter(Struct, frozen=True):
    path: str
    version: str

    @property
    def minor(self) -> str:
        return ".".join(self.version.split(".")[:2])


class Space(Struct, frozen=True):
    """How much a user may still write below `path`; `error` where that cannot be had."""

    path: str
    error: str = ""
    total_bytes: int = 0
    free_bytes: int = 0


class MountedDisk(Struct, frozen=True):
    """A file system on a disk. `word` is what a copy of a disk is known by; `unsafe`: its journal was passed
    over when it was mounted."""

    path: str
    device: str
    read_only: bool
    unsafe: bool
    word: str
    uuid: str = ""


class MountPoint(Struct, frozen=True):
    """A path at which something is to be mounted, and what stands in the way; empty for nothing."""

    path: str
    trouble: str = ""


class MountedBucket(Struct, frozen=True):
    """A mount that tpuctl made, by the word of its keeper. `alive`: keeper and gcsfuse run, and a look at it
    came back in time; `error` is what that look said, or why it is not up. `options` are the kernel's,
    `keeper` the sha256 of the program that keeps it, empty of one that does not say so yet. `open`: without the
    mount its folder can be written."""

    path: str
    bucket: str
    digest: str
    state: str
    alive: bool
    error: str = ""
    restarts: int = 0
    version: str = ""
    program: str = ""
    keeper: str = ""
    open: bool = False
    options: tuple[str, ...] = ()


class Gcsfuse(Struct, frozen=True):
    """`version` is that of the gcsfuse on PATH, empty for none; `programs` are the sha256 of those that tpuctl
    brought, the first 16 digits."""

    version: str
    programs: tuple[str, ...] = ()
    fuse: bool = True
    mounts: tuple[MountedBucket, ...] = ()


class EngineImage(Struct, frozen=True):
    """A container image. `digests` are those of registries, with names; `id` is that of its content here."""

    id: str
    tags: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()
    architecture: str = ""


class Engine(Struct, frozen=True):
    """The container engine of a host, docker or podman; without a `name` there is none that works, and `why`
    says what stands in the way where one is installed. `rooted`: it is called through sudo."""

    name: str
    why: str = ""
    version: str = ""
    rooted: bool = False
    architecture: str = ""
    storage: str = ""
    free_bytes: int = 0
    images: tuple[EngineImage, ...] = ()


class Environment(Struct, frozen=True):
    """A folder below ~/.tpuctl/envs; `mark` is what its installer wrote down, None for a half-made one.
    `changed` are files that are not as they were installed, the first few of `changes`."""

    key: str
    mark: Mapping[str, Any] | None = None
    changed: tuple[str, ...] = ()
    changes: int = 0


class KernelFacts(Struct, frozen=True):
    """Limits as (soft, hard), None for none."""

    transparent_hugepages: str
    memlock_bytes: tuple[int | None, int | None]


class Variable(Struct, frozen=True):
    """What a login sets; `file` is where, if that was found."""

    value: str
    file: str = ""


class FactsReply(HostReply, frozen=True):
    """One host's answer. `machine` is its architecture, by uname(2)."""

    time: float
    boot_id: str
    machine: str = "x86_64"
    failed: Mapping[str, str] = {}
    jobs: tuple[HostJob, ...] | None = None
    host: Host | None = None
    pythons: tuple[Interpreter, ...] | None = None
    space: tuple[Space, ...] | None = None
    disks: tuple[MountedDisk, ...] | None = None
    points: tuple[MountPoint, ...] | None = None
    gcsfuse: Gcsfuse | None = None
    engine: Engine | None = None
    chips: Chips | None = None
    envs: tuple[Environment, ...] | None = None
    kernel: KernelFacts | None = None
    variables: Mapping[str, Variable] | None = None

    @classmethod
    def parse(cls, data: Mapping[str, Any], _worker: int = 0) -> Self:
        return _convert(data, cls, "itself")


class BegunJob(HostJob, HostReply, frozen=True):
    """A job that was begun just now, with `facts` where it has ended already; `absent` on a host that lost
    contents meanwhile."""

    facts: FactsReply | None = None

    @classmethod
    def parse(cls, data: Mapping[str, Any], _worker: int) -> Self:
        return _convert(data, cls, "a job")


class Hello(HostReply, frozen=True):
    """What a host says of itself, and of its facts what was asked for with that."""

    host: HostFacts
    facts: FactsReply | None = None

    @classmethod
    def parse(cls, data: Mapping[str, Any], worker: int) -> Self:
        facts = data.get("facts")
        said = FactsReply.parse(facts, worker) if facts is not None else None
        return cls(parse_as(HostFacts, data), said)


def _convert(data: Mapping[str, Any], cls: type[R], what: str) -> R:
    try:
        return msgspec.convert(data, cls)
    except (msgspec.ValidationError, RecursionError) as error:
        raise MalformedReplyError(f"what the host says of {what} makes no sense: {error}") from error
