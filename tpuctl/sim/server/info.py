"""Where a running simulator answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class SimInfo:
    """A running simulator. `started` is in seconds since the epoch; `pid_started` tells our process from a
    later one with the same pid (clock ticks since boot)."""

    pid: int
    pid_started: int
    guardian_pid: int
    world_id: str
    http: str
    grpc: str
    token_file: str
    https: str
    """What HTTPS_PROXY wants."""
    ca_file: str
    """The authorities to trust behind that proxy."""
    ssh_port: int
    hosts: str
    project: str
    started: float
    options: Mapping[str, Any]
    """`SimOptions` that it was started with."""

    @property
    def token(self) -> str:
        return Path(self.token_file).read_text().strip()
