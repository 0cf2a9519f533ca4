"""What must be so on all hosts before the program of an attempt starts there: one row for each thing, in order.

Where hosts answer slowly that takes several passes. The record of the attempt has the rows of its hosts and
what was checked, and so says how far it has got; what has to be looked at in each pass is done in each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.containers.hosts import IMAGE
from tpuctl.envs.drift import LOOKED_AT, HostReading, skew_of
from tpuctl.envs.install import Told, kind_of_run, refuse_drift, sections_for_run, when_asked
from tpuctl.envs.pinned import environment_keys
from tpuctl.errors import PartialError
from tpuctl.hosts.agent import Reply
from tpuctl.hosts.facts import FactsReply
from tpuctl.hosts.protocol import HostFacts, PrepareReply
from tpuctl.hosts.provision import Provisioned, Verdict
from tpuctl.hosts.requests import AttemptsRequest, HelloRequest, StartRequest
from tpuctl.hosts.worker_status import AttemptsReply
from tpuctl.lib.time import render_time
from tpuctl.model.cloud import HostTarget
from tpuctl.model.verdict import Blocked, Wait, wait_for
from tpuctl.runs.attempt import AttemptHosts, busy, explain_refusal, in_the_way
from tpuctl.runs.data import why_changed
from tpuctl.runs.host_parts import large_parts
from tpuctl.runs.leftovers import are_fresh, free_chips, stop_leftovers
from tpuctl.runs.probe import probe_check, probed
from tpuctl.runs.probe_run import DataProbe, probed_before
from tpuctl.runs.process_env import LIBTPU_PORT, PORT_BESIDE_LIBTPU, PORT_BESIDE_RUNS
from tpuctl.runs.provisioning import bring_image, explain_step, provision_hosts
from tpuctl.runs.set_up import NotSetUp, check_buckets, check_reach, used_buckets
from tpuctl.runs.states import News, RunEvent, RunFinding
from tpuctl.runs.trouble import judge_lack
from tpuctl.slices.revisit import first_trouble
from tpuctl.slices.things import lost_buckets
from tpuctl.transfer.prepare import prepare_on, require_values


class Preparation:
    """What the steps of one pass share."""

    def __init__(self, hosts: AttemptHosts) -> None:
        self.hosts = hosts
        self.rows = [dict(row) for row in hosts.attempt.hosts]
        """What is known of each host, for the manifest."""
        self.facts: Sequence[HostFacts] = ()
        self.running: Sequence[Reply[AttemptsReply]] = ()
        """Of each host all attempts that it knows."""
        self.told: Told | None = None
        """What hosts said of the things that the environment asks for."""
        self.acknowledged: Sequence[PrepareReply] = ()

    @property
    def checked(self) -> set[str]:
        """The names of what was checked and found well, in this pass or before."""
        return {row["check"] for row in self.hosts.checks}

    @property
    def begins(self) -> bool:
        """Whether no pass has got so far that the record says so."""
        return not self.hosts.attempt.hosts

    def passed(self, check: str, detail: str) -> None:
        """Writes down that something is well."""
        at = render_time(self.hosts.services.store.now()) or ""
        self.hosts.checks.append({"check": check, "detail": detail, "at": at})

    def add(self, found: Verdict) -> Sequence[FactsReply]:
        """Takes down what hosts say of what they have now; returns all that they said with it."""
        assert isinstance(found, Provisioned)
        for row, more in zip(self.rows, found.rows, strict=True):
            row.update(more)
        return found.facts

    @property
    def coordinator(self) -> str:
        """Where workers are to meet, once all have the code; in this pass or before."""
        found = self.acknowledged
        return self.hosts.address(found[0]) if found else self.hosts.attempt.coordinator

    def changes(self) -> dict[str, Any]:
        """What the record of the attempt then says; there is no trouble."""
        known = {"hosts": tuple(self.rows), "checks": tuple(self.hosts.checks), "coordinator": self.coordinator}
        return {**known, "suspect_since": None, "suspect_why": "", "mend": ""}

    def postpone(self) -> RunFinding:
        """The rest is for the next pass, which need not find again what this one found."""
        slow = "slow workers"
        return self.with_port(RunFinding(RunEvent.POSTPONED, slow, wait_for(slow), self.changes()))

    def with_port(self, found: RunFinding) -> RunFinding:
        """What was found, with a word of the port if this pass chose another than the usual one."""
        note = _port_note(self.hosts, self.acknowledged)
        if not note:
            return found
        said = tuple(replace(each, detail=f"{each.detail}; {note}", said=note) for each in found.news)
        return replace(found, news=said or (News("coordinator", note, said=note),))

    def is_late(self) -> bool:
        """Whether little of the time of this pass is left, and it found what is worth being written down."""
        attempt, checks = self.hosts.attempt, tuple(self.hosts.checks)
        known = attempt.hosts, attempt.checks, attempt.coordinator
        news = self.rows and (tuple(self.rows), checks, self.coordinator) != known
        return bool(news) and self.hosts.late()

    def lack(self, found: NotSetUp) -> RunFinding:
        """The project is not set up for the run."""
        now = self.hosts.services.store.now()
        return judge_lack(self.hosts.attempt, found.told, found.hint, now, may_pass=found.may_pass)


class PrepareStep(Struct, frozen=True):
    """One thing that must be so. `is_due` says whether this pass does it; `do` does it, or as much of it as a
    pass has time for, and returns None once it is so. It may be done again without harm. It may raise
    PartialError for workers that do not answer or cannot have it."""

    name: str
    is_due: Callable[[Preparation], bool]
    do: Callable[[Preparation], RunFinding | None]
    with_previous: bool = False
    """It looks at what the previous step was told, which no record has: there is no pause between them."""


def prepare(hosts: AttemptHosts) -> RunFinding:
    """One pass over all steps, until one does not go on."""
    preparation = Preparation(hosts)
    try:
        for step in STEPS:
            if step.is_due(preparation):
                if not step.with_previous and preparation.is_late():
                    return preparation.postpone()
                found = step.do(preparation)
                if found is not None:
                    return found
    except PartialError as error:
        return explain_refusal(hosts, error)
    done = "every worker acknowledged"
    news, changes = (News("prepared", done),), preparation.changes()
    return preparation.with_port(RunFinding(RunEvent.PREPARED, f"{done} the code", changes=changes, news=news))


def _say_hello(p: Preparation) -> None:
    """What hosts say of themselves, what the environment wants to know, and what runs there, in one call.
    Mounts come first, and an environment may lie on one."""
    hosts, clock = p.hosts, p.hosts.services.clock
    early = hosts.environment if not hosts.kept else None
    sections = sections_for_run(early) if early is not None else set()
    began = clock.now()
    claim = tuple(hosts.run.chips) if hosts.is_for_chips() else None
    keys = environment_keys(early) if early is not None else ()
    hello = HelloRequest(claim is not None, claim, tuple(sorted(sections)), envs=tuple(keys))
    answers, p.running = hosts.agent.ask_both(hosts.targets, hello, AttemptsRequest())
    ended = clock.now()
    said = require_values(answers, "answer")
    facts = tuple(each.facts for each in said if each.facts is not None)
    p.told = Told(facts, began, ended) if len(facts) == len(said) else None
    p.facts = [each.host for each in said]
    p.rows = [_host_row(target, fact) for target, fact in zip(hosts.targets, p.facts, strict=True)]


def _free_chips(p: Preparation) -> RunFinding | None:
    """Nobody else may hold the chips."""
    found = free_chips(p.hosts, p.facts)
    if found is None and p.hosts.is_for_chips():
        p.passed("chips", "nobody else has them")
    return found


def _check_buckets(p: Preparation) -> RunFinding | None:
    """Asked once in a run: roles do not come and go with attempts."""
    hosts = p.hosts
    wheelhouse = hosts.environment.wheelhouse if hosts.environment is not None else ""
    uses = used_buckets(hosts.run, hosts.slice, wheelhouse)
    if not uses or hosts.attempt.number > 1:
        return None
    denied = check_buckets(hosts.agent, hosts.targets[0], uses, hosts.slice.spec.zone)
    if denied is None:
        p.passed("buckets", f"the hosts' account was not refused at {', '.join(u.bucket for u in uses)}")
    return p.lack(denied) if denied is not None else None


def _ensure_mounts(p: Preparation) -> RunFinding | None:
    """No program starts where a disk or mount is not as asked."""
    hosts, spec = p.hosts, p.hosts.slice.spec
    gone = lost_buckets(hosts.services, hosts.slice)
    if gone:
        path = next(each.path for each in spec.mounts if each.bucket == gone[0])
        why = f"the bucket gs://{gone[0]} is gone, and {path} shows no files"
        return in_the_way(hosts, why, f"make it again, or tpuctl mount rm {path} --on {hosts.run.slice_name}")
    found = provision_hosts(hosts, hosts.kept)
    look = f"`tpuctl mount check --on {hosts.run.slice_name}`" if spec.mounts else ""
    verdict = explain_step(hosts, found, "say how their mounts are", look)
    if isinstance(verdict, Wait):
        return busy(verdict.why)
    if isinstance(verdict, Blocked):
        return in_the_way(hosts, verdict.why, verdict.hint or "")
    sick = first_trouble(zip(hosts.attempt.workers, p.add(found), strict=True), hosts.kept)
    if sick:
        return busy("; ".join(filter(None, (f"its mounts: {sick}", look))))
    for check, refs in (("disks", spec.disks), ("mounts", spec.mounts)):
        if refs:
            p.passed(check, f"well at {', '.join(ref.path for ref in refs)}")
    return None


def _check_data(p: Preparation) -> RunFinding | None:
    """No attempt starts on data that is not as its receipt says; each is asked once in an attempt."""
    hosts, checked = p.hosts, p.checked
    for receipt in hosts.run.spec.data:
        if f"data {receipt.uri}" in checked:
            continue
        why = why_changed(hosts.services, receipt, hosts.agent, hosts.targets[0])
        if why:
            # The receipt of a run is fixed: a newer one is for another run.
            name, uri = hosts.run.id, receipt.uri
            newer = f"tpuctl data receipt {uri} --contract FILE, tpuctl rerun {name} --data {uri}"
            return in_the_way(
                hosts, why, f"restore it, or do the run again with a newer one: tpuctl stop {name}, {newer}"
            )
        p.passed(f"data {receipt.uri}", f"{receipt.digest.of} {receipt.digest.value[:12]}")
    return None


def _ensure_environment(p: Preparation) -> RunFinding | None:
    """No program starts where its environment is not there, or where hosts differ from it."""
    hosts = p.hosts
    assert hosts.environment is not None
    kind = kind_of_run(hosts.services, hosts.environment, hosts.run, hosts.attempt)
    began, told = hosts.services.clock.now(), p.told.facts if p.told is not None else ()
    found = provision_hosts(hosts, [kind], told, also=LOOKED_AT, retry=False)
    ended = hosts.services.clock.now()
    verdict = explain_step(hosts, found, "say what is installed")
    if isinstance(verdict, Wait):
        return busy(verdict.why)
    if isinstance(verdict, Blocked):
        # Such as for lack of a Python: the host differs until that is changed.
        why = f"{verdict.why}; mend it: {verdict.hint}" if verdict.hint else verdict.why
        raise PartialError(why, hint=verdict.hint, details={"differences": [verdict.why]})
    seen = [
        HostReading(worker, facts, skew_of(facts, *when_asked(facts, p.told, began, ended)))
        for worker, facts in zip(hosts.attempt.workers, p.add(found), strict=True)
    ]
    refuse_drift(kind, hosts.run, seen)
    allowed = ", ".join(hosts.run.spec.allow_drift)
    name = hosts.run.spec.environment.name if hosts.run.spec.environment is not None else ""
    p.passed("environment", f"{name}{f', but for {allowed}' if allowed else ''}")
    return None


def _ensure_image(p: Preparation) -> RunFinding | None:
    """No program starts where its image is not there, and all workers have the same one."""
    found = bring_image(p.hosts)
    if isinstance(found, Wait):
        return busy(found.why)
    p.add(found)
    p.passed("image", found.rows[0][IMAGE])
    return None


def _probe_data(p: Preparation) -> RunFinding | None:
    """No program starts on data of which a probe says that it is random or repeated. Hosts that were probed
    for an earlier attempt are not again."""
    hosts, checked = p.hosts, p.checked
    if p.begins:
        return p.postpone()  # while a probe goes on, nothing of what was done is done again
    before = probed_before(hosts)
    for number, receipt in enumerate(probed(hosts.run.spec.data), start=1):
        probe = DataProbe(hosts, receipt, number)
        if probe.check in checked:
            continue
        if probe.check in before:
            hosts.checks.append(before[probe.check])
            continue
        found = probe.step(partial(_make_directory, p, probe.name), partial(_probe_request, hosts, probe))
        if isinstance(found, RunFinding):
            return found
        if isinstance(found, str):
            return busy(found)
        p.passed(probe.check, found.detail)
    return None


def _probe_request(
    hosts: AttemptHosts, probe: DataProbe, acknowledged: Sequence[PrepareReply]
) -> Callable[[HostTarget], StartRequest]:
    """How a probe starts: as the program does, but that nobody looks whether it joins on the chips."""
    attempt = replace(hosts.attempt, coordinator=hosts.address(acknowledged[0]))
    request = hosts.start_request(attempt, probe.argv)
    return lambda target: replace(request(target), attempt=probe.name)


def _deliver_code(p: Preparation) -> RunFinding | None:
    found = _make_directory(p, p.hosts.attempt.attempt_id)
    if isinstance(found, str):
        return busy(found)
    p.acknowledged = found
    return None


def _make_directory(p: Preparation, attempt_id: str) -> list[PrepareReply] | str:
    """Makes the work directory of the attempt, or of a probe before it."""
    hosts = p.hosts
    beside_libtpu = PORT_BESIDE_LIBTPU if hosts.run.spec.per != "host" else None
    return prepare_on(
        hosts.services,
        hosts.agent,
        hosts.targets,
        run=hosts.run.id,
        attempt=attempt_id,
        fence=hosts.attempt.fence,
        bundle=hosts.run.code.bundle,
        owner=hosts.owner,
        until=hosts.until,
        send_first=not p.begins,
        fresh=are_fresh(p.running),
        promised=hosts.promised(() if attempt_id != hosts.attempt.attempt_id else p.rows),
        port=PORT_BESIDE_RUNS + hosts.run.chips[0] if hosts.run.chips else beside_libtpu,
        kept=large_parts(),
    )


def _check_network(p: Preparation) -> RunFinding | None:
    """Workers of a slice meet at a port of the first one."""
    hosts, coordinator = p.hosts, p.coordinator
    places = {coordinator: _port_note(hosts, p.acknowledged)}
    if hosts.attempt.processes > 1 and hosts.is_for_chips():
        last = LIBTPU_PORT + hosts.attempt.processes - 1
        places[f"{coordinator.rpartition(':')[0]}:{last}"] = "where libtpu has a process"
    for place, note in places.items():
        closed = check_reach(hosts.services, hosts.agent, hosts.targets, hosts.slice, place, note)
        if closed is not None:
            return p.lack(closed)
    p.passed("network", f"every worker reaches {' and '.join(places)}")
    return None


def _port_note(hosts: AttemptHosts, acknowledged: Sequence[PrepareReply]) -> str:
    if not acknowledged or acknowledged[0].taken_port is None or len(hosts.targets) < 2:
        return ""
    first = acknowledged[0]
    taken = f"port {first.taken_port} of worker {hosts.targets[0].worker} is taken"
    return f"{taken}: workers meet at {first.free_port}"


def _begins(p: Preparation) -> bool:
    return p.begins


STEPS = (
    PrepareStep("hello", _begins, _say_hello),
    PrepareStep("leftovers", _begins, lambda p: stop_leftovers(p.hosts, p.running), with_previous=True),
    PrepareStep("chips", _begins, _free_chips, with_previous=True),
    PrepareStep("buckets", _begins, _check_buckets, with_previous=True),
    PrepareStep(
        "mounts", lambda p: not all(k.column in row for k in p.hosts.kept for row in p.rows), _ensure_mounts
    ),
    PrepareStep(
        "data", lambda p: not {f"data {r.uri}" for r in p.hosts.run.spec.data} <= p.checked, _check_data
    ),
    PrepareStep(
        "environment",
        lambda p: p.hosts.environment is not None and not all(row.get("environment_key") for row in p.rows),
        _ensure_environment,
    ),
    PrepareStep(
        "image",
        lambda p: p.hosts.run.spec.container is not None and not all(row.get(IMAGE) for row in p.rows),
        _ensure_image,
    ),
    PrepareStep(
        "probe", lambda p: not set(map(probe_check, probed(p.hosts.run.spec.data))) <= p.checked, _probe_data
    ),
    PrepareStep("code", lambda p: not p.hosts.attempt.coordinator, _deliver_code),
    PrepareStep("network", lambda p: len(p.hosts.targets) > 1, _check_network),
)
"""What is made sure of, in this order."""


def _host_row(target: HostTarget, facts: HostFacts) -> dict[str, str]:
    return {
        "worker": str(target.worker),
        "hostname": facts.hostname,
        "address": target.address,
        "boot_id": facts.boot_id,
        "kernel": facts.kernel,
        "machine": facts.machine,
        "numa_nodes": str(facts.numa_nodes),
        "nics": str(facts.nics),
        "python": facts.python_version,
        "python_minor": ".".join(facts.python_version.split(".")[:2]),
        "host_key": target.host_key,
    }
