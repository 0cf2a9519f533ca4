"""Whether a disk can be mounted, and where: asked of the hosts before anything changes."""

from __future__ import annotations

from typing import Any

from tpuctl.engine.services import Services
from tpuctl.errors import TpuctlError, UsageError
from tpuctl.hosts.agent import HostAgent
from tpuctl.hosts.facts import Facts, Section
from tpuctl.hosts.provision import NO_ROOT
from tpuctl.hosts.targets import host_targets
from tpuctl.lib.shell import quote
from tpuctl.model.records import SliceRecord


def _facts(services: Services, target: SliceRecord, **asked: Any) -> list[tuple[int, Facts]]:
    """What hosts say, by worker. Those that do not answer look for themselves before they mount."""
    agent = HostAgent(services.remote, services.agent_source)
    answers = agent.facts(host_targets(services, target), lambda _: asked)
    return [(each.worker, each.value) for each in answers if each.value is not None]


def check_root(services: Services, target: SliceRecord, name: str) -> None:
    """Raises TpuctlError where a host is known not to let its user mount a disk. Nothing has changed then."""
    for worker, facts in _facts(services, target, sections=[str(Section.HOST)]):
        if facts.host is not None and not facts.host.root:
            hint = f"{NO_ROOT.hint}; tpuctl disk attach {name} --to {target.name} --no-mount only attaches it"
            what = f"{target.name}: worker {worker}: {NO_ROOT.why}; {name} was not attached"
            raise TpuctlError(what, hint=hint)


def check_on_hosts(services: Services, target: SliceRecord, path: str) -> None:
    """Raises UsageError for a path at which a host has something in the way."""
    for worker, facts in _facts(services, target, sections=[str(Section.POINTS)], points=[path]):
        for trouble in (each.trouble for each in facts.points or () if each.trouble):
            look = f"tpuctl exec --worker {worker} {target.name} -- ls -lA {quote(path)}"
            hint = f"another --path, or move what is there: {look}"
            raise UsageError.of("path", f"worker {worker}: {trouble}", hint)
