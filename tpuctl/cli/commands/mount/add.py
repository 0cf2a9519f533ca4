"""`mount add` and `mount rm`."""

from __future__ import annotations

from typing import Annotated

import typer

from tpuctl.cli.commands.mount.shared import At, On
from tpuctl.cli.context import open_context
from tpuctl.cli.options import DryRun, Json, Quiet


def add(
    ctx: typer.Context,
    what: Annotated[
        str,
        typer.Argument(
            metavar="gs://BUCKET[/DIR]:/PATH[:PROFILE]",
            help="The bucket or a folder of it, where, and how: checkpoint, train (the default), dataset or"
            " shared-code.",
        ),
    ],
    on: On = None,
    ttl: Annotated[
        str | None,
        typer.Option(
            "--ttl",
            metavar="0|SECONDS|forever",
            help="How long hosts believe what they saw; as the profile says.",
        ),
    ] = None,
    opt: Annotated[
        list[str] | None,
        typer.Option("--opt", metavar="KEY=VALUE", help="Option of gcsfuse's configuration file; repeatable."),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Let nobody write.")] = False,
    uid: Annotated[
        int | None, typer.Option("--uid", metavar="ID", min=0, help="Owner of the files; the login user.")
    ] = None,
    gid: Annotated[int | None, typer.Option("--gid", metavar="ID", min=0, help="Group of the files.")] = None,
    file_mode: Annotated[
        str | None, typer.Option("--file-mode", metavar="OCTAL", help="Mode of files.")
    ] = None,
    dir_mode: Annotated[
        str | None, typer.Option("--dir-mode", metavar="OCTAL", help="Mode of folders.")
    ] = None,
    implicit_dirs: Annotated[
        bool | None,
        typer.Option("--implicit-dirs/--no-implicit-dirs", help="Show folders that no object stands for."),
    ] = None,
    cache_dir: Annotated[
        str | None, typer.Option("--cache-dir", metavar="DIR", help="Folder of the hosts for a file cache.")
    ] = None,
    cache_size: Annotated[
        int | None, typer.Option("--cache-size", metavar="GIB", min=1, help="What the file cache may grow to.")
    ] = None,
    cross_region: Annotated[
        bool, typer.Option("--cross-region", help="Mount a bucket of another region, and pay for its traffic.")
    ] = False,
    create: Annotated[
        bool, typer.Option("--create", help="Make the bucket first, in the region of the slice.")
    ] = False,
    flat: Annotated[
        bool,
        typer.Option("--flat", help="With --create: without the hierarchical namespace of profile checkpoint."),
    ] = False,
    dry_run: DryRun = False,
    json: Json = False,  # noqa: ARG001 - acts through its callback
    quiet: Quiet = False,  # noqa: ARG001 - acts through its callback
) -> None:
    """Mount a bucket on every host, or mount it otherwise.

    Options may also stand behind the profile, as in --mount of up: gs://b:/mnt/b:train,ttl=0,read-only
    """
    from tpuctl.mounts.spec import options_said, parse_option
    from tpuctl.mounts.use import add_mount
    from tpuctl.slices.choose import resolve_slice

    said = {
        "ttl": ttl,
        "uid": uid,
        "gid": gid,
        "file-mode": file_mode,
        "dir-mode": dir_mode,
        "implicit-dirs": None if implicit_dirs is None else str(implicit_dirs).lower(),
        "cache-dir": cache_dir,
        "cache-size": cache_size,
        "read-only": "true" if read_only else None,
        "cross-region": "true" if cross_region else None,
    }
    options = options_said(
        {name: str(value) for name, value in said.items() if value is not None}
        | dict(parse_option(text) for text in opt or ())
    )
    with open_context(ctx) as context:
        context.shared.if_interrupted = (
            "the same command again goes on with it; `tpuctl mount rm` of its path takes it away"
        )
        found = add_mount(
            context,
            resolve_slice(context, on, flag="--on"),
            what,
            options=options,
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


def rm(
    ctx: typer.Context,
    path: At,
    on: On = None,
    dry_run: DryRun = False,
    json: Json = False,  # noqa: ARG001 - acts through its callback
    quiet: Quiet = False,  # noqa: ARG001 - acts through its callback
) -> None:
    """Unmount a bucket on every host of its slice; its files stay."""
    from tpuctl.mounts.use import remove_mount
    from tpuctl.slices.choose import resolve_slice

    with open_context(ctx) as context:
        record = resolve_slice(context, on, flag="--on")
        context.shared.if_interrupted = "the same command again goes on with it"
        found = remove_mount(context, record, path, dry_run=dry_run)
        said = found.pop("said")
        context.console.answer(found, said)
