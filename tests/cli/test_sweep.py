"""`run --matrix`: a run for each row of a grid."""

from __future__ import annotations

import csv
from collections.abc import Iterator

import pytest

from tests.support.session import Session, open_session

PROGRESS = r"step (?P<step>\d+) loss (?P<loss>\S+)"
PROGRAM = """import os, sys
print(os.environ["SEED"], *sys.argv[1:])
print("step 1 loss 0.5" + os.environ["SEED"])
"""
RUN = (
    "run",
    "train.py",
    "--on",
    "big",
    "--no-checkpoint",
    "--allow-cpu",
    "--chips",
    "1",
    "--progress",
    PROGRESS,
    "--matrix",
)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as session:
        session.type("up", "v4-8", "big", "--spot", "--pay")
        (session.work / "train.py").write_text(PROGRAM)
        (session.work / "lr.yaml").write_text("SEED: [1, 2]\nargs: {lr: [1e-3]}\n")
        yield session


def test_a_grid_is_shown_before_it_runs(session: Session) -> None:
    shown = session.type(*RUN, "lr.yaml", "--dry-run").stdout
    assert "2 runs on slice big, at most 2 at the same time" in shown
    assert "lr-1: SEED=1, lr=1e-3" in shown
    assert session.json("runs") == []


def test_each_row_is_a_run_of_the_group_and_the_same_command_finds_them_done(session: Session) -> None:
    said = session.type(*RUN, "lr.yaml").stderr
    assert "2 rows are over, none under way, 0 to come" in said
    rows = list(csv.DictReader(session.type("runs", "--group", "lr", "--csv").stdout.splitlines()))
    assert [(row["id"], row["state"], row["tags"]) for row in rows] == [
        ("lr-2", "succeeded", "SEED=2 lr=1e-3"),
        ("lr-1", "succeeded", "SEED=1 lr=1e-3"),
    ]
    assert [row["loss"] for row in rows] == ["0.52", "0.51"]
    shown = session.type("runs", "--group", "lr").stdout
    assert "TAGS" in shown
    assert "SEED=2 lr=1e-3" in shown
    assert "1 --lr 1e-3" in session.type("logs", "lr-1").stdout
    assert "2 rows are over" in session.type(*RUN, "lr.yaml").stderr
    assert len(session.json("runs")) == 2
    told = session.json("stop", "--group", "lr", "--dry-run")
    assert told == {"dry_run": True, "group": "lr", "under_way": 0, "to_come": 0, "over": 2}
    assert "0 to come" in session.type("stop", "--group", "lr", "--yes").stderr
    for words in (("--dry-run",), ()):
        done = session.type(*RUN, "lr.yaml", *words)
        assert "begin nothing: sweep lr was stopped; --group ANOTHER" in done.stdout + done.stderr


def test_ids_that_other_runs_have_are_refused(session: Session) -> None:
    (session.work / "two.yaml").write_text("SEED: [1, 2]\n")
    session.type(
        "run", "train.py", "--on", "big", "--no-checkpoint", "--allow-cpu", "--var", "SEED=9", "--name", "two-2"
    )
    assert "other runs have: two-2" in session.type(*RUN, "two.yaml", status=6).stderr
    assert session.json("runs", "--group", "two") == []


def test_slices_of_its_own_are_taken_and_given_back(session: Session) -> None:
    (session.work / "own.yaml").write_text("SEED: [1, 2, 3]\n")
    asked = (
        "run",
        "train.py",
        "--no-checkpoint",
        "--allow-cpu",
        "--matrix",
        "own.yaml",
        "--up",
        "v4-8",
        "--spot",
    )
    assert "not covered" in session.type(*asked, status=2).stderr
    said = session.type(*asked, "--pay", "--parallel", "2").stderr
    assert "3 runs on 2 x v4-8, at most 2 at the same time" in said
    assert "3 rows are over, none under way, 0 to come" in said
    rows = session.json("runs", "--group", "own")
    assert {row["slice"] for row in rows} == {"own-s1", "own-s2"}
    assert {row["state"] for row in rows} == {"succeeded"}
    assert [row["name"] for row in session.json("ls")] == ["big"]


REFUSED = {
    "another grid of the same name": (("again/lr.yaml",), 6, "another grid, program or slice"),
    "no file": (("nix.yaml",), 2, "--matrix nix.yaml: No such file"),
    "no grid": (("train.py",), 2, "train.py:1:"),
    "a name for all": (("lr.yaml", "--name", "x"), 2, "--name is for one run"),
    "one chip for all": (("lr.yaml", "--chip", "2", "--chips", "all"), 2, "--chip is for one run"),
    "a group that is no id": (("lr.yaml", "--group", "L R"), 2, "run id 'L R' is not valid"),
    "a file of ten thousand rows": (("large.yaml",), 2, "large.yaml: it is larger than 256 KiB"),
    "a secret": (("secret.yaml",), 2, "row 1:"),
}


@pytest.mark.parametrize(("words", "status", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_is_refused(session: Session, words: tuple[str, ...], status: int, message: str) -> None:
    (session.work / "again").mkdir(exist_ok=True)
    (session.work / "again" / "lr.yaml").write_text("SEED: [3]\n")
    (session.work / "large.yaml").write_text("list:\n" + "- {SEED: 1, args: {lr: 0.1}}\n" * 10_000)
    (session.work / "secret.yaml").write_text("API_TOKEN: [hf_" + "a" * 34 + "]\n")
    done = session.type(*RUN, *words, status=status)
    assert message in done.stderr
    assert not {row["group"] for row in session.json("runs")} - {"lr", "own", None, ""}


def test_a_grid_of_many_rows_asks(session: Session) -> None:
    (session.work / "many.yaml").write_text(f"SEED: {list(range(201))}\n")
    done = session.type(*RUN, "many.yaml", status=2)
    asked = "start 201 runs on slice big, at most 4 at the same time; about $"
    assert asked in " ".join(done.stderr.split())
    assert "per hour by the list while it is there?" in " ".join(done.stderr.split())
    assert "add --yes" in done.stderr
    assert "--parallel is how many" in session.type(*RUN[:-1], "--parallel", "2", status=2).stderr
    assert "there is no sweep called nix" in session.type("stop", "--group", "nix", status=5).stderr
    assert session.json("runs", "--group", "many") == []
