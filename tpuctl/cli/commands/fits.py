"""`tpuctl fits`: which slices a training step fits, by the real compiler and without a TPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tpuctl.cli.console import Column
from tpuctl.cli.context import AppContext
from tpuctl.cli.options import Timeout
from tpuctl.model.requests import FitsRequest

if TYPE_CHECKING:
    from tpuctl.preflight.fits import Cost, Fit

COLUMNS = (
    Column("type", "TYPE"),
    Column("fits", "FITS"),
    Column("hbm", "HBM PEAK", right=True),
    Column("tflop", "TFLOP", right=True),
    Column("sent", "SENT", right=True),
    Column("step_s", "STEP S", right=True),
    Column("dollars", "$/1000 STEPS", right=True),
    Column("problem", "PROBLEM", give=1),
)
SHOWN_BUFFERS = 4
LIBRARIES = ("optax", "nnx", "maxtext")
"""Of which a template shows how their state is given as shapes with shardings."""


def fits(context: AppContext, request: FitsRequest, timeout: Timeout = None) -> None:
    """Compile a training step for slices, and say which it fits.

    The function returns three things: the step, its arguments as shapes, and how they are sharded. The real
    compiler of the environment's libtpu compiles it for each type, on this machine, and no TPU is asked for.

    HBM PEAK is of one device. TFLOP are the matrix products of one step over all devices, SENT what one device
    receives in collectives. Time and cost assume --mfu of the chips' peak, and spot prices of the cheapest
    region. Status 1 where a type does not fit.
    """
    if request.new is not None:
        _write_new(context, request.new, request.library)
        return
    rows = _compile(context, request, timeout)
    if context.console.json_mode:
        context.console.data([_data(fit, cost) for fit, cost in rows])
    else:
        context.console.table([_row(fit, cost) for fit, cost in rows], COLUMNS)
        _print_details(context, [fit for fit, _ in rows])
    if not all(fit.fits for fit, _ in rows):
        raise typer.Exit(1)


def _compile(context: AppContext, request: FitsRequest, timeout: float | None) -> list[tuple[Fit, Cost]]:
    """Of each type, what the compiler says. Raises UsageError."""
    from tpuctl.cli.preflight import find_interpreter, parse_variables
    from tpuctl.errors import UsageError
    from tpuctl.model.shipped_files import load_accelerators
    from tpuctl.preflight.fits import COMPILE_S, compile_for, cost_of, parse_step
    from tpuctl.preflight.topologies import find_topology, mesh_for, parse_mesh

    if request.library is not None:
        raise UsageError("--library goes with --new", hint="tpuctl fits --new step.py --library nnx")
    if request.step is None or request.types is None:
        raise UsageError("name the function and the types", hint="tpuctl fits FILE:FUNCTION --for v5e-8,v6e-8")
    catalog, found = load_accelerators(), parse_step(request.step)
    axes = parse_mesh(request.mesh) if request.mesh is not None else {}
    topologies = [find_topology(catalog, word.strip()) for word in request.types.split(",")]
    meshes = [mesh_for(axes, each) for each in topologies]
    given = parse_variables(request.var)
    interpreter = find_interpreter(context, request.env, request.python, jax=True)
    rows = []
    for topology, shape in zip(topologies, meshes, strict=True):
        context.console.say(f"compiling {found} for {topology.name}")
        fit = compile_for(found, topology, shape, interpreter, given, timeout or COMPILE_S)
        rows.append((fit, cost_of(fit, catalog, request.mfu)))
    return rows


def _write_new(context: AppContext, path: Path, library: str | None) -> None:
    from tpuctl.errors import UsageError
    from tpuctl.lib.output_files import check_output, write_output_text
    from tpuctl.model.shipped_files import read_template

    if library not in (None, *LIBRARIES):
        raise UsageError(f"--library {library}: there is no file for it", hint=", ".join(LIBRARIES))
    target = check_output(path, "--new", kind="step", overwrite=None)
    text = read_template(f"fits_{library or 'step'}.py").decode()
    write_output_text(target, "--new", text, fresh=True)
    context.console.say(f"wrote {target}; `tpuctl fits {target} --for v6e-8` compiles it")


def _row(fit: Fit, cost: Cost) -> dict[str, Any]:
    from tpuctl.preflight.fits import gib

    of = gib(fit.hbm_bytes)
    sent = sum(each.bytes for each in fit.collectives)
    where = f"line {fit.line}: " if fit.line else ""
    return {
        "type": fit.type,
        "fits": {True: "yes", False: "no", None: "not compiled"}[fit.fits],
        "hbm": f"{gib(fit.peak_bytes)} of {of} GiB" if fit.peak_bytes is not None else f"of {of} GiB",
        "tflop": f"{fit.flops / 1e12:.3g}" if fit.flops else "",
        "sent": f"{gib(sent)} GiB" if fit.fits else "",
        "step_s": f"{cost.step_s:.3g}" if cost.step_s is not None and fit.fits else "",
        "dollars": f"{cost.spot:.3g}" if cost.spot is not None and fit.fits else "",
        "problem": f"{where}{fit.problem}" if fit.problem else "",
    }


def _print_details(context: AppContext, rows: list[Fit]) -> None:
    from tpuctl.preflight.fits import gib

    for fit in rows:
        if fit.buffers:
            context.console.line(f"{fit.type}: the largest buffers of a device")
        for each in fit.buffers[:SHOWN_BUFFERS]:
            kind = "argument " if each.argument else ""
            context.console.line(f"  {gib(each.bytes):>6} GiB  {each.shape}  {kind}{each.source or each.what}")
        for sent in fit.collectives:
            context.console.line(f"  {gib(sent.bytes):>6} GiB  in {sent.count} x {sent.kind}")
        for warning in fit.warnings:
            context.console.caveat(f"{fit.type}: {warning}")
        if fit.not_counted:
            context.console.caveat(f"{fit.type}: counted once, trips unknown: {', '.join(fit.not_counted)}")


def _data(fit: Fit, cost: Cost) -> dict[str, Any]:
    from tpuctl.lib.codec import to_data

    return {**to_data(fit), "cost": to_data(cost)}
