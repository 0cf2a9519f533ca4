"""The plan of a run that is done again: every part once, as kept, changed or missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.provenance.samples import a_manifest
from tests.support.builders import a_slice, a_spec
from tests.support.jobs import SPEC
from tests.support.services import sim_services
from tests.support.sim import RunningSim, running_sim
from tpuctl.config.settings import resolve
from tpuctl.disks.clone import create_master
from tpuctl.disks.make import save_record
from tpuctl.disks.rules import DiskRules
from tpuctl.engine.events import Warn
from tpuctl.lib.codec import to_data
from tpuctl.model.cloud import Tier
from tpuctl.model.disks import DiskRecord, DiskRequest
from tpuctl.model.facts import BucketSpec
from tpuctl.model.refs import MountRef
from tpuctl.model.shipped_files import load_disk_rules
from tpuctl.model.slice_spec import SliceRequest
from tpuctl.provenance.manifest import AttemptSection, AttemptSlice, RunManifest, typed
from tpuctl.provenance.rerun import (
    CONSOLIDATE,
    Available,
    Bucket,
    DiskThere,
    PartFate,
    consolidated,
    is_possible,
    plan_rerun,
    world_sizes,
)
from tpuctl.runs.rerun import find_disks, resolve_like
from tpuctl.slices.resolve import WantedSlice


def made(**parts: Any) -> RunManifest:
    return replace(typed(a_manifest()), **parts)


def fates(manifest: RunManifest, **there: Any) -> dict[str, str]:
    found = Available(**{"slice_name": "big", "spec": SPEC, "new_slice": False, **there})
    return {each.what: str(each.fate) for each in plan_rerun(manifest, found)}


def lines(manifest: RunManifest, **there: Any) -> list[tuple[str, str]]:
    found = Available(**{"slice_name": "big", "spec": SPEC, "new_slice": False, **there})
    return [(each.what, each.detail) for each in plan_rerun(manifest, found) if each.fate is not PartFate.KEPT]


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


A_CLONE = {"master": "data", "generation": 1, "snapshot": "data-s"}
TO_BIG = "--to big --path /mnt/data"
OWN_COPY = "tpuctl disk clone data --rw --name data-2 --zone us-central2-b"


def a_disk(name: str, *, kind: str = PD, zone: str = "us-central2-b", generation: int = 0) -> DiskRecord:
    return DiskRecord(name, DiskRequest(name, zone, kind, 10, {}), "ada", 0.0, "data", generation)


@pytest.mark.parametrize(
    ("row", "records", "hint"),
    [
        pytest.param(
            {"name": "data-g1", "type": ML, "mode": "ro", **A_CLONE},
            [a_disk("data", kind=ML), a_disk("data-g1", kind=ML, generation=1)],
            f"tpuctl disk clone data {TO_BIG} --type {PD} --from-snapshot data-s",
            id="clone-of-another-type",
        ),
        pytest.param(
            {"name": "data-g1", "type": PD, "mode": "ro", **A_CLONE},
            [a_disk("data")],
            f"tpuctl disk clone data {TO_BIG} --from-snapshot data-s",
            id="clone-that-is-gone",
        ),
        pytest.param(
            {"name": "data", "type": PD, "mode": "rw"},
            [a_disk("data")],
            f"tpuctl disk attach data {TO_BIG}",
            id="master",
        ),
        pytest.param(
            {"name": "data", "type": ML, "mode": "rw"},
            [a_disk("data", kind=ML)],
            f"{OWN_COPY} --type {PD}, then tpuctl disk attach data-2 {TO_BIG}",
            id="master-of-another-type",
        ),
        pytest.param(
            {"name": "data", "type": PD, "mode": "rw"},
            [a_disk("data", zone="us-east5-b")],
            f"{OWN_COPY}, then tpuctl disk attach data-2 {TO_BIG}",
            id="master-elsewhere",
        ),
        pytest.param(
            {"name": "data", "type": PD, "mode": "rw"},
            [],
            f"tpuctl disk ls; with one of the same content: tpuctl disk attach NAME {TO_BIG}",
            id="master-that-is-gone",
        ),
        pytest.param(
            {"name": "data-g1", "type": PD, "mode": "ro", **A_CLONE},
            [],
            f"tpuctl disk ls; with one of the same content: tpuctl disk attach NAME {TO_BIG}",
            id="clone-and-master-that-are-gone",
        ),
        pytest.param(
            {"name": "a", "path": "/mnt/my data", "type": PD, "mode": "rw"},
            [a_disk("a", zone="us-east5-b")],
            "tpuctl disk clone a --rw --name a-2 --zone us-central2-b, then "
            "tpuctl disk attach a-2 --to big --path '/mnt/my data'",
            id="called-like-a-word-of-the-command",
        ),
    ],
)
def test_what_to_type_for_a_disk_that_the_slice_lacks(services, row, records, hint):
    row = {"path": "/mnt/data", **row}
    attempt = AttemptSection(1, AttemptSlice(1), disks=(row, {}))
    for record in records:
        save_record(services, record)
    manifest = made(attempts=(attempt,))
    assert find_disks(services, manifest, a_slice())[row["path"]].hint == hint
    new = find_disks(services, manifest, WantedSlice("of-run", (a_spec(),)))[row["path"]].hint
    up = "tpuctl up v4-16 SLICE --zone us-central2-b, then "
    assert new == f"{up}{hint.replace('--to big', '--to SLICE')}, then rerun with --on SLICE"


THERE = MountRef("sim-bucket", "/mnt/sets", "train", "sets", {"implicit-dirs": "true"}, read_only=True)
LOST = MountRef("no-such-bucket", "/mnt/lost", "train")
FAR = MountRef("far-away", "/mnt/far", "train", cross_region=True)


@pytest.fixture(scope="module")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSim]:
    root = tmp_path_factory.mktemp("sim")
    with running_sim(root) as running:
        with sim_services(running, root / "services") as services:
            services.objects.create_bucket(BucketSpec(FAR.bucket, "europe-west4", {}))
        yield running


@pytest.mark.parametrize(
    ("disks", "mounts", "kept", "said"),
    [
        pytest.param([], [THERE], (("/mnt/sets",), ()), None, id="all-there"),
        pytest.param([], [FAR], (("/mnt/far",), ()), None, id="in-another-region-as-agreed"),
        pytest.param(["no-disk"], [THERE], (("/mnt/sets",), ()), "disks: no disk called", id="disk-gone"),
        pytest.param(["data"], [LOST], ((), ("/mnt/data",)), "mounts: bucket gs://no-such", id="bucket-gone"),
        pytest.param([], [LOST], ((), ()), "mounts: bucket gs://no-such", id="bucket-gone-without-disks"),
        pytest.param(["no-disk"], [LOST], ((), ()), "disks and mounts: no disk called", id="both-gone"),
    ],
)
def test_a_new_slice_keeps_what_it_can_have_and_says_why_not_all(
    sim: RunningSim, tmp_path: Path, disks: list[str], mounts: list[MountRef], kept: Any, said: str | None
) -> None:
    with sim_services(sim, tmp_path) as services:
        if "data" in disks:
            request_of_disk = DiskRequest("data", "us-central2-b", PD, 10, {})
            create_master(services, DiskRules(load_disk_rules()), request_of_disk, "data")
        rows = tuple({"name": name, "mode": "READ_WRITE", "path": f"/mnt/{name}"} for name in disks)
        was = replace(made().slice, disks=rows, mounts=tuple(to_data(each) for each in mounts))
        request = SliceRequest("v4-8", zone=("us-central2-b",), tier=Tier.SPOT, pay=True)
        config = resolve([], Path("/nowhere"))
        found = resolve_like(services, config, made(slice=was), request, "again", tmp_path).spec
        told = [event.text for event in services.events if isinstance(event, Warn)]
    assert (tuple(each.path for each in found.mounts), tuple(each.path for each in found.disks)) == kept
    assert all(each in mounts for each in found.mounts)
    assert [text[: len(f"without its {said}")] for text in told] == (
        [] if said is None else [f"without its {said}"]
    )


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
    missing = {each.what: each.hint for each in plan if each.fate is PartFate.MISSING}
    assert not is_possible(plan)
    assert set(missing) == {"code", "secret TOKEN", "workers"}
    assert missing["secret TOKEN"] == "--secret TOKEN=env:VARIABLE"


SHARDS = tuple(f"c/step_100_rank-{rank}-of-16.pth" for rank in range(16))
RANKS = Bucket("gs://b/c", "gs://b/c", 5 * 10**12, SHARDS, "EU", False, 20.0)
CONSOLIDATED = (
    "tpuctl run --on {} --worker 0 --alone --no-checkpoint -- python3 -m {} --ckpt_prefix {}/step_100 "
    "--ckpt_suffix '_rank-*-of-16.pth' --save_path {}/step_100_consolidated.pth"
)


def test_checkpoints_of_ranks_need_as_many_ranks_and_a_way_back_is_named():
    plan = plan_rerun(made(), Available("big", SPEC, False, bucket=RANKS))
    missing = next(each for each in plan if each.fate is PartFate.MISSING)
    assert missing.what == "checkpoint c/step_100"
    assert "16 ranks" in missing.detail
    assert "$100.00" in next(each.detail for each in plan if each.what == "bucket region")
    same = replace(RANKS, shards=tuple(f"c/rank_{rank}.pt" for rank in range(8)))
    assert is_possible(plan_rerun(made(), Available("big", SPEC, False, bucket=same)))


MOUNTED = (MountRef("other", "/mnt/o", "train"), MountRef("b", "/mnt/c", "checkpoint", directory="c"))


@pytest.mark.parametrize(
    ("there", "first", "slice_name", "folder"),
    [
        (Available("big", SPEC, False), "tpuctl mount add gs://b:/mnt/b --on big, then ", "big", "/mnt/b/c"),
        (Available("big", replace(SPEC, mounts=MOUNTED), False), "", "big", "/mnt/c"),
        (
            Available("big", replace(SPEC, mounts=(replace(MOUNTED[1], read_only=True),)), False),
            "tpuctl mount add gs://b:/mnt/b --on big, then ",
            "big",
            "/mnt/b/c",
        ),
        (
            Available("v4-16", SPEC, True),
            f"tpuctl up {SPEC.accelerator_type} SLICE --zone {SPEC.zone} --mount gs://b:/mnt/b, then ",
            "SLICE",
            "/mnt/b/c",
        ),
    ],
    ids=["no mount", "a mount", "a mount that cannot be written", "a new slice"],
)
def test_the_command_that_consolidates_is_complete(there, first, slice_name, folder):
    [hint] = [each.hint for each in plan_rerun(made(), replace(there, bucket=RANKS)) if "c/step" in each.what]
    wanted = CONSOLIDATED.format(slice_name, CONSOLIDATE, folder, folder)
    assert hint == f"{first}{wanted}; or without --checkpoint-dir, from scratch"


def test_a_consolidated_checkpoint_is_in_nobodys_way():
    shards = (*SHARDS, "c/step_100_consolidated.pth")
    plan = plan_rerun(made(), Available("big", SPEC, False, bucket=replace(RANKS, shards=shards)))
    assert is_possible(plan)
    [detail] = [each.detail for each in plan if each.what == "checkpoint c/step_100"]
    assert "its weights are in c/step_100_consolidated.pth, which the program has to load" in detail
    in_folder = consolidated("c/10", "/rank_*.pt")
    assert in_folder == "c/10/consolidated.pth"


@pytest.mark.parametrize(
    ("names", "worlds"),
    [
        (["c/10/rank_0.pt", "c/10/rank_3.pt"], {"c/10": (4, "/rank_*.pt")}),
        (["c/m_rank-2-of-8.pth"], {"c/m": (8, "_rank-*-of-8.pth")}),
        (["c/step_10/params.npz", "c/frank1.txt"], {}),
        (["c/optimizer.rank7"], {}),
    ],
)
def test_ranks_are_told_from_names(names, worlds):
    assert world_sizes(names) == worlds
