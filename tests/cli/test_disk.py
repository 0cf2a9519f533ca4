"""`tpuctl disk` on process hosts: disks are made, copied and attached; mounting needs isolated ones."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.support.session import Session, open_session

ZONE, OTHER = "us-central2-b", "us-central1-a"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as made:
        for words in (("v4-8", "dev"), ("v4-16", "big")):
            made.type("up", *words, "--spot", "--pay", "--zone", ZONE)
        made.type("disk", "create", "data", "--size", "20", "--zone", ZONE)
        yield made


def disk_calls(session: Session) -> list[str]:
    changing = ("disks.", "snapshots.", "nodes.patch")
    return [each["method"] for each in session.sim_journal() if each["method"].startswith(changing)]


def named(session: Session) -> list[str]:
    return [row["name"] for row in session.json("disk", "ls")]


def test_making_a_disk_twice_makes_one(session: Session) -> None:
    before = disk_calls(session)
    session.type("disk", "create", "data", "--size", "20", "--zone", ZONE)
    assert disk_calls(session) == before
    [row] = [each for each in session.json("disk", "ls") if each["name"] == "data"]
    assert (row["size_gib"], row["type"], row["status"], row["usd_per_month"]) == (
        20,
        "pd-balanced",
        "READY",
        2.0,
    )


BAD: list[tuple[str, int, str, str]] = [
    ("create data --size 30 --zone us-central2-b", 6, "there is a disk data already", "another name"),
    ("create Data --zone us-central2-b", 2, "no name for a disk", "lower case"),
    ("create small --size 5 --zone us-central2-b", 2, "10 to 65536 GiB, not 5", "--size"),
    ("create odd --type pd-none --zone us-central2-b", 2, "no disk type pd-none", "hyperdisk-ml"),
    (
        "create quick --throughput 500 --zone us-central2-b",
        2,
        "has no throughput to set",
        "leave --throughput out",
    ),
    ("create somewhere", 2, "in which zone?", "--zone"),
    ("show none", 5, "no disk called none (known: data", "tpuctl disk ls"),
    ("attach none --to dev", 5, "no disk called none", "tpuctl disk ls"),
    ("attach data --to nobody", 5, "no slice called nobody", "tpuctl ls"),
    ("attach data", 2, "which slice? you have big, dev", "--to NAME"),
    ("clone data", 2, "which slice? you have big, dev", "--to NAME"),
    ("clone data --to big --zone us-central1-a", 2, "with --zone the copy is attached nowhere", "without --to"),
    ("attach data --to big", 2, "big-1 has 2 hosts, and one host alone can write", "tpuctl disk clone data"),
    ("attach data --to dev --allow bogus", 2, "no rule bogus", "one of: type"),
    ("umount data", 2, "data is not attached to a slice", "tpuctl disk attach data"),
    ("clone none --to big", 5, "no disk called none", "tpuctl disk ls"),
    ("clone data --to big --type pd-none", 2, "no disk type pd-none", "--type"),
    ("clone data --rw", 2, "a master of its own needs a name", "--rw --name data-2"),
    (
        "clone data --rw --name more --to big",
        2,
        "with --rw the clone is attached nowhere",
        "attach more --to big",
    ),
    ("clone data --rw --name data", 2, "there is a disk data already", "another --name"),
    ("clone data --rw --name Data", 2, "no name for a disk", "lower case"),
    ("clone data --rw --name m --type hyperdisk-ml", 2, "is read-only for good", "--type hyperdisk-balanced"),
    (
        "clone data --rw --name m --snapshot-only",
        2,
        "--snapshot-only and --rw exclude each other",
        "one of them",
    ),
    ("clone data --to big --on dev", 2, "--on says where a clone is repaired", "--crash-consistent"),
    ("clone data --to big --crash-consistent", 2, "on which slice is the clone repaired?", "--on SLICE"),
    ("clone data --to big --crash-consistent --on big", 2, "one host alone can write to a disk", "--to SLICE"),
    (
        "clone data --zone us-central1-a --crash-consistent --on dev",
        2,
        "the clone is in us-central1-a, and slice dev in us-central2-b",
        "--on SLICE, of one host in us-central1-a",
    ),
    (
        "clone data --zone us-central1-a --type hyperdisk-ml --crash-consistent --on dev",
        2,
        "a hyperdisk-ml clone is read-only from its birth on, and a repair writes to it",
        "tpuctl disk clone data, which holds the file system still",
    ),
    ("clone data --to big --from-snapshot none", 5, "no snapshot called none", "tpuctl disk show data"),
    ("attach data --to dev --allow zone", 2, "zone cannot be allowed", "without --allow zone"),
    (
        "create large --zone us-east5-b",
        2,
        "need disks of different types: pd-balanced for v5e, v5p; hyperdisk-balanced for v6e",
        "--for v6e",
    ),
    ("create large --zone us-east5-b --for v6x-8", 2, "there is no accelerator type", "tpuctl types"),
    (
        "create large --zone us-east5-b --for v6e --type pd-balanced",
        2,
        "v6e has no pd-balanced disks",
        "one of hyperdisk-balanced",
    ),
    ("clone data --to big --for v6e", 2, "--to big says what the copy is for", "without --for"),
    ("clone data --zone us-east5-b", 2, "pd-balanced for v5e, v5p; hyperdisk-ml for v6e", "--for v6e"),
    ("throughput data 500 --yes", 2, "is a pd-balanced disk, and its throughput cannot be set", "disk ls"),
    ("throughput none 500 --yes", 5, "no disk called none", "tpuctl disk ls"),
    ("resize data --size 10 --yes", 2, "disks only grow", "--size 21"),
    ("repair data", 2, "which slice? you have big, dev", "--on NAME"),
    ("repair data --on dev", 2, "data is no copy", "tpuctl disk mount"),
    ("repair none --on dev", 5, "no disk called none", "tpuctl disk ls"),
    ("rm none --yes", 5, "no disk called none", "tpuctl disk ls"),
]


@pytest.mark.parametrize(("words", "status", "said", "hint"), BAD, ids=[row[0] for row in BAD])
def test_what_cannot_be_is_said_in_one_line_and_changes_nothing(
    session: Session, words: str, status: int, said: str, hint: str
) -> None:
    before = disk_calls(session)
    done = session.type("disk", *words.split(), status=status)
    assert said in done.stderr
    assert hint in done.stderr
    assert "Traceback" not in done.stderr
    assert (disk_calls(session), named(session)) == (before, ["data"])


def test_a_disk_that_there_is_none_of_gets_no_lease(session: Session) -> None:
    for words in (
        "attach none --to dev",
        "umount none",
        "detach none",
        "repair none --on dev",
        "rm none --yes",
    ):
        session.type("disk", *words.split(), status=5)
    with closing(sqlite3.connect(session.root / "state" / "sim" / "sim-project" / "store.sqlite")) as db:
        leases = [key for (key,) in db.execute("SELECT key FROM documents WHERE key LIKE 'leases/disks/%'")]
    assert "leases/disks/none" not in leases
    assert "leases/disks/data" in leases


BAD_UP: list[tuple[str, str, str]] = [
    ("v4-8 new --disk none", "no disk called none", "tpuctl disk create none"),
    ("v4-8 new --disk data:wo", "is not NAME[:ro|rw][:/PATH]", "--disk data:/mnt/data"),
    ("v4-8 new --disk data:/usr", "/usr is no place for a disk", "--disk data:/mnt/data"),
    ("v4-16 new --disk data", "data is a master, and one host writes to it", "tpuctl disk clone data"),
    ("v4-16 new --disk data:rw", "and one host alone can write", "tpuctl disk clone data"),
    ("v4-8 new --disk data --disk data:/mnt/b", "one disk twice", "--disk NAME:/PATH"),
    (
        "v5litepod-4 new --zone us-central1-a --disk data",
        "disk data is in us-central2-b",
        "--zone us-central2-b",
    ),
    (
        "v4-8 new --slices 2 --disk data",
        "data is a master, and one host writes to it",
        "tpuctl disk clone data",
    ),
]


@pytest.mark.parametrize(("words", "said", "hint"), BAD_UP, ids=[row[0] for row in BAD_UP])
def test_a_slice_with_a_disk_that_it_cannot_have_is_refused(
    session: Session, words: str, said: str, hint: str
) -> None:
    before = len(session.sim_journal())
    zone = [] if "--zone" in words else ["--zone", ZONE]
    done = session.type("up", *words.split(), "--spot", "--pay", *zone, status=2)
    assert said in done.stderr
    assert hint in done.stderr
    assert len(session.sim_journal()) == before


@pytest.mark.parametrize(
    ("slices", "said"),
    [
        ({"dev": ["data"], "two": ["data"]}, "fleet.slices.two: disk data is written by slice dev"),
        ({"two": ["none"]}, "fleet.slices.two: no disk called none"),
    ],
)
def test_a_disk_that_a_slice_of_a_fleet_file_cannot_have_is_refused(
    session: Session, slices: dict[str, list[str]], said: str
) -> None:
    wanted = {"accelerator": "v4-8", "tier": "spot", "zone": ZONE, "pay": True}
    fleet = {"name": "lab", "slices": {name: {**wanted, "disk": disks} for name, disks in slices.items()}}
    (session.work / "lab.yaml").write_text(json.dumps({"fleet": fleet}))
    before = len(session.sim_journal())
    assert said in session.type("apply", "--yes", "-f", "lab.yaml", status=2).stderr
    assert len(session.sim_journal()) == before


def test_a_slice_with_a_disk_says_so_and_is_blocked_without_root(session: Session) -> None:
    session.type("disk", "create", "box", "--size", "10", "--zone", ZONE)
    done = session.type("up", "v4-8", "boxed", "--disk", "box", "--spot", "--pay", "--zone", ZONE, status=1)
    assert "mounting needs root" in done.stderr
    status = session.json("status", "boxed")
    assert (status["state"], status["options"]) == ("initializing", {"disks": "box at /mnt/box (rw)"})
    [row] = [each for each in session.json("disk", "ls") if each["name"] == "box"]
    assert row["used_by"] == ["boxed-1-w-0"]
    up = ("up", "v4-8", "new", "--disk", "box", "--spot", "--pay", "--zone", ZONE)
    refused = session.type(*up, status=2)
    assert "disk box is used by boxed-1-w-0" in refused.stderr
    assert "tpuctl disk attach box --to new --allow one-writer" in " ".join(refused.stderr.split())
    session.type("sim", "preempt", "boxed-1")
    refused = session.type(*up, status=2)  # it is written again where the slice comes back
    assert "disk box is written by slice boxed" in refused.stderr
    assert "tpuctl disk detach box --to boxed" in refused.stderr
    session.type("down", "boxed", "--yes")
    session.type("disk", "rm", "box", "--yes")


def test_a_disk_that_somebody_else_made_is_taken_over_as_the_hint_says(session: Session) -> None:
    disks = f"/compute/v1/projects/sim-project/zones/{ZONE}/disks"
    session.ask("POST", disks, {"name": "raw", "sizeGb": "10", "type": f"zones/{ZONE}/diskTypes/pd-ssd"})
    attach = ("disk", "attach", "raw", "--to", "dev", "--no-mount")
    refused = json.loads(session.type(*attach, "--json", status=5).stdout)["error"]
    assert refused["message"] == f"disk raw in {ZONE} was not made by tpuctl"
    create = f"tpuctl disk create raw --zone {ZONE} --size 10 --type pd-ssd"
    assert create in refused["hint"]
    words = create.split()[1:]
    assert "exists and is not ours" in session.type(*words, status=6).stderr
    told = refused["hint"].partition("--labels=")[2].partition(";")[0]
    labels = dict(each.split("=") for each in told.split(","))
    seen = session.ask("GET", f"{disks}/raw")["labelFingerprint"]
    session.ask("POST", f"{disks}/raw/setLabels", {"labels": labels, "labelFingerprint": seen})
    session.type(*words)
    session.type(*attach)
    session.type("disk", "detach", "raw")
    session.type("disk", "rm", "raw", "--yes")
    assert "raw" not in in_the_cloud(session)


def test_many_who_make_one_disk_at_once_make_one(session: Session) -> None:
    words = ("disk", "create", "crowd", "--size", "10", "--zone", ZONE)
    session.type_at_once(*[words] * 5)
    assert named(session).count("crowd") == 1
    session.type("disk", "rm", "crowd", "--yes")


def test_a_dry_run_changes_nothing(session: Session) -> None:
    before = disk_calls(session)
    done = session.type("disk", "clone", "data", "--to", "big", "--dry-run")
    assert "would copy data to data-g1" in done.stderr
    session.type("disk", "attach", "data", "--to", "dev", "--no-mount", "--dry-run")
    session.type("disk", "rm", "data", "--dry-run")
    session.type("disk", "create", "more", "--zone", ZONE, "--dry-run")
    assert disk_calls(session) == before
    assert named(session) == ["data"]


def test_hosts_without_root_are_refused_before_the_disk_is_attached(session: Session) -> None:
    before = disk_calls(session)
    for dry in ((), ("--dry-run",)):
        done = session.type("disk", "attach", "data", "--to", "dev", *dry, status=1)
        said = " ".join(done.stderr.split())
        assert "mounting needs root" in said
        assert "data was not attached" in said
        assert "tpuctl sim up --hosts isolated" in said
        assert "tpuctl disk attach data --to dev --no-mount only attaches it" in said
    assert disk_calls(session) == before
    session.type("disk", "attach", "data", "--to", "dev", "--no-mount")
    [row] = [each for each in session.json("disk", "ls") if each["name"] == "data"]
    assert row["used_by"] == ["dev-1-w-0"]
    refused = session.type("disk", "rm", "data", "--yes", status=2)
    assert "data is attached to 1 host" in refused.stderr
    session.type("disk", "detach", "data")
    before = disk_calls(session)
    again = session.type("disk", "detach", "data")
    assert "data is not attached to a slice" in again.stderr + again.stdout
    assert disk_calls(session) == before


def test_a_copy_elsewhere_goes_through_a_snapshot(session: Session) -> None:
    session.type("disk", "clone", "data", "--zone", OTHER)
    [copy] = [each for each in session.json("disk", "ls") if each["generation"] == 1]
    assert (copy["zone"], copy["size_gib"], copy["status"]) == (OTHER, 20, "READY")
    assert copy["snapshot"] in session.json("disk", "show", "data")["snapshots"]
    tree = session.type("disk", "ls", "--tree").stdout.splitlines()
    assert [line.startswith("      data") or "  data-g1" in line for line in tree if "data" in line]
    up = ("up", "v4-16", "new", "--disk", copy["name"], "--spot", "--pay", "--zone", ZONE, "--dry-run")
    assert "if the slice comes up there, data-g1 is restored in us-central2-b" in session.type(*up).stderr
    there = session.type("disk", "clone", copy["name"], "--to", "big", status=2)
    assert "tpuctl disk clone data-g1 --zone ZONE" in there.stderr
    said = session.type("disk", "clone", copy["name"], "--zone", ZONE).stderr
    assert f"copied data-g1 to data-g1-{ZONE} (pd-balanced, about $2.00 a month)" in said
    before = disk_calls(session)
    session.type("disk", "clone", copy["name"], "--zone", ZONE)
    assert disk_calls(session) == before
    parents = {row["name"]: row["parent"] for row in session.json("disk", "ls")}
    assert parents == {"data": "", "data-g1": "", f"data-g1-{ZONE}": "data-g1"}
    session.type("disk", "rm", f"data-g1-{ZONE}", "--yes")
    session.type("disk", "rm", copy["name"], "--yes")
    assert named(session) == ["data"]


def test_a_copy_for_v6e_can_be_attached_there_and_made_faster(session: Session) -> None:
    """What a hint advises for a slice of v6e gives a disk that it can have."""
    zone = "us-east5-b"
    session.type("disk", "create", "model", "--size", "10", "--zone", zone, "--for", "v6e-8")
    [row] = [each for each in session.json("disk", "ls") if each["name"] == "model"]
    assert (row["type"], row["usd_per_month"]) == ("hyperdisk-balanced", 0.6)
    up = ("up", "v6e-16", "new", "--spot", "--pay", "--zone", zone, "--dry-run", "--disk")
    refused = " ".join(session.type(*up, "model", status=2).stderr.split())
    assert f"tpuctl disk clone model --zone {zone} --for v6e-16" in refused
    session.type("disk", "clone", "model", "--zone", zone, "--for", "v6e-16")
    [copy] = [each for each in session.json("disk", "ls") if each["master"] == "model" and each["generation"]]
    assert copy["type"] == "hyperdisk-ml"
    session.type(*up, "model-g1")
    session.type("disk", "throughput", "model-g1", "800", status=2)  # without --yes and a terminal
    done = session.json("disk", "throughput", "model-g1", "800", "--yes")
    assert (done["was"], done["throughput_mib_s"], done["usd_per_month"]) == (400, 800, 96.8)
    again = session.type("disk", "throughput", "model-g1", "900", "--yes", status=2)
    assert f"the same command at {done['next_at']}" in " ".join(again.stderr.split())
    session.type("disk", "rm", "model", "model-g1", "--yes")


def test_a_master_of_its_own_comes_of_a_disk_in_another_zone_also_after_a_kill(session: Session) -> None:
    words = ("disk", "clone", "data", "--rw", "--name", "other", "--zone", OTHER, "--type", "pd-ssd")
    assert session.type_killed(5, "after", *words).returncode != 0
    said = session.type(*words).stderr
    assert f"copied data to other (pd-ssd, about $3.40 a month), in {OTHER}; tpuctl disk attach other" in said
    shown = session.json("disk", "show", "other")
    found = (
        shown["master"],
        shown["generation"],
        shown["zone"],
        shown["type"],
        shown["label"],
        shown["snapshot"],
    )
    assert found == ("other", 0, OTHER, "pd-ssd", "data", "")
    assert "other-s" not in session.json("disk", "show", "data")["snapshots"]
    assert "other is a copy of data already" in session.type(*words).stderr
    session.type("disk", "snapshot", "other")
    taken = session.json("disk", "show", "other")["snapshots"][0]
    refused = session.type("disk", "clone", "data", "--to", "big", "--from-snapshot", taken, status=2)
    assert f"snapshot {taken} is not of disk data" in refused.stderr
    session.type("disk", "rm", "other", "--yes")


def test_one_copy_too_many_says_until_when(session: Session) -> None:
    session.type("disk", "create", "hot", "--size", "10", "--zone", ZONE)
    for _ in range(6):
        session.type("disk", "snapshot", "hot")
    before = disk_calls(session)
    done = session.type("disk", "snapshot", "hot", status=2)
    assert "copied six times within an hour" in done.stderr
    assert "min; or --from-snapshot" in done.stderr
    assert disk_calls(session) == before


@pytest.mark.parametrize(
    ("preset", "said"),
    [("disk-in-use", "is already being used by"), ("disk-attach", "an internal error has occurred")],
)
def test_an_attachment_that_fails_says_why(session: Session, preset: str, said: str) -> None:
    session.type("sim", "fault", preset)
    done = session.type("disk", "attach", "data", "--to", "dev", "--no-mount", status=1)
    assert said in done.stderr
    session.type("sim", "fault", "--clear")


def test_quotas_of_disks_are_shown_and_what_is_beyond_them_is_refused(session: Session) -> None:
    """And nothing is left of what was refused."""
    metric = "SSD_TOTAL_GB"
    session.type("disk", "create", "first", "--size", "10", "--zone", ZONE)
    [row] = [each for each in session.json("quota", "--zone", ZONE)["side"] if each["metric"] == metric]
    session.type("sim", "quota", f"{metric}/us-central2={row['used'] + 10}")
    words = ("disk", "create", "second", "--size", "11", "--zone", ZONE)
    done = session.type(*words, status=7)
    assert f"Quota '{metric}' exceeded.  Limit: {row['used'] + 10}.0 in region us-central2." in done.stderr
    assert "tpuctl quota shows what is left; tpuctl disk gc" in done.stderr
    assert session.type("disk", "resize", "first", "--size", "21", "--yes", status=7).stdout == ""
    session.type("disk", "resize", "first", "--size", "20", "--yes")
    lines = session.type("quota", "--zone", ZONE).stdout.splitlines()
    assert any(metric in line and line.rstrip().endswith("0 GiB pd-balanced/ssd") for line in lines)
    session.type("sim", "quota", f"{metric}/us-central2=100000")
    session.type(*words)
    session.type("disk", "rm", "first", "second", "--yes")
    assert not in_the_cloud(session) & {"first", "second"}


def test_how_often_a_disk_was_copied_and_what_nobody_uses_is_shown(session: Session) -> None:
    session.type("disk", "create", "idle", "--size", "10", "--zone", ZONE)
    session.type("disk", "snapshot", "idle")
    rows = {row["disk"]: row for row in session.json("quota")["copied_lately"]}
    assert rows["idle"] == {"disk": "idle", "copies": 1, "limit": 6, "next_at": None}
    unused = {row["name"]: row for row in session.json("reap", "--dry-run")["unused_disks"]}
    assert unused["idle"]["usd_per_month"] == 1.0
    assert unused["idle"]["command"] == "tpuctl disk show idle"
    assert unused["idle-g1-s"]["kind"] == "snapshot"
    said = session.type("reap", "--dry-run").stderr
    assert "idle, idle-g1-s" in said
    assert "tpuctl disk show idle; tpuctl disk show idle-g1" in " ".join(said.split())
    [found] = [each for each in json.loads(doctor(session))["findings"] if each["check"] == "disks"]
    assert (found["level"], "idle, idle-g1-s" in found["what"]) == ("warning", True)
    session.type("disk", "gc", "--keep", "0", "--yes")
    session.type("disk", "rm", "idle-g1", "idle", "--yes")
    assert "idle" not in {row["name"] for row in session.json("reap", "--dry-run")["unused_disks"]}


def doctor(session: Session) -> str:
    """Whatever else it finds."""
    return session.type("doctor", "--json", status=None).stdout


def test_two_writers_of_a_list_do_not_lose_each_other(session: Session) -> None:
    for name in ("one", "two"):
        session.type("disk", "create", name, "--size", "10", "--zone", ZONE)
    session.type_at_once(*(("disk", "attach", name, "--to", "dev", "--no-mount") for name in ("one", "two")))
    used = {row["name"]: row["used_by"] for row in session.json("disk", "ls")}
    assert used["one"] == used["two"] == ["dev-1-w-0"]
    session.type("disk", "detach", "one")
    used = {row["name"]: row["used_by"] for row in session.json("disk", "ls")}
    assert (used["one"], used["two"]) == ([], ["dev-1-w-0"])
    session.type("disk", "detach", "two")
    session.type("disk", "rm", "one", "two", "--yes")


def in_the_cloud(session: Session) -> set[str]:
    """What Compute Engine has, whatever the store says."""
    bill = json.loads(session.type("bill", "--json", status=1).stdout)  # 1: something costs money
    rows = [row for part in bill.values() if isinstance(part, list) for row in part]
    return {row["name"] for row in rows if row.get("kind") == "disk"}


def test_what_was_begun_of_another_source_is_never_taken_for_this_one(session: Session) -> None:
    """A copy of an older moment under the name of a new one would be old data that nobody suspects."""
    session.type("disk", "create", "source", "--size", "10", "--zone", ZONE)
    session.type("disk", "snapshot", "source")
    [old] = session.json("disk", "show", "source")["snapshots"]
    words = ("disk", "clone", "source", "--zone", OTHER)
    rw = (*words, "--rw", "--name", "next")
    for begun, typed, source in (
        ((*words, "--from-snapshot", old), words, ""),
        (words, (*words, "--from-snapshot", old), old),
    ):
        assert session.type_killed(3, "after", *begun).returncode != 0
        begins = {row["name"] for row in session.json("disk", "ls")}
        said = session.type(*typed).stderr
        [made] = {row["name"] for row in session.json("disk", "ls")} - begins
        assert session.json("disk", "show", made)["snapshot"] == (source or f"{made}-s")
        assert "was begun and is another copy, left as it is" in " ".join(said.split())
        session.type(*begun)
    assert session.type_killed(4, "after", *rw, "--from-snapshot", old).returncode != 0
    refused = session.type(*rw, status=2).stderr
    assert f"next was begun as a copy of source, of snapshot {old}" in " ".join(refused.split())
    assert "tpuctl disk rm next first" in " ".join(refused.split())
    session.type(*rw, "--from-snapshot", old)
    session.type("disk", "gc", "--keep", "0", "--yes")
    session.type("disk", "rm", "next", "source", "--yes")


def test_keep_says_what_it_cannot_keep(session: Session) -> None:
    assert "there is no run yet" in session.type("keep", status=5).stderr
    both = session.type("keep", "any", "--until", "9d", "--release", status=2)
    assert "--until and --release exclude each other" in both.stderr
    (session.work / "job.py").write_text("print(1)\n")
    session.type("run", "job.py", "--on", "dev", "--no-checkpoint", "--detach")
    for done in session.type_at_once(*[("keep", "last")] * 4):
        assert "kept the logs of " in done.stderr
    assert "is not kept any more" in session.type("keep", "last", "--release").stderr
    assert "is in the past" in session.type("keep", "last", "--until", "2020-01-01", status=2).stderr
    assert "was not kept" in session.type("keep", "last", "--release").stderr
