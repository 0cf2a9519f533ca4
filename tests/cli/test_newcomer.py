"""What people type in their first hour, and what goes wrong then: a plain sentence, and what to type next."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.support.session import TPUCTL, Session, open_session
from tpuctl.sim.world.faults import load_presets


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as session:
        session.type("grant", "add", "32", "spot", "v4", "us-central2-b")
        session.type("up", "v4-8", "big", "--spot")
        session.type("run", "--on", "big", "--no-checkpoint", "--name", "once", "--", "true")
        yield session


def redirected(session: Session, words: str) -> subprocess.CompletedProcess[str]:
    """`tpuctl WORDS` by a shell, with the redirections among the words."""
    return subprocess.run(
        ["sh", "-c", f"{TPUCTL} {words}"], env=session.environ, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    ("words", "told", "next_"),
    [
        ("ls --profile sim", "--profile goes before the command", "tpuctl --profile … ls"),
        ("up lab v4-8 --spot", "v4-8 is the type", "tpuctl up v4-8 lab"),
        ("run echo hello", "there is no file 'echo'", "tpuctl run -- echo hello"),
        ("run python -c 1", "no such option: -c", "tpuctl run -- COMMAND -c"),
        ("run --no-checkpoint --name My_Run -- true", "is not valid", "my-run"),
        ("up big --timeout soon", "is not a duration", "90m"),
        ("up big --timeout -1", "is not a duration", "90m"),
        ("config set zone us-east1-d", "no such command", "settings: {KEY: VALUE}"),
    ],
)
def test_what_is_typed_in_the_wrong_place_is_told_where_it_belongs(session, words, told, next_):
    done = session.type(*words.split(), status=2)
    assert told in done.stderr
    assert next_ in done.stderr


def test_a_slice_that_is_called_like_its_type_comes_up_as_it_was_asked_for(session):
    name = "v5litepod-1"
    session.type("up", name, "--spot", "--pay", "--zone", "us-west4-a", "--timeout", "2m")
    assert f"{name} is ready" in session.type("up", name, "--timeout", "60").stderr
    done = session.type("down", name, "--yes")
    assert f"({name} is to be deleted)" in done.stderr
    again = session.type("up", name, status=2).stderr  # nobody wants it now: how it is paid for is open
    assert "no tier" in again


def test_prices_are_those_of_the_zone_that_was_named(session):
    def spot(*words: str) -> float:
        return next(row["spot"] for row in session.json("types", "v5e", *words) if row["chips"] == 1)

    assert spot("--zone", "europe-west4-b") == 0.45
    assert spot("--zone", "us-west4-a") == 0.48
    assert spot() == min(0.45, 0.48, spot())


def test_a_grant_that_takes_the_place_of_another_or_is_over_is_told(session):
    (session.work / "letter").write_text("64 spot Cloud TPU v6e chips in zone us-east1-d\n")
    letter = (session.work / "letter").read_text()
    (session.work / "letter").write_text(f"{letter}Free of charge for 30 days.\n")
    done = session.type("grant", "import", "letter")
    assert "counted from today" in done.stderr
    assert "THEN keep: slices go on after the last day and cost money" in done.stderr
    shown = {row["zone"]: row for row in session.json("grant", "show")}
    assert shown["us-east1-d"]["ends"] is not None
    refused = session.type("up", "v6e-8", "--spot", "--zone", "europe-west4-a", status=2).stderr
    assert "hint: --zone us-east1-d, where a grant covers it; or add --pay" in refused
    refused = session.type("up", "v6e-8", "--on-demand", "--zone", "europe-west4-a", status=2).stderr
    assert "hint: --spot --zone us-east1-d, where a grant covers it" in refused
    (session.work / "letter").write_text(letter)
    session.type("grant", "import", "letter", "--ends", "2999-01-01")
    done = session.type("grant", "import", "letter", "--ends", "2020-01-01")
    assert "replaces 64 spot v6e chips in us-east1-d, until 2999-01-01" in done.stderr
    assert "2020-01-01 is past" in done.stderr
    session.type("grant", "rm", "spot", "v6e", "us-east1-d")


def test_without_billing_the_doctor_says_so_and_the_bill_does_not_say_nothing(session):
    session.type("sim", "fault", "billing-disabled")
    try:
        told = session.type("doctor", status=1).stdout
        assert "has no billing account" in told
        assert "gcloud billing projects link sim-project" in told
        bill = session.type("bill", status=3).stderr
    finally:
        session.type("sim", "fault", "--clear")
    assert "nothing found" not in bill
    assert "what was not read may cost money" in bill


def test_a_fault_that_strikes_direct_requests_alone_says_so(session):
    done = session.type("sim", "fault", "stockout")
    session.type("sim", "fault", "--clear")
    assert "tpuctl sim capacity" in done.stderr


def test_a_killed_simulator_is_no_trouble_of_the_network():
    with open_session() as session:
        facts = json.loads((session.root / "state" / "sim" / "sim.json").read_text())
        for pid in (facts["guardian_pid"], facts["pid"]):
            os.kill(pid, signal.SIGKILL)
        assert "hint: tpuctl sim up" in session.type("ls", status=1).stderr


def test_the_name_of_a_run_that_is_over_is_not_given_again(session):
    done = session.type("run", "--on", "big", "--no-checkpoint", "--name", "once", "--", "false", status=6)
    assert "there is a run called once already; it is succeeded" in done.stderr
    assert "--name" in done.stderr


@pytest.mark.parametrize("word", ["onc", "onze"])
def test_a_run_that_is_not_there_comes_with_the_nearest_one(session, word):
    assert "did you mean once?" in session.type("logs", word, status=5).stderr


def test_an_attempt_that_never_was_is_told_from_one_that_goes_on(session):
    done = session.type("manifest", "once", "--attempt", "9", status=5)
    assert "run once has no attempt 9: it has 1 attempt" in done.stderr


def test_what_runs_ran_can_be_pasted(session):
    session.type("run", "--on", "big", "--no-checkpoint", "--name", "words", "--", "sh", "-c", "echo a; true")
    listed = session.type("runs").stdout
    assert "sh -c 'echo a; true'" in listed


def test_slices_that_are_gone_are_not_offered(session):
    session.type("up", "v4-8", "shortly", "--spot")
    session.type("down", "shortly", "--yes")
    assert "(known: big)" in session.type("status", "nobody", status=5).stderr


def test_stdout_that_takes_nothing_is_a_plain_error(session):
    for words in ("ls > /dev/full", "types --json > /dev/full"):
        done = redirected(session, words)
        assert done.returncode == 1
        assert done.stderr.startswith("error: no space left on device")
        assert "Traceback" not in done.stderr


def test_closed_standard_files_do_no_harm(session):
    assert redirected(session, "ls >&- 2>&- <&-").returncode == 0
    assert "big" in session.type("ls").stdout


def test_a_home_directory_is_not_the_code_of_a_run(session):
    work, session.work = session.work, session.root
    try:
        done = session.type("run", "--on", "big", "--no-checkpoint", "--", "true", status=2)
        assert f"the code of this run would be everything in {session.root}" in done.stderr
    finally:
        session.work = work


def test_hints_about_another_fleet_file_name_it(session):
    path = session.work / "other.yaml"
    path.write_text(
        "settings: {tier: spot, zone: us-central2-b}\n"
        "fleet:\n  name: lab\n  slices:\n    big: {accelerator: v4-16}\n"
    )
    done = session.type("diff", "-f", "other.yaml", status=10)
    assert "tpuctl apply -f other.yaml --replace" in done.stderr
    path.unlink()


def test_a_slip_in_a_runtime_version_is_named_before_the_cloud_is_asked(session):
    words = ("up", "v4-8", "tried", "--spot", "--dry-run", "--runtime-version")
    assert "did you mean tpu-ubuntu2204-base?" in session.type(*words, "tpu-ubuntu2204-bas").stderr
    assert "did you mean" not in session.type(*words, "tpu-vm-tf-2.16.1-pjrt").stderr


def test_every_fault_can_be_found_and_those_that_stand_say_so(session):
    told = session.type("sim", "fault", "--help").stdout
    unbroken = re.sub(r"-\n\s+", "-", told)
    assert [name for name in load_presets() if name not in unbroken] == []
    assert "did you mean stockout?" in session.type("sim", "fault", "stockot", status=2).stderr
    listed = session.type("sim", "fault", "clock-off").stdout
    session.type("sim", "fault", "--clear")
    assert "until cleared" in listed
    assert "an internal error" not in listed


def test_an_unknown_profile_comes_with_the_nearest_one(session):
    assert "did you mean sim?" in session.type("--profile", "smi", "ls", status=2).stderr


def test_capacity_is_drawn_where_it_was_asked_to_be(session):
    done = session.type("capacity", "--plot", "capacity.svg")
    assert "picture written to capacity.svg" in done.stderr
    assert (session.work / "capacity.svg").read_text().startswith("<svg ")
    assert "--plot capacity.svg" in session.type("capacity", "--plot", "capacity.png", status=2).stderr


def test_what_is_asked_to_go_without_waiting_is_asked_of_the_cloud(session):
    session.type("up", "v4-8", "brief", "--spot")
    session.type("down", "brief", "--no-wait", "--yes")
    asked = [json.dumps(call) for call in session.sim_journal() if call["method"] == "queuedResources.delete"]
    assert any("brief-1" in call for call in asked)


def test_several_slices_go_at_the_same_time(session):
    for name in ("one", "two"):
        session.type("up", "v4-8", name, "--spot")
    told = session.type("down", "one", "two", "--yes").stderr.splitlines()
    asked = [line for line in told if "requested" in line]
    assert len(asked) == 2
    assert told.index(asked[-1]) < next(index for index, line in enumerate(told) if line.endswith(": gone"))


def test_two_shells_that_ask_for_the_same_slice_at_once_both_get_it(session):
    session.type_at_once(*[("up", "v4-8", "both", "--spot")] * 3)
    created = [call for call in session.sim_journal() if call["method"] == "queuedResources.create"]
    assert sum("both-" in json.dumps(call) for call in created) == 1


def test_what_a_program_wrote_stands_above_how_it_ended(session):
    told = redirected(
        session,
        "run --on big --no-checkpoint --name fails --max-failures 0"
        " -- sh -c 'echo its last words; exit 1' 2>&1",
    ).stdout
    assert told.index("its last words") < told.index("attempt 1 ended (failed)"), told


def test_what_can_never_be_had_is_not_hinted_to_be_asked_for_again(session):
    session.type("up", "v4-8", "nowhere", "--spot", "--pay", "--zone", "us-east5-a", status=None)
    for words in (("exec", "nowhere", "--", "true"), ("forward", "nowhere", "8080"), ("up", "nowhere")):
        done = session.type(*words, status=None)
        assert done.returncode != 0
        assert "tpuctl down nowhere" in done.stderr, (words, done.stderr)
    session.type("down", "nowhere", "--yes")
