"""`env`: environment files, and what of them is on hosts."""

from __future__ import annotations

from typing import Annotated, Any

from tpuctl.cli.console import Column, Console
from tpuctl.cli.context import AppContext
from tpuctl.errors import TpuctlError, UsageError
from tpuctl.lib.options import Option, argument

LISTED = (
    Column("name", "NAME"),
    Column("backend", "BACKEND"),
    Column("python", "PYTHON"),
    Column("packages", "PACKAGES", give=2, most=1),
    Column("lock", "LOCK"),
    Column("preset", "PRESET", give=3, most=1, drop=2),
    Column("origin", "FILE", drop=1),
)


def ls(console: Console) -> None:
    """List environments: the project's and tpuctl's."""
    from tpuctl.envs.load import environment_folder, environment_names, read_environment

    folder = environment_folder()
    rows = []
    for name in environment_names(folder):
        try:
            rows.append(_row(read_environment(name, folder)))
        except TpuctlError as error:
            rows.append({"name": name, "origin": f"envs/{name}.yaml", "lock": "bad file"})
            console.warn(error.message)
    console.table(rows, LISTED)


def _row(found: Any) -> dict[str, Any]:
    from tpuctl.envs.presets import describe_preset

    spec = found.spec
    lock = "none" if not found.lock else "old" if found.stale else "yes"
    return {
        "name": spec.name,
        "backend": str(spec.backend),
        "python": list(spec.python),
        "packages": list(spec.requirements),
        "preset": describe_preset(spec),
        "generations": list(spec.generations),
        "lock": lock,
        "verified": spec.verified,
        "origin": found.origin,
        "description": spec.description,
    }


def diff(
    context: AppContext,
    console: Console,
    names: Annotated[list[str] | None, argument("[NAME]...", "One or two environments.")] = None,
    on: Annotated[
        list[str] | None, Option("What the hosts of a slice have; repeatable.", metavar="SLICE")
    ] = None,
) -> None:
    """Show how two environments differ.

    Two files, a file and what the hosts of a slice have (`NAME --on SLICE`), or the hosts of two slices
    (`--on SLICE --on SLICE`). Where hosts of one slice differ, their workers are named.
    """
    from tpuctl.envs.compare import difference_rows, differences, installed_properties
    from tpuctl.envs.load import environment_folder, read_environment

    files, slices = names or [], on or []
    if len(files) + len(slices) != 2:
        raise UsageError("two things are compared", hint="tpuctl env diff NAME NAME, or NAME --on SLICE")
    folder = environment_folder()
    found = [read_environment(name, folder) for name in files]
    if slices:
        from tpuctl.envs.verify import properties_of_slice
        from tpuctl.state.repository import get_slice

        wanted = found[0] if found else None
        sides = [installed_properties(wanted)] if wanted is not None else []
        sides += [
            dict(properties_of_slice(context, get_slice(context, name).record, wanted)) for name in slices
        ]
        rows, empty = difference_rows(*sides), "hosts have the same"
    else:
        rows, empty = differences(*found), "they install, set and verify the same"
    first, second = (*files, *slices)
    columns = (Column("item", "WHAT"), Column("first", first, give=1), Column("second", second, give=1))
    console.table(rows, columns, empty=empty)
