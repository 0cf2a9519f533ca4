"""Folded worker lists, the --worker flag, and groups of equal results."""

from __future__ import annotations

import pytest

from tpuctl.lib.text import common_cause, fold_label, fold_workers, group_equal, parse_workers


@pytest.mark.parametrize(
    ("workers", "folded"),
    [
        ([], ""),
        ([3], "3"),
        ([0, 1, 2, 6], "0-2,6"),
        ([6, 2, 0, 1, 1], "0-2,6"),
        ([0, 2, 4], "0,2,4"),
        (range(256), "0-255"),
        ([0, 1], "0-1"),
    ],
)
def test_workers_fold_into_ranges(workers: list[int], folded: str) -> None:
    assert fold_workers(workers) == folded


def test_labels_name_one_worker_or_many() -> None:
    assert fold_label("big", [3]) == "big-3"
    assert fold_label("big", [6, 0, 1, 2]) == "big[0-2,6]"


@pytest.mark.parametrize(
    ("text", "workers"),
    [
        ("all", (0, 1, 2, 3, 4, 5, 6, 7)),
        ("0-3,7", (0, 1, 2, 3, 7)),
        ("7, 0", (0, 7)),
        ("2,2-3", (2, 3)),
        ("0", (0,)),
    ],
)
def test_the_worker_flag_names_workers(text: str, workers: tuple[int, ...]) -> None:
    assert parse_workers(text, 8) == workers


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("8", "'8'"),
        ("0-8", "'0-8'"),
        ("0,x", "'x'"),
        ("3-1", "'3-1'"),
        ("", "''"),
        ("-1", "'-1'"),
        ("1,,2", "''"),
        ("٣", "'٣'"),
    ],
)
def test_a_bad_worker_flag_is_refused_with_the_offending_word(text: str, word: str) -> None:
    with pytest.raises(ValueError, match=r"worker|range|backwards") as caught:
        parse_workers(text, 8)
    assert word in str(caught.value)


@pytest.mark.parametrize(
    ("detail", "cause"),
    [
        ("big-0 refused the key of user tpuctl: no", "refused the key of user tpuctl: no"),
        ("127.0.0.1:22 refused the connection", "refused the connection"),
        ("[2001:db8::1]:22 did not answer in 10 s", "did not answer in 10 s"),
        ("big-01 is another", "big-01 is another"),
    ],
)
def test_equal_causes_read_alike_whatever_worker_they_are_about(detail: str, cause: str) -> None:
    assert common_cause("big-0", detail) == cause


@pytest.mark.parametrize("workers", [[0], [0, 5], list(range(0, 60, 3)), list(range(64))])
def test_folding_and_parsing_are_inverse(workers: list[int]) -> None:
    assert list(parse_workers(fold_workers(workers), 64)) == workers


def test_equal_results_come_together_largest_group_first() -> None:
    results = [(0, "a"), (1, "b"), (2, "b"), (3, "c")]
    groups = group_equal(results, key=lambda result: result[1])
    assert groups == [("b", [(1, "b"), (2, "b")]), ("a", [(0, "a")]), ("c", [(3, "c")])]
