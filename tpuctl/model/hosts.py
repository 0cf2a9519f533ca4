"""The nouns of records and of commands on hosts; those of the cloud are in `cloud.py`, which has these too.

Apart from them, because making a class takes time: a command on hosts needs none of the cloud's.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Tier(StrEnum):
    """How the capacity is paid for; see `schedulingConfig` and the queued resource's tier."""

    SPOT = "spot"
    PREEMPTIBLE = "preemptible"
    ON_DEMAND = "on-demand"
    RESERVED = "reserved"
    FLEX_START = "flex-start"


class Api(StrEnum):
    """Which API makes a slice: the Cloud TPU API, or Compute Engine, where its hosts are instances."""

    TPU = "tpu"
    COMPUTE = "compute"


class Endpoint(Struct, frozen=True):
    """One worker's addresses. Of a node of the TPU API its index is its position in `NodeInfo.endpoints`; of
    instances, which are in the order of their names, each host tells its number itself."""

    internal_ip: str
    external_ip: str | None = None
    instance: str = ""
    """The name of the instance; empty for a host of the TPU API."""

    @property
    def address(self) -> str:
        return self.external_ip or self.internal_ip


class FailureKind(StrEnum):
    """Why a worker has no exit status of its own command."""

    CONNECT = "connect"
    HOST_KEY = "host-key"
    AUTH = "auth"
    TIMEOUT = "timeout"
    LOST = "lost"
    SIGNAL = "signal"


class Blob(Struct, frozen=True):
    """One content of the store. `size` in bytes."""

    sha256: str
    size: int


class HostTarget(Struct, frozen=True):
    """How to reach one worker: pinned host key included, so that nothing is trusted on first use."""

    slice_name: str
    worker: int
    address: str
    port: int
    user: str
    host_key: str
    internal_ip: str = ""
    """Where the other hosts of the slice reach it; empty: at `address`."""
    instance: str = ""
    """Its name in Compute Engine; empty where its host did not publish it."""
    zone: str = ""

    @property
    def label(self) -> str:
        return f"{self.slice_name}-{self.worker}"


class RemoteResult(Struct, frozen=True):
    """What one worker did with a command; never loses information.

    `exit_status` is None when the command's own end was not seen; `failure` then says why and `detail` how.
    """

    worker: int
    exit_status: int | None
    stdout: bytes = b""
    stderr: bytes = b""
    duration_s: float = 0.0
    failure: FailureKind | None = None
    detail: str = ""

    @property
    def ok(self) -> bool:
        return self.failure is None and self.exit_status == 0
