"""What Kubernetes' and JobSet's own code says of what tpuctl makes, with the pinned JobSet and Kueue."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests.kube.jobs import a_job
from tests.support.kube.checker import Checker, Verdict
from tpuctl.errors import UsageError
from tpuctl.kube.jobset import BucketVolume, DiskVolume, Job, Provisioning, documents
from tpuctl.kube.rules import check_job
from tpuctl.model.hosts import Tier

pytestmark = pytest.mark.slow

Object = dict[str, Any]
BUCKET = BucketVolume(
    "my-bucket", "/mnt/data", ("implicit-dirs",), {"fileCacheCapacity": "50Gi"}, read_only=True
)
DISK = DiskVolume("tokens", "/mnt/tokens", "projects/p/zones/us-east5-b/disks/tokens", 100)
POD = "replicatedJobs.0.template.spec.template.spec"
_NUMBERS = itertools.count(1)


def a_jobset(accelerator: str = "v6e-16", **given: Any) -> Object:
    """With a name that no test had before."""
    return documents(a_job(accelerator, name=f"train-{next(_NUMBERS)}", **given))[-1]


def changed(path: str, value: Any) -> Callable[[Object], None]:
    """Sets spec.PATH; a number is the index in a list."""

    def change(jobset: Object) -> None:
        *above, last = (int(word) if word.isdigit() else word for word in path.split("."))
        place = jobset["spec"]
        for word in above:
            place = place[word]
        place[last] = value

    return change


def _start_in_two_ways(jobset: Object) -> None:
    (first,) = jobset["spec"]["replicatedJobs"]
    second = {**copy.deepcopy(first), "name": "second", "dependsOn": [{"name": "slice", "status": "Ready"}]}
    jobset["spec"] |= {"startupPolicy": {"startupPolicyOrder": "InOrder"}, "replicatedJobs": [first, second]}


def _given(stored: Any, given: Any) -> Any:
    """What is stored, without keys that were not given."""
    if isinstance(given, dict):
        return {key: _given(stored[key], value) for key, value in given.items()}
    if isinstance(given, list):
        return [_given(*each) for each in zip(stored, given, strict=True)]
    return stored


@pytest.mark.parametrize("accelerator", ["v4-16", "v5litepod-16", "v5p-16", "v6e-8", "v6e-16", "tpu7x-16"])
@pytest.mark.parametrize("slices", [1, 2])
def test_what_is_made_of_a_run_is_taken_word_for_word(
    kube_checker: Checker, accelerator: str, slices: int
) -> None:
    spot = Provisioning(Tier.SPOT, zones=("us-east5-b",))
    made = a_jobset(
        accelerator, slices=slices, provisioning=spot, queue="team", buckets=(BUCKET,), disks=(DISK,)
    )
    admitted = kube_checker.ask(made, webhooks=True)
    assert (admitted.status, admitted.message) == (201, "")
    said = kube_checker.ask(made)
    assert said.object is not None
    assert _given(said.object["spec"], made["spec"]) == made["spec"]


def test_volumes_of_a_run_have_the_fields_that_there_are(kube_checker: Checker) -> None:
    *made, _ = documents(a_job(disks=(DISK,)))
    assert [(each["kind"], kube_checker.ask(each).status) for each in made] == [
        ("PersistentVolume", 201),
        ("PersistentVolumeClaim", 201),
    ]
    made[0]["spec"]["csi"]["volumeHandel"] = made[0]["spec"]["csi"].pop("volumeHandle")
    said = kube_checker.ask(made[0])
    assert (said.status, 'unknown field "spec.csi.volumeHandel"' in said.message) == (400, True)


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        (changed("failurePolicy.maxRestartz", 3), 400, 'unknown field "spec.failurePolicy.maxRestartz"'),
        (
            changed(f"{POD}.nodeSelectr", {}),
            400,
            'spec.replicatedJobs[0].template.spec.template.spec.nodeSelectr"',
        ),
        (changed("failurePolicy.restartStrategy", "Blocking"), 422, 'Unsupported value: "Blocking"'),
        (changed("failurePolicy.rules.0.action", "Restart"), 422, 'Unsupported value: "Restart"'),
        (changed("failurePolicy.rules.0", {"action": "FailJobSet"}), 422, "rules[0].name: Required value"),
        (changed("replicatedJobs.0.replicas", "2"), 422, 'must be of type integer: "string"'),
        (_start_in_two_ways, 422, "StartupPolicy and DependsOn APIs are mutually exclusive"),
        # These are taken: only JobSet's webhook knows.
        (changed("failurePolicy.rules.0.name", "hosts-lost"), 201, ""),
        (changed("failurePolicy.rules.0.targetReplicatedJobs", ["other"]), 201, ""),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(
    kube_checker: Checker, change: Callable[[Object], None], status: int, words: str
) -> None:
    made = a_jobset()
    change(made)
    said = kube_checker.ask(made)
    assert said.status == status, said
    assert words in said.message


def test_the_failure_policy_of_a_jobset_stays(kube_checker: Checker) -> None:
    """So a changed one is deleted and made again."""
    made = a_jobset(slices=2)
    assert kube_checker.ask(copy.deepcopy(made), made).status == 200
    other = copy.deepcopy(made)
    changed("failurePolicy.maxRestarts", 9)(other)
    said = kube_checker.ask(other, made)
    assert said == Verdict(422, said.message)
    assert "spec.failurePolicy: Invalid value: Value is immutable" in said.message


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        (
            changed("failurePolicy.rules.0.name", "hosts-lost"),
            422,
            "invalid failure policy rule name 'hosts-lost'",
        ),
        (
            changed("failurePolicy.rules.0.targetReplicatedJobs", ["other"]),
            422,
            "invalid replicatedJob name 'other'",
        ),
        (
            changed("failurePolicy.rules.0.onJobFailureReasons", ["Bad"]),
            422,
            "invalid job failure reason 'Bad'",
        ),
        (changed("coordinator.podIndex", 9), 422, "coordinator pod index 9 is invalid"),
        # The controller would log that it is no pattern, and never match it.
        (changed("failurePolicy.rules.0.onJobFailureMessagePatterns", ["("]), 201, ""),
    ],
)
def test_what_the_webhook_of_jobset_refuses(
    kube_checker: Checker, change: Callable[[Object], None], status: int, words: str
) -> None:
    made = a_jobset()
    change(made)
    said = kube_checker.ask(made, webhooks=True)
    assert said.status == status, said
    assert words in said.message


@pytest.mark.parametrize("slices", [1, 2, 11])
@pytest.mark.parametrize("accelerator", ["v6e-8", "v6e-16", "v5litepod-256"])
def test_names_are_refused_here_when_the_webhook_would(
    kube_checker: Checker, accelerator: str, slices: int
) -> None:
    names = [*("x" * length for length in range(1, 64)), "2nd-try", "Train", "a.b", "a-", "-a", "a_b", "try-2"]
    jobs = [a_job(accelerator, name=name, slices=slices) for name in names]
    for job in jobs:
        (made,) = documents(job)
        assert _is_let_through(job) == (kube_checker.ask(made, webhooks=True).status == 201), job.name
    assert 20 < sum(map(_is_let_through, jobs)) < 40


def _is_let_through(job: Job) -> bool:
    try:
        check_job(job)
    except UsageError:
        return False
    return True
