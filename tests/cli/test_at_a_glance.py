"""What people look for in a list and find there, and flags and forms of other tools that they try."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.support.builders import a_slice
from tests.support.session import Session, open_session
from tpuctl.cli.commands.ls import FLEET
from tpuctl.cli.console import render_table
from tpuctl.cli.slice_status import fleet_cells
from tpuctl.cli.workers import raise_for_failed
from tpuctl.errors import PartialError, UnreachableError
from tpuctl.model.cloud import FailureKind, RemoteResult

ZONE = "us-central2-b"


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as session:
        session.type("grant", "add", "16", "spot", "v4", ZONE, "--ends", "2099-12-31")
        session.type("up", "v4-32", "big", "--spot")
        session.type("up", "v4-8", "small", "--spot", "--pay")
        yield session


def test_a_list_says_how_old_each_slice_is_and_what_it_costs(session):
    head, big, small = session.type("ls").stdout.splitlines()
    assert head.split()[-2:] == ["AGE", "$/HOUR"]
    assert big.split()[-1] == "grant"
    assert big.split()[-2][-1] in "sm"
    assert float(small.split()[-1]) > 0
    rows = {row["name"]: row for row in session.json("ls")}
    assert (rows["big"]["payer"], rows["small"]["payer"]) == ("grant", "you")
    assert rows["big"]["usd_per_hour"] == pytest.approx(4 * rows["small"]["usd_per_hour"])


ENDS_WITH_WHAT_IT_LOADED = """
import sys
from tpuctl.cli.main import main
try:
    main()
finally:
    print(*({"rich", "google.cloud.compute_v1", "grpc", "kubernetes"} & set(sys.modules)), "", file=sys.stderr)
