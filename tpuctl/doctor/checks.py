"""What is wrong, and the command that fixes it: pure rules over `facts.py`.

Checks do not depend on each other. Where its facts could not be read a check warns only, because the cause
belongs to another check (credentials, APIs, permissions); only what is known to break tpuctl is a problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import Struct

from tpuctl.disks.unused import UnusedDisks, cost_in_words
from tpuctl.doctor.facts import DoctorFacts
from tpuctl.doctor.finding import Finding, because, found_by, not_checked, ok, problem, warning
from tpuctl.doctor.project import check_apis, check_permissions
from tpuctl.doctor.quotas import side_findings, tpu_findings
from tpuctl.doctor.store import store_findings
from tpuctl.errors import (
    DeniedError,
    NotFoundError,
    TpuctlError,
    TransientError,
)
from tpuctl.inventory.reap import TpuSurvey
from tpuctl.inventory.resources import Fate
from tpuctl.lib.names import region_of
from tpuctl.lib.parallel import Reading
from tpuctl.lib.shell import quote
from tpuctl.lib.time import render_span, render_time
from tpuctl.model.facts import BucketPlace, KeyFacts, ToolFacts, WatchFacts
from tpuctl.model.firewall import Reach, internal_rule, judge_reach
from tpuctl.model.quota import ProjectInfo
from tpuctl.slices.validation import OS_LOGIN
from tpuctl.watch.heartbeat import Verdict

LOGIN = "gcloud auth application-default login"
CLOCK_PROBLEM_S = 300.0
"""Google refuses a service account's signed request that is five minutes off."""
CLOCK_WARNING_S = 30.0


def _nothing_answers(facts: DoctorFacts) -> TpuctlError | None:
    """Why no API answered anything; None where one did, be it with a refusal."""
    readings = [*facts.asked_in_every_case(), facts.clock_ahead]
    errors = [reading.error for reading in readings if reading.error is not None]
    answered = any(isinstance(error.details.get("status"), int) for error in errors)
    if answered or len(errors) < len(readings):
        return None
    return facts.clock_ahead.error


def check_credentials(facts: DoctorFacts) -> list[Finding]:
    """There are some, the API takes them, and they last."""
    found = facts.credentials.value
    if found is None:
        error = facts.credentials.error
        return [problem(error.message if error else "none", (error.hint if error else None) or LOGIN)]
    words = f"{found.kind} {found.where}".strip() + (f" of {found.account}" if found.account else "")
    fix = _renewal(facts)
    if any(_status(reading) == 401 for reading in facts.asked_in_every_case()):
        return [problem(f"expired or revoked: the API refuses them ({words})", fix)]
    if found.expires_at is None:
        if found.renews or facts.wanted.simulated:
            return [ok(words), *_quota_project(facts)]
        return [warning(f"{words}: an access token, which ends within the hour", fix)]
    left = found.expires_at - facts.now
    if found.renews:
        until = render_time(found.expires_at)
        return [ok(f"{words}; this token until {until}, renewed by itself"), *_quota_project(facts)]
    if left <= 0:
        return [problem(f"{words}: expired {render_span(-left)} ago", fix)]
    return [warning(f"{words}: ends in {render_span(left)}", fix)]


def _quota_project(facts: DoctorFacts) -> list[Finding]:
    """A person's login names the project to which calls are counted; some APIs refuse it without."""
    found, project = facts.credentials.value, facts.wanted.project
    if found is None or found.quota_project is None or found.quota_project == project:
        return []
    named = f"name {found.quota_project}" if found.quota_project else "name no project"
    fix = f"gcloud auth application-default set-quota-project {project}"
    return [warning(f"they {named} for quota, not {project}: some APIs refuse that", fix)]


def _renewal(facts: DoctorFacts) -> str:
    found = facts.credentials.value
    if facts.wanted.simulated:
        return "tpuctl sim fault --clear, or tpuctl sim down && tpuctl sim up"
    if found is not None and found.kind == "token-file":
        return f"gcloud auth print-access-token > {quote(found.where)}"
    return LOGIN


def _status(reading: Reading[Any]) -> int | None:
    status = reading.error.details.get("status") if reading.error else None
    return status if isinstance(status, int) else None


def check_clock(_: DoctorFacts, ahead: float) -> list[Finding]:
    """This machine's clock against the API's."""
    if abs(ahead) < CLOCK_WARNING_S:
        return [ok("agrees with the API's")]
    what = f"{render_span(abs(ahead))} {'behind' if ahead > 0 else 'ahead of'} the API's clock"
    fix = "sudo timedatectl set-ntp true"
    return [(problem if abs(ahead) >= CLOCK_PROBLEM_S else warning)(what, fix)]


