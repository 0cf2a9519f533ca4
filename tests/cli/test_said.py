"""What commands say to a person: what is known, once, and what to type next."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.session import Session, open_session


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as session:
        session.type("up", "v4-8", "big", "--spot", "--pay")
        yield session


def test_a_wrong_node_is_refused_with_one_hint_that_names_the_right_one(session: Session) -> None:
    done = session.type("sim", "preempt", "big", status=5)
    assert done.stderr.count("sim status") == 1
    assert done.stderr.splitlines()[1] == "hint: did you mean big-1? `tpuctl sim status` lists all nodes"
    done = session.type("sim", "preempt", "nix", status=5)
    assert done.stderr.splitlines()[1] == "hint: `tpuctl sim status` lists the nodes"
    assert session.json("ls")[0]["cloud"] == "READY"
