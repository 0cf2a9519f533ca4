"""A command does what it was told, or says that it did not; a viewer only looks."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.session import TPUCTL, Session, open_session
from tpuctl.state.sqlite import SqliteStore


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as session:
        session.type("grant", "add", "8", "spot", "v4", "us-central2-b")
        session.type("up", "v4-16", "big", "--spot", "--pay")
        session.type("up", "v4-8", "one", "--spot", "--pay")
        yield session


def at_a_terminal(session: Session, *words: str, until: Callable[[str], bool], then: bytes) -> tuple[int, str]:
    """Types a command at a terminal of its own, and `then` once `until` holds for what it shows."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [TPUCTL, *words],
        cwd=session.work,
        env={**session.environ, "TERM": "xterm", "COLUMNS": "80"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(slave)
    shown, typed, deadline = "", False, time.monotonic() + 60
    while time.monotonic() < deadline:
        if select.select([master], [], [], 0.1)[0]:
            try:
                chunk = os.read(master, 65536)
            except OSError:  # Linux: the other end is closed
                break
            if not chunk:
                break
            shown += chunk.decode("utf-8", "replace")
        if not typed and until(shown):
            os.write(master, then)
            typed = True
    os.close(master)
    return process.wait(30), shown


@pytest.fixture(scope="module")
def long(session: Session) -> Iterator[str]:
    """A run of two workers that goes on for long, each line with its rank."""
    program = "while :; do echo tick $TPUCTL_RANK; sleep 0.2; done"
    session.type(
        "run", "-d", "-q", "--on", "big", "--name", "long", "--no-checkpoint", "--", "sh", "-c", program
    )
    yield "long"
    session.type("stop", "long", "--yes", "--grace", "0")


@pytest.mark.parametrize("words", [("logs", "--follow", "long"), ("attach", "long")])
def test_ctrl_c_in_a_viewer_leaves_without_a_question(session, long, words):
    status, shown = at_a_terminal(session, *words, until=lambda text: "tick 1" in text, then=b"\x03")
    assert status == 130
    assert "stop the run" not in shown
    assert "run long goes on" in shown.replace("\r\n", " ").replace("  ", " ")
    assert session.json("runs")[0]["state"] == "running"


def test_following_one_worker_shows_that_worker_alone_and_keeps_all(session, long):
    folder = session.root / "state" / "sim" / "sim-project" / "runs" / "long" / "1"
    kept = [folder / f"worker-{worker}.stdout-times.log" for worker in (0, 1)]

    def both(text: str) -> bool:
        # Ctrl-C between creating the file and writing to it would leave an empty one, and no times.
        return "tick 1" in text and all(each.exists() and each.stat().st_size for each in kept)

    _, shown = at_a_terminal(session, "logs", "-f", "--worker", "1", "long", until=both, then=b"\x03")
    assert "tick 0" not in shown
    assert "tick 0" in session.type("logs", "long").stdout
    found = session.type("logs", "long", "--grep", "tick [0]$").stdout.splitlines()
    assert {line.rpartition(" ")[2] for line in found} == {"0"}
    assert "no line in which 'tock' is found" in session.type("logs", "long", "--grep", "tock").stderr
    for wrong in ("(", "x{1,99999999999}"):
        assert "is no regular expression" in session.type("logs", "long", "--grep", wrong, status=2).stderr
    assert "--follow exclude each other" in session.type("logs", "long", "-f", "--json", status=2).stdout
    folder.rename(folder.with_name("aside"))
    assert (
        "has been fetched to this machine yet"
        in session.type("logs", "long", "--grep", "tick", status=5).stderr
    )
    folder.with_name("aside").rename(folder)
    lines = session.json("logs", "long", "--worker", "0")
    assert [line["text"] for line in lines[:2]] == ["tick 0", "tick 0"]
    assert lines[0]["time"] < lines[-1]["time"]
    since = datetime.now(UTC) - timedelta(seconds=1.2)  # they are shown in tenths
    recent = [line["time"] for line in session.json("logs", "long", "--since", "1s")]
    assert all(datetime.fromisoformat(each) >= since for each in recent)
    stamped = session.type("logs", "long", "-t", "--since", "1d").stdout.splitlines()
    assert all(re.match(r"\d\d-\d\dT\d\d:\d\d:\d\d\.\dZ big-[01] │ tick [01]$", line) for line in stamped)


def test_the_question_before_a_slice_goes_names_the_runs_that_go_with_it(session, long):
    status, shown = at_a_terminal(session, "down", "big", until=lambda text: "[y/N]" in text, then=b"q\nn\n")
    assert "error: 'q' is no answer: type y or n (usage)" in shown
    assert status == 130
    assert "and stop run long?" in " ".join(shown.split())
    assert "stop run" not in session.type("down", "one", status=2).stderr
    assert session.type("down", "big", "--dry-run").stdout.splitlines()[1].split()[-1] == "long"


def test_quiet_leaves_errors_and_what_was_asked_for(session):
    assert "slice one will not be restored" in session.type("up", "one", "--no-wait").stderr
    for words in (("up", "one", "--no-wait", "-q"), ("-q", "up", "one")):
        done = session.type(*words)
        assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("number", ["0", "7", "99"])
@pytest.mark.parametrize("follow", [(), ("-f",)])
def test_an_attempt_that_does_not_exist_is_not_found(session, long, number, follow):
    done = session.type("logs", "long", "--attempt", number, *follow, status=5)
    assert f"has no attempt {number}" in done.stderr


def test_output_that_another_machine_fetched_is_said_to_be_elsewhere(session):
    session.type("run", "-q", "--on", "one", "--name", "told", "--no-checkpoint", "--", "echo", "hi")
    here = session.root / "state" / "sim" / "sim-project" / "runs" / "told"
    away = here.rename(here.with_name("away"))
    try:
        done = session.type("logs", "told", status=5)
        assert "not on this machine" in done.stderr
        assert "there: tpuctl logs told --attempt 1" in done.stderr
    finally:
        away.rename(here)
    assert session.type("logs", "told").stdout == "one-0 │ hi\n"


def test_a_run_that_wrote_nothing_is_not_said_to_be_elsewhere(session):
    session.type("run", "-q", "--on", "one", "--name", "silent", "--no-checkpoint", "--", "true")
    done = session.type("logs", "silent")
    assert "wrote nothing in attempt 1 of run silent" in done.stdout + done.stderr


def test_a_stop_without_a_name_does_not_take_a_run_that_is_over_for_the_one_that_is_meant(session, long):
    session.type("run", "-q", "--on", "one", "--name", "brief", "--no-checkpoint", "--", "true")
    refused = session.type("stop", "--yes", status=2)
    assert f"the newest run, brief, is over; running: {long}" in refused.stderr
    assert f"hint: tpuctl stop {long}" in refused.stderr


def test_a_forgotten_dash_dash_is_hinted_with_the_options_that_were_typed(session):
    refused = session.type("exec", "big", "--worker", "0", "rm", "x", status=2)
    assert "hint: tpuctl exec big --worker 0 -- rm x" in refused.stderr
    assert "which command?" in session.type("exec", "big", "--", status=2).stderr


def test_no_wait_asks_the_cloud_also_for_a_slice_whose_tpu_is_gone():
    with open_session() as session:
        session.type("up", "v4-8", "gone", "--spot", "--pay")
        session.type("sim", "reset")
        done = session.type("up", "gone", "--no-wait")
        assert "create queued resource gone-2" in done.stderr
        assert "CREATE queued" not in done.stderr
        assert [row["cloud"] for row in session.json("ls")] != []
        assert session.sim_journal() != []


def test_a_stop_prints_nothing_of_what_the_program_wrote(session):
    program = "echo loud; exec sleep 600"  # a shell that outlives its child says that it was killed
    words = ("--on", "one", "--name", "loud", "--no-checkpoint", "--", "sh", "-c", program)
    session.type("run", "-d", "-q", *words)
    done = session.type("stop", "loud", "--yes", "--grace", "0")
    assert "one-0" not in done.stdout + done.stderr
    assert session.type("logs", "loud").stdout == "one-0 │ loud\n"


def test_another_name_is_another_run_and_without_one_the_same_command_goes_on(session, long):
    program = next(row["command"] for row in session.json("runs") if row["id"] == long)
    words = ("run", "-d", "--on", "big", "--no-checkpoint")
    refused = session.type(*words, "--name", "other", "--", *program, status=6)
    assert f"run {long} is still running on slice big" in refused.stderr
    assert f"tpuctl attach {long}, or tpuctl stop {long}" in refused.stderr
    session.type("logs", "other", status=5)
    for name in ((), ("--name", long)):
        assert f"run {long} " in session.type(*words, *name, "--", *program).stderr
    assert [row["id"] for row in session.json("runs") if row["state"] == "running"] == [long]


def test_a_run_that_the_cloud_refuses_says_that_it_stays_submitted(session):
    session.type("sim", "fault", "api-off")
    try:
        words = ("run", "--on", "one", "--name", "kept", "--no-checkpoint", "--", "true")
        refused = session.type(*words, status=4)
    finally:
        session.type("sim", "fault", "--clear")
    told = " ".join(refused.stderr.split())
    assert "run kept stays submitted: `tpuctl attach kept` goes on with it, `tpuctl stop kept` ends it" in told
    session.type("attach", "kept")


def test_a_script_named_through_its_parent_runs(session):
    (session.work / "sub").mkdir()
    (session.work / "sub" / "ok.py").write_text("print('through')\n")
    session.type(
        "run", "--on", "one", "--name", "up-down", "--no-checkpoint", f"../{session.work.name}/sub/ok.py"
    )
    assert "through" in session.type("logs", "up-down").stdout


def test_a_run_with_json_writes_one_document_and_nothing_else(session):
    words = ("run", "--json", "--on", "one", "--no-checkpoint", "--", "sh", "-c", "echo out; echo err >&2")
    done = session.type(*words)
    assert json.loads(done.stdout)["state"] == "succeeded"
    assert done.stderr == ""


def test_a_pass_prints_nothing_of_what_programs_write_and_a_full_stdout_stops_no_work(session):
    session.type(
        "run",
        "-d",
        "-q",
        "--on",
        "one",
        "--name",
        "late",
        "--no-checkpoint",
        "--",
        "sh",
        "-c",
        "sleep 1; echo noise",
    )
    time.sleep(2)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [TPUCTL, "watch", "once"],
            cwd=session.work,
            env=session.environ,
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert "Traceback" not in done.stderr
    assert done.returncode == 1
    assert "noise" not in session.type("watch", "once").stdout
    assert next(row["state"] for row in session.json("runs") if row["id"] == "late") == "succeeded"
    assert session.type("logs", "late").stdout == "one-0 │ noise\n"


TWICE = "echo saved $TPUCTL_ATTEMPT >&2; echo step $TPUCTL_ATTEMPT; test $TPUCTL_ATTEMPT = 2 || exit 75"


def test_the_logs_of_a_run_are_those_of_all_its_attempts_in_one_stream(session):
    words = ("--on", "one", "--name", "twice", "--no-checkpoint")
    session.type("run", "-q", *words, "--", "sh", "-c", TWICE)
    done = session.type("logs", "twice")
    assert sorted(done.stdout.splitlines()) == [
        *("one-0 │ saved 1", "one-0 │ saved 2", "one-0 │ step 1", "one-0 │ step 2")
    ]
    assert done.stdout.index("saved 1") < done.stdout.index("step 2")
    assert "attempt 1 of 2" in done.stderr
    assert "attempt 2 of 2" in done.stderr
    assert "run twice" in session.type("logs").stderr
    assert session.type("logs", "twice", "--grep", "saved").stdout.splitlines() == [
        *("one-0 │ saved 1", "one-0 │ saved 2")
    ]
    second = session.type("logs", "twice", "--attempt", "2")
    assert sorted(second.stdout.splitlines()) == ["one-0 │ saved 2", "one-0 │ step 2"]
    assert second.stderr == ""
    assert [row["attempt"] for row in session.json("logs", "twice")] == [1, 1, 2, 2]


def test_what_is_no_file_is_not_copied_and_that_is_said(session):
    os.mkfifo(session.root / "pipe")
    for special in ("/dev/zero", "../pipe"):
        done = session.type("cp", special, "big:", status=2)
        assert "no content to copy" in done.stderr
    (session.work / "mixed").mkdir()
    (session.work / "mixed" / "file").write_text("x")
    os.mkfifo(session.work / "mixed" / "pipe")
    assert "left out 1 socket, pipe or device" in session.type("cp", "mixed", "big:").stderr
    os.unlink(session.work / "mixed" / "pipe")


def test_a_link_out_of_a_tree_does_not_keep_the_rest_from_coming_back(session):
    tree = session.root / "tree"
    tree.mkdir()
    (tree / "kept").write_text("kept")
    (tree / "dangling").symlink_to("/nonexistent")
    (tree / "up").symlink_to("../../etc")
    (tree / "inside").symlink_to("kept")
    session.type("cp", "../tree", "big:")
    done = session.type("cp", "--worker", "0", "big:tree", "back", status=3)
    assert "'dangling' (a link out of what is copied, to /nonexistent)" in done.stderr
    assert "'up'" in done.stderr
    assert "goes on where it broke off" not in done.stderr
    assert sorted(path.name for path in (session.work / "back").iterdir()) == ["inside", "kept"]
    missing = session.type("cp", "--worker", "0", "big:nothing", "none", status=1)
    assert "goes on where it broke off" not in missing.stderr


def test_a_dry_run_of_cp_says_which_way_what_and_how_much(session):
    (session.work / "two").mkdir()
    (session.work / "two" / "a").write_text("x" * 2000)
    out = session.type("cp", "--dry-run", "two", "big:there").stdout
    assert out == "[sim] would copy two (1 file, 2.0 KiB) to big[0-1]:there\n"
    assert (
        session.type("cp", "--dry-run", "big:out", "here").stdout == "[sim] would copy big[0-1]:out to here\n"
    )
    session.type("cp", "--dry-run", "missing", "big:", status=2)


def test_the_newest_run_is_not_the_one_from_a_clock_that_was_ahead(session):
    store = SqliteStore(session.root / "state" / "sim" / "sim-project" / "store.sqlite")
    document = store.get("runs/told")
    assert document is not None
    future = {**document.data, "created_at": document.data["created_at"] + 9000 * 86400}
    store.put("runs/told", future, if_generation=document.generation)
    store.close()
    session.type("run", "-q", "--on", "one", "--name", "now", "--no-checkpoint", "--", "echo", "now")
    assert session.type("logs").stdout == "one-0 │ now\n"
    assert session.json("runs")[0]["id"] == "now"


def test_a_dry_run_of_stop_says_that_a_run_is_over(session):
    assert "is over" in session.type("stop", "silent", "--dry-run").stdout
    assert session.json("stop", "silent", "--dry-run")["would_stop"] is False


def test_a_dry_run_of_up_agrees_with_up(session):
    session.type("up", "one")
    assert "one is wanted already and ready" in session.type("up", "one", "--dry-run").stdout
    assert session.json("up", "one", "--dry-run")["wanted"] is True
    other = session.type("up", "v4-16", "one", "--spot", "--pay", "--dry-run", status=6)
    assert "not as asked: accelerator would be another" in " ".join(other.stderr.split())
    assert "give the new slice another name" in " ".join(other.stderr.split())
    asked = ("up", "v4-8", "two", "--spot", "--description", "Ablation", "--dry-run")
    paid = session.type(*asked, "--pay")
    assert "would ask for" in paid.stdout
    assert re.search(r"description +Ablation$", paid.stdout, re.MULTILINE)
    assert "without --pay" not in paid.stderr
    told = session.type(*asked)
    assert told.stdout == paid.stdout
    assert "v4-8 takes 4; without --pay it would be refused" in " ".join(told.stderr.split())
    assert "has 8 chips, 12 in use" in session.json(*asked)["not_covered"]
    session.type(*asked[:-1], status=2)


def test_dry_runs_say_would_and_refuse_what_the_real_one_refuses(session):
    session.type("store", "machines", "--remove", "m123", "--dry-run", status=5)
    session.type("store", "machines", "--remove", "m123", status=5)
    grant = ("spot", "v4", "us-central2-b")
    added = session.type("grant", "add", "4", *grant, "--ends", "2020-01-01", "--dry-run").stderr
    assert "would keep 4 spot v4 chips" in added
    assert "it would replace 8 spot v4 chips" in added
    assert "2020-01-01 is past" in added
    assert "would remove grants/" in session.type("grant", "rm", *grant, "--dry-run").stderr
    assert session.json("grant", "show")[0]["chips"] == 8


@pytest.mark.parametrize(
    ("hooks", "said"),
    [
        ("hooks: [{name: p, command: [/nowhere/ring], events: [nope]}]", "nope"),
        ("hooks: [{name: p, webhook_file: /nowhere/url, events: [needs-human]}]", "webhook_file"),
    ],
)
def test_a_hook_that_cannot_ring_makes_a_pass_say_so_and_doctor_find_it(session, hooks, said):
    folder = session.root / ".config" / "tpuctl"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(hooks)
    try:
        first = session.type("watch", "once", status=3)
        assert said in first.stdout + first.stderr
        session.type("watch", "once", status=3)
        found = session.type("doctor", "--json", status=None)
        assert found.returncode == 1
        assert said in found.stdout
    finally:
        (folder / "config.yaml").unlink()
    session.type("watch", "once")


def test_sim_down_that_cannot_clean_up_leaves_the_simulator_running(session):
    if os.geteuid() == 0:
        pytest.skip("needs a user other than root, whom modes do not stop")
    folder = session.root / "state" / "sim"
    folder.chmod(0o500)
    try:
        session.type("sim", "down", status=1)
    finally:
        folder.chmod(0o700)
    session.type("ls")


@pytest.mark.parametrize("noun", ["grant", "watch", "store", "sim", "config"])
def test_a_noun_alone_prints_its_help(session, noun):
    done = session.type(noun)
    assert done.stdout.startswith(f"Usage: tpuctl {noun} ")
    assert done.stderr == ""
