"""The plan of a run that is done again: every part once, as kept, changed or missing."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.provenance.samples import a_manifest
from tests.support.builders import a_slice
from tests.support.jobs import SPEC
from tpuctl.disks.make import save_record
from tpuctl.model.disks import DiskRecord, DiskRequest
from tpuctl.model.slice_spec import MountRef
from tpuctl.provenance.manifest import AttemptSection, AttemptSlice, RunManifest, typed
from tpuctl.provenance.rerun import Available, Bucket, DiskThere, Fate, is_possible, plan_rerun, world_sizes
from tpuctl.runs.rerun_disks import find_disks


def made(**parts: Any) -> RunManifest:
    return replace(typed(a_manifest()), **parts)


def fates(manifest: RunManifest, **there: Any) -> dict[str, str]:
    found = Available(**{"slice_name": "big", "spec": SPEC, "new_slice": False, **there})
    return {each.what: str(each.fate) for each in plan_rerun(manifest, found)}


def lines(manifest: RunManifest, **there: Any) -> list[tuple[str, str]]:
    found = Available(**{"slice_name": "big", "spec": SPEC, "new_slice": False, **there})
    return [(each.what, each.detail) for each in plan_rerun(manifest, found) if each.fate is not Fate.KEPT]


def test_the_same_slice_keeps_everything():
    assert set(fates(made()).values()) == {"kept"}
    assert {"code", "command", "variables", "environment", "slice", "chips", "checkpoints"} < set(fates(made()))


def test_another_type_changes_chips_hosts_and_runtime():
    other = replace(SPEC, accelerator_type="v6e-16", chips=16, hosts=4, runtime_version="v2-alpha-tpuv6e")
    assert lines(made(), slice_name="v6e-16", spec=other, new_slice=True) == [
        ("slice", "v6e-16 is brought up for it, and goes with it"),
        ("type", "v4-16 → v6e-16"),
        ("chips", "8 → 16"),
        ("hosts", "2 → 4"),
        ("runtime version", "tpu-ubuntu2204-base → v2-alpha-tpuv6e"),
    ]


DISK = {"name": "data-g1", "path": "/mnt/data", "master": "data", "snapshot": "data-s1", "mode": "ro"}
MOUNT = {"bucket": "b", "directory": "sets", "path": "/mnt/sets"}


@pytest.mark.parametrize(("bucket", "fate"), [("b", "kept"), ("other", "changed"), (None, "missing")])
def test_mounts_are_looked_for_by_their_paths(bucket, fate):
    attempt = AttemptSection(1, AttemptSlice(1), mounts=(MOUNT,))
    mounts = () if bucket is None else (MountRef(bucket, "/mnt/sets", "data", "sets"),)
    assert fates(made(attempts=(attempt,)), spec=replace(SPEC, mounts=mounts))["mount /mnt/sets"] == fate


PD, ML = "pd-balanced", "hyperdisk-ml"
COST = "about 2 min, about $48.80 a month more"


@pytest.mark.parametrize(
    ("there", "kind", "disk"),
    [
        (DiskThere(PD, "data-g1", same=True), ("kept", PD), ("kept", "data-g1")),
        (DiskThere(PD, "data-g2"), ("kept", PD), ("changed", "data-g1 → data-g2, other content")),
        (
            DiskThere(ML, "data-g1-far", True, COST),
            ("changed", f"{PD} → {ML}"),
            ("changed", f"data-g1 → data-g1-far, its copy: {COST}"),
        ),
        (
            DiskThere(ML, cost=COST),
            ("changed", f"{PD} → {ML}"),
            ("missing", f"data-g1, of snapshot data-s1 is not on big; a copy for it: {COST}"),
        ),
        (DiskThere(""), ("missing", f"{PD}: v4-16 has none like it"), None),
    ],
)
def test_disks_are_kept_or_copied_or_missing_with_their_cost(there, kind, disk):
    attempt = AttemptSection(1, AttemptSlice(1), disks=({**DISK, "type": PD},))
    found = Available("big", SPEC, False, disks={"/mnt/data": there})
    plan = {each.what: (str(each.fate), each.detail) for each in plan_rerun(made(attempts=(attempt,)), found)}
    assert plan["disk type /mnt/data"] == kind
    assert plan.get("disk /mnt/data") == disk


def test_what_to_type_for_a_disk_that_is_called_like_a_word_of_the_command(services):
    row = {"name": "a", "path": "/mnt/my data", "type": PD, "mode": "rw"}
    attempt = AttemptSection(1, AttemptSlice(1), disks=(row, {}))
    save_record(services, DiskRecord("a", DiskRequest("a", "us-east5-b", PD, 10, {}), "ada", 0.0, "a"))
    found = find_disks(services, made(attempts=(attempt,)), a_slice())
    clone = "tpuctl disk clone a --rw --name a-2 --zone us-central2-b"
    assert found["/mnt/my data"].hint == f"{clone}, then tpuctl disk attach a-2 --to big --path '/mnt/my data'"


def test_data_is_the_same_or_named():
    rows = (
        {"uri": "gs://b/p", "digest": {"value": "a" * 64}},
        {"uri": "gs://b/q", "digest": {"value": "b" * 64}},
    )
    manifest = made(data=rows)
    assert fates(manifest)["data gs://b/p"] == "kept"
    assert lines(manifest, data={"gs://b/q": "3 objects instead of 2"}) == [
        ("data gs://b/q", "3 objects instead of 2")
    ]
    assert lines(manifest, receipts={"gs://b/p": "c" * 64}) == [("data gs://b/p", f"{'a' * 12} → {'c' * 12}")]
    assert fates(made(synthetic=True))["data"] == "kept"


def test_what_cannot_be_had_is_named_with_what_to_type():
    command = replace(made().command, secrets=("TOKEN", "KEY"), workers=(0, 3))
    there = Available("big", SPEC, False, code_problem="it is gone", secrets=frozenset({"KEY"}))
    plan = plan_rerun(made(command=command), there)
    missing = {each.what: each.hint for each in plan if each.fate is Fate.MISSING}
    assert not is_possible(plan)
    assert set(missing) == {"code", "secret TOKEN", "workers"}
    assert missing["secret TOKEN"] == "--secret TOKEN=env:VARIABLE"


def test_checkpoints_of_ranks_need_as_many_ranks_and_a_way_back_is_named():
    shards = tuple(f"c/step_100_rank-{rank}-of-16.pth" for rank in range(16))
    bucket = Bucket("gs://b/c", "gs://b/c", 5 * 10**12, shards, "EU", False, 20.0)
    plan = plan_rerun(made(), Available("big", SPEC, False, bucket=bucket))
    missing = next(each for each in plan if each.fate is Fate.MISSING)
    assert missing.what == "checkpoint c/step_100"
    assert "16 ranks" in missing.detail
    assert "consolidate_sharded_ckpts --ckpt_prefix c/step_100" in missing.hint
    assert "$100.00" in next(each.detail for each in plan if each.what == "bucket region")
    same = replace(bucket, shards=tuple(f"c/rank_{rank}.pt" for rank in range(8)))
    assert is_possible(plan_rerun(made(), Available("big", SPEC, False, bucket=same)))


@pytest.mark.parametrize(
    ("names", "worlds"),
    [
        (["c/10/rank_0.pt", "c/10/rank_3.pt"], {"c/10": (4, ".pt")}),
        (["c/m_rank-2-of-8.pth"], {"c/m": (8, ".pth")}),
        (["c/step_10/params.npz", "c/frank1.txt"], {}),
        (["c/optimizer.rank7"], {}),
    ],
)
def test_ranks_are_told_from_names(names, worlds):
    assert world_sizes(names) == worlds
