"""Run the probes of a run's data on its hosts, with its code and environment, before its program starts.

Nothing is remembered here: the hosts know a probe as one more attempt of the run, and say how it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from tpuctl.datasets.contract import Contract
from tpuctl.errors import PartialError
from tpuctl.hosts.log_news import LogNews
from tpuctl.hosts.protocol import PrepareReply, WorkerState
from tpuctl.hosts.requests import NewsRequest, StartRequest, StatusRequest, StopRequest
from tpuctl.hosts.worker_status import WorkerStatus
from tpuctl.lib.codec import from_data
from tpuctl.lib.text import fold_workers
from tpuctl.model.cloud import HostTarget
from tpuctl.model.receipt import Receipt
from tpuctl.model.shipped_files import read_template
from tpuctl.model.timeouts import PROBE_S
from tpuctl.runs.attempt import AttemptHosts
from tpuctl.runs.probe import (
    ProbeReport,
    describe_findings,
    describe_probe,
    judge_probe,
    parse_probe,
    probe_check,
    probe_name,
)
from tpuctl.runs.states import RunEvent, RunFinding
from tpuctl.state.repository import list_attempts
from tpuctl.transfer.prepare import require_values

TOLD_BYTES = 64 << 10
"""Of what a probe wrote, from its end: its report, or why there is none."""
_AT_WORK = frozenset({WorkerState.STARTING, WorkerState.RUNNING})
_NOT_BEGUN = frozenset({WorkerState.ABSENT, WorkerState.PREPARED})


class Passed(Struct, frozen=True):
    """A probe found nothing wrong. `detail` goes into the manifest."""

    detail: str


def probed_before(hosts: AttemptHosts) -> dict[str, Mapping[str, str]]:
    """Checks of earlier attempts on the same hosts, by name."""
    before = list_attempts(hosts.services, hosts.run.id)
    earlier = [each for each in before if each.incarnation == hosts.attempt.incarnation]
    return {row["check"]: row for each in earlier for row in each.checks}


class DataProbe:
    """The probe of one receipt, the `number`-th of the run, on the workers of one attempt."""

    def __init__(self, hosts: AttemptHosts, receipt: Receipt, number: int) -> None:
        self._hosts = hosts
        self._number = number
        self._contract = from_data(Contract, receipt.contract)
        self.name = probe_name(hosts.attempt.attempt_id, number)
        self.check = probe_check(receipt)
        self._title = f"the probe of {receipt.uri}"

    @property
    def argv(self) -> list[str]:
        """The program that makes the report of one host."""
        return ["python3", "-c", read_template("data_probe.py").decode(), *self._contract.probe]

    def step(
        self,
        prepare: Callable[[], Sequence[PrepareReply] | str],
        request: Callable[[Sequence[PrepareReply]], Callable[[HostTarget], StartRequest]],
    ) -> Passed | RunFinding | str:
        """Begins it, or looks how it stands; what is waited for. Raises PartialError where a worker does not
        answer."""
        status = self._hosts.agent.ask(self._hosts.targets, StatusRequest(self._hosts.run.id, self.name))
        workers = require_values(status, "say how the probe stands")
        if any(worker.state in _NOT_BEGUN for worker in workers):
            prepared = prepare()
            if isinstance(prepared, str):
                return prepared
            require_values(self._hosts.agent.ask(self._hosts.targets, request(prepared)), "start the probe")
            return self._title
        lost = [worker.worker for worker in workers if worker.state is WorkerState.LOST]
        if lost:
            said = f"worker {fold_workers(lost)} lost the supervisor of its probe"
            raise PartialError(said, details={"workers": lost, "unreached": lost})
        at_work = [worker for worker in workers if worker.state in _AT_WORK]
        if any(worker.time - (worker.started_at or worker.time) >= PROBE_S for worker in at_work):
            self._hosts.agent.ask(self._hosts.targets, StopRequest(self._hosts.run.id, self.name, 0.0))
        elif at_work:
            return f"{self._title} on worker {fold_workers([worker.worker for worker in at_work])}"
        reports = self._reports(workers)
        found = judge_probe(reports, self._contract.distinct)
        if found:
            return RunFinding(RunEvent.BAD_DATA, f"{self._title}: {describe_findings(found)}")
        return Passed(describe_probe(reports))

    def _reports(self, workers: Sequence[WorkerStatus]) -> dict[int, ProbeReport | str]:
        """By worker its report; the last line that it wrote where it made none. What they wrote is kept beside
        the logs of the attempt."""
        status = {worker.worker: worker for worker in workers}

        def request(target: HostTarget) -> NewsRequest:
            ends = status[target.worker]
            sizes = {"stdout": ends.stdout_bytes, "stderr": ends.stderr_bytes}
            offsets = {name: max(0, size - TOLD_BYTES) for name, size in sizes.items()}
            return NewsRequest(self._hosts.run.id, self.name, offsets, 2 * TOLD_BYTES)

        answers = list(self._hosts.agent.read_news(self._hosts.targets, request))
        return {
            target.worker: self._report(target.worker, news)
            for target, news in zip(
                self._hosts.targets, require_values(answers, "say what it probed"), strict=True
            )
        }

    def _report(self, worker: int, news: LogNews) -> ProbeReport | str:
        stream = f"probe-{self._number}"
        wrote = news.stderr + news.stdout
        self._hosts.services.logs.write(
            self._hosts.run.id, self._hosts.attempt.number, worker, stream, 0, wrote
        )
        report = parse_probe(news.stdout.decode(errors="replace"))
        if report is not None:
            return report
        lines = [line.strip() for line in news.stderr.decode(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else ""
