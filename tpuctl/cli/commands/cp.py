"""`cp`: files and directories to and from workers."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tpuctl.cli.completion import slice_paths
from tpuctl.cli.context import AppContext
from tpuctl.cli.options import DryRun
from tpuctl.cli.workers import choose, raise_for_failed
from tpuctl.errors import UsageError
from tpuctl.lib.options import argument
from tpuctl.lib.text import counted, sized
from tpuctl.model.requests import Workers

if TYPE_CHECKING:
    from tpuctl.model.cloud import HostTarget, RemoteResult


BROKEN_OFF = {"lost", "timeout"}


def split_remote(word: str) -> tuple[str | None, str]:
    """Slice and path of `NAME:PATH`; a word with a slash before its colon is a local path, as with scp."""
    name, colon, path = word.partition(":")
    return (name, path) if colon and name and "/" not in name else (None, word)


def cp(
    context: AppContext,
    words: Annotated[
        list[str], argument("SOURCE... TARGET", "Paths; on workers as NAME:PATH.", complete=slice_paths)
    ],
    worker: Workers = None,
    dry_run: DryRun = False,
) -> None:
    """Copy files and directories to or from the workers of a slice.

    From several workers each copy gets a directory of its own, TARGET/NAME-WORKER. Unchanged files are skipped,
    and the same command again resumes.
    """
    if len(words) < 2:
        raise UsageError("cp needs a source and a target", hint="tpuctl cp data.txt NAME:data.txt")
    *sources, target = [split_remote(word) for word in words]
    from_slices = {name for name, _ in sources}
    if target[0] is None and None in from_slices:
        given = shlex.join(words[:-1])
        raise UsageError(
            "cp needs a slice on one side, as NAME:PATH",
            hint=f"tpuctl cp {given} NAME:, or tpuctl cp NAME:out {shlex.quote(target[1])}",
        )
    if target[0] is None and len(sources) != 1:
        raise UsageError("only one path can be copied from a slice at a time", hint="tpuctl cp NAME:out .")
    if target[0] is not None and from_slices != {None}:
        raise UsageError("cannot copy from one slice to another", hint="copy to this machine first")
    name = target[0] or sources[0][0]
    from tpuctl.hosts.targets import host_targets
    from tpuctl.slices.choose import resolve_slice
    from tpuctl.workers.exec import choose_workers

    record = resolve_slice(context, name)
    targets = choose_workers(record, choose(record, worker), host_targets(context, record))
    if dry_run:
        paths = [path for _, path in sources]
        _show_dry_run(context, targets, paths, target[1], to_hosts=target[0] is not None)
        return
    if target[0] is not None:
        with context.interruptible("the same command again sends only what is missing"):
            results, partly = _push(context, targets, [Path(path) for _, path in sources], target[1]), False
    else:
        with context.interruptible("the same command again fetches only what is missing"):
            results, partly = _pull(context, targets, sources[0][1], target[1])
    broken = any(result.failure in BROKEN_OFF for result in results)
    hint = "the same command again goes on where it broke off" if broken else None
    if target[0] is None and set(sources[0][1]) & set("*?["):
        hint = _instead_of_pattern(record.name, sources[0][1])
    raise_for_failed(record, results, hint=hint, partly=partly or broken)


def _instead_of_pattern(name: str, path: str) -> str:
    """What to type where somebody meant a pattern: a path on a worker is taken as it is."""
    pattern = shlex.quote(f"tar -cf copy.tar -- {path}")
    return (
        f"patterns are not expanded on workers: copy the directory, or "
        f"`tpuctl exec {name} -- sh -c {pattern}` and then copy copy.tar"
    )


def _show_dry_run(
    context: AppContext, targets: Sequence[HostTarget], paths: list[str], target: str, *, to_hosts: bool
) -> None:
    """Which way, what and how much; what is on hosts is not asked for, and equal files would not travel."""
    from tpuctl.lib.text import fold_label
    from tpuctl.transfer.tree import TreeFile, parse_tree
    from tpuctl.workers.copy_to import check_copyable, scan

    hosts = fold_label(targets[0].slice_name, [each.worker for each in targets])
    if not to_hosts:
        context.console.sentence(f"would copy {hosts}:{paths[0]} to {target}")
        return
    for path in paths:
        check_copyable(Path(path))
    entries = parse_tree(scan([Path(path) for path in paths]).tree)
    files = [entry for entry in entries if isinstance(entry, TreeFile)]
    size = sized(sum(entry.blob.size for entry in files))
    what = f"{shlex.join(paths)} ({counted(len(files), 'file')}, {size})"
    context.console.sentence(f"would copy {what} to {hosts}:{target}")


def _push(
    context: AppContext, targets: Sequence[HostTarget], paths: list[Path], destination: str
) -> list[RemoteResult]:
    from tpuctl.hosts.agent import HostAgent
    from tpuctl.workers.copy_to import check_copyable, count_special, push, scan, top_name

    for path in paths:
        check_copyable(path)
    names = [top_name(path) for path in paths]
    left_out = count_special(paths)
    began = context.clock.now()
    agent = HostAgent(context.remote, context.agent_source)
    pushed = push(agent, targets, scan(paths), names, destination, clock=context.clock, emit=context.emit)
    good = sum(result.ok for result in pushed.results)
    how = ", from host to host" if pushed.relayed else ""
    sent = f"{sized(pushed.sent_bytes)}{how} in {context.clock.now() - began:.1f} s"
    have = "has" if good == 1 else "have"
    context.console.say(f"{good} of {counted(len(targets), 'worker')} {have} it: sent {sent}")
    if left_out:
        context.console.caveat(f"left out {_kinds(left_out)}")
    return list(pushed.results)


def _kinds(count: int) -> str:
    return counted(count, "socket, pipe or device", "sockets, pipes and devices")


def _pull(
    context: AppContext, targets: Sequence[HostTarget], source: str, word: str
) -> tuple[list[RemoteResult], bool]:
    """Results of all workers, and whether anything is here now."""
    from tpuctl.hosts.agent import HostAgent
    from tpuctl.workers.copy_from import name_of_source, pull
    from tpuctl.workers.file_receiver import FileReceiver

    local, name = Path(word), name_of_source(source)
    single = len(targets) == 1
    into = local.is_dir() or word.endswith("/")

    def receiver(target: HostTarget) -> FileReceiver:
        if not single:
            return FileReceiver(local / target.label / name)
        return FileReceiver(local / name if into else local, ours=bool(name) or not into)

    began = context.clock.now()
    agent = HostAgent(context.remote, context.agent_source)
    pulled = pull(agent, targets, source, receiver, clock=context.clock, emit=context.emit)
    what = (
        f"{counted(pulled.files, 'file')}, {sized(pulled.size_bytes)}, from {counted(pulled.workers, 'worker')}"
    )
    where = local / name if single and into else local if single else local / f"{targets[0].slice_name}-*"
    took = f"received {sized(pulled.received_bytes)} in {context.clock.now() - began:.1f} s"
    if pulled.workers:
        context.console.say(f"{what} {'is' if pulled.files == 1 else 'are'} in {where}: {took}")
    if pulled.left_out:
        context.console.caveat(f"left out {_kinds(pulled.left_out)}")
    return list(pulled.results), pulled.workers > 0