def judge_key(found: KeyFacts) -> Finding:
    """The key that logs in to the hosts, as a file."""
    if found.mode is None and not found.error:
        return ok(f"none yet; {found.path} is made with the first slice")
    path = quote(found.path)
    if found.mode is not None and not found.mode & 0o400:
        return problem(f"{found.path} cannot be read (mode {found.mode:04o})", f"chmod 600 {path}")
    if found.error:
        return problem(f"{found.path} is no usable key: {found.error}", f"mv {path} {path}.bad")
    if found.mode is not None and found.mode & 0o077:
        what = f"{found.path} can be read by others (mode {found.mode:04o})"
        return problem(what, f"chmod 600 {path}")
    return ok(found.path)


def check_os_login(_: DoctorFacts, project: ProjectInfo) -> list[Finding]:
    """With OS Login, hosts ignore the keys in a node's metadata, which is how tpuctl logs in: it turns that off
    for each node it makes."""
    if project.metadata.get(OS_LOGIN, "").lower() != "true":
        return [ok("off: hosts take the keys that tpuctl gives them")]
    return [ok(f"on for the project; every node that tpuctl makes says {OS_LOGIN}=FALSE for itself")]


def check_network(facts: DoctorFacts) -> list[Finding]:
    """The network that new slices are to be in; new projects of an organisation often have none."""
    reading = facts.network
    if reading.value is not None:
        return _judge_firewall(facts)
    if reading.error is None or reading.error.code != "not-found":
        return [not_checked(reading.error)]
    fix = f"gcloud compute networks create {facts.wanted.network} --project={facts.wanted.project}"
    return [problem(f"there is no network {facts.wanted.network}: make it, or name one with --network", fix)]


def _judge_firewall(facts: DoctorFacts) -> list[Finding]:
    """Hosts of one slice reach each other. Between them are routes of their subnetwork, which nobody can take
    away, so that only rules decide; policies of a folder or organisation are not read."""
    found, error = facts.firewall.value, facts.firewall.error
    if error is not None and isinstance(error, (DeniedError, NotFoundError)):
        # Such as those of another project, whose network this one shares.
        unknown = f"network {facts.wanted.network}; its firewall rules cannot be read: not known if hosts reach"
        return [ok(f"{unknown} each other, which runs ask their hosts")]
    if found is None:
        return [not_checked(error)]
    regions = set(map(region_of, facts.wanted.zones)) & found.ranges.keys() or found.ranges.keys()
    ranges = [each for region in sorted(regions) for each in found.ranges[region]]
    reach = {each: judge_reach(each, found.rules) for each in ranges}
    closed = [each for each in ranges if reach[each] is Reach.NO]
    network = facts.wanted.network.rpartition("/")[2]
    there = f"network {network}"
    if closed:
        what = f"no rule of network {network} lets hosts reach each other: runs of several hosts stand still"
        return [warning(what, internal_rule(facts.wanted.network, closed, facts.wanted.project))]
    if any(each is Reach.UNKNOWN for each in reach.values()):
        return [ok(f"{there}, with rules for some hosts only: not known if all reach each other")]
    return [ok(f"{there}, where hosts reach each other" if ranges else there)]


def check_buckets(facts: DoctorFacts) -> list[Finding]:
    """Buckets of the settings exist and lie where the slices do."""
    if not facts.wanted.buckets:
        return [ok("no setting names one")]
    return [
        _judge_bucket(facts, bucket, setting, facts.buckets.get(bucket, Reading()))
        for bucket, setting in facts.wanted.buckets.items()
    ]


def _judge_bucket(facts: DoctorFacts, bucket: str, setting: str, reading: Reading[BucketPlace]) -> Finding:
    if reading.value is None:
        if reading.error is not None and reading.error.code == "not-found":
            region = region_of(facts.wanted.zones[0]) if facts.wanted.zones else "REGION"
            fix = f"gcloud storage buckets create gs://{bucket} --location={region}"
            return problem(
                f"gs://{bucket} ({setting}) does not exist", f"{fix} --project={facts.wanted.project}"
            )
        return not_checked(reading.error)
    zones = sorted({*facts.wanted.zones, *(facts.records.value.zones if facts.records.value else ())})
    where = f"gs://{bucket} ({setting}) is in {reading.value.location.lower()}"
    away = [zone for zone in zones if not reading.value.is_near(zone)]
    if not away:
        return ok(f"{where}{', as the zones are' if zones else ''}")
    fix = f"gcloud storage buckets create gs://NEW --location={region_of(away[0])}, and name it in {setting}"
    what = (
        f"{where}, but {', '.join(away)} {'is' if len(away) == 1 else 'are'} not: slow, and traffic is billed"
    )
    return (problem if len(away) == len(zones) else warning)(what, fix)


def check_tpus(_: DoctorFacts, survey: TpuSurvey) -> list[Finding]:
    """Every TPU of ours is wanted by a slice; the others cost as much."""
    unread = [not_checked(TransientError(f"{zone} could not be read")) for zone in survey.unread]
    found = [
        warning(f"no slice wants {each.found.name} in {each.found.location}: {each.why}", each.command)
        for each in survey.of(Fate.DELETE)
    ]
    return [*found, *unread] or [ok("none of yours is unwanted")]


