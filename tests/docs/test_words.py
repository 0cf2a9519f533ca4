"""Words that only tpuctl uses have a row in the table of words."""

from __future__ import annotations

import re

import pytest

from tests.support.session import ROOT
from tpuctl.watch.heartbeat import PassResult

TABLE = (ROOT / "docs" / "concepts" / "words.md").read_text()


@pytest.mark.parametrize(
    "word",
    [
        *("incarnation", "attempt", "pass", "budget", "blind", "doubt", "tier", "grant", "letter", "store"),
        *("receipt", "contract", "bundle", "goodput", "keeper", "enrolled machine", "drift", "master, clone"),
        *("hook", "done", "waiting", "changed", "watchdog", "manifest", "environment", "orphan", "profile"),
    ],
)
def test_a_word_of_our_own_is_explained(word):
    assert f"\n| {word} | " in TABLE


def test_all_results_of_a_pass_are_explained():
    explained = " ".join(re.findall(r"^\| ([a-z, ]+) \|", TABLE, re.MULTILINE))
    missing = {str(result) for result in PassResult} - set(explained.replace(",", " ").split())
    assert missing == set()
