"""`mount add` and `mount rm`."""

from __future__ import annotations

from typing import Annotated

import typer

from tpuctl.cli.commands.mount.shared import At, On
from tpuctl.cli.context import AppContext
from tpuctl.cli.options import DryRun
from tpuctl.lib.options import Option
from tpuctl.mounts.spec import MountOptions, parse_options


def add(
    context: AppContext,
    what: Annotated[
        str,
        typer.Argument(
            metavar="gs://BUCKET[/DIR]:/PATH[:PROFILE]",
            help="The bucket or a folder of it, where, and how: checkpoint, train (the default), dataset or"
            " shared-code.",
        ),
    ],
    on: On = None,
    how: MountOptions = MountOptions(),
    create: Annotated[bool, Option("Make the bucket first, in the region of the slice.")] = False,
    flat: Annotated[
        bool, Option("With --create: without the hierarchical namespace of profile checkpoint.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Mount a bucket on every host, or mount it otherwise.

    Options may also stand behind the profile, as in --mount of up: gs://b:/mnt/b:train,ttl=0,read-only
    """
    from tpuctl.mounts.use import add_mount
    from tpuctl.slices.choose import resolve_slice

    with context.interruptible(
        "the same command again goes on with it; `tpuctl mount rm` of its path takes it away"
    ):
        found = add_mount(
            context,
            resolve_slice(context, on, flag="--on"),
            what,
            options=parse_options(how),
            program=context.config.gcsfuse,
            dry_run=dry_run,
            create=create,
            flat=flat,
        )
        said = found.pop("said")
        if context.console.json_mode:
            context.console.data(found)
            return
        ttl_s = found["ttl_s"]
        context.console.say(said)
        context.console.say(f"ttl {'for ever' if ttl_s < 0 else f'{ttl_s} s'}. {found['sees']}")


def rm(context: AppContext, path: At, on: On = None, dry_run: DryRun = False) -> None:
    """Unmount a bucket on every host of its slice; its files stay."""
    from tpuctl.mounts.use import remove_mount
    from tpuctl.slices.choose import resolve_slice

    record = resolve_slice(context, on, flag="--on")
    with context.interruptible("the same command again goes on with it"):
        found = remove_mount(context, record, path, dry_run=dry_run)
        said = found.pop("said")
        context.console.answer(found, said)
