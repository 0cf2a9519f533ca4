"""Calls that are made again until the cloud shows their effect: when, and when a person is asked."""

from __future__ import annotations

from tpuctl.model import timeouts
from tpuctl.model.records import Answer, Retry

CREATE, DELETE = "create", "delete"


def next_retry(before: Retry | None, call: str, answer: Answer, now: float, said: str = "") -> Retry:
    """The record of `call`, made at `now`; `before` is that of the last one."""
    same = before is not None and (before.call, before.answer) == (call, answer)
    return Retry(call, before.since if before is not None and same else now, now, answer, said)


def due_at(retry: Retry) -> float:
    """When the call is made again (epoch seconds): later and later, up to once a minute."""
    return retry.at + min(timeouts.RETRY_MAX_S, max(timeouts.RETRY_FIRST_S, retry.at - retry.since))


def stuck(retry: Retry, now: float) -> str:
    """Why a person is asked, or an empty string. Silence is waited out: for all we know the API is away."""
    minutes = (now - retry.since) / 60
    if retry.answer is Answer.NONE or now - retry.since < timeouts.RETRY_ASK_S:
        return ""
    if retry.answer is Answer.REFUSED:
        return f"refused for {minutes:.0f} min: {retry.said}"
    return f"{retry.call} was asked for {minutes:.0f} min ago, and nothing shows of it"
