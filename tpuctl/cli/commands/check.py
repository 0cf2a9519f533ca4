"""`tpuctl check weights`: whether parameters are what an initialiser makes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tpuctl.cli.console import Column
from tpuctl.cli.context import AppContext
from tpuctl.cli.options import Timeout
from tpuctl.lib.options import Option, argument

COLUMNS = (Column("level", "LEVEL"), Column("leaf", "LEAF", give=2), Column("what", "WHAT", give=1))

NO_NUMBERS = {"nan": 0, "inf": 0, "zeros": 0, "mean": 0.0, "std": None, "equal": False, "slices": ()}
"""Of a leaf that holds whole numbers, and is no stack of layers."""


def weights(
    context: AppContext,
    target: Annotated[str, argument("FILE:FUNCTION|CHECKPOINT", "What makes parameters, or where they are.")],
    init: Annotated[
        str | None, Option("What drew every matrix: lecun, he, glorot, torch, 0.02.", metavar="NAME")
    ] = None,
    env: Annotated[str | None, Option("The environment; else that of the settings.", metavar="NAME")] = None,
    python: Annotated[
        Path | None, Option("An interpreter in place of the environment.", metavar="FILE")
    ] = None,
    var: Annotated[list[str] | None, Option("A variable of the program; repeatable.", metavar="K=V")] = None,
    strict: Annotated[bool, Option("Warnings are errors.")] = False,
    timeout: Timeout = None,
) -> None:
    """Check weights for NaN, dead or doubled layers, wrong scales.

    A function returns parameters as it initialises them: a small configuration will do. A checkpoint is a file
    or folder of safetensors, a file of PyTorch, or a folder of Orbax, read by its own library in the
    environment. Fresh parameters are judged by what initialisers give, trained ones by the other layers; a
    checkpoint is fresh where most of its matrices look so.

    Status 1 where there are errors.
    """
    from tpuctl.cli.preflight import find_interpreter, parse_variables
    from tpuctl.lib.codec import to_data
    from tpuctl.preflight.check_weights import READ_S, check_initialiser, check_weights, parse_target

    path, function = parse_target(target)
    expected = check_initialiser(init) if init is not None else None
    given = parse_variables(var or [])
    interpreter = find_interpreter(context, env, python)
    found = check_weights(path, function, expected, interpreter, given, timeout or READ_S)
    if context.console.json_mode:
        context.console.data(
            {"leaves": [{**NO_NUMBERS, **row} for row in found.rows], "findings": to_data(found.findings)}
        )
    else:
        sizes = sum(row["size"] for row in found.rows)
        context.console.table(
            [to_data(each) for each in found.findings],
            COLUMNS,
            empty=f"{len(found.rows)} leaves with {sizes:,} parameters: nothing found",
        )
    if any(strict or each.level == "error" for each in found.findings):
        raise typer.Exit(1)
