"""Nothing on a host of the process tier becomes root of the machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hosts import Lab, open_lab, populate


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with open_lab("process", tmp_path) as made:
        yield populate(made, 1)


def test_sudo_is_refused_and_names_the_tier_that_has_it(lab: Lab) -> None:
    status, out, err = lab.run("sudo -n true")
    assert (status, out) == (1, "")
    assert "tpuctl sim up --hosts isolated" in err
    assert lab.run("grep NoNewPrivs /proc/self/status")[1].split() == ["NoNewPrivs:", "1"]
