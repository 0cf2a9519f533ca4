"""How connecting to a host fails."""

from __future__ import annotations

from tpuctl.model.hosts import FailureKind


class ConnectError(Exception):
    """No connection, and why."""

    def __init__(self, kind: FailureKind, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
