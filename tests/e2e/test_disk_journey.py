"""Disks on isolated hosts, with real file systems: the journey of `disk clone`, and what it must refuse."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.test_disk_killed import WRITER
from tests.support.require import require_isolated_hosts
from tests.support.session import Session, open_session

ZONE = "us-central2-b"
pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A dev box with a disk that somebody writes to all the time, and a slice of eight hosts."""
    require_isolated_hosts()
    with open_session("--instant", "--hosts", "isolated") as made:
        made.type("up", "v4-8", "dev", "--spot", "--pay", "--zone", ZONE)
        made.type("up", "v4-16", "big", "--spot", "--pay", "--zone", ZONE)
        made.type("disk", "create", "data", "--size", "10", "--zone", ZONE)
        made.type("disk", "attach", "data", "--to", "dev")
        made.on("dev", "head -c 300000 /dev/urandom > /mnt/data/set && sync")
        started = f"setsid -f sh -c '{WRITER}' </dev/null >/dev/null 2>&1"
        made.type("exec", "dev", "--", "sudo", "sh", "-c", started)
        yield made


def sums(session: Session, slice_name: str, path: str) -> set[str]:
    return {out.split()[0] for out in session.on(slice_name, f"sha256sum {path}")}


def test_a_clone_of_a_busy_disk_is_the_same_and_read_only_on_every_host(session: Session) -> None:
    session.type("up", "v4-16", "wide", "--spot", "--pay", "--zone", ZONE)
    said = session.type("disk", "clone", "data", "--to", "wide").stderr
    assert "data: held still on dev: " in said
    [first] = sums(session, "dev", "/mnt/data/set")
    assert sums(session, "wide", "/mnt/data/set") == {first}
    assert len(session.on("wide", "cat /mnt/data/set > /dev/null")) == 2
    assert len(sums(session, "wide", "/mnt/data/busy")) == 1
    assert set(session.on("wide", "stat -c %s /mnt/data/busy")) == {"262144\n"}
    session.on("wide", "touch /mnt/data/x 2>/dev/null && exit 1 || exit 0")
    session.on("dev", "touch /mnt/data/still-written")
    session.type("disk", "attach", "data-g1", "--to", "big")
    assert sums(session, "big", "/mnt/data/set") == {first}
    session.type("down", "wide", "--yes")


def test_a_run_is_done_again_on_a_generation_that_needs_another_type_of_disk(session: Session) -> None:
    """From v4 to v6e, in another zone: the same content is restored there as hyperdisk-ml, said before."""
    (session.work / "train.py").write_text("print('first', open('/mnt/data/set', 'rb').read(8).hex())\n")
    session.type("run", "--on", "big", "--no-checkpoint", "--name", "one", "train.py")
    words = ("rerun", "one", "--on", "v6e-4", "--zone", "us-east5-b", "--pay")
    before = len(session.sim_journal())
    plan = session.json(*words, "--dry-run")
    assert len(session.sim_journal()) == before
    told = {row["what"]: (row["fate"], row["detail"]) for row in plan["plan"]}
    assert told["disk type /mnt/data"] == ("changed", "pd-balanced → hyperdisk-ml")
    cost = "about 2 min, about $48.80 a month more"
    assert told["disk /mnt/data"] == ("changed", f"data-g1 → data-g1-us-east5-b, its copy: {cost}")
    session.type(*words, "--name", "two")
    [disk] = session.json("manifest", "two")["attempts"][0]["disks"]
    assert (disk["name"], disk["type"], disk["snapshot"]) == ("data-g1-us-east5-b", "hyperdisk-ml", "data-g1-s")
    assert (disk["master"], disk["generation"]) == ("data", 1)
    first, again = ({line.split()[-1] for line in said(session, run)} for run in ("one", "two"))
    assert first == again
    assert len(first) == 1
    for flag, value in (("--type", "pd-balanced"), ("--throughput", "2000")):
        other = session.type("disk", "clone", "data-g1", "--zone", "us-east5-b", flag, value, status=2)
        assert "is a hyperdisk-ml disk of" in " ".join(other.stderr.split())
        assert f"without {flag}" in other.stderr
    session.type("disk", "rm", "data-g1-us-east5-b", "--yes")
    session.type("up", "v6e-4", "far", "--spot", "--pay", "--zone", "us-east5-b")
    refused = session.type("rerun", "one", "--on", "far", status=2).stderr
    clone = "tpuctl disk clone data-g1 --zone us-east5-b --type hyperdisk-ml"
    attach = "tpuctl disk attach data-g1-us-east5-b --to far --path /mnt/data"
    assert f"hint: {clone}, then {attach}" in " ".join(refused.split())
    for typed in (clone, attach):
        session.type(*typed.split()[1:])
    assert session.json("rerun", "one", "--on", "far", "--dry-run")["possible"] is True
    session.type("down", "far", "--yes")
    session.type("disk", "rm", "data-g1-us-east5-b", "--yes")


