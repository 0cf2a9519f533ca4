"""The driver of things for the hosts of an attempt, what a step of it came to, and what it brings besides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tpuctl.containers.hosts import IMAGE, ContainerImage
from tpuctl.errors import PartialError
from tpuctl.hosts.facts import FactsReply
from tpuctl.hosts.provision import Failures, Kind, Provisioned, Unanswered, Verdict
from tpuctl.model.cloud import HostTarget
from tpuctl.model.verdict import Blocked, Done, Failed, Wait
from tpuctl.runs.attempt import AttemptHosts
from tpuctl.runs.containers import ALWAYS
from tpuctl.state.repository import list_attempts
from tpuctl.things.driver import TRIES, Provisioning, explain
from tpuctl.transfer.prepare import require_all


def provision_hosts(
    hosts: AttemptHosts,
    kinds: Sequence[Kind],
    told: Sequence[FactsReply] = (),
    targets: Sequence[HostTarget] = (),
    **how: Any,
) -> Verdict:
    """One step of the driver, on some of the hosts or all."""
    name, until, chosen = hosts.run.slice_name, hosts.until, targets or hosts.targets
    driver = Provisioning(
        hosts.services, hosts.agent, chosen, name, kinds, owner=hosts.owner, until=until, **how
    )
    return driver.step(hosts.attempt.fence, told)


def explain_step(
    hosts: AttemptHosts, found: Verdict, what: str, look: str = "", tries: int = 0
) -> Done | Wait | Blocked:
    """What a step of the driver came to. Raises PartialError: a failure counts against the attempt, at once or
    after so many tries; `look` is then typed first."""
    if isinstance(found, Unanswered):
        require_all(found.replies, what)
    verdict = explain(found, hosts.run.slice_name, tries=tries)
    if isinstance(verdict, Failed):
        error = verdict.error
        error.hint = "; ".join(filter(None, (look, error.hint))) or None
        if tries and error.hint:  # the reason why an attempt ended is all that `run` and `why` show
            raise PartialError(
                f"{error.message}; mend it: {error.hint}", hint=error.hint, details=error.details
            )
        raise error
    return verdict


def mend_mounts(hosts: AttemptHosts) -> str:
    """One step of mounting what is not mounted; why that does not go on, in words, or an empty string."""
    found = provision_hosts(hosts, hosts.kept)
    return found.why if isinstance(found, Blocked | Failures) else ""


def bring_image(hosts: AttemptHosts) -> Provisioned | Wait:
    """One step of bringing its container image: the one that an earlier attempt found, else that of the first
    worker, on all hosts, so that a name means one image.

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
