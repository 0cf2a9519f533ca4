"""A session typed against a real simulator, each command a process of its own."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.support.session import REAL_PACE, TPUCTL, Session, open_session


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session(*REAL_PACE) as session:
        session.type("up", "v4-16", "big", "--spot", "--pay")
        yield session


def test_the_second_up_changes_nothing(session: Session) -> None:
    before = json.loads(session.type("why", "big", "--json").stdout)
    done = session.type("up", "v4-16", "big", "--spot", "--pay", "--json")
    assert json.loads(done.stdout)["state"] == "ready"
    assert done.stderr == ""
    assert json.loads(session.type("why", "big", "--json").stdout) == before


def test_the_fleet_is_data_on_stdout_marked_as_simulated(session: Session) -> None:
    rows = json.loads(session.type("ls", "--json").stdout)
    assert [(row["name"], row["state"], row["hosts"]) for row in rows] == [("big", "ready", 2)]
    table = session.type("ls").stdout
    assert table.startswith("[sim] NAME")
    assert "\x1b" not in table


def test_exec_passes_one_status_through_and_folds_several(session: Session) -> None:
    # On a loaded machine one worker is more than a second behind the other: each has a line then.
    same = session.type("exec", "big", "--", "echo", "same").stdout
    assert same == "big[0-1] │ same\n" or sorted(same.splitlines()) == ["big-0 │ same", "big-1 │ same"]
    session.type("exec", "--worker", "1", "big", "--", "sh", "-c", "exit 7", status=7)
    session.type("exec", "big", "--", "sh", "-c", "exit ${HOSTNAME##*-}", status=3)
    session.type("exec", "--worker", "2", "big", "--", "true", status=2)
    rows = json.loads(session.type("exec", "--json", "big", "--", "sh", "-c", "echo ${HOSTNAME##*-}").stdout)
    assert [(row["worker"], row["exit_status"], row["stdout"]) for row in rows] == [
        (0, 0, "0\n"),
        (1, 0, "1\n"),
    ]


def test_equal_output_is_grouped_under_its_workers(session: Session) -> None:
    script = "printf 'a\\nb\\n'; test ${HOSTNAME##*-} = 0 || echo other"
    grouped = session.type("exec", "big", "--group", "--", "sh", "-c", script).stdout
    assert grouped == "── big-0 (1)\na\nb\n── big-1 (1)\na\nb\nother\n"
    same = session.type("exec", "big", "--group", "--", "echo", "same").stdout
    assert same == "── big[0-1] (2)\nsame\n"


def test_output_goes_to_one_file_per_worker_and_stream(session: Session) -> None:
    script = "echo out ${HOSTNAME##*-}; echo err ${HOSTNAME##*-} >&2"
    done = session.type("exec", "big", "--output-dir", "out", "--", "sh", "-c", script)
    assert done.stdout == ""
    found = {path.name: path.read_text() for path in (session.work / "out").iterdir()}
    assert found == {
        "worker-0.stdout": "out 0\n",
        "worker-0.stderr": "err 0\n",
        "worker-1.stdout": "out 1\n",
        "worker-1.stderr": "err 1\n",
    }


def test_failures_are_summed_up_by_cause(session: Session) -> None:
    done = session.type("exec", "big", "--", "sh", "-c", "exit $((${HOSTNAME##*-} + 4))", status=1)
    assert "2 of 2 workers failed: big-0: exit status 4; big-1: exit status 5 (failed)" in done.stderr


def test_words_for_the_program_arrive_unchanged(session: Session) -> None:
    (session.work / "show.py").write_text("import sys\nprint(ascii(sys.argv[1:]))\n")
    words = ["--json", "a b", "$HOME", "`id`", "q\"'", "two\nlines", "ü", "*", "--", "-m"]
    done = session.type("run", "--no-checkpoint", "--on", "big", "show.py", "--", *words)
    assert f"│ {words!a}" in done.stdout
    assert "succeeded" in done.stderr


def test_a_run_that_nobody_looks_at_is_shown_as_what_was_recorded(session: Session) -> None:
    session.type("run", "--no-checkpoint", "--detach", "--name", "alone", "--on", "big", "--", "sleep", "600")
    told = " ".join(session.type("status", "alone").stderr.split())
    assert "this is what was recorded last, and no watchdog has made a pass yet" in told
    assert "`tpuctl attach alone` looks at it now" in told
    session.type("stop", "alone", "--yes")
    assert "recorded" not in session.type("status", "alone").stderr


def test_a_run_is_listed_logged_and_described(session: Session) -> None:
    session.type("run", "--no-checkpoint", "--name", "hello", "--on", "big", "--", "echo", "hello")
    row = next(r for r in json.loads(session.type("runs", "--json").stdout) if r["id"] == "hello")
    assert (row["state"], row["command"]) == ("succeeded", ["echo", "hello"])
    assert session.type("logs", "hello").stdout in ("big[0-1] │ hello\n", "big-0 │ hello\nbig-1 │ hello\n")
    manifest = json.loads(session.type("manifest", "hello", "--json").stdout)
    assert manifest["command"]["argv"] == ["echo", "hello"]
    assert [len(each["hosts"]) for each in manifest["attempts"]] == [2]
    shown, same = (session.type(*words).stdout for words in (("status", "hello"), ("runs", "hello")))
    head, _, age = shown.partition(" ago")[0].rpartition(", ")
    assert same.startswith(head), age  # seconds may pass between the two
    assert "type next  `tpuctl logs hello`" in shown
    assert re.search(r"^ +0-1 +exit 0 +hello$", shown, re.MULTILINE)
    facts = session.json("status", "hello")
    assert (facts["id"], facts["slice"], facts["slice_state"]) == ("hello", "big", "ready")
    assert [row["last_line"] for row in facts["workers"]] == ["hello", "hello"]
    assert facts.items() >= row.items()


def test_status_of_a_name_that_is_slice_and_run_is_the_slice(session: Session) -> None:
    session.type("run", "--no-checkpoint", "--name", "big", "--on", "big", "--", "true")
    assert session.json("status", "big")["type"] == "v4-16"
    assert session.json("runs", "big")["state"] == "succeeded"
    done = session.type("status", "helo", status=5)
    assert "no slice or run called helo" in done.stderr
    done = session.type("runs", "big", "--csv", status=2)
    assert "--csv is for the list" in done.stderr


def test_attach_to_a_run_that_is_over_ends_like_the_run(session: Session) -> None:
    words = ("run", "--no-checkpoint", "--on", "big", "--name")
    session.type(*words, "good-end", "--", "true")
    session.type("attach", "good-end")
    assert "run bad-end failed" in session.type(*words, "bad-end", "--", "sh", "-c", "exit 9", status=1).stderr
    done = session.type("attach", "bad-end", status=1)
    assert "run bad-end failed" in done.stderr
    assert "hint: tpuctl logs bad-end" in done.stderr
    session.type("attach", "no-end", status=5)


def test_a_slice_made_for_a_run_goes_with_it_and_others_are_not_taken(session: Session) -> None:
    words = ("--no-checkpoint", "--spot", "--pay", "--zone", "us-central2-b")
    session.type("run", "--up", "v4-8", *words, "--", "true")
    assert [row["name"] for row in json.loads(session.type("ls", "--json").stdout)] == ["big"]
    done = session.type("run", "--up", "v4-16", "--on", "big", *words, "--", "true", status=6)
    assert "does not belong to a run" in done.stderr


def test_files_travel_both_ways_with_odd_names(session: Session) -> None:
    odd = "a 'file' ü.txt"
    (session.work / odd).write_text("content")
    session.type("cp", odd, f"big:{odd}")
    session.type("cp", f"big:{odd}", "back")
    assert (session.work / "back" / "big-1" / odd).read_text() == "content"
    session.type("cp", "--worker", "0", f"big:{odd}", "one.txt")
    assert (session.work / "one.txt").read_text() == "content"
    session.type("cp", "missing", "big:x", status=2)


def test_ssh_is_the_real_program_with_the_pinned_key(session: Session) -> None:
    printed = session.type("ssh", "--worker", "1", "--dry-run", "big").stdout
    assert printed.startswith("ssh -p ")
    assert "StrictHostKeyChecking=yes" in printed


def test_sim_env_is_quoted_for_a_shell(session: Session) -> None:
    script = f'eval "$({TPUCTL} sim env)"; printf %s "$CLOUDSDK_CORE_PROJECT"'
    done = subprocess.run(
        ["bash", "-c", script], env=session.environ, capture_output=True, text=True, check=True
    )
    assert done.stdout == "sim-project"


def test_sim_env_leads_every_client_of_storage_to_the_simulator(session: Session) -> None:
    variables = json.loads(session.type("sim", "env", "--json").stdout)
    assert variables["TENSORSTORE_GCS_HTTP_URL"] == variables["STORAGE_EMULATOR_HOST"]
    # Otherwise each look at a bucket by gcsfs waits a minute for Google.
    assert variables["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] == "false"


def test_one_pass_of_the_watchdog_reports_each_subject(session: Session) -> None:
    lines = json.loads(session.type("watch", "once", "--json").stdout)
    assert [(line["subject"], line["result"]) for line in lines] == [("big", "done")]


def test_a_real_profile_refuses_while_emulator_variables_are_set(session: Session) -> None:
    session.environ["STORAGE_EMULATOR_HOST"] = "http://127.0.0.1:1"
    try:
        done = session.type("--profile", "default", "--project", "my-project", "ls", status=2)
    finally:
        del session.environ["STORAGE_EMULATOR_HOST"]
    assert "STORAGE_EMULATOR_HOST" in done.stderr
