"""What is asked of a host about mounts: nothing, operations, or a person."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from tpuctl.hosts.facts import FactsReply
from tpuctl.hosts.provision import Operation
from tpuctl.model.hosts import Blob
from tpuctl.model.refs import MountRef
from tpuctl.model.shipped_files import load_mount_table
from tpuctl.model.verdict import Blocked
from tpuctl.mounts.hosts import BucketMount, BucketUnmount, KeeperFiles, has_old_keeper, health, mounted
from tpuctl.mounts.rules import MountRules

RULES = MountRules(*load_mount_table())
FILES = KeeperFiles(b"keeper", b"unit", b"installer")
SHA = "ab" * 32
REF = MountRef("data", "/mnt/data", "train")
PLAIN = mounted(RULES, REF, FILES)
BROUGHT = mounted(RULES, replace(REF, program=SHA, program_bytes=7), FILES)
HOST: Mapping[str, Any] = {
    "hostname": "t1v",
    "user": "ada",
    "home": "/home/ada",
    "root": "sudo",
    "kernel": "6.8",
    "os": "Ubuntu",
}


def facts(kind: BucketMount = PLAIN, *, root: str = "sudo", there: bool = True, **more: Any) -> FactsReply:
    mount = {"path": "/mnt/data", "bucket": "data", "digest": kind.digest, "state": "up", "alive": True}
    mount["version"] = more.pop("serves", RULES.pinned)
    mount["keeper"] = hashlib.sha256(FILES.keeper).hexdigest()
    gcsfuse = {
        "version": more.pop("version", ""),
        "programs": more.pop("programs", []),
        "fuse": more.pop("fuse", True),
    }
    gcsfuse["mounts"] = [{**mount, **more}] if there else []
    return FactsReply.parse({"time": 1.0, "boot_id": "b", "host": {**HOST, "root": root}, "gcsfuse": gcsfuse})


def planned(kind: BucketMount, found: FactsReply) -> list[str]:
    operations = kind.plan(found)
    assert not isinstance(operations, Blocked), operations
    return [each.kind for each in operations]


def test_a_mount_as_asked_needs_nothing() -> None:
    assert planned(PLAIN, facts()) == []
    assert health(facts(), PLAIN) == "mounted"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"there": False}, "not mounted"),
        ({"alive": False, "state": "restarting", "error": "gcsfuse died"}, "restarting: gcsfuse died"),
        ({"digest": "0" * 16}, "mounted otherwise than asked"),
    ],
)
def test_what_is_not_as_asked_is_mounted(more: dict[str, Any], said: str) -> None:
    found = facts(version=RULES.pinned, **more)
    assert planned(PLAIN, found) == ["mount_bucket"]
    assert health(found, PLAIN) == said


@pytest.mark.parametrize("old", ["", "0" * 64])
def test_the_keeper_of_another_tpuctl_is_replaced_when_a_person_asks(old: str) -> None:
    found, renewing = facts(keeper=old, version=RULES.pinned), replace(PLAIN, renew=True)
    assert has_old_keeper(found, PLAIN)
    assert planned(PLAIN, found) == []
    assert planned(renewing, found) == ["mount_bucket"]
    assert planned(renewing, facts()) == []


def test_a_bucket_that_does_not_answer_is_told_of_and_not_mounted_again() -> None:
    found = facts(error="Input/output error")
    assert planned(PLAIN, found) == []
    assert health(found, PLAIN) == "the bucket does not answer: Input/output error"


@pytest.mark.parametrize(("version", "operations"), [("", 2), ("3.5.0", 2), (RULES.pinned, 1)])
def test_packages_bring_the_pinned_version_where_it_is_not(version: str, operations: int) -> None:
    wanted = ["run", "mount_bucket"][-operations:]
    assert planned(PLAIN, facts(there=False, version=version)) == wanted


@pytest.mark.parametrize(("programs", "brought"), [([], True), ([SHA[:16]], False), (["0" * 16], True)])
def test_a_program_of_the_store_goes_where_it_is_not(programs: list[str], brought: bool) -> None:
    operations = BROUGHT.plan(facts(BROUGHT, there=False, version=RULES.pinned, programs=programs))
    assert not isinstance(operations, Blocked)
    [operation] = operations
    assert isinstance(operation, Operation)
    assert (operation.files.get("gcsfuse") == Blob(SHA, 7)) is brought
    assert (operation.parameters["keeper"], operation.parameters["unit"]) == ("keeper", "unit")
    assert set(operation.files) <= {"gcsfuse"}  # without files a job takes two calls, with them seven


@pytest.mark.parametrize("more", [{"root": ""}, {"there": False, "fuse": False}])
def test_without_root_or_fuse_a_person_is_asked(more: dict[str, Any]) -> None:
    found = PLAIN.plan(facts(**more))
    assert isinstance(found, Blocked)
    assert found.hint


def test_two_mounts_bring_a_program_once() -> None:
    from tpuctl.hosts.provision import files_of

    other = mounted(RULES, replace(BROUGHT.ref, path="/mnt/other"), FILES)
    empty = facts(there=False)
    assert set(files_of([*BROUGHT.plan(empty), *other.plan(empty)])) == {"gcsfuse"}


def test_only_what_is_mounted_is_unmounted() -> None:
    gone = BucketUnmount("/mnt/data", b"keeper")
    [operation] = gone.plan(facts())
    assert (operation.kind, operation.parameters["path"]) == ("unmount_bucket", "/mnt/data")
    assert gone.plan(facts(there=False)) == ()
    assert BucketUnmount("/mnt/other", b"keeper").plan(facts()) == ()


@pytest.mark.parametrize("version", [RULES.pinned, "unknown"])
def test_the_row_of_a_host_has_version_and_options_as_they_are(version: str) -> None:
    row = PLAIN.row(facts(options=["rw", "allow_other"], serves=version))
    assert row[PLAIN.column] == f"gs://data gcsfuse {version} {PLAIN.digest} rw,allow_other"
