"""Rules of `doctor` for the project: its APIs are enabled, somebody pays for it, and its caller may do what the
fleet needs. Pure."""

from __future__ import annotations

from tpuctl.doctor.facts import DoctorFacts
from tpuctl.doctor.finding import Finding, not_checked, ok, problem, warning
from tpuctl.doctor.quotas import named_needs
from tpuctl.errors import BILLING_DISABLED, disabled_api
from tpuctl.model.hosts import Api
from tpuctl.model.quota import QUOTA_SERVICES
from tpuctl.model.roles import PROJECT, asked_permissions, needs_of

NEEDED_APIS = {
    "tpu.googleapis.com": "nothing works without it",
    "compute.googleapis.com": "quotas, disks and OS Login cannot be read without it",
    "storage.googleapis.com": "checkpoints and a shared store need it",
}
WITHOUT_TPU_API = "Compute Engine makes your slices; `ls`, `reap` and `watch` say that TPUs of it are not read"
USEFUL_APIS = {
    "cloudquotas.googleapis.com": "TPU quotas cannot be read without it",
    "cloudresourcemanager.googleapis.com": "permissions cannot be checked without it",
}


def check_apis(facts: DoctorFacts) -> list[Finding]:
    """The APIs that tpuctl calls are enabled. An API that refused to be called counts, listed or not."""
    project = facts.wanted.project
    refused = {disabled_api(reading.error) for reading in facts.asked_in_every_case()}
    listed = facts.services.value
    off = [name for name in NEEDED_APIS if name in refused or (listed is not None and name not in listed)]
    other = _compute_alone(facts)
    found = _no_billing(facts)
    for name in off:
        fix = f"gcloud services enable {name} --project={project}"
        if other and name == QUOTA_SERVICES[Api.TPU]:
            found.append(warning(f"{name} is not enabled: {WITHOUT_TPU_API}", fix))
        else:
            found.append(problem(f"{name} is not enabled: {NEEDED_APIS[name]}", fix))
    if listed is None:
        return [*found, not_checked(facts.services.error)]
    found += [
        warning(f"{name} is not enabled: {why}", f"gcloud services enable {name} --project={project}")
        for name, why in USEFUL_APIS.items()
        if name not in listed
    ]
    return found or [ok(f"enabled: {', '.join(NEEDED_APIS)}")]


def _compute_alone(facts: DoctorFacts) -> bool:
    """Whether Compute Engine makes all slices that are there or are named; not where a record may say else."""
    records = facts.records.value
    if records is None or records.damaged:
        return False
    named = [api for need in named_needs(facts.wanted, records) for api in need.apis]
    return {*named, *records.used_apis} == {Api.COMPUTE}


def _no_billing(facts: DoctorFacts) -> list[Finding]:
    """Without a billing account the APIs refuse every call but a few."""
    errors = [reading.error for reading in facts.asked_in_every_case() if reading.error is not None]
    if not any(error.details.get("reason") == BILLING_DISABLED for error in errors):
        return []
    project = facts.wanted.project
    fix = f"gcloud billing projects link {project} --billing-account=ACCOUNT; `gcloud billing accounts list`"
    return [problem(f"project {project} has no billing account: its APIs refuse to work", fix)]


def check_permissions(facts: DoctorFacts, granted: frozenset[str]) -> list[Finding]:
    """What tpuctl must be allowed, and what it is better off with, for what the fleet does."""
    uses = facts.records.value.uses if facts.records.value is not None else frozenset()
    found = []
    for need in needs_of(uses):
        missing = [each for each in need.permissions if each not in granted]
        if missing:
            where = "" if need.on == PROJECT else " on the project"
            what = f"not granted{where}: {', '.join(missing)}" + (f"; {need.without}" if need.without else "")
            found.append((problem if need.stops else warning)(what, _grant_role(facts, need.role)))
    return found or [ok(f"all {len(asked_permissions(uses))} are granted")]


def _grant_role(facts: DoctorFacts, role: str) -> str:
    return (
        f"gcloud projects add-iam-policy-binding {facts.wanted.project} --member={facts.member} --role={role}"
    )
