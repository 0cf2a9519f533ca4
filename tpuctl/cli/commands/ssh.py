"""`tpuctl ssh`: a shell on one worker."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

from tpuctl.cli.completion import slice_names
from tpuctl.cli.context import AppContext
from tpuctl.lib.options import Option, argument

if TYPE_CHECKING:
    from tpuctl.model.records import SliceRecord


def ssh(
    context: AppContext,
    words: Annotated[
        list[str] | None, argument("[NAME] [ARGS]...", "The slice; ARGS go to ssh.", complete=slice_names)
    ] = None,
    worker: Annotated[int, Option("Which worker.", metavar="N", minimum=0)] = 0,
    dry_run: Annotated[bool, Option("Print the ssh command instead.")] = False,
) -> None:
    """Open a shell on one worker.

    Runs OpenSSH with the pinned host key. The exit status is that of ssh: the command's own, or 255
    when there was no connection.
    """
    import shlex

    from tpuctl.slices.choose import resolve_slice

    before, behind = context.shared.split(words or [])
    record = resolve_slice(context, before[0] if before else None)
    argv = _ssh_argv(context, record, worker, [*before[1:], *behind])
    if dry_run:
        context.console.line(shlex.join(argv))
        return
    _send_key_first(context, record)
    context.close()
    os.execvp(argv[0], argv)  # noqa: S606 - a list, no shell; our process becomes ssh


def _send_key_first(context: AppContext, record: SliceRecord) -> None:
    """From a machine that the hosts do not know yet ssh says `Permission denied (publickey)` and no more."""
    from tpuctl.model.timeouts import KEY_SHOWS_S
    from tpuctl.slices.enrollment import was_enrolled

    if not was_enrolled(context):
        from tpuctl.workers.exec import knock

        knock(context, record)
        context.emit.close()
        return
    sent = record.incarnation.keys_sent_at if record.incarnation is not None else None
    if sent is not None and context.store.now() < sent + KEY_SHOWS_S:
        context.console.warn(
            "keys of machines were sent to the hosts a moment ago: if ssh says `Permission denied (publickey)` "
            "now, type this again in a minute"
        )


def _ssh_argv(context: AppContext, record: SliceRecord, worker: int, extra: list[str]) -> list[str]:
    from tpuctl.hosts.targets import host_targets
    from tpuctl.ssh.openssh import ssh_argv, write_known_hosts
    from tpuctl.workers.exec import choose_workers

    everyone = host_targets(context, record)
    target = choose_workers(record, [worker], everyone)[0]
    known_hosts = context.config.state_dir / "known_hosts" / record.name
    write_known_hosts(known_hosts, everyone)
    return ssh_argv(target, context.key_pair.private_path, known_hosts, extra, context.proxy)
