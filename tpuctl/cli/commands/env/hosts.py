"""`env apply`, `env plan`, `env verify` and `env gc`: what of environments is on hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from tpuctl.cli.console import Column
from tpuctl.cli.context import AppContext
from tpuctl.cli.options import DryRun, OnSlice, Timeout
from tpuctl.lib.options import argument

if TYPE_CHECKING:
    from tpuctl.envs.pinned import PinnedEnvironment
    from tpuctl.model.records import SliceRecord

Name = Annotated[str, argument("NAME", "The environment.")]


def _pinned(context: AppContext, name: str) -> PinnedEnvironment:
    from tpuctl.envs.load import environment_folder, pin, read_environment

    return pin(read_environment(name, environment_folder()), context.config.wheelhouse)


def _check_use(context: AppContext, found: PinnedEnvironment, record: SliceRecord) -> None:
    from tpuctl.envs.load import check_use

    notice = check_use(found.spec, record.spec.accelerator_type)
    if notice is not None:
        context.console.caveat(notice)


def apply(context: AppContext, name: Name, on: OnSlice = None, timeout: Timeout = None) -> None:
    """Install an environment on all hosts of a slice, and verify it.

    Packages come from the setting `wheelhouse` (a gs:// prefix), which this command fills; without it, one host
    gets them from here and the others copy them from each other. No host asks a package index.
    """
    from tpuctl.envs.install import apply_environment
    from tpuctl.envs.wheelhouse import fill_wheelhouse
    from tpuctl.slices.choose import resolve_slice

    pinned = _pinned(context, name)
    record = resolve_slice(context, on, flag="--on")
    _check_use(context, pinned, record)
    fill_wheelhouse(context, pinned)
    deadline = context.deadline(timeout)
    rows = apply_environment(context, record, pinned, deadline=deadline)
    context.emit.close()
    if context.console.json_mode:
        context.console.data([dict(row) for row in rows])


def plan(context: AppContext, name: Name, on: OnSlice = None) -> None:
    """Show what `apply` would do on each host, and why."""
    from tpuctl.envs.install import plan_environment
    from tpuctl.envs.wheelhouse import check_flags_of
    from tpuctl.slices.choose import resolve_slice

    pinned = _pinned(context, name)
    record = resolve_slice(context, on, flag="--on")
    _check_use(context, pinned, record)
    check_flags_of(context, pinned)
    rows = plan_environment(context, record, pinned)
    columns = (Column("workers", "WORKERS"), Column("does", "DOES", give=1), Column("why", "WHY", give=1))
    context.console.table(rows, columns)


def verify(context: AppContext, name: Name, on: OnSlice = None) -> None:
    """Show how hosts differ from the environment.

    Also compares the hosts with each other, with one request per host. Each difference comes with the command
    that fixes it.
    """
    from tpuctl.envs.verify import drift_error, verify_environment
    from tpuctl.lib.text import counted
    from tpuctl.slices.choose import resolve_slice

    pinned = _pinned(context, name)
    record = resolve_slice(context, on, flag="--on")
    _check_use(context, pinned, record)
    hosts, differences = verify_environment(context, record, pinned)
    if context.console.json_mode and not differences:
        context.console.data({"hosts": hosts, "differences": []})
    if differences:
        raise drift_error(record.name, differences)
    said = f"is as {name} says" if hosts == 1 else f"are as {name} says, and alike"
    context.console.say(f"{counted(hosts, 'host')} of {record.name} {said}")


def gc(context: AppContext, on: OnSlice = None, dry_run: DryRun = False) -> None:
    """Remove environments that hosts no longer need.

    What the slice has or a run needs stays, and so do the two that were used last, to go back to. Compile
    caches on the disks of hosts go with their environments.
    """
    from tpuctl.envs.gc import remove_old
    from tpuctl.slices.choose import resolve_slice

    removed = remove_old(context, resolve_slice(context, on, flag="--on"), dry_run=dry_run)
    for line in removed or ["nothing to remove"]:
        context.console.say(line)
