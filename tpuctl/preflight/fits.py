"""Does a step fit a slice? Compiles it for the slice's topology, by the real compiler, on this machine.

The compiler says how much memory a device needs at most, or that it has not so much; its text says what the
devices send each other. What no compiler says here is how fast chips are: time and cost follow from the number
of operations, the peak of the chips, and the share of it that programs are assumed to reach.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from tpuctl.errors import UsageError
from tpuctl.model.accelerators import Catalog
from tpuctl.preflight.bounded import ask_program, last_words
from tpuctl.preflight.buffers import Buffer, largest_buffers, padding
from tpuctl.preflight.hlo import Collective, count_collectives, parse_module
from tpuctl.preflight.local_env import LocalPython
from tpuctl.preflight.topologies import Topology

COMPILE_S = 300.0
"""For one topology; a step of 6 billion parameters takes 15 s of a processor (measured on 2 cores)."""
_TOO_MUCH = re.compile(r"\(([\d.]+[KMGT]?)\) exceeds available HBM \(([\d.]+[KMGT]?)\)")
_UNIT = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class StepFunction(Struct, frozen=True):
    """What the user named: `FILE:FUNCTION`."""

    file: Path
    function: str

    def __str__(self) -> str:
        return f"{self.file.name}:{self.function}"


class Fit(Struct, frozen=True):
    """What came of one topology. `fits` is None where that is not known: `problem` says why.

    Bytes are of one device; `flops` of all devices in one step; `cpu_s` and `rss_bytes` of the process that
    compiled.
    """

    type: str
    devices: int
    chips: int
    hbm_bytes: int
    fits: bool | None
    problem: str = ""
    line: int = 0
    peak_bytes: int | None = None
    argument_bytes: int | None = None
    flops: int | None = None
    not_counted: Sequence[str] = ()
    collectives: Sequence[Collective] = ()
    buffers: Sequence[Buffer] = ()
    warnings: Sequence[str] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    cpu_s: float | None = None
    rss_bytes: int | None = None


class Cost(Struct, frozen=True):
    """What a step takes at an assumed utilisation, and USD for 1,000 of them by list prices of the cheapest
    region; None where there is no figure."""

    step_s: float | None
    spot: float | None
    on_demand: float | None


def parse_step(words: str) -> StepFunction:
    """`FILE` or `FILE:FUNCTION`, which is `step` where it is not named. Raises UsageError."""
    path, colon, function = words.rpartition(":")
    if not colon:
        path, function = words, "step"
    if not function.isidentifier():
        raise UsageError(
            f"{words}: {function!r} is no name of a function", hint="tpuctl fits FILE:FUNCTION --for v6e-8"
        )
    file = Path(path).absolute()
    if not file.is_file():
        raise UsageError(f"{path}: there is no such file", hint=f"tpuctl fits --new {path} writes one")
    return StepFunction(file, function)


def compile_for(
    step: StepFunction,
    topology: Topology,
    mesh: Mapping[str, int],
    interpreter: LocalPython,
    variables: Mapping[str, str],
    timeout_s: float = COMPILE_S,
) -> Fit:
    """Compiles the step for one topology in a process of its own, and reads what came of it."""
    with tempfile.TemporaryDirectory(prefix="tpuctl-fits-") as name:
        folder = Path(name)
        (folder / "dump").mkdir()
        request = {
            "file": str(step.file),
            "function": step.function,
            "topology": dict(topology.arguments),
            "mesh": list(mesh.items()),
            "dump": str(folder / "dump"),
            "hlo": str(folder / "program.hlo"),
        }
        status, result = ask_program(folder, "fits_compile.py", request, interpreter, variables, timeout_s)
        if status is None:
            result["error"] = {"kind": "timeout", "text": _late(result.get("stage"), timeout_s)}
        elif result.get("stage") != "done" and "error" not in result:
            said = last_words(folder / "log")[-600:]
            result["error"] = {"kind": "ended", "text": f"the process ended with status {status}: {said}"}
        return judge(step, topology, result, folder)


def _late(stage: str | None, timeout_s: float) -> str:
    doing = {"import": "importing the file", "build": "calling the function", "compile": "compiling"}
    return f"{doing.get(stage or 'import', stage)} took longer than {timeout_s:.0f} s"


def judge(step: StepFunction, topology: Topology, result: Mapping[str, Any], folder: Path) -> Fit:
    """What the compiling process wrote, as a verdict. Reads its files in `folder`."""
    hbm, error = topology.hbm_bytes, result.get("error")
    fit = Fit(
        topology.name,
        topology.devices,
        topology.accelerator.chips,
        hbm,
        None,
        argument_bytes=sum(row["bytes"] for row in result["arguments"]) if "arguments" in result else None,
        flops=result.get("flops", {}).get("total"),
        not_counted=result.get("flops", {}).get("not_counted", ()),
        seconds={name: round(value, 2) for name, value in result.get("seconds", {}).items()},
        cpu_s=result.get("cpu_s"),
        rss_bytes=result.get("rss_bytes"),
    )
    if error is not None:
        return _failed(fit, error)
    memory = result["memory"]
    module = parse_module((folder / "program.hlo").read_text(encoding="utf-8"))
    collectives, loops = count_collectives(module)
    dumped = sorted((folder / "dump").glob("*after_optimizations-buffer-assignment.txt"))
    buffers = largest_buffers(dumped[-1].read_text(encoding="utf-8"), module, str(step.file)) if dumped else []
    unknown = [*fit.not_counted, *(["a loop with collectives"] if loops else [])]
    return replace(
        fit,
        fits=memory["peak_memory"] <= hbm,
        peak_bytes=memory["peak_memory"],
        collectives=collectives,
        buffers=[each for each in buffers if each.bytes >= 1 << 20],
        not_counted=unknown,
        warnings=_warnings(memory, buffers, hbm),
    )


def _failed(fit: Fit, error: Mapping[str, Any]) -> Fit:
    text, line = str(error["text"]).strip(), int(error.get("line") or 0)
    too_much = _TOO_MUCH.search(text)
    if "RESOURCE_EXHAUSTED" in text and too_much:
        needed, there = (_bytes(word) for word in too_much.groups())
        said = f"needs {gib(needed)} GiB for temporaries alone, of {gib(there)}"
        return replace(fit, fits=False, problem=said, hbm_bytes=there, line=line)
    first = text.splitlines()[0] if text else "no reason given"
    said = first if error["kind"] in ("told", "timeout", "ended") else f"{error['kind']}: {first}"
    return replace(fit, problem=said[:400], line=line)


def _warnings(memory: Mapping[str, Any], buffers: Sequence[Buffer], hbm: int) -> list[str]:
    found = []
    state = min(memory["argument_size"], memory["output_size"])
    if not memory["alias_size"] and state >= 0.02 * hbm:
        found.append(
            f"nothing is donated: {gib(state)} GiB of old and new state are in memory together "
            "(donate_argnums of jax.jit)"
        )
    found += [
        f"{each.shape} takes {gib(each.bytes)} GiB for {gib(each.needed)}: tiles of 8 x 128 are filled up "
        f"({each.source or each.what})"
        for each in padding(buffers, hbm)
    ]
    return found


def cost_of(fit: Fit, catalog: Catalog, mfu: float) -> Cost:
    """Time of a step where chips reach `mfu` of their peak and wait for nothing, and what 1,000 of them
    cost."""
    generation = catalog.generations[catalog.types[fit.type].generation]
    if not fit.flops or not generation.tflops:
        return Cost(None, None, None)
    step_s = fit.flops / (fit.chips * generation.tflops * 1e12 * mfu)

    def thousand(tier: str) -> float | None:
        prices = (row.get(tier) for row in generation.prices.values())
        known = [price for price in prices if price is not None]
        return min(known) * fit.chips * step_s * 1000 / 3600 if known else None

    return Cost(step_s, thousand("spot"), thousand("on_demand"))


def gib(size: int) -> str:
    """For people: `12.3`."""
    return f"{size / (1 << 30):.2f}" if size < 10 << 30 else f"{size / (1 << 30):.1f}"


def _bytes(word: str) -> int:
    unit = word[-1] if word[-1] in _UNIT else ""
    return int(float(word.removesuffix(unit)) * _UNIT[unit])
