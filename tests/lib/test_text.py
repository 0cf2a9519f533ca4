"""One is not several."""

from __future__ import annotations

import pytest

from tpuctl.lib.text import counted, render_value, sized, suggest


@pytest.mark.parametrize(
    ("number", "words", "said"),
    [
        (0, ("problem",), "0 problems"),
        (1, ("warning",), "1 warning"),
        (4, ("spot v4 chip",), "4 spot v4 chips"),
        (1, ("pass", "passes"), "1 pass"),
        (2, ("pass", "passes"), "2 passes"),
    ],
)
def test_a_noun_follows_its_number(number: int, words: tuple[str, ...], said: str) -> None:
    assert counted(number, *words) == said


@pytest.mark.parametrize(
    ("word", "near"), [("spto", "spot"), ("SPOT", "spot"), ("health_checks", "HEALTH_CHECKS"), ("colour", None)]
)
def test_only_what_is_like_a_known_word_is_suggested(word: str, near: str | None) -> None:
    assert suggest(word, ["login_user", "spot", "HEALTH_CHECKS"]) == near


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.0, "0"),
        (1.25e-9, "1.25e-09"),
        (9999.4, "9999"),
        (40130.4, "40,130"),
        (-40130.0, "-40,130"),
        (4.013e12, "4.013e+12"),
        (float("inf"), "inf"),
    ],
)
def test_a_measured_number_is_short_and_without_an_exponent_where_that_is_easier(
    value: float, said: str
) -> None:
    assert render_value(value) == said


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (80 << 20, "80.0 MiB"),
        (1 << 30, "1.0 GiB"),
        (1 << 60, "1.0 EiB"),
    ],
)
def test_a_size_is_said_in_the_unit_that_fits(count: int, words: str) -> None:
    assert sized(count) == words
