"""Words that only tpuctl uses have a row in the table of words."""

from __future__ import annotations

import pytest

from tests.support.session import ROOT

TABLE = (ROOT / "docs" / "concepts" / "slices-and-runs.md").read_text()


@pytest.mark.parametrize(
    "word", ["incarnation", "attempt", "pass", "budget", "blind", "doubt", "tier", "grant", "letter"]
)
def test_a_word_of_our_own_is_explained(word):
    assert f"\n| {word} | " in TABLE
