"""What only JobSet's webhook would refuse, or nobody."""

from __future__ import annotations

import pytest

from tests.kube.jobs import a_job
from tpuctl.errors import UsageError
from tpuctl.kube.jobset import BucketVolume, ClusterCapacity, DiskVolume, FailurePolicy, SecretKey
from tpuctl.kube.rules import check_job
from tpuctl.model.hosts import Tier

BUCKET = BucketVolume("my-bucket", "/mnt/data")


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        ({"name": "x" * 27}, "the coordinator would be called", "--name of at most 26 characters"),
        ({"name": "x" * 60}, "is too long", "--name of at most"),
        ({"name": "2nd-try"}, "'2nd-try' is no name of a JobSet", "--name"),
        ({"name": "Train"}, "'Train' is no name of a JobSet", "--name"),
        ({"namespace": "a_b"}, "'a_b' is no name of a namespace", "--namespace"),
        ({"queue": "My Queue"}, "'My Queue' is no name of an object", "--local-queue"),
        ({"service_account": "a@b"}, "'a@b' is no name of an object", "--kube-account"),
        ({"secrets": {"TOKEN": SecretKey("a/b", "TOKEN")}}, "'a/b' is no name of an object", "--kube-secret"),
        ({"labels": {"team": "-x"}}, "--label team=-x: Kubernetes wants", "--label team=vision"),
        ({"labels": {"team-": ""}}, "--label team-=: Kubernetes wants", "--label team=vision"),
        ({"policy": FailurePolicy(3, (0,))}, "0 is no exit status of a program that failed", "--fatal-exit"),
        ({"policy": FailurePolicy(3, (256,))}, "256 is no exit status", "--fatal-exit"),
        ({"provisioning": ClusterCapacity(Tier.PREEMPTIBLE)}, "no preemptible TPUs", "--spot"),
        ({"provisioning": ClusterCapacity(Tier.RESERVED)}, "does not say which", "--reservation NAME"),
        (
            {"buckets": (BucketVolume("b", "/tpuctl/x"),)},
            "the code of the run is at /tpuctl",
            "beside each other",
        ),
        ({"buckets": (BUCKET, BUCKET)}, "gs://my-bucket is at /mnt/data already", "another path"),
        (
            {
                "buckets": (BUCKET,),
                "disks": (DiskVolume("d", "/mnt/data/d", "projects/p/zones/z/disks/d", 10),),
            },
            "/mnt/data/d is inside /mnt/data",
            "beside each other",
        ),
    ],
)
def test_what_a_cluster_would_refuse_is_refused_before_anything_is_written(given, message, hint):
    with pytest.raises(UsageError) as refused:
        check_job(a_job(**given))
    assert message in refused.value.message
    assert hint in str(refused.value.hint)


def test_the_longest_name_that_is_let_through_gives_names_that_kubernetes_takes():
    check_job(a_job(name="x" * 26, slices=2))
    assert len(f"{'x' * 26}-slice-0-0.{'x' * 26}") == 63
