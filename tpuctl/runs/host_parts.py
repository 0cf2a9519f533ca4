"""What a run puts on its hosts beside its code and its logs: one row a kind, each a folder of the attempt.

Who starts an attempt reads here which folders it has, who collects reads what to bring and how it is opened,
and who prepares the next attempt how many ended ones keep theirs: hosts remove the folders of older ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from tpuctl.model.records import RunRecord

EVERY = 10
"""Ended attempts that a host keeps: `ATTEMPTS_KEPT` of `tpuctl/agent/prepare.py`."""


class HostPart(Struct, frozen=True):
    """`folder` is below the attempt, `what` says what is in it and `opens` how that is read; files that end
    with `code` are ours. `kept` ended attempts of a host keep it; `asked` says of a run whether it has any, and
    `missed` that it is told where there is none. Of files that others leave there, too, the `newest` come that
    changed since the run began; 0: all."""

    name: str
    folder: str
    what: str
    opens: str
    asked: Callable[[RunRecord], bool]
    kept: int = EVERY
    code: tuple[str, ...] = ()
    missed: bool = False
    newest: int = 0


def _has_own_driver_logs(run: RunRecord) -> bool:
    """A run that shares its host, and one that is looked into, does not write among the logs of others; what a
    container writes elsewhere goes with it."""
    return bool(run.chips or run.spec.debug or run.spec.container)


HOOK = HostPart(
    "hook",
    "join",
    "what the start hook of Python wrote down",
    "JSON, a file for each process",
    lambda _run: True,
    code=(".py", ".pyc"),
)
DUMPS = HostPart(
    "dumps",
    "dumps",
    "what --debug dumped, a folder for each process",
    "hlo/*after_optimizations.txt is what runs, *memory-usage-report.txt what it takes; ir/*.mlir is StableHLO",
    lambda run: bool(run.spec.debug),
    kept=2,
    missed=True,
)
TRACES = HostPart(
    "traces",
    "traces",
    "traces that nobody fetched",
    "`xprof` or TensorBoard, after `tpuctl trace` brought one whole",
    lambda _run: True,
    kept=1,
)
DRIVER_LOGS = HostPart(
    "driver-logs",
    "driver-logs",
    "what libtpu logged",
    "text; the last lines say why it ended",
    _has_own_driver_logs,
    newest=40,
)
HOST_PARTS = (HOOK, DRIVER_LOGS, TRACES, DUMPS)


def large_parts() -> Mapping[str, int]:
    """{folder: how many ended attempts keep it}, for those that go before their attempt does."""
    return {part.folder: part.kept for part in HOST_PARTS if part.kept < EVERY}
