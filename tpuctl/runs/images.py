"""The container image of a run on its hosts: which one its name means the first worker finds out, once."""

from __future__ import annotations

from tpuctl.containers.hosts import IMAGE, ContainerImage
from tpuctl.errors import PartialError
from tpuctl.hosts.provision import Provisioned
from tpuctl.model.verdict import Blocked, Wait
from tpuctl.runs.attempt import AttemptHosts
from tpuctl.runs.containers import ALWAYS
from tpuctl.runs.provisioning import explain_step, provision_hosts
from tpuctl.state.repository import list_attempts
from tpuctl.things.driver import TRIES


def bring_image(hosts: AttemptHosts) -> Provisioned | Wait:
    """One step: the image that an earlier attempt found, else that of the first worker, on all hosts.

    Raises PartialError where a host cannot have it, or does not answer.
    """
    spec, pin = hosts.run.spec, pinned_image(hosts)
    for targets in [hosts.targets] if pin else [hosts.targets[:1], hosts.targets]:
        kind = ContainerImage(spec.container or "", pin, hosts.owner, spec.pull == ALWAYS and not pin)
        found = provision_hosts(hosts, [kind], targets=targets)
        verdict = explain_step(hosts, found, "say which images they have", tries=TRIES)
        if isinstance(verdict, Wait):
            return verdict
        if isinstance(verdict, Blocked):
            raise PartialError(f"{verdict.why}; mend it: {verdict.hint}", hint=verdict.hint)
        assert isinstance(found, Provisioned)
        pin, last = found.rows[0][IMAGE], found
    return last


def pinned_image(hosts: AttemptHosts) -> str:
    """The image that an earlier attempt of the run found; empty for none."""
    rows = [row for each in list_attempts(hosts.services, hosts.run.id) for row in each.hosts]
    return next((row[IMAGE] for row in rows if row.get(IMAGE)), "")
