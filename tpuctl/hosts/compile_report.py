"""What hosts tell of the programs that a run compiles in its processes."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class Recompiles(Struct, frozen=True):
    """Programs of a function that were compiled after the first step, `step`, though it had been compiled
    before. `shapes` are of those arguments in which its programs differ."""

    times: int = 0
    seconds: float = 0.0
    step: float | None = None
    shapes: tuple[str, ...] = ()


class CompiledFunction(Struct, frozen=True):
    """What one process compiled of a function; times by its host's clock. `place` is file and line, empty where
    that is not known; the shapes of `more` programs were not kept."""

    name: str
    place: str = ""
    times: int = 0
    seconds: float = 0.0
    first_at: float = 0.0
    last_at: float = 0.0
    shapes: tuple[str, ...] = ()
    more: int = 0
    again: Recompiles = Recompiles()


class Compiling(Struct, frozen=True):
    """What a process compiles just now, since a time by its host's clock."""

    name: str
    since: float


class CompileReport(Struct, frozen=True):
    """What one process of an attempt compiled. Of `asked` programs `loaded` were in the compile cache; single
    `operations` of JAX are counted, not named, as are the `left_out` of too many functions."""

    pid: int
    process: int | None = None
    """Which of several processes of its worker it is, or descends from."""
    asked: int = 0
    loaded: int = 0
    operations: int = 0
    operations_s: float = 0.0
    left_out: int = 0
    on_cpu: Mapping[str, int] = {}
    """Operations of PyTorch/XLA that it has no compiled form of, with how often they ran on the CPU."""
    functions: tuple[CompiledFunction, ...] = ()
    now: Compiling | None = None
