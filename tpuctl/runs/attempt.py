"""What one attempt of a run does on its hosts: prepare everywhere, start everywhere, look, stop, collect."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.engine.events import Note, WorkerOutput
from tpuctl.engine.services import Services
from tpuctl.envs.compile_cache import CompileCache
from tpuctl.envs.install import Told, host_environment
from tpuctl.errors import PartialError
from tpuctl.hosts.agent import HostAgent, Reply
from tpuctl.hosts.deadline import TimedRemote, is_late
from tpuctl.hosts.protocol import (
    LOG_STREAMS,
    ChipLock,
    HostFacts,
    LogNews,
    PrepareReply,
    WorkerStacks,
    WorkerState,
    WorkerStatus,
    times_of,
)
from tpuctl.hosts.provision import Failures, Provisioned, Unanswered, Verdict, provision
from tpuctl.hosts.targets import host_targets
from tpuctl.lib.shell import quote
from tpuctl.lib.text import fold_workers, sized
from tpuctl.lib.time import render_time
from tpuctl.model import timeouts
from tpuctl.model.cloud import FailureKind, HostTarget
from tpuctl.model.records import WITH_HOSTS, Attempt, RunRecord, SliceRecord
from tpuctl.model.shipped_files import load_secret_patterns
from tpuctl.model.verdict import Blocked, Wait
from tpuctl.runs.data import why_changed
from tpuctl.runs.effective import EFFECTIVE, effective_rows
from tpuctl.runs.probe import is_probe_of, probe_check, probed
from tpuctl.runs.probe_run import BadData, DataProbe, Passed, probed_before
from tpuctl.runs.process_env import HOST_DEFAULTS, render_defaults, render_environment
from tpuctl.runs.set_up import NotSetUp, check_buckets, check_reach, used_buckets
from tpuctl.slices.mounts import lost_buckets
from tpuctl.slices.revisit import desired_on_hosts, sick_on_hosts
from tpuctl.state.repository import find_run
from tpuctl.transfer.host_copies import is_copy, is_copy_of
from tpuctl.transfer.prepare import deliver_files, prepare_on, require_all, require_values, status_of

LOG_CHUNK = 4 << 20
"""Bytes of a worker's logs fetched per call, so that no call takes longer than a step may."""
LOG_ROUND = 40 << 20
"""Bytes of all workers' logs in one round: what a machine with little memory can hold. With 2 MiB of
each worker, they have left the processor's cache when they are written: that costs a tenth more CPU."""
Attempts = Sequence[Reply[tuple[WorkerStatus, ...]]]
"""Of each worker all attempts that it knows."""
_BEGUN = frozenset({WorkerState.STARTING, WorkerState.RUNNING, WorkerState.EXITED})
_ALIVE = frozenset({WorkerState.STARTING, WorkerState.RUNNING})


class Prepared(Struct, frozen=True):
    """Every worker acknowledged. `hosts` is one row per worker, for the manifest."""

    coordinator: str
    hosts: tuple[Mapping[str, str], ...]
    note: str = ""
    """What of it is not as one would expect."""


class Answered(Struct, frozen=True):
    """Every worker answered, nothing is left of earlier attempts, and that took so long, or the rest will, that
    it is for further steps. `hosts` is what of `Prepared.hosts` is known."""

    hosts: tuple[Mapping[str, str], ...]


class Fetched(Struct, frozen=True):
    """How far a round came. `more`: somebody has more of it. `unread` are workers whose answer was cut off by
    the end of the time, or not asked for any more: nothing is known of what they have left."""

    more: bool
    unread: tuple[int, ...]


class Stuck(Struct, frozen=True):
    """A worker has something in the way that only a person can remove."""

    why: str
    hint: str


