"""Two machines, each with a home of its own, that share a store in a bucket: whose key opens the hosts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.session import Session, another_machine, open_session

URI = "gs://sim-bucket/fleet"


@pytest.fixture
def laptop() -> Iterator[Session]:
    with open_session() as opened:
        opened.type("config", "init", "--store", URI)
        opened.type("up", "v4-8", "big", "--spot", "--pay")
        yield opened


@pytest.fixture
def office(laptop: Session) -> Session:
    """A machine that joins after the slice came up."""
    other = another_machine(laptop)
    other.type("config", "init", "--store", URI, "--join")
    return other


def machines(session: Session) -> dict[str, bool]:
    return {str(row["machine"]): bool(row["enrolled"]) for row in session.json("store", "machines")}


def name_of(session: Session) -> str:
    (name,) = [str(row["machine"]) for row in session.json("store", "machines") if row["this"]]
    return name


def says_hello(session: Session) -> bool:
    done = session.finish(session.start("exec", "big", "--", "echo", "hello"))
    return done.returncode == 0 and "hello" in done.stdout


def patches(session: Session) -> int:
    return sum(entry["method"] == "nodes.patch" for entry in session.sim_journal())


@pytest.mark.slow
def test_a_machine_that_joins_later_is_let_in_by_a_pass_and_shut_out_for_good(laptop, office):
    office.type("watch", "once")
    assert says_hello(office)
    assert says_hello(laptop)
    assert patches(laptop) == 1
    assert machines(laptop) == {name_of(laptop): True, name_of(office): True}
    table = laptop.type("store", "machines").stdout
    assert all(name in table for name in machines(laptop))

    gone = name_of(office)
    assert laptop.type("store", "machines", "--remove", gone, status=2).stderr.count("--yes")
    laptop.type("store", "machines", "--remove", gone, "--yes")
    laptop.type("watch", "once")
    assert not says_hello(office)
    office.start("watch", "once").communicate(timeout=60)
    assert not says_hello(office)
    assert machines(laptop) == machines(office) == {name_of(laptop): True, gone: False}

    office.type("up", "big", "--pay")
    assert says_hello(office)
    assert machines(laptop) == {name_of(laptop): True, gone: True}
