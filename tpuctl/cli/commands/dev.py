"""`tpuctl dev`: a slice to develop on, with this directory, a program and ports, until Ctrl-C."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

from msgspec.structs import replace

from tpuctl.cli.completion import slice_names
from tpuctl.cli.context import AppContext
from tpuctl.cli.options import DryRun, Timeout
from tpuctl.errors import UsageError
from tpuctl.lib.options import Flag, Option, argument
from tpuctl.lib.text import counted
from tpuctl.model.slice_spec import SliceRequest


def dev(
    context: AppContext,
    accelerator: Annotated[
        str | None,
        argument(
            "[ACCELERATOR]",
            "Accelerator type, such as v4-8; not needed where the slice is there.",
            complete=slice_names,
        ),
    ] = None,
    name: Annotated[str | None, argument("[NAME]", "Name; dev-USER if left out.")] = None,
    sync: Annotated[Path | None, Option("Keep this directory the same on every worker.", metavar="DIR")] = None,
    command: Annotated[
        str | None,
        Option("With --sync: run this in it, again after each change.", flags=(Flag("--exec"),), metavar="CMD"),
    ] = None,
    forward: Annotated[
        list[str] | None, Option("Forward PORT, or LOCAL:REMOTE; repeatable.", short="-L", metavar="PORT")
    ] = None,
    request: SliceRequest = SliceRequest(),
    timeout: Timeout = None,
    dry_run: DryRun = False,
) -> None:
    """Bring a slice up to develop on, and stay with it.

    It ends with Ctrl-C, which leaves the slice up. That is named after you, so the same command finds it again.
    With --sync, what changes in the directory is sent to every worker; what counts is chosen as for the code of
    a run. What somebody changes on workers is kept, and told. With --stop-when-idle the slice goes when nobody
    uses it.
    """
    from tpuctl.cli.slice_status import print_preview
    from tpuctl.model.shipped_files import load_accelerators
    from tpuctl.slices.bring_up import bring_up, preview_slice, request_wanted, resolve_wanted
    from tpuctl.slices.choose import own_dev_slice
    from tpuctl.workers.forward import parse_ports

    ports = [parse_ports(word) for word in forward or []]
    since = context.store.now()
    directory = _directory(context, sync, command)
    kind, own = own_dev_slice(context, load_accelerators(), accelerator, name)
    request = replace(request.of(kind), env=request.env or context.config.env)
    wanted = resolve_wanted(context, context.config, request, own, Path.cwd())
    context.require_credentials()
    if dry_run:
        print_preview(context, wanted, preview_slice(context, wanted))
        return
    request_wanted(context, wanted)
    with context.interruptible(
        f"slice {wanted.name} stays and may cost money: `tpuctl down {wanted.name}` ends it; "
        f"`tpuctl dev {wanted.name}` comes back"
    ):
        bring_up(context, wanted, since=since, wait=True, deadline=context.deadline(timeout))
        _stay(context, wanted.name, ports, directory, command)


def _directory(context: AppContext, sync: Path | None, command: str | None) -> Path | None:
    """What is to be sent. Raises UsageError where it cannot be, before anything costs money."""
    from tpuctl.transfer.bundle import freeze_directory, list_directory
    from tpuctl.transfer.own_output import describe_own_output

    if sync is None:
        if command is not None:
            raise UsageError("--exec needs --sync: it runs in that directory", hint="add --sync .")
        return None
    directory = sync.resolve()
    if not directory.is_dir():
        why = "is not a directory" if directory.exists() else "does not exist"
        raise UsageError(f"--sync {sync} {why}", hint="--sync . is the directory you are in")
    if command is not None and not command.strip():
        raise UsageError("--exec: the command is empty", hint="--exec 'python train.py'")
    freeze_directory(directory, limit_bytes=context.config.bundle_limit_mib << 20)
    if own := list_directory(directory)[1]:
        context.console.say(describe_own_output(own))
    return directory


def _stay(
    context: AppContext, name: str, ports: list[tuple[int, int]], directory: Path | None, command: str | None
) -> None:
    """Everything that lasts until Ctrl-C, or until the slice goes."""
    from tpuctl.slices.reconcile import wait_until_gone
    from tpuctl.watch.attendance import Attendance
    from tpuctl.workers.dev import DevLoop
    from tpuctl.workers.forward import forward_port

    with ExitStack() as stack:
        _write_ssh_entries(context, name)
        for local, remote in ports:
            forwarding = forward_port(context, name, 0, remote, local_port=local)
            stack.callback(forwarding.close)
            context.console.say(f"http://localhost:{forwarding.local_port} leads to port {remote} of {name}-0")
        _say_what_ends_it(context, name)
        limit = context.config.bundle_limit_mib << 20
        DevLoop(context, name, Attendance(context, name).is_over, directory, command, limit_bytes=limit).run()
    wait_until_gone(context, name)
    context.console.say(f"{name} is gone; `tpuctl why {name}` shows why")


def _write_ssh_entries(context: AppContext, name: str) -> None:
    """Entries that follow the slice; how they are used is said until they are."""
    from tpuctl.hosts.targets import host_targets
    from tpuctl.lib.input_files import read_text
    from tpuctl.state.repository import get_slice

    targets = host_targets(context, get_slice(context, name).record)
    context.ssh_entries.write(name, targets)
    context.console.say(f"{name} is ready: {counted(len(targets), 'worker')}, ssh {targets[0].label}")
    include = context.ssh_entries.include
    try:
        used = include in read_text(Path.home() / ".ssh" / "config").splitlines()
    except OSError:
        used = False
    if not used:
        context.console.say(f"for that, put this line at the top of ~/.ssh/config, once: {include}")


def _say_what_ends_it(context: AppContext, name: str) -> None:
    from tpuctl.state.repository import get_slice
    from tpuctl.watch.cycle import why_unwatched

    lifetime = get_slice(context, name).record.lifetime
    unwatched = why_unwatched(context) if lifetime is not None else None
    if unwatched is not None:
        why, hint = unwatched
        context.console.alarm(f"{name} ends by itself only while this command runs: {why}", hint)
    limit = "" if lifetime is not None else ", as does --stop-when-idle 30m once it is unused"
    context.console.say(f"Ctrl-C leaves it up; `tpuctl down {name}` ends it{limit}")
