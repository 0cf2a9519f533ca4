"""`tpuctl mount`: buckets as folders on every worker, the same everywhere."""

from __future__ import annotations

from tpuctl.cli.context import AppContext
from tpuctl.cli.options import DryRun, MountPoint
from tpuctl.model.requests import ToSlice
from tpuctl.mounts.spec import MountRequest


def add(context: AppContext, request: MountRequest, dry_run: DryRun = False) -> None:
    """Mount a bucket on every host, or mount it otherwise.

    Options may also stand behind the profile, as in --mount of up: gs://b:/mnt/b:train,ttl=0,read-only
    """
    from tpuctl.mounts.use import add_mount
    from tpuctl.slices.choose import resolve_slice

    with context.interruptible(
        "the same command again goes on with it; `tpuctl mount rm` of its path takes it away"
    ):
        target = resolve_slice(context, request.on, flag="--on")
        found = add_mount(context, target, request, program=context.config.gcsfuse, dry_run=dry_run)
        said = found.pop("said")
        if context.console.json_mode:
            context.console.data(found)
            return
        ttl_s = found["ttl_s"]
        context.console.say(said)
        context.console.say(f"ttl {'for ever' if ttl_s < 0 else f'{ttl_s} s'}. {found['sees']}")


def rm(context: AppContext, path: MountPoint, on: ToSlice = None, dry_run: DryRun = False) -> None:
    """Unmount a bucket on every host of its slice; its files stay."""
    from tpuctl.mounts.use import remove_mount
    from tpuctl.slices.choose import resolve_slice

    record = resolve_slice(context, on, flag="--on")
    with context.interruptible("the same command again goes on with it"):
        found = remove_mount(context, record, path, dry_run=dry_run)
        said = found.pop("said")
        context.console.answer(found, said)
