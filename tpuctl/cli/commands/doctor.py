"""`doctor`: what is wrong, and the command that mends it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import replace

from tpuctl.cli.console import Console, paint, wants_colour
from tpuctl.cli.context import AppContext
from tpuctl.cli.wrapping import with_first, wrap
from tpuctl.errors import BadConfigError, TpuctlError
from tpuctl.lib.options import Option
from tpuctl.lib.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.doctor.facts import PlannedUse
    from tpuctl.doctor.finding import Finding
    from tpuctl.model.facts import CredentialFacts, KeyFacts, StoreFacts, ToolFacts, WatchFacts


class ThisMachine:
    """Implements `ports.Machine` with the adapters of one command."""

    def __init__(self, context: AppContext) -> None:
        self._context = context

    def credentials(self) -> CredentialFacts:
        from tpuctl.cloud.credentials import MACHINE, describe_credentials
        from tpuctl.watch.install.preflight import find_credentials

        config = self._context.config
        credentials = self._context.credentials
        found = find_credentials(os.environ, Path.home(), config.token_file)
        kind = MACHINE if found.kind == "none" else found.kind
        facts = describe_credentials(credentials, kind, found.path)
        return facts if facts.account else replace(facts, account=config.account or "")

    def key(self) -> KeyFacts:
        from tpuctl.doctor.run import inspect_key
        from tpuctl.ssh.keys import PRIVATE_NAME, ensure_keypair

        folder = self._context.config.state_base
        facts = inspect_key(folder / PRIVATE_NAME)
        if facts.mode is None:
            return facts
        try:
            ensure_keypair(folder)
        except BadConfigError as error:
            return replace(facts, error=error.message)
        return facts

    def tools(self) -> tuple[ToolFacts, ...]:
        from tpuctl.doctor.run import list_tools

        config = self._context.config
        return list_tools(needs_ssh=config.jump_host is not None, needs_gcloud=config.iap)

    def store(self) -> StoreFacts:
        from tpuctl.state.health import inspect_bucket_store, inspect_store

        context = self._context
        if context.config.store is not None:
            return inspect_bucket_store(context.objects, context.config.store, context.project)
        return inspect_store(context.config.state_dir / "store.sqlite")

    def watchdog(self) -> WatchFacts:
        from tpuctl.cli.hooks import hook_problems
        from tpuctl.watch.install.installer import installed_watch

        return replace(installed_watch(self._context.config), broken_hooks=tuple(hook_problems(self._context)))


def doctor(
    context: AppContext,
    on: Annotated[
        str | None, Option("Check this cluster instead: gke:CONTEXT[/NAMESPACE].", metavar="CLUSTER")
    ] = None,
) -> None:
    """Check the set-up, and print the fix of each problem.

    Credentials, clock, APIs, permissions, TPU and side quotas, SSH key, OS Login, network, buckets, unused
    TPUs and disks, store, watchdog and tools. Changes nothing. Ends with 1 when there is a problem; warnings
    alone end with 0.
    With --on: whether runs can go to a cluster, by its context, JobSet, Kueue, TPU nodes, and what pods may do
    with your buckets.
    """
    if on is not None:
        _report(context.console, _examine_cluster(context, on))
        return
    try:
        context.config.require_project()
    except BadConfigError as error:
        shared = context.shared
        findings = _without_project(context, error)
        _report(Console(json_mode=shared.json, quiet=shared.quiet), findings)
        return
    first = context.config.gcloud_first
    found = [
        each if each.fix is None else replace(each, fix=with_first(each.fix, first))
        for each in _examine(context)
    ]
    _report(context.console, found)


def _without_project(context: AppContext, error: BadConfigError) -> list[Finding]:
    """No project: what does not need one is looked at; without settings only the tools."""
    from tpuctl.doctor.checks import LOGIN, all_others, judge_key, judge_tools
    from tpuctl.doctor.finding import found_by, ok, problem
    from tpuctl.doctor.run import list_tools
    from tpuctl.watch.install.preflight import find_credentials

    found = found_by("settings", [problem(error.message, error.hint)])
    try:
        config = context.config
    except BadConfigError:
        found += found_by("tools", judge_tools(list_tools(needs_ssh=False)))
        return [*found, *all_others(found, "the settings cannot be used")]
    login = find_credentials(os.environ, Path.home(), config.token_file)
    none = problem("no Google credentials on this machine", LOGIN)
    there = ok(f"{login.kind} {login.path}; not tried without a project")
    machine = ThisMachine(context)
    found += found_by("credentials", [none if login.kind == "none" else there])
    found += found_by("ssh key", [judge_key(machine.key())])
    found += found_by("tools", judge_tools(machine.tools()))
    without = "no project" if login.kind != "none" else "no project and no credentials"
    return [*found, *all_others(found, without)]


def _examine(context: AppContext) -> Sequence[Finding]:
    from tpuctl.doctor.checks import examine
    from tpuctl.doctor.run import check_up
    from tpuctl.engine.events import Waiting
    from tpuctl.model.shipped_files import load_accelerators

    def progress(what: str) -> None:
        if context.console.err.isatty():
            context.emit(Waiting("doctor", what, context.clock.now()))

    catalog = load_accelerators()
    facts = check_up(context, ThisMachine(context), _wanted(context), catalog, progress)
    if context.console.err.isatty():
        context.emit.close()
    return examine(facts)


def _examine_cluster(context: AppContext, on: str) -> Sequence[Finding]:
    from tpuctl.doctor.cluster import judge_cluster
    from tpuctl.doctor.cluster_facts import read_cluster
    from tpuctl.doctor.finding import found_by, problem
    from tpuctl.kube.client import connect
    from tpuctl.model.clusters import parse_cluster

    place = parse_cluster(on)
    try:
        cluster = connect(place)
    except TpuctlError as error:
        return found_by("context", [problem(error.message, error.hint)])
    return judge_cluster(read_cluster(context, cluster, list(_buckets(context)), context.config.accelerator))


def _buckets(context: AppContext) -> dict[str, str]:
    """The buckets that runs will use, each with the setting that names it."""
    uri = context.config.checkpoint_bucket
    return {} if uri is None else {uri.removeprefix("gs://").partition("/")[0]: "checkpoint_bucket"}


def _wanted(context: AppContext) -> PlannedUse:
    from tpuctl.doctor.facts import PlannedUse
    from tpuctl.model.shipped_files import load_accelerators

    config = context.config
    found = load_accelerators().find(config.accelerator) if config.accelerator else None
    return PlannedUse(
        project=config.require_project(),
        zones=config.zone,
        generation=found.generation if found else None,
        tier=config.tier,
        external_ips=config.external_ips,
        simulated=config.is_simulated,
        network=config.network or "default",
        buckets=_buckets(context),
        store=config.store,
        **({"apis": found.apis} if found else {}),
    )


def _report(console: Console, findings: Sequence[Finding]) -> None:
    """The findings on stdout. Raises `typer.Exit` with 1 when there is a problem."""
    from tpuctl.doctor.finding import fold_unread

    findings = findings if console.json_mode else fold_unread(findings)
    counts = {level: sum(1 for each in findings if each.level == level) for level in ("problem", "warning")}
    if console.json_mode:
        rows: list[dict[str, Any]] = [
            {"check": each.check, "level": str(each.level), "what": each.what, "fix": each.fix}
            for each in findings
        ]
        console.data({"problems": counts["problem"], "warnings": counts["warning"], "findings": rows})
    else:
        for index, each in enumerate(findings):
            _print(console, each, console.mark if index == 0 else " " * len(console.mark))
        console.say(f"{counted(counts['problem'], 'problem')}, {counted(counts['warning'], 'warning')}")
    if counts["problem"]:
        raise typer.Exit(TpuctlError.exit_code)


def _print(console: Console, each: Finding, mark: str) -> None:
    """A finding in lines that are easily read; commands stay in one line, to be pasted."""
    colour = wants_colour(console.out)
    level, room = str(each.level), console.prose_width - len(mark) - 24
    what = each.what.replace(f"{Path.home()}/", "~/")
    lines = wrap(what, room)
    console.line(f"{mark}{paint(level.ljust(8), level, colour=colour)} {each.check.ljust(13)}  {lines[0]}")
    for line in lines[1:]:
        console.line(f"{' ' * (len(mark) + 24)}{line}")
    if each.fix:
        console.line(f"{' ' * (len(mark) + 24)}fix: {each.fix}")
