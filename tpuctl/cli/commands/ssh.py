"""`tpuctl ssh`: a shell on one worker."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli.arguments import split_words
from tpuctl.cli.completion import slice_names
from tpuctl.cli.context import AppContext, open_context
from tpuctl.cli.invocation import invocation

if TYPE_CHECKING:
    from tpuctl.model.records import SliceRecord


def ssh(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME] [ARGS]...", help="The slice; ARGS go to ssh.", autocompletion=slice_names
        ),
    ] = None,
    worker: Annotated[int, typer.Option("--worker", metavar="N", min=0, help="Which worker.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the ssh command instead.")] = False,
) -> None:
    """Open a shell on one worker.

    Runs OpenSSH with the pinned host key. The exit status is that of ssh: the command's own, or 255
    when there was no connection.
    """
    import shlex

    from tpuctl.slices.choose import resolve_slice

    before, behind = split_words(invocation(ctx), list(words or []))
    with open_context(ctx) as context:
        record = resolve_slice(context, before[0] if before else None)
        argv = _ssh_argv(context, record, worker, [*before[1:], *behind])
        if dry_run:
            context.console.line(shlex.join(argv))
            return
    os.execvp(argv[0], argv)  # noqa: S606 - a list, no shell; our process becomes ssh


def _ssh_argv(context: AppContext, record: SliceRecord, worker: int, extra: list[str]) -> list[str]:
    from tpuctl.hosts.targets import host_targets
    from tpuctl.ssh.openssh import ssh_argv, write_known_hosts
    from tpuctl.workers.exec import choose_workers

    everyone = host_targets(context, record)
    target = choose_workers(record, [worker], everyone)[0]
    known_hosts = context.config.state_dir / "known_hosts" / record.name
    write_known_hosts(known_hosts, everyone)
    return ssh_argv(target, context.key_pair.private_path, known_hosts, extra, context.proxy)