"""


def loaded_by(session: Session, *words: str) -> list[str]:
    done = session.finish(session.start("-c", ENDS_WITH_WHAT_IT_LOADED, *words, program=(sys.executable,)))
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()[-1].split()


def test_only_characters_that_may_take_two_columns_load_rich(session):
    def loads(*words: str) -> bool:
        return "rich" in loaded_by(session, *words)

    plain = [("up", "--help"), ("ls",), ("ls", "--json"), ("status", "small"), ("config", "show")]
    assert [words for words in plain if loads(*words)] == []
    session.environ["TPUCTL_PROXY_COMMAND"] = "ssh 実験 -W %h:%p"
    try:
        assert loads("config", "show")
        assert not loads("config", "show", "--json")
    finally:
        del session.environ["TPUCTL_PROXY_COMMAND"]


def test_a_list_of_other_peoples_slices_says_whose_they_are(session):
    session.environ["TPUCTL_USER"] = "ada"
    try:
        assert session.type("ls").stdout.splitlines()[0].split()[-1] == "USER"
    finally:
        del session.environ["TPUCTL_USER"]


def test_one_slice_says_which_grant_covers_it_or_what_it_costs(session):
    (covered,) = [line for line in session.type("status", "big").stdout.splitlines() if "cost " in line]
    assert "covered by the grant for spot v4 in us-central2-b until 2099-12-31" in covered
    (paid,) = [line for line in session.type("status", "small").stdout.splitlines() if "cost " in line]
    assert "per hour: the grant for spot v4 in us-central2-b has 16 chips, 16 in use" in paid


@pytest.mark.parametrize("width", [74, 80, 120])
def test_words_of_the_list_are_never_broken_and_all_are_there(width):
    row = {
        **dict.fromkeys((column.key for column in FLEET), ""),
        **{"name": "big", "type": "v5litepod-16", "zone": "southamerica-west1-a", "tier": "on-demand"},
        **{"hosts": 4, "state": "provisioning", "cloud": "WAITING_FOR_RESOURCES", "user": "ada"},
        **{"created": "2026-11-22T05:20:59Z", "payer": "you", "usd_per_hour": 123.648},
    }
    lines = render_table([fleet_cells(row, 1795000000.0)], FLEET, width=width)
    assert max(map(len, lines)) <= width
    words = set(" ".join(lines).split())
    assert {"v5litepod-16", "southamerica-west1-a", "on-demand", "provisioning", "ada", "123.65"} <= words
    assert {"WAITING_FOR_RESOURCES", *(column.title for column in FLEET)} <= words


@pytest.mark.parametrize(("state", "cloud"), [("ready", "READY"), ("provisioning", "CREATING")])
def test_a_usual_row_of_the_list_fits_in_one_line_of_80_characters(state, cloud):
    row = {
        **dict.fromkeys((column.key for column in FLEET), ""),
        **{"name": "train", "type": "v4-32", "zone": "us-central2-b", "tier": "spot", "hosts": 4},
        **{"state": state, "cloud": cloud, "created": "2026-11-22T05:20:59Z"},
        **{"payer": "you", "usd_per_hour": 123.648},
    }
    lines = render_table([fleet_cells(row, 1795000000.0)], FLEET[:-1], width=80)
    assert len(lines) == 2
    assert max(map(len, lines)) <= 80


def test_a_long_name_stands_above_its_row_and_breaks_nothing():
    row = {
        **dict.fromkeys((column.key for column in FLEET), ""),
        **{"name": "a-rather-long-name-for-a-slice", "type": "v4-16", "zone": "us-central2-b", "tier": "spot"},
        **{"hosts": 2, "state": "provisioning", "cloud": "READY", "created": "2026-11-22T05:20:59Z"},
        **{"payer": "you", "usd_per_hour": 7.73},
    }
    short = {**row, "name": "one", "state": "ready"}
    cells = [fleet_cells(each, 1795000000.0) for each in (row, short)]
    head, name, long, one = render_table(cells, FLEET[:-1], width=74)
    assert name == "a-rather-long-name-for-a-slice"
    assert long.split()[:4] == ["v4-16", "us-central2-b", "spot", "2"]
    assert one.split()[:3] == ["one", "v4-16", "us-central2-b"]
    assert long.index("v4-16") == one.index("v4-16") == head.index("TYPE")


def test_a_command_that_fails_everywhere_says_so_once_and_names_every_worker(session):
    session.type("up", "v4-32", "lost", "--spot", "--pay")
    session.type("sim", "preempt", "lost-1")
    told = session.type("exec", "lost", "--", "true", status=9).stderr
    assert "4 of 4 workers failed: lost[0-3]: refused the connection" in told
    assert told.count("lost[") == 1
    session.type("down", "lost", "--yes")


def test_a_host_that_is_silent_among_others_has_a_hint_that_settles_it():
    well = RemoteResult(0, 0)
    silent = RemoteResult(1, None, failure=FailureKind.CONNECT, detail="big-1 did not answer in 5 s")
    with pytest.raises(PartialError) as told:
        raise_for_failed(a_slice(name="big"), [well, silent])
    assert "`tpuctl up big` waits for hosts that are silent" in str(told.value.hint)
    with pytest.raises(UnreachableError) as told_all:
        raise_for_failed(a_slice(name="big"), [silent])
    assert told_all.value.hint == "tpuctl status big"


def test_a_command_that_has_to_know_which_slice_says_how_it_takes_the_name(session):
    run = session.type("run", "--no-checkpoint", "--", "true", status=2)
    assert "which slice? you have big, small" in run.stderr
    assert "hint: --on NAME with one of these names" in run.stderr
    assert "add one of these names" in session.type("exec", "--", "true", status=2).stderr


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("exec hostname", "hint: tpuctl exec -- hostname"),
        ("exec --group hostname", "hint: tpuctl exec --group -- hostname"),
        ("exec big", "hint: tpuctl exec big -- hostname"),
        ("up v4-8 --name mine", "tpuctl up v4-8 NAME"),
        ("up v6e-8 mine", "into tpuctl.yaml here"),
        ("run ../elsewhere/train.py --on big --no-checkpoint", "start from a directory that holds both"),
        ("run left_out.py --on big --no-checkpoint", ".tpuctlignore names stays here"),
    ],
)
def test_what_is_typed_nearly_right_gets_a_hint_that_leads(session, typed, hint):
    (session.root / "elsewhere").mkdir(exist_ok=True)
    (session.root / "elsewhere/train.py").touch()
    (session.work / "left_out.py").touch()
    (session.work / ".tpuctlignore").write_text("left_out.py\n")
    assert hint in session.type(*typed.split(), status=2).stderr


def test_a_slice_in_the_place_of_a_script_is_told_from_a_file_that_is_not_there(session):
    done = session.type("run", "big", "train.py", "--no-checkpoint", "--", "--lr", "0.1", status=2)
    assert "big is a slice, not a script" in done.stderr
    assert "tpuctl run --on big train.py" in done.stderr
    assert "there is no file 'bog'" in session.type("run", "bog", "--on", "big", status=2).stderr
    (session.work / "big").write_text("print('a script')\n")
    session.type("run", "big", "--on", "big", "--no-checkpoint")
    (session.work / "big").unlink()


def test_all_slices_are_those_of_the_user_by_name(session):
    shown = session.type("down", "--all", "--dry-run").stdout.splitlines()
    assert [line.split()[0] for line in shown[1:]] == ["big", "small"]
    asked = session.type("down", "--all", status=2).stderr
    assert "delete big, small and everything on their hosts" in asked
    session.environ["TPUCTL_USER"] = "ada"
    try:
        assert "you have no slice" in session.type("down", "--all", "--yes").stderr
    finally:
        del session.environ["TPUCTL_USER"]
    assert {row["state"] for row in session.json("ls")} == {"ready"}


@pytest.mark.parametrize("flag", ["-r", "-a", "--recursive"])
def test_flags_of_other_copying_tools_are_said_not_to_be_needed(session, flag):
    told = session.type("cp", flag, "data", "big:", status=2).stderr
    assert f"{flag} is not needed: directories are copied whole" in told


def test_a_pattern_for_files_on_workers_comes_with_a_way_to_fetch_them(session):
    session.type("exec", "small", "--", "sh", "-c", "mkdir -p out; echo 1 > out/a.txt; echo 2 > out/b.txt")
    told = session.type("cp", "small:out/*.txt", "there", status=1).stderr
    assert "patterns are not expanded on workers" in told
    assert "tpuctl exec small -- sh -c 'tar -cf copy.tar -- out/*.txt'" in told
    session.type("exec", "small", "--", "sh", "-c", "tar -cf copy.tar -- out/*.txt")
    session.type("cp", "small:copy.tar", ".")
    assert (session.work / "copy.tar").is_file()


def test_a_list_says_that_nobody_acts_on_it_for_now(session):
    session.type("pause", "--reason", "maintenance")
    try:
        told = session.type("ls").stderr
    finally:
        session.type("resume")
    assert "paused by" in told
    assert "(maintenance); `tpuctl resume` lifts that" in told
    assert "paused" not in session.type("ls").stderr


def test_what_happens_without_a_watchdog_is_said_once_for_a_slice_and_to_who_leaves(session):
    words = ("run", "--on", "small", "--no-checkpoint")
    assert "will not be restored" in session.type(*words, "--", "echo", "1").stderr
    assert "will not be restored" not in session.type(*words, "--", "echo", "2").stderr
    assert "will not be restored" in session.type(*words, "--detach", "--", "echo", "3").stderr
    session.type("attach")


def test_a_request_that_was_left_open_counts_neither_as_got_nor_as_not_got(session):
    def told() -> str:
        return " ".join(session.type("capacity", "v4-16").stdout.splitlines()[1].split())

    session.type("sim", "capacity", "us-central2-b=20")
    session.type("up", "v4-16", "later", "--spot", "--pay", "--no-wait")
    assert " 0/0, 1 open " in told()
    assert session.json("capacity", "v4-16")[0]["open"] == 1
    session.type("sim", "capacity", "us-central2-b=plenty")
    session.type("down", "later", "--yes")
    assert " 1/1 " in told()


def test_the_help_of_ssh_says_whose_status_it_ends_with(session):
    assert "255 when there was no connection" in " ".join(session.type("ssh", "--help").stdout.split())


def test_only_a_change_of_a_disk_loads_google_cloud_compute(session):
    """It takes more processor time than all the rest of such a command, and passes are made every minute."""
    made = loaded_by(session, "disk", "create", "d", "--size", "10", "--zone", ZONE)
    assert "google.cloud.compute_v1" in made
    reads = [("ls",), ("status", "small"), ("watch", "once"), ("disk", "ls"), ("disk", "gc", "--yes")]
    assert [
        words for words in reads if {"google.cloud.compute_v1", "kubernetes"} & {*loaded_by(session, *words)}
    ] == []
