"""What the steps of one pass of a preparation share, and how they say that it does not go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tpuctl.envs.install import Told
from tpuctl.hosts.agent import Reply
from tpuctl.hosts.protocol import HostFacts, PrepareReply, WorkerStatus
from tpuctl.lib.time import render_time
from tpuctl.model.verdict import Blocked, wait_for
from tpuctl.runs.attempt import AttemptHosts
from tpuctl.runs.refusal import judge_lack
from tpuctl.runs.set_up import NotSetUp
from tpuctl.runs.states import RunEvent, RunFinding


class Preparation:
    """What the steps of one pass share."""

    def __init__(self, hosts: AttemptHosts) -> None:
        self.hosts = hosts
        self.rows = [dict(row) for row in hosts.attempt.hosts]
        """What is known of each host, for the manifest."""
        self.facts: Sequence[HostFacts] = ()
        self.running: Sequence[Reply[tuple[WorkerStatus, ...]]] = ()
        """Of each host all attempts that it knows."""
        self.told: Told | None = None
        """What hosts said of the things that the environment asks for."""
        self.acknowledged: Sequence[PrepareReply] = ()

    @property
    def checked(self) -> set[str]:
        """The names of what was checked and found well, in this pass or before."""
        return {row["check"] for row in self.hosts.checks}

    @property
    def begins(self) -> bool:
        """Whether no pass has got so far that the record says so."""
        return not self.hosts.attempt.hosts

    def passed(self, check: str, detail: str) -> None:
        """Writes down that something is well."""
        at = render_time(self.hosts.services.store.now()) or ""
        self.hosts.checks.append({"check": check, "detail": detail, "at": at})

    def changes(self) -> dict[str, Any]:
        """What the record of the attempt then says; there is no trouble."""
        known = {"hosts": tuple(self.rows), "checks": tuple(self.hosts.checks)}
        return {**known, "suspect_since": None, "suspect_why": "", "mend": ""}

    def postpone(self) -> RunFinding:
        """The rest is for the next pass, which need not find again what this one found."""
        slow = "slow workers"
        return RunFinding(RunEvent.POSTPONED, slow, wait_for(slow), self.changes())

    def is_late(self) -> bool:
        """Whether little of the time of this pass is left, and it found what is worth being written down."""
        attempt, checks = self.hosts.attempt, tuple(self.hosts.checks)
        news = self.rows and (tuple(self.rows) != attempt.hosts or checks != attempt.checks)
        return bool(news) and self.hosts.late()

    def in_the_way(self, why: str, hint: str) -> RunFinding:
        """Written down once, and told by `status` and `runs` until it is gone: its slice costs money."""
        verdict, reason = Blocked(why, hint), f"{why}: {hint}" if hint else why
        if self.hosts.attempt.suspect_why == why:
            return RunFinding(RunEvent.IN_THE_WAY, why, verdict)
        changes = {"suspect_why": why}
        return RunFinding(RunEvent.IN_THE_WAY, why, verdict, changes, journal="blocked", reason=reason)

    def lack(self, found: NotSetUp) -> RunFinding:
        """The project is not set up for the run."""
        now = self.hosts.services.store.now()
        return judge_lack(self.hosts.attempt, found.told, found.hint, now, may_pass=found.may_pass)


def busy(what: str) -> RunFinding:
    """The hosts are at work; what is waited for."""
    return RunFinding(RunEvent.BUSY, what, wait_for(what))
