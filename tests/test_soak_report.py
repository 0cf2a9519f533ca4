"""The report of a soak, from what its parts said."""

from __future__ import annotations

import pytest

from tests.soak_report import PARTS, count, main, render
from tests.support.measured import is_done

SAID = """\
seed 7
  a fleet of seed 7: 7 days, 900 passes, 40 kills
1 passed, 0 failed
  a fleet of seed 12: 0.5 days, 60 passes, 3 kills
  20000 odd requests answered
2 passed, 0 failed
"""
ENTRY = {"revision": "abc1234", "date": "2026-11-27", "load": 0.1, "seed": 7, "status": 0, "wall_s": 600}


def test_lives_count_themselves_and_kills_are_added_up() -> None:
    found = {"passes": 960, "kills": 43, "lives": 2, "failed": 0, "odd requests": 20000}
    assert count("lives", SAID) == found
    assert count("tests", "....\n31 passed, 2 failed in 60.1s\n") == {"passed": 31, "failed": 2}
    assert count("tests", "..s.\n31 passed, 2 skipped in 60.1s\n") == {"passed": 31, "skipped": 2}


def test_the_report_has_the_last_of_each_part_and_what_those_said_that_failed() -> None:
    entries = [{**ENTRY, "name": name, **count(name, SAID), "said": "said"} for name in PARTS]
    page = render([{**entries[0], "revision": "older"}, *entries])
    assert "| lives | abc1234 | 2026-11-27 | 7 | 10 | 960 passes, 43 kills, 2 lives" in page
    assert ("not of one revision" in page, "```" in page, "older" in page) == (False, False, False)
    late = render([*entries, {**entries[0], "revision": "newer", "status": "the time was up", "said": "E: x"}])
    assert "| **the time was up** |" in late
    assert "E: x" in late
    assert "not of one revision" in late
    why = "SKIPPED [2] tests/a.py:7: needs a wheel"
    assert why in render([*entries, {**entries[0], "missing": [why]}])
    assert is_done(entries, "lives", "abc1234")


def test_an_unknown_part_is_named_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nonsense"])
    assert "command-lines" in capsys.readouterr().err
