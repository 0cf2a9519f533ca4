"""What a cluster refuses, or takes and does wrong, found before anything is written. Pure.

Schemas tell of misspelt fields; the rest only JobSet's webhook knows (pkg/webhooks/jobset_webhook.go of
kubernetes-sigs/jobset), or nobody: a pattern that does not compile is logged by the controller and never
matches.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tpuctl.errors import UsageError
from tpuctl.kube.jobset import GROUP, HOME, JobSetSpec
from tpuctl.lib.mount_paths import check_apart
from tpuctl.model.hosts import Tier

LABEL_MAX = 63
"""Characters of a name that becomes a host name, and of the value of a label (RFC 1035)."""
_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?\Z")
_OBJECT = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
_LABEL_WORD = re.compile(r"[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?\Z")
_SECRET_KEY = re.compile(r"[A-Za-z0-9._-]{1,253}\Z")
_OWN_PLACES = {HOME: "the code of the run", "/dev/shm": "shared memory"}  # noqa: S108


def check_job(job: JobSetSpec) -> None:
    """Raises UsageError for what would be refused, with the option that mends it."""
    _check_name(job)
    for field, flag, name in _names(job):
        if not _OBJECT.match(name) or len(name) > 253:
            why = f"{name!r} is no name of an object of Kubernetes: lower-case letters, digits, - and ."
            raise UsageError.of(field, why, f"{flag} another name")
    if not _LABEL.match(job.namespace) or len(job.namespace) > LABEL_MAX:
        raise UsageError.of("namespace", f"{job.namespace!r} is no name of a namespace", "--namespace NAME")
    wrong = [code for code in job.policy.fatal_exits if not 0 < code < 256]
    if wrong:
        why = f"{wrong[0]} is no exit status of a program that failed"
        raise UsageError.of("fatal_exit", why, "--fatal-exit 1 to 255")
    for key, value in job.labels.items():
        if not _LABEL_WORD.match(key) or (value and not _LABEL_WORD.match(value)):
            why = f"--label {key}={value}: Kubernetes wants a letter or digit at both ends of each"
            raise UsageError.of("label", why, "--label team=vision")
    tier, reservation = job.provisioning.tier, job.provisioning.reservation
    if tier is Tier.PREEMPTIBLE:
        raise UsageError.of("tier", "GKE has no preemptible TPUs, only spot ones", "--spot")
    if tier is Tier.RESERVED and not reservation:
        raise UsageError.of("reservation", "--reserved does not say which reservation", "--reservation NAME")
    _check_places(job)


def _check_name(job: JobSetSpec) -> None:
    """The name of a JobSet begins those of its jobs, pods, and of the coordinator, which is a label, too."""
    if not _LABEL.match(job.name):
        why = f"{job.name!r} is no name of a JobSet: a lower-case letter first, then letters, digits and -"
        raise UsageError.of("name", why, "--name another")
    last, host = job.slices - 1, job.shape.hosts - 1
    derived = {
        "a pod": f"{job.name}-{GROUP}-{last}-{host}-abcde",
        "the coordinator": f"{job.name}-{GROUP}-0-0.{job.name}",
    }
    for what, name in derived.items():
        over = len(name) - LABEL_MAX
        if over > 0:
            each = 2 if what == "the coordinator" else 1
            keep = len(job.name) - -(-over // each)
            raise UsageError.of(
                "name",
                f"the name {job.name} is too long: {what} would be called {name}, which has {len(name)} "
                f"characters of {LABEL_MAX}",
                f"--name of at most {keep} characters",
            )


def _names(job: JobSetSpec) -> Iterator[tuple[str, str, str]]:
    if job.queue:
        yield "local_queue", "--local-queue", job.queue
    if job.service_account:
        yield "kube_account", "--kube-account", job.service_account
    for place in job.secrets.values():
        yield "kube_secret", "--kube-secret", place.secret
        if not _SECRET_KEY.match(place.key):
            raise UsageError.of("secret", f"{place.key!r} is no key of a Secret", "--secret NAME=REFERENCE")


def _check_places(job: JobSetSpec) -> None:
    """Raises UsageError for two volumes at one path, or one inside another."""
    known = dict(_OWN_PLACES)
    for path, what, field in [
        *((each.path, f"gs://{each.bucket}", "mount") for each in job.buckets),
        *((each.path, f"disk {each.name}", "disk") for each in job.disks),
    ]:
        check_apart(path, known, field=field, hint="another path")
        known[path] = what
