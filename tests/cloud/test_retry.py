"""Reads of the cloud: what is tried once more, and when not."""

from __future__ import annotations

import pytest
from google.api_core.exceptions import ServiceUnavailable, TooManyRequests

from tpuctl.cloud import retry, storage
from tpuctl.errors import TransientError


class Time:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.at = 0.0

    def monotonic(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    for module in ("tpuctl.cloud.retry", "tpuctl.lib.retry"):
        monkeypatch.setattr(f"{module}.time", made)
    return made


@pytest.mark.parametrize(("takes_s", "tries"), [(0.1, 4), (20.0, 1)])
def test_a_refusal_is_tried_again_and_a_hanging_call_is_not(clock: Time, takes_s: float, tries: int) -> None:
    tried = []

    def call() -> None:
        tried.append(clock.at)
        clock.at += takes_s
        raise ServiceUnavailable("try later")

    with pytest.raises(TransientError, match="list nodes"):
        retry.read("list nodes", call)
    assert len(tried) == tries
    assert clock.at < 21.0


def test_the_answer_of_a_later_try_is_the_answer(clock: Time) -> None:
    answers = iter([None, 7])

    def call() -> int:
        answer = next(answers)
        if answer is None:
            raise ServiceUnavailable("try later")
        return answer

    assert retry.read("read a node", call) == 7


def test_cloud_storage_that_asks_for_a_slower_pace_is_asked_again(clock: Time) -> None:
    answers = iter([None, 7])

    def call() -> int:
        answer = next(answers)
        if answer is None:
            raise TooManyRequests("slow down")
        return answer

    assert storage.read_again("read gs://b/o", call) == 7
    assert clock.at > 0
