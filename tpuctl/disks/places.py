"""Where a disk is to be mounted: asked of the hosts before anything changes."""

from __future__ import annotations

from tpuctl.engine.services import Services
from tpuctl.errors import UsageError
from tpuctl.hosts.agent import HostAgent
from tpuctl.hosts.facts import Section
from tpuctl.hosts.targets import host_targets
from tpuctl.lib.shell import quote
from tpuctl.model.records import SliceRecord


def check_on_hosts(services: Services, target: SliceRecord, path: str) -> None:
    """Raises UsageError for a path at which a host has something in the way. Those that do not answer check it
    themselves before they mount."""
    agent = HostAgent(services.remote, services.agent_source)
    asked = {"sections": [str(Section.POINTS)], "points": [path]}
    for answer in agent.facts(host_targets(services, target), lambda _: asked):
        for point in (answer.value.points or ()) if answer.value is not None else ():
            if point.trouble:
                look = f"tpuctl exec --worker {answer.worker} {target.name} -- ls -lA {quote(path)}"
                hint = f"another --path, or move what is there: {look}"
                raise UsageError.of("path", f"worker {answer.worker}: {point.trouble}", hint)