class AttemptHosts:
    """The workers of one attempt. No call to them outlasts `until`, by this machine's clock."""

    def __init__(
        self,
        services: Services,
        run: RunRecord,
        attempt: Attempt,
        slice_: SliceRecord,
        until: float | None = None,
    ) -> None:
        self._services = services
        self._run = run
        self._attempt = attempt
        everyone = host_targets(services, slice_)
        incarnation = slice_.incarnation
        self._accelerator_type = slice_.spec.accelerator_type
        self._coordinator_ip = (
            incarnation.workers[attempt.workers[0]].endpoint.internal_ip if incarnation else ""
        )
        self.targets: list[HostTarget] = [everyone[worker] for worker in attempt.workers]
        self._until = until
        remote = services.remote if until is None else TimedRemote(services.remote, services.clock, until)
        self._agent = HostAgent(remote, services.agent_source)
        self._environment = host_environment(services, self._agent, run, attempt)
        self._slice = slice_
        self._kept = desired_on_hosts(services, slice_, self._owner)
        self._positions: dict[tuple[int, str], int] = {}
        """Of each log that is being fetched: where what comes next belongs."""
        self.variables: tuple[Mapping[str, str], ...] = attempt.variables
        """Those that programs were started with."""
        self.checks: list[Mapping[str, str]] = list(attempt.checks)
        """What was checked before the start, and found well: also before this step."""

    @property
    def agent(self) -> HostAgent:
        return self._agent

    @property
    def _owner(self) -> str:
        """What the hosts know this attempt's jobs by."""
        return f"{self._run.id}-{self._attempt.number}"

    def _ids(self) -> dict[str, Any]:
        return {"run": self._run.id, "attempt": self._attempt.attempt_id}

    def observe(self) -> list[WorkerStatus]:
        """What every worker's supervisor says of the attempt; once there is trouble, also what the cloud says
        that it does with the hosts."""
        trouble = self._attempt.suspect_since is not None
        answers = self._agent.status(self.targets, self._run.id, self._attempt.attempt_id, host=trouble)
        return [status_of(answer) for answer in answers]

    def late(self) -> bool:
        """So much of the step is over that what may take long is for the next one."""
        return is_late(self._services.clock, self._until)

    def prepare(self) -> Prepared | Answered | Stuck | BadData | NotSetUp | str:
        """Phase one. Returns what is still being waited for, or the acknowledgement of all workers. Where they
        answer slowly it is done in several steps, and the rows of the attempt say how far it has got.

        Raises PartialError when a worker cannot be prepared, such as for an environment that it cannot have.
        """
        rows, told = [dict(row) for row in self._attempt.hosts], None
        if not rows:
            facts, told, attempts = self._say_hello()
            rows = [_host_row(target, fact) for target, fact in zip(self.targets, facts, strict=True)]
            in_the_way = self._stop_leftovers(attempts) or self._chips_taken(facts)
            if in_the_way:
                return in_the_way
            if self._is_for_chips():
                self._passed("chips", "nobody else has them")
            denied = self._check_buckets()
            if denied is not None:
                return denied
            if self.late():
                return Answered(tuple(rows))
        if not all(kind.column in row for kind in self._kept for row in rows):
            unmounted = self._ensure_mounts(rows)
            if unmounted is not None:
                return unmounted
            spec = self._slice.spec
            for check, refs in (("disks", spec.disks), ("mounts", spec.mounts)):
                if refs:
                    self._passed(check, f"well at {', '.join(ref.path for ref in refs)}")
            if self.late():
                return Answered(tuple(rows))
        changed = self._check_data()
        if changed is not None:
            return changed
        if self._environment is not None and not all(row.get("environment_key") for row in rows):
            waiting = self._environment.ensure(self.targets, rows, self._until, told)
            if isinstance(waiting, Blocked):
                raise _cannot_have(waiting)
            if waiting:
                return waiting
            allowed = ", ".join(self._run.spec.allow_drift)
            name = self._run.spec.environment.name if self._run.spec.environment is not None else ""
            self._passed("environment", f"{name}{f', but for {allowed}' if allowed else ''}")
            if self.late():
                return Answered(tuple(rows))
        probed = self._probe_data(rows)
        if probed is not None:
            return probed
        prepared = self._prepare(self._attempt.attempt_id, rows)
        if isinstance(prepared, str):
            return prepared
        coordinator = self._address(prepared)
        if len(self.targets) > 1:
            if self.late() and not self._attempt.hosts:
                return Answered(tuple(rows))
            note = self._port_note(prepared[0])
            closed = check_reach(self._services, self._agent, self.targets, self._slice, coordinator, note)
            if closed is not None:
                return closed
            self._passed("network", f"every worker reaches {coordinator}")
        return Prepared(coordinator, tuple(rows), self._port_note(prepared[0]))

    def _check_buckets(self) -> NotSetUp | None:
        """Asked once in a run: roles do not come and go with attempts."""
        wheelhouse = self._environment.wheelhouse if self._environment is not None else ""
        uses = used_buckets(self._run, self._slice, wheelhouse)
        if not uses or self._attempt.number > 1:
            return None
        denied = check_buckets(self._agent, self.targets[0], uses, self._slice.spec.zone)
        if denied is None:
            self._passed(
                "buckets", f"the hosts' account was not refused at {', '.join(u.bucket for u in uses)}"
            )
        return denied

    def _port_note(self, first: PrepareReply) -> str:
        if first.taken_port is None or len(self.targets) < 2:
            return ""
        taken = f"port {first.taken_port} of worker {self.targets[0].worker} is taken"
        return f"{taken}: workers meet at {first.free_port}"

    def _promised(self, rows: Sequence[Mapping[str, str]]) -> dict[int, list[Mapping[str, Any]]]:
        """What each worker has to have when a program starts there, as it was seen."""
        return {int(row["worker"]): [kind.promise(row) for kind in self._kept] for row in rows if self._kept}

    def _prepare(self, attempt_id: str, rows: Sequence[Mapping[str, str]] = ()) -> list[PrepareReply] | str:
        """Makes the work directory of the attempt, or of a probe before it."""
        return prepare_on(
            self._services,
            self._agent,
            self.targets,
            run=self._run.id,
            attempt=attempt_id,
            fence=self._attempt.fence,
            bundle=self._run.code.bundle,
            owner=self._owner,
            until=self._until,
            send_first=bool(self._attempt.hosts),
            promised=self._promised(rows),
        )

    def _address(self, prepared: Sequence[PrepareReply]) -> str:
        """Where the first worker serves the others."""
        return f"{self._coordinator_ip}:{prepared[0].free_port}"

    def _passed(self, check: str, detail: str) -> None:
        at = render_time(self._services.store.now()) or ""
        self.checks.append({"check": check, "detail": detail, "at": at})

    def _check_data(self) -> Stuck | None:
        """No attempt starts on data that is not as its receipt says; each is asked once in an attempt."""
        known = {row["check"] for row in self.checks}
        for receipt in self._run.spec.data:
            if f"data {receipt.uri}" in known:
                continue
            why = why_changed(self._services, receipt, self._agent, self.targets[0])
            if why:
                # The receipt of a run is fixed: a newer one is for another run.
                name, uri = self._run.id, receipt.uri
                newer = f"tpuctl data receipt {uri} --contract FILE, tpuctl rerun {name} --data {uri}"
                return Stuck(
                    why, f"restore it, or do the run again with a newer one: tpuctl stop {name}, {newer}"
                )
            self._passed(f"data {receipt.uri}", f"{receipt.digest.of} {receipt.digest.value[:12]}")
        return None

    def _probe_data(self, rows: Sequence[Mapping[str, str]]) -> BadData | Answered | str | None:
        """No program starts on data of which a probe says that it is random or repeated. Hosts that were probed
        for an earlier attempt are not again."""
        receipts, known = probed(self._run.spec.data), {row["check"] for row in self.checks}
        if all(probe_check(receipt) in known for receipt in receipts):
            return None
        if not self._attempt.hosts:
            return Answered(tuple(rows))  # while a probe goes on, nothing of what was done is done again
        before = probed_before(self._services, self._run, self._attempt)
        for number, receipt in enumerate(receipts, start=1):
            probe = DataProbe(
                self._services, self._agent, self.targets, self._run, self._attempt, receipt, number
            )
            if probe.check in known:
                continue
            if probe.check in before:
                self.checks.append(before[probe.check])
                continue
            found = probe.step(partial(self._prepare, probe.name), partial(self._probe_request, probe))
            if not isinstance(found, Passed):
                return found
            self._passed(probe.check, found.detail)
        return Answered(tuple(rows)) if self.late() else None

    def _probe_request(
        self, probe: DataProbe, prepared: Sequence[PrepareReply]
    ) -> Callable[[HostTarget], Mapping[str, Any]]:
        """How a probe starts: as the program does, but that nobody looks whether it joins on the chips."""
        attempt = replace(self._attempt, coordinator=self._address(prepared))
        request = self._start_request(attempt, probe.argv)
        return lambda target: {**request(target), "attempt": probe.name}

    def _say_hello(self) -> tuple[list[HostFacts], Told | None, Attempts]:
        """What hosts say of themselves, what the environment wants to know, and what runs there, in one call.
        Mounts come first, and an environment may lie on one."""
        sections = self._environment.sections if self._environment is not None and not self._kept else set()
        began = self._services.clock.now()
        answers, attempts = self._agent.hello_and_attempts(
            self.targets, chips=self._is_for_chips(), sections=sections
        )
        ended = self._services.clock.now()
        said = require_values(answers, "answer")
        facts = tuple(each.facts for each in said if each.facts is not None)
        told = Told(facts, began, ended) if len(facts) == len(said) else None
        return [each.host for each in said], told, attempts

    def _ensure_mounts(self, rows: list[dict[str, str]]) -> Stuck | str | None:
        """No program starts where a disk or mount is not as asked; adds columns to `rows`. Raises
        PartialError."""
        gone = lost_buckets(self._services, self._slice)
        if gone:
            path = next(each.path for each in self._slice.spec.mounts if each.bucket == gone[0])
            why = f"the bucket gs://{gone[0]} is gone, and {path} shows no files"
            return Stuck(why, f"make it again, or tpuctl mount rm {path} --on {self._run.slice_name}")
        verdict = self._provision_mounts()
        if isinstance(verdict, Provisioned):
            sick = sick_on_hosts(self._services, self._agent, self.targets, self._slice)
            if sick:
                return f"its mounts: {sick}"
            for row, found in zip(rows, verdict.rows, strict=True):
                row.update(found)
            return None
        if isinstance(verdict, Wait):
            return verdict.why
        if isinstance(verdict, Blocked):
            return Stuck(verdict.why, verdict.hint or "")
        if isinstance(verdict, Unanswered):
            require_all(verdict.replies, "say how their mounts are")
        assert isinstance(verdict, Failures)
        name = self._run.slice_name
        hint = verdict.hint(name, f"tpuctl mount check --on {name}" if self._slice.spec.mounts else "")
        raise PartialError(verdict.why, hint=hint, details={"workers": [f.worker for f in verdict.failures]})

    def _provision_mounts(self) -> Verdict:
        return provision(
            self._agent,
            self.targets,
            lambda _: self._kept,
            slice_name=self._run.slice_name,
            fence=self._attempt.fence,
            deliver=deliver_files(self._services, self._agent, self._until),
        )

    def mend_mounts(self) -> str:
        """One step of mounting what is not mounted; why that does not go on, in words, or an empty string."""
        verdict = self._provision_mounts()
        return verdict.why if isinstance(verdict, Blocked | Failures) else ""

    def start(self) -> bool:
        """Phase two, on every worker at once; whether all say that it began. A worker that runs the attempt
        already is left alone. Raises PartialError when a worker cannot start it."""
        begin = self._start_request(self._attempt, self._run.spec.argv)
        more = {
            "beat_s": timeouts.HOST_HEARTBEAT_S,
            "progress": self._run.spec.progress,
            "tell": list(EFFECTIVE),
            "watch_cache": self._environment is not None and self._environment.keeps_compiled,
            "watch_join": self._is_for_chips() and not self._run.spec.allow_cpu,
        }
        promised = self._promised(self._attempt.hosts)

        def request(target: HostTarget) -> Mapping[str, Any]:
            return {**begin(target), **more, "promised": promised.get(target.worker, [])}

        answers = self._agent.start(self.targets, request)
        replies = require_values(answers, "start")
        seen = {t.worker: reply.variables for t, reply in zip(self.targets, replies, strict=True)}
        self.variables = effective_rows(seen, load_secret_patterns())
        return all(reply.state in _BEGUN for reply in replies)

    def _start_request(
        self, attempt: Attempt, argv: Sequence[str]
    ) -> Callable[[HostTarget], Mapping[str, Any]]:
        """What starts a program with the variables, secrets and environment of the run."""
        secrets = {name: self._services.secrets.resolve(ref) for name, ref in self._run.spec.secrets.items()}
        prepend = self._environment_path()
        pinned = self._environment.variables() if self._environment else {}

        def request(target: HostTarget) -> Mapping[str, Any]:
            variables = render_environment(self._run, attempt, target.worker)
            cache = self._compile_cache(target.worker, {**pinned, **variables})
            return {
                **self._ids(),
                "fence": attempt.fence,
                "argv": list(argv),
                "env_dirs": {**self._bytecode(target.worker), **cache.directories},
                "env": {
                    **pinned,
                    **cache.variables,
                    **variables,
                    **{name: held.reveal() for name, held in secrets.items()},
                },
                "secrets": list(secrets),
                "env_defaults": render_defaults(self._run),
                "path_prepend": prepend.get(target.worker, []),
                "cwd": self._run.spec.cwd,
                "grace_s": self._run.spec.policy.grace_s,
            }

        return request

    def _environment_key(self, worker: int) -> str:
        keys = {row["worker"]: row.get("environment_key", "") for row in self._attempt.hosts}
        return keys.get(str(worker), "")

    def _bytecode(self, worker: int) -> Mapping[str, str]:
        if self._environment is None:
            return {}
        return self._environment.bytecode_directories(self._environment_key(worker))

    def _compile_cache(self, worker: int, variables: Mapping[str, str]) -> CompileCache:
        key = self._environment_key(worker)
        if self._environment is None or not key:
            return CompileCache()
        rank = self._attempt.workers.index(worker)
        return self._environment.compile_cache(key, self._accelerator_type, variables, rank)

    def _environment_path(self) -> dict[int, list[str]]:
        rows = self._attempt.hosts
        return {
            int(row["worker"]): [f"envs/{row['environment_key']}/bin"]
            for row in rows
            if row.get("environment_key")
        }

    def _stop_leftovers(self, answers: Attempts) -> Stuck | str:
        """Ends what is left of earlier attempts and of runs that are over, which a worker out of reach or the
        program of a supervisor that died may have survived: two attempts must not hold the chips or write the
        same checkpoints. Says what is waited for.

        Raises PartialError when a worker does not say what runs there.
        """
        known = require_values(answers, "say what runs there")
        for target, attempts in zip(self.targets, known, strict=True):
            for each in attempts:
                if each.state is WorkerState.EXITED and each.survivors:
                    why = f"what outlived attempt {each.attempt} of {each.run}: {each.survivors_said}"
                    return Stuck(f"worker {target.worker} has {why}", self._kill_hint(target, each.survivors))
        found = self._stop_alive(answers, self._left_over)
        names = ", ".join(f"attempt {attempt} of {run}" for run, attempt in found if not is_copy(run))
        said = "; ".join(each.survivors_said for attempts in known for each in attempts if each.survivors)
        return f"what is left of {names} to end{f' ({said})' if said else ''}" if names else ""

    def _kill_hint(self, target: HostTarget, pids: Sequence[int]) -> str:
        return kill_hint(self._run.slice_name, target.worker, pids)

    def _is_for_chips(self) -> bool:
        """Whether the program is to use the chips, as far as its variables and its environment say."""
        pinned = self._environment.variables() if self._environment else {}
        platforms = {**HOST_DEFAULTS, **pinned, **self._run.spec.variables}["JAX_PLATFORMS"]
        on_cpu = self._environment is not None and self._environment.on_cpu
        return not on_cpu and (not platforms or "tpu" in platforms)

    def _chips_taken(self, facts: Sequence[HostFacts]) -> Stuck | str:
        """Whose hold on the chips is in the way; an empty string for nobody. What dead runs of ours left there
        goes. Says what is waited for."""
        left: dict[int, list[int]] = {}
        locks: dict[int, ChipLock] = {}
        for target, fact in zip(self.targets, facts, strict=True):
            if fact.chips is None:
                continue
            taken, lock = fact.chips.taken_by, fact.chips.lockfile
            others = [holder for holder in taken if not self._left_behind(holder.left_by)]
            if others:
                why = f"worker {target.worker}: {', '.join(holder.said for holder in others)} has the chips"
                return Stuck(why, self._kill_hint(target, [holder.pid for holder in others]))
            if taken:
                left[target.worker] = [holder.pid for holder in taken]
            if lock is not None and lock.foreign:
                locks[target.worker] = lock
        return self._free_chips(left, locks)

    def _free_chips(self, left: Mapping[int, list[int]], locks: Mapping[int, ChipLock]) -> Stuck | str:
        """Ends processes by worker, and removes files of locks that nobody holds and our user cannot open."""
        chosen = [target for target in self.targets if target.worker in left or target.worker in locks]
        answers = self._agent.free_chips(
            chosen, lambda it: {"pids": left.get(it.worker, []), "lock": it.worker in locks}
        )
        stay: dict[int, str] = {}
        for target, reply in zip(chosen, require_values(answers, "free their chips"), strict=True):
            if target.worker in locks and not reply.removed:
                stay[target.worker] = reply.why
            if reply.ended:
                ended = ", ".join(map(str, reply.ended))
                said = f"worker {target.worker}: ended {ended}, left on the chips by a run that is over"
                self._services.emit(Note(self._run.id, said))
        if stay:
            lock, workers = locks[min(stay)], fold_workers(sorted(stay))
            why = f"worker {workers}: {lock.path} is {lock.owner}'s, and libtpu of another user cannot open it"
            hint = f"tpuctl exec --worker {workers} {self._run.slice_name} -- sudo rm {quote(lock.path)}"
            return Stuck(f"{why}; {stay[min(stay)]}", hint)
        return "chips that were left behind" if left else ""

    def _left_behind(self, run: str) -> bool:
        """Whether a process whose supervisor is gone, and which is of `run`, is ours to end."""
        if not run:
            return False
        other = find_run(self._services, run)
        return run == self._run.id or (other is not None and other.record.state.final)

    def stop_preparations(self) -> None:
        """Ends copies from host to host and probes that this attempt began, where its workers answer."""

        def ours(run: str, attempt: str) -> bool:
            return is_copy_of(self._owner, run, attempt) or self._is_own_probe(run, attempt)

        self._stop_alive(self._agent.attempts(self.targets), ours)

    def _is_own_probe(self, run: str, attempt: str) -> bool:
        return run == self._run.id and is_probe_of(self._attempt.attempt_id, attempt)

    def _stop_alive(
        self,
        answers: Attempts,
        chosen: Callable[[str, str], bool],
    ) -> list[tuple[str, str]]:
        """Asks those of the attempts that live on workers to stop which are `chosen` by run and attempt."""
        found: dict[tuple[str, str], list[HostTarget]] = {}
        for target, answer in zip(self.targets, answers, strict=True):
            for each in answer.value or ():
                if (each.state in _ALIVE or each.survivors) and chosen(each.run, each.attempt):
                    found.setdefault((each.run, each.attempt), []).append(target)
        for (run, attempt), targets in found.items():
            self._agent.stop(targets, run, attempt, self._run.spec.policy.grace_s)
        return list(found)

    def _left_over(self, run: str, attempt: str) -> bool:
        """Environments that are being installed, and runs of other stores, are no business of this run; copies
        are for one attempt at a time."""
        if is_copy(run):
            return not is_copy_of(self._owner, run, attempt)
        if run == self._run.id:
            return attempt != self._attempt.attempt_id and not self._is_own_probe(run, attempt)
        other = find_run(self._services, run)
        return other is not None and other.record.state.final

    def stop(self, grace_s: float) -> None:
        """Asks every worker's supervisor to stop the attempt; returns at once."""
        self._agent.stop(self.targets, self._run.id, self._attempt.attempt_id, grace_s)

    def fetch_logs(self, *, emit: bool) -> Fetched:
        """One round of what the workers wrote since the last one, appended to this machine's log files; with
        `emit` whoever watches is told."""
        more, unread = False, []
        limit = min(LOG_CHUNK, LOG_ROUND // max(1, len(self.targets)))
        answers = self._agent.read_news(self.targets, self.follow_request, limit=limit)
        for target, answer in zip(self.targets, answers, strict=True):
            if answer.result.failure is FailureKind.TIMEOUT:
                unread.append(target.worker)
            news = answer.value or LogNews()
            if answer.value is not None and not self._services.logs.has(self._run.id, self._attempt.number):
                self._append(target.worker, "stdout", b"")  # an empty file: asked, and nothing was written
            # Who has more to say and says nothing of it has none: it would be asked for ever.
            said = bool(news.stdout or news.stderr or any(news.times.values()) or not answer.result.ok)
            more = more or (news.more and said)
            self._keep_times(target.worker, news)
            for stream, data in (("stdout", news.stdout), ("stderr", news.stderr)):
                self._skip(target.worker, stream, news.skipped.get(stream, 0))
                if data:
                    self.keep_output(target.worker, stream, data)
                if data and emit:
                    self.emit_output(target.worker, stream, data)
        return Fetched(more, tuple(unread))

    def fetch_times(self) -> None:
        """When what came while it was followed had been written."""
        names = [times_of(stream) for stream in LOG_STREAMS]
        request = lambda it: {**self._request(it.worker, names), "times_only": True}  # noqa: E731
        answers = self._agent.read_news(self.targets, request, limit=LOG_CHUNK)
        for target, answer in zip(self.targets, answers, strict=True):
            self._keep_times(target.worker, answer.value or LogNews())

    def _keep_times(self, worker: int, news: LogNews) -> None:
        for stream, data in news.times.items():
            if data:
                self.keep_output(worker, times_of(stream), data)

    def _skip(self, worker: int, stream: str, count: int) -> None:
        """Leaves room for what is no longer on the host, with a word of it at the end."""
        if count > 0:
            note = f"\ntpuctl: {sized(count)} before this are no longer on the host\n".encode()[-count:]
            key = (worker, stream)
            self._positions[key] += count - len(note)
            self.keep_output(worker, stream, note)

    def behind(self, workers: Sequence[WorkerStatus]) -> bool:
        """Whether what a follower would be sent next is no longer on a host."""
        cuts = ((w.worker, {"stdout": w.stdout_cut, "stderr": w.stderr_cut}) for w in workers)
        return any(cut > self._offset(worker, s) for worker, each in cuts for s, cut in each.items())

    def _offset(self, worker: int, stream: str) -> int:
        return self._services.logs.size(self._run.id, self._attempt.number, worker, stream)

    def stacks(self, workers: Collection[int] | None = None) -> list[WorkerStacks]:
        """What the processes of the attempt do, on these workers, or on all."""
        chosen = [target for target in self.targets if workers is None or target.worker in workers]
        replies = self._agent.stacks(chosen, self._run.id, self._attempt.attempt_id)
        return [
            WorkerStacks(reply.worker, reply.value or (), "" if reply.value is not None else reply.message)
            for reply in replies
        ]

    def keep_diagnosis(self, workers: Collection[int]) -> None:
        """What these workers' hosts say of themselves, as `worker-N.host.log` beside their output."""
        chosen = [target for target in self.targets if target.worker in workers]
        for reply in self._agent.diagnose(chosen):
            self._append(reply.worker, "host", (reply.value or f"no answer: {reply.message}\n").encode())

    def _append(self, worker: int, stream: str, data: bytes) -> None:
        self._services.logs.append(self._run.id, self._attempt.number, worker, stream, data)

    def follow_request(self, target: HostTarget) -> Mapping[str, Any]:
        """The request that continues each worker's output where this machine's files end."""
        return self._request(target.worker, [*LOG_STREAMS, *map(times_of, LOG_STREAMS)])

    def _request(self, worker: int, names: Sequence[str]) -> Mapping[str, Any]:
        offsets = {name: self._offset(worker, name) for name in names}
        self._positions.update({(worker, name): offset for name, offset in offsets.items()})
        return {**self._ids(), **{f"{name.replace('-', '_')}_offset": n for name, n in offsets.items()}}

    def keep_output(self, worker: int, stream: str, data: bytes) -> None:
        """What comes next of what `follow_request` asked for."""
        at = self._positions[worker, stream]
        self._services.logs.write(self._run.id, self._attempt.number, worker, stream, at, data)
        self._positions[worker, stream] = at + len(data)

    def emit_output(self, worker: int, stream: str, data: bytes) -> None:
        """Tells whoever watches what a worker wrote."""
        event = WorkerOutput(self._run.slice_name, worker, stream, data, len(self._attempt.workers))
        self._services.emit(event)

    def keep_stacks(self, worker: int, text: str) -> None:
        """At the end of `worker-N.stacks.log` beside its output."""
        self._append(worker, "stacks", text.encode())


def kill_hint(slice_name: str, worker: int, pids: Sequence[int]) -> str:
    """What ends processes that a stop could not."""
    return f"tpuctl exec --worker {worker} {slice_name} -- sudo kill -9 {' '.join(map(str, pids))}"


def attempt_hosts(
    services: Services, run: RunRecord, slice_: SliceRecord | None, until: float | None = None
) -> AttemptHosts | None:
    """The hosts of the current attempt while its incarnation lives; None otherwise. See `AttemptHosts`."""
    attempt = run.attempt
    if attempt is None or slice_ is None or slice_.incarnation is None:
        return None
    alive = slice_.state in WITH_HOSTS
    if slice_.incarnation.number != attempt.incarnation or not alive:
        return None
    return AttemptHosts(services, run, attempt, slice_, until)


def _cannot_have(environment: Blocked) -> PartialError:
    """A host cannot have its environment, such as for lack of a Python: it differs until that is changed."""
    told = f"{environment.why}; mend it: {environment.hint}" if environment.hint else environment.why
    return PartialError(told, hint=environment.hint, details={"differences": [environment.why]})


def _host_row(target: HostTarget, facts: HostFacts) -> dict[str, str]:
    return {
        "worker": str(target.worker),
        "hostname": facts.hostname,
        "address": target.address,
        "boot_id": facts.boot_id,
        "kernel": facts.kernel,
        "python": facts.python_version,
        "python_minor": ".".join(facts.python_version.split(".")[:2]),
        "host_key": target.host_key,
    }
