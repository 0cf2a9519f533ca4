"""`run --chips` and `--chip`: what is refused, and what the lists show of runs side by side."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.session import Session, open_session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
RUN = ("run", "--on", "big", "--no-checkpoint", "--grace", "1", "--detach")


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as opened:
        opened.type("up", "v4-8", "big", "--spot", "--pay")
        opened.type(*RUN, "--name", "one", "--chips", "1", "--", "sleep", "600")
        yield opened


BAD = [
    (("--chip", "9"), 2, "--chip 9: v4-8 has 4 chips", "--chip 0 to 3"),
    (("--chip", "1,2"), 2, "only one chip or all of them are known to start", "--unproven"),
    (
        ("--chip", "0", "--per", "chip"),
        2,
        "--per chip starts a process on every chip of a host",
        "leave out --per",
    ),
    (("--chips", "1", "--smoke"), 2, "--smoke tests all chips", "leave it out"),
    (
        ("--chip", "0"),
        6,
        "run one is still running on chip 0 of slice big",
        "tpuctl stop one, or `tpuctl run --chips 1`",
    ),
    ((), 6, "run one is still running on chip 0 of slice big", "tpuctl attach one"),
]


@pytest.mark.parametrize(("words", "status", "said", "hint"), BAD)
def test_chips_that_cannot_be_had_are_refused(
    session: Session, words: tuple[str, ...], status: int, said: str, hint: str
) -> None:
    told = session.type(*RUN, *words, "--", "sleep", "599", status=status).stderr
    assert said in " ".join(told.split())
    assert hint in " ".join(told.split())
    assert [row["id"] for row in session.json("runs")] == ["one"]


def test_a_slice_of_several_hosts_is_not_shared(session: Session) -> None:
    session.type("up", "v4-16", "pod", "--spot", "--pay")
    told = session.type("run", "--on", "pod", "--no-checkpoint", "--chips", "1", "--", "true", status=2).stderr
    assert "--chips is for slices of one host, and this one has 2 hosts" in " ".join(told.split())


def test_runs_side_by_side_are_told_with_their_chips_and_end_with_their_slice(session: Session) -> None:
    for name, *chips in (("two", "--chip", "3"), ("three", "--chips", "1"), ("four", "--chips", "1")):
        told = session.type(*RUN, "--name", name, *chips, "--", "sleep", "600").stderr
    assert "run four on chip 2 of big" in told
    assert {row["id"]: row["chips"] for row in session.json("runs")} == {
        "one": [0], "two": [3], "three": [1], "four": [2],
    }  # fmt: skip
    assert "big:3" in session.type("runs").stdout
    shown = " ".join(session.type("status", "big").stdout.split())
    assert "two (running on chip 3)" in shown
    assert "big (ready), chip 3" in session.type("status", "two").stdout
    assert "on chip 3" in session.type("why", "two").stdout
    full = session.type(*RUN, "--chips", "1", "--", "true", status=6).stderr
    assert "tpuctl stop" in full
    assert "for a free chip" not in full

    session.type("stop", "two", "--yes")
    session.type("rerun", "two", "--name", "again", "--detach")
    assert session.json("status", "again")["chips"] == [3]
    refused = session.type("rerun", "two", "--name", "more", "--detach", status=6).stderr
    assert "run again is still running on chip 3 of slice big" in refused

    session.type("down", "big", "--yes")
    assert {row["state"] for row in session.json("runs")} == {"stopped"}