def check_disks(_: DoctorFacts, unused: UnusedDisks) -> list[Finding]:
    """Disks of ours are used by somebody; no grant covers them."""
    where = ", ".join(unused.unread)
    unread = [not_checked(TransientError(f"{where} could not be read"))] if where else []
    found = unused.found
    if not found:
        return unread or [ok("none of yours is unused")]
    names = ", ".join(each.name for each in found)
    fix = "; ".join(dict.fromkeys(each.command for each in found))
    return [warning(f"nobody uses {names}: {cost_in_words(found)}, which no grant covers", fix), *unread]


def check_watchdog(facts: DoctorFacts) -> list[Finding]:
    """A watchdog makes passes, if there is anything to look after."""
    found = []
    if facts.watch.value is None:
        found.append(not_checked(facts.watch.error))
    else:
        found += _judge_schedule(facts.watch.value)
    records = facts.records.value
    if records is None:
        return [*found, not_checked(facts.records.error)]
    if records.paused:
        found.append(warning(records.paused, "tpuctl resume"))
    health, installed = records.health, bool(facts.watch.value and facts.watch.value.installed)
    if found:
        return found
    if health is None:
        return [ok("nothing to look after yet")]
    if health.good:
        return [ok(health.why)]
    if health.verdict is Verdict.STOPPED and installed:
        return [problem(health.why, "tpuctl watch once, whose error says why")]
    if records.wanted:
        count = "1 slice or run counts" if records.wanted == 1 else f"{records.wanted} slices and runs count"
        return [warning(f"{health.why}; {count} on one", "tpuctl watch install")]
    return [ok(f"{health.why}, and nothing needs one")]


def _judge_schedule(watch: WatchFacts) -> list[Finding]:
    broken = [problem(error.message, error.hint or "tpuctl watch hooks") for error in watch.broken_hooks]
    if watch.installed and not watch.timer and watch.in_crontab is False:
        what = "was installed, but its line is gone from the crontab"
        return [*broken, problem(what, "tpuctl watch install --yes; or tpuctl watch uninstall")]
    if watch.installed and not watch.timer and watch.in_crontab and watch.cron_runs is False:
        what = "is in the crontab, but no cron daemon runs"
        return [*broken, problem(what, "sudo systemctl enable --now cron")]
    return broken


def judge_tools(found: Sequence[ToolFacts]) -> list[Finding]:
    """Programs and libraries: what is missing, and what is there in which version."""
    missing = [
        (problem if tool.needed else warning)(f"{tool.name} is missing: {tool.purpose}", tool.fix or None)
        for tool in found
        if tool.version is None
    ]
    there = ", ".join(f"{tool.name} {tool.version}" for tool in found if tool.version is not None)
    return [*missing, ok(there)]


class Check(Struct, frozen=True):
    """One check. What it `needs` is a field of `DoctorFacts`, whose value `judge` gets besides all facts; where
    that could not be read, the finding says so."""

    name: str
    judge: Callable[..., Iterable[Finding]]
    needs: str = ""


CHECKS = (
    Check("credentials", check_credentials),
    Check("clock", check_clock, needs="clock_ahead"),
    Check("apis", check_apis),
    Check("permissions", check_permissions, needs="permissions"),
    Check("tpu quota", tpu_findings),
    Check("side quotas", side_findings),
    Check("ssh key", lambda _, found: [judge_key(found)], needs="keys"),
    Check("os login", check_os_login, needs="project"),
    Check("vpc", check_network),
    Check("buckets", check_buckets),
    Check("tpus", check_tpus, needs="survey"),
    Check("disks", check_disks, needs="unused_disks"),
    Check("store", store_findings),
    Check("watchdog", check_watchdog),
    Check("tools", lambda _, found: judge_tools(found), needs="tools"),
)
"""Every check, in the order in which a person would mend things."""


def examine(facts: DoctorFacts) -> tuple[Finding, ...]:
    """What all checks find."""
    found = [each for check in CHECKS for each in found_by(check.name, _run(check, facts))]
    silent = _nothing_answers(facts)
    if silent is None:
        return tuple(dict.fromkeys(found))
    renewal = facts.credentials.error is not None and facts.credentials.error.code == "transient"
    kept = [each for each in found if not (renewal and each.check == "credentials")]
    refused = facts.wanted.simulated and silent.details.get("refused_connection")
    fix = "tpuctl sim up" if refused else silent.hint
    cause = found_by("network", [problem(f"no API answers: {silent.message}", fix)])
    return tuple(dict.fromkeys([*cause, *because(kept, "no API answers")]))


def _run(check: Check, facts: DoctorFacts) -> Iterable[Finding]:
    if not check.needs:
        return check.judge(facts)
    reading: Reading[Any] = getattr(facts, check.needs)
    return [not_checked(reading.error)] if reading.value is None else check.judge(facts, reading.value)


def all_others(found: Sequence[Finding], why: str) -> list[Finding]:
    """The checks that `found` has no finding of."""
    made = {each.check for each in found}
    names = [name for name in ("settings", *(check.name for check in CHECKS)) if name not in made]
    return [each for name in names for each in found_by(name, [not_checked(TpuctlError(why))])]