def said(session: Session, run: str) -> list[str]:
    return [line for line in session.type("logs", run).stdout.splitlines() if "first" in line]


def test_a_second_generation_comes_beside_the_first_that_is_in_use(session: Session) -> None:
    session.on("dev", "echo second > /mnt/data/word")
    session.type("disk", "clone", "data", "--to", "big", "--path", "/mnt/next")
    assert set(session.on("big", "cat /mnt/next/word")) == {"second\n"}
    session.on("big", "test ! -e /mnt/data/word")
    names = [row["name"] for row in session.json("disk", "ls")]
    assert names == ["data", "data-g1", "data-g2"]


def test_a_copy_that_nobody_held_still_is_refused_on_every_host(session: Session) -> None:
    """As a script would make it: while programs write, with a sync at most."""
    killed = session.type_killed(3, "before", "disk", "clone", "data", "--to", "big", "--path", "/mnt/dirty")
    assert killed.returncode != 0
    shown = session.json("disk", "show", "data-g3")
    assert shown["status"] == "not there"
    disks = f"/compute/v1/projects/sim-project/zones/{ZONE}/disks"
    labels = session.ask("GET", f"{disks}/data-g2")["labels"] | {"tpuctl-generation": "3"}
    source = f"projects/sim-project/zones/{ZONE}/disks/data"
    session.ask("POST", disks, {"name": "data-g3", "sourceDisk": source, "labels": labels})
    done = session.type("disk", "clone", "data", "--to", "big", "--path", "/mnt/dirty", status=3)
    assert "needs recovery: it was copied while its file system was being written" in done.stderr
    assert "tpuctl disk repair" in done.stderr
    session.on("big", "! grep -q /mnt/dirty /proc/mounts")
    used = session.type("disk", "repair", "data-g3", "--on", "dev", status=2)
    assert "data-g3 is used by big-1" in used.stderr
    session.type("disk", "detach", "data-g3", "--to", "big")
    asked = session.type("disk", "repair", "data-g3", status=2)
    assert "which slice? you have big, dev" in asked.stderr
    assert "--on NAME with one of these names" in asked.stderr
    killed = session.type_killed(5, "after", "disk", "repair", "data-g3", "--on", "dev")
    assert killed.returncode != 0
    session.type("disk", "repair", "data-g3", "--on", "dev")
    session.type("disk", "clone", "data", "--to", "big", "--path", "/mnt/dirty")
    assert sums(session, "big", "/mnt/dirty/set") == sums(session, "dev", "/mnt/data/set")


def test_what_is_mounted_elsewhere_or_not_empty_is_left_alone(session: Session) -> None:
    session.on("dev", "sudo mkdir -p '/mnt/my full' && sudo touch '/mnt/my full/x'")
    session.type("disk", "umount", "data", "--to", "dev", status=3)  # the writer uses it
    session.on("dev", "sudo pkill -f 'of=ne[w]' || true; sudo pkill dd || true")
    session.type("disk", "umount", "data", "--to", "dev")
    done = session.type("disk", "mount", "data", "--to", "dev", "--path", "/mnt/my full", status=2)
    told = " ".join(done.stderr.split())
    assert "/mnt/my full is not empty" in told
    assert "tpuctl exec --worker 0 dev -- ls -lA '/mnt/my full'" in told
    session.type("disk", "mount", "data", "--to", "dev", "--path", "/mnt/data")
    assert session.on("dev", "cat /mnt/data/word") == ["second\n"]
