"""Asks this machine and the hosts of a run for all that they have of it.

Each step is for itself: what it cannot have is missing in the index, with the reason, and the next one goes on.
A host that does not answer is not asked again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any

from msgspec.structs import replace

from tpuctl.collect.collection import Collection
from tpuctl.collect.index import Item, choose_files, choose_newest
from tpuctl.engine.services import Services
from tpuctl.errors import TpuctlError
from tpuctl.hosts.agent import HostAgent, RawReply
from tpuctl.hosts.facts import Section
from tpuctl.hosts.protocol import WorkerState
from tpuctl.hosts.requests import Masks
from tpuctl.lib.text import sized
from tpuctl.model.attempts import Attempt
from tpuctl.model.cloud import HostTarget
from tpuctl.model.processes import times_of
from tpuctl.model.records import RunRecord
from tpuctl.provenance.parts import load_manifest
from tpuctl.runs.attempt import AttemptHosts, find_hosts
from tpuctl.runs.fetch import fetch_metrics
from tpuctl.runs.host_parts import DRIVER_LOGS, HOST_PARTS, HostPart
from tpuctl.runs.stacks import examine, render_cores, render_stacks
from tpuctl.state.repository import list_attempts
from tpuctl.telemetry.observe import Observer
from tpuctl.transfer.tree import TreeFile
from tpuctl.views.decisions import decisions
from tpuctl.views.metrics import data_rows, run_metrics
from tpuctl.views.run_status import run_status
from tpuctl.views.top import frame_facts, take_frame
from tpuctl.workers.copy_from import pull
from tpuctl.workers.file_list import FileSurvey
from tpuctl.workers.file_receiver import FileReceiver

FACTS_S = 60.0
"""Versions of what is installed are asked of programs."""
LOGS_S = 60.0
LOG_END_MAX = 1 << 20
FACTS = (
    Section.HOST,
    Section.SPACE,
    Section.DISKS,
    Section.GCSFUSE,
    Section.CHIPS,
    Section.ENVS,
    Section.KERNEL,
)
SHARED_DRIVER_LOGS = PurePosixPath("/", "tmp", "tpu_logs")
"""Where libtpu writes without TPU_LOG_DIR (cloud.google.com/tpu/docs/troubleshooting)."""
KEPT_LOGS = ("host", "stacks", "cores")
"""Beside what programs wrote: what hosts said of themselves when they failed, and what was seen of processes
and chips."""
WHOLE = "all that the host has"
START_SLACK_S = 5.0
"""Hosts note when a program started a moment after it did."""


class Gathering:
    """Of one run; `workers` None means all. `cause` is what keeps it where it stands still."""

    def __init__(
        self, services: Services, run: RunRecord, collection: Collection, workers: Container[int] | None = None
    ) -> None:
        self._services = services
        self._run = run
        self._collection = collection
        self._workers = workers
        self._hosts: AttemptHosts | None = None
        self._targets: list[HostTarget] = []
        self._attempts: dict[int, list[Mapping[str, Any]]] = {}
        self._left_bytes: dict[int, int] = {}
        self.cause = ""
        self._steps: list[tuple[str, Callable[[], None]]] = [
            ("the record of the run", self._keep_records),
            ("what hosts say of the run", self._ask_hosts),
            ("what hosts have of the logs", self._fetch_logs),
            ("the ends of logs", self._keep_logs),
            ("metrics of the program", self._keep_metrics),
            ("stacks", self._keep_stacks),
            ("the state of hosts", self._keep_diagnosis),
            ("facts of hosts", self._keep_facts),
            ("folders of hosts", self._keep_folders),
        ]

    def gather(self) -> None:
        """All steps."""
        while self._steps:
            what, step = self._steps[0]
            with self._named(what):
                step()
            self._steps.pop(0)

    def stop(self, why: str) -> None:
        """What was not gathered until now is missing."""
        for what, _ in self._steps:
            self._collection.lacks(what, why)
        self._steps.clear()

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        try:
            yield
        except TpuctlError as error:
            self._collection.lacks(what, error.message)
        except OSError as error:
            self._collection.lacks(what, f"this machine: {error.strerror or error}")

    # ------------------------------------------------------------ this machine

    def _keep_records(self) -> None:
        run = self._run
        for name, what, make in (
            ("run.json", "the manifest", lambda: load_manifest(self._services, run.id)),
            ("status.json", "what `tpuctl status` tells", lambda: run_status(self._services, run)),
            ("why.json", "all decisions, oldest first", lambda: decisions(self._services, run.id)),
        ):
            with self._named(what):
                self._keep_json(name, make(), what)

    def _keep_json(self, path: str, data: Any, what: str, worker: int | None = None) -> None:
        content = json.dumps(data, indent=1, default=str).encode()
        self._collection.keep(path, content, what, "JSON", worker=worker)

    def _keep_logs(self) -> None:
        """Newest attempt first."""
        attempts = self._known_attempts()
        count = sum(len(each.workers) * len(_logs_of(each)) for each in attempts)
        limit = min(LOG_END_MAX, self._collection.room.here_bytes // max(1, count))
        for attempt in attempts:
            silent = [worker for worker in attempt.workers if self._takes(worker)]
            for worker in list(silent):
                for stream in _logs_of(attempt):
                    data = self._services.logs.tail(self._run.id, attempt.number, worker, stream, limit)
                    if data:
                        path = f"logs/attempt-{attempt.number}/worker-{worker}.{stream}.log"
                        what = f"the last {sized(limit)} of logs, as far as they are on this machine"
                        self._collection.keep(path, data, what, "text", worker=worker, attempt=attempt.number)
                        silent = [each for each in silent if each != worker]
            for worker in silent:
                why = "this machine has none: `tpuctl logs` may find them in the bucket of the store"
                self._collection.lacks("logs", why, worker=worker, attempt=attempt.number)

    def _keep_metrics(self) -> None:
        if not self._run.spec.progress:
            return
        if self._hosts is not None and not self._run.state.final:
            fetch_metrics(self._services, self._run)
        rows = data_rows(run_metrics(self._services, self._run))
        self._keep_json("metrics.json", rows, "what `tpuctl metrics` tells")

    def _known_attempts(self) -> list[Attempt]:
        known = {each.number: each for each in list_attempts(self._services, self._run.id)}
        if self._run.attempt is not None:
            known[self._run.attempt.number] = self._run.attempt
        return [known[number] for number in sorted(known, reverse=True)]

    def _takes(self, worker: int) -> bool:
        return self._workers is None or worker in self._workers

    # ------------------------------------------------------------ hosts

    def _ask_hosts(self) -> None:
        """Which attempts of the run each host has; who does not answer is left out from here on."""
        if self._run.attempt is None:
            raise TpuctlError("the run has not begun on any host")
        self._hosts = find_hosts(self._services, self._run)
        if self._hosts is None:
            raise TpuctlError(
                f"the hosts of its last attempt are gone, with all that was on them ({self._run.slice_name})"
            )
        asked = [target for target in self._hosts.targets if self._takes(target.worker)]
        replies = self._hosts.agent.call(asked, "attempts", {})
        for target, value in self._answered(asked, replies, WHOLE):
            self._targets.append(target)
            self._left_bytes[target.worker] = self._collection.room.host_bytes
            rows = [row for row in value.get("attempts", ()) if row.get("run") == self._run.id]
            self._attempts[target.worker] = rows
            what = "how each attempt of the run stands there"
            self._keep_json(f"hosts/worker-{target.worker}/attempts.json", rows, what, target.worker)

    def _answered(
        self, targets: Sequence[HostTarget], replies: Sequence[RawReply], what: str
    ) -> Iterator[tuple[HostTarget, Mapping[str, Any]]]:
        for target, reply in zip(targets, replies, strict=True):
            if reply.value is not None:
                yield target, reply.value
            else:
                self._collection.lacks(what, reply.message or str(reply.error), worker=target.worker)

    def _agent(self) -> HostAgent | None:
        return self._hosts.agent if self._hosts is not None and self._targets else None

    def _fetch_logs(self) -> None:
        """What a run that goes on wrote since somebody looked comes to the other logs of this machine."""
        until = self._services.clock.now() + LOGS_S
        if self._hosts is None or self._run.state.final or not self._targets:
            return
        while self._hosts.fetch_logs(emit=False).more:
            if self._services.clock.now() > until:
                raise TpuctlError(
                    f"not all of it came within {LOGS_S:.0f} s: `tpuctl attach {self._run.id}` goes on"
                )

    def _keep_stacks(self) -> None:
        running = {
            worker
            for worker, rows in self._attempts.items()
            if any(row.get("state") == WorkerState.RUNNING for row in rows)
        }
        if self._hosts is None or not running:
            return
        seen = examine(self._hosts, (), None if self._workers is None else running)
        self.cause = seen.cause.said if seen.cause is not None else ""
        for found in seen.stacks:
            text = "" if found.error else render_stacks(found)
            text += render_cores(found.worker, seen.cores, seen.silent)
            if text:
                path, what = f"hosts/worker-{found.worker}/stacks.txt", "what its processes did, and its chips"
                self._collection.keep(path, text.encode(), what, "text", worker=found.worker)
            elif found.worker in running:
                why = found.error or "none of its processes was there any more"
                self._collection.lacks("stacks", why, worker=found.worker)
        with Observer(self._services) as observer:
            facts = frame_facts(take_frame(self._services, observer, self._run.id))
        self._keep_json("top.json", facts, "what `tpuctl top` tells of chips and hosts")

    def _keep_diagnosis(self) -> None:
        if self._hosts is None:
            return
        for reply in self._hosts.diagnose(self._targets):
            if reply.value is None:
                self._collection.lacks("the state of the host", reply.message, worker=reply.worker)
                continue
            path, what = f"hosts/worker-{reply.worker}/host.txt", "kernel messages, memory, disks, processes"
            self._collection.keep(
                path, reply.value.text.encode("utf-8", "replace"), what, "text", worker=reply.worker
            )

    def _keep_facts(self) -> None:
        agent = self._agent()
        if agent is None:
            return
        replies = agent.call(self._targets, "facts", {"sections": list(FACTS)}, timeout_s=FACTS_S)
        for target, value in self._answered(self._targets, replies, "facts of the host"):
            path, what = f"hosts/worker-{target.worker}/facts.json", "what the host is and has"
            self._keep_json(path, value, what, target.worker)

    def _keep_folders(self) -> None:
        """What lies on hosts, newest attempt first, and of each the small before the large."""
        if not self._targets:
            return
        for attempt in self._known_attempts():
            having = [
                target
                for target in self._targets
                if any(row.get("attempt") == attempt.attempt_id for row in self._attempts[target.worker])
            ]
            for part in HOST_PARTS:
                if having and part.asked(self._run):
                    path = f".tpuctl/runs/{self._run.id}/{attempt.attempt_id}/{part.folder}"
                    self._fetch(part, path, having, attempt)
        if not DRIVER_LOGS.asked(self._run):
            self._fetch(DRIVER_LOGS, SHARED_DRIVER_LOGS.as_posix(), self._targets, None)

    def _fetch(self, part: HostPart, path: str, targets: Sequence[HostTarget], attempt: Attempt | None) -> None:
        agent = self._agent()
        if agent is None:
            return
        number = attempt.number if attempt is not None else None
        below = part.name if number is None else f"attempt-{number}/{part.name}"
        places = {target.worker: f"hosts/worker-{target.worker}/{below}" for target in targets}

        def select(target: HostTarget, survey: FileSurvey) -> FileSurvey:
            return self._select(part, places[target.worker], target.worker, survey)

        def receiver(target: HostTarget) -> FileReceiver:
            item = Item(places[target.worker], part.what, part.opens, target.worker, number)
            return FileReceiver(self._collection.expect(item))

        with self._named(part.what):
            pulled = pull(
                agent,
                targets,
                path,
                receiver,
                clock=self._services.clock,
                emit=self._services.emit,
                select=select,
                may_lack=True,
                masks=self._masks(),
            )
            for result in pulled.results:
                if not result.ok:
                    why = result.detail or f"exit status {result.exit_status}"
                    self._collection.lacks(part.what, why, worker=result.worker, attempt=number)
                elif part.missed and not self._collection.has(places[result.worker]):
                    why = "nothing of it is there: newer attempts made room, or none was written"
                    self._collection.lacks(part.what, why, worker=result.worker, attempt=number)

    def _select(self, part: HostPart, place: str, worker: int, survey: FileSurvey) -> FileSurvey:
        """As much of a folder as its host has room for."""
        found = [
            e for e in survey.entries if not (isinstance(e, TreeFile) and e.path.endswith(part.code or "\0"))
        ]
        if part.newest:
            count = len(found)
            found = list(choose_newest(found, part.newest, self._began_ns(worker)))
            if len(found) < count:
                self._collection.leave_older(place, count - len(found))
        chosen = choose_files(found, self._left_bytes[worker])
        files = [entry for entry in chosen if isinstance(entry, TreeFile)]
        all_files = [entry for entry in found if isinstance(entry, TreeFile)]
        size = sum(entry.blob.size for entry in files)
        self._left_bytes[worker] -= size
        cut = len(all_files) - len(files)
        if cut:
            room = sized(self._collection.room.host_bytes)
            why = f"{room} of each host are taken, the smallest files first"
            self._collection.cut(place, cut, sum(entry.blob.size for entry in all_files) - size, why)
        return replace(survey, entries=chosen)

    def _began_ns(self, worker: int) -> int:
        """When the run began there, by that host's clock; where it does not know, by this machine's."""
        times = [row.get("started_at") for row in self._attempts[worker]]
        known = [each for each in times if isinstance(each, int | float)]
        return int((min(known, default=self._run.created_at) - START_SLACK_S) * 1e9)

    def _masks(self) -> Masks | None:
        """Values of its secrets as far as they can be read here; hosts refuse where neither side knows one."""
        run, values = self._run, {}
        if not run.spec.secrets or run.attempt is None:
            return None
        for name, reference in run.spec.secrets.items():
            try:
                values[name] = self._services.secrets.resolve(reference).reveal()
            except TpuctlError:
                continue  # a host may have it in memory, and says so if not
        return Masks(run.id, run.attempt.attempt_id, values)


def _logs_of(attempt: Attempt) -> list[str]:
    return [*attempt.streams, *map(times_of, attempt.streams), *KEPT_LOGS]
