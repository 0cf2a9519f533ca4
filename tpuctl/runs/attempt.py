"""What one attempt of a run does on its hosts: prepare everywhere, start everywhere, look, stop, collect."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.engine.events import WorkerOutput
from tpuctl.engine.services import Services
from tpuctl.envs.compile_cache import CompileCache, bytecode_directories, compile_cache
from tpuctl.envs.install import load_pinned
from tpuctl.envs.pinned import PinnedEnvironment
from tpuctl.errors import PartialError
from tpuctl.hosts import requests
from tpuctl.hosts.agent import HostAgent, Reply
from tpuctl.hosts.deadline import TimedRemote, is_late
from tpuctl.hosts.log_news import LogNews
from tpuctl.hosts.protocol import ALIVE, PrepareReply, TextReply, WorkerStacks, WorkerState
from tpuctl.hosts.targets import host_targets
from tpuctl.hosts.worker_status import AttemptsReply, WorkerStatus
from tpuctl.lib.text import sized
from tpuctl.model import timeouts
from tpuctl.model.attempts import Attempt
from tpuctl.model.cloud import FailureKind, HostTarget
from tpuctl.model.processes import METRICS, split_stream, times_of
from tpuctl.model.records import WITH_HOSTS, RunRecord, SliceRecord
from tpuctl.model.shipped_files import load_debug_profiles, load_secret_patterns
from tpuctl.model.verdict import Blocked, wait_for
from tpuctl.runs.containers import start_in_container
from tpuctl.runs.debug import DebugVariables, packages_of, parse_profiles, render_debug
from tpuctl.runs.host_parts import DRIVER_LOGS
from tpuctl.runs.probe import is_probe_of
from tpuctl.runs.process_env import (
    EFFECTIVE,
    HOST_DEFAULTS,
    effective_rows,
    render_defaults,
    render_environment,
    render_launch,
)
from tpuctl.runs.states import RunEvent, RunFinding
from tpuctl.runs.trouble import judge_refusal
from tpuctl.slices.enrollment import why_closed
from tpuctl.slices.things import fleeting_on_hosts
from tpuctl.state.repository import find_slice
from tpuctl.transfer.host_copies import is_copy_of
from tpuctl.transfer.prepare import require_values, status_of

LOG_CHUNK = 4 << 20
"""Bytes of a worker's logs fetched per call, so that no call takes longer than a step may."""
LOG_ROUND = 40 << 20
"""Bytes of all workers' logs in one round: what a machine with little memory can hold. With 2 MiB of
each worker, they have left the processor's cache when they are written: that costs a tenth more CPU."""
Attempts = Sequence[Reply[AttemptsReply]]
"""Of each worker all attempts that it knows."""
_BEGUN = frozenset({WorkerState.STARTING, WorkerState.RUNNING, WorkerState.EXITED})


class Fetched(Struct, frozen=True):
    """How far a round came. `more`: somebody has more of it. `unread` are workers whose answer was cut off by
    the end of the time, or not asked for any more: nothing is known of what they have left."""

    more: bool
    unread: tuple[int, ...]


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
        self.services = services
        self.run = run
        self.attempt = attempt
        everyone = host_targets(services, slice_)
        incarnation = slice_.incarnation
        self._coordinator_ip = (
            incarnation.workers[attempt.workers[0]].endpoint.internal_ip if incarnation else ""
        )
        self.targets: list[HostTarget] = [everyone[worker] for worker in attempt.workers]
        self.until = until
        remote = services.remote if until is None else TimedRemote(services.remote, services.clock, until)
        self.agent = HostAgent(remote, services.agent_source)
        self.environment = load_pinned(services, run.spec.environment)
        self.debug = _debug_of(run, self.environment)
        self.slice = slice_
        self.kept = fleeting_on_hosts(services, slice_, self.owner)
        self._positions: dict[tuple[int, str], int] = {}
        """Of each log that is being fetched: where what comes next belongs."""
        self.checks: list[Mapping[str, str]] = list(attempt.checks)
        """What was checked before the start, and found well: also before this step."""

    @property
    def owner(self) -> str:
        """What the hosts know this attempt's jobs by."""
        return f"{self.run.id}-{self.attempt.number}"

    def _ids(self) -> tuple[str, str]:
        """What hosts know the attempt by."""
        return self.run.id, self.attempt.attempt_id

    def observe(self) -> list[WorkerStatus]:
        """What every worker's supervisor says of the attempt; once there is trouble, also what the cloud says
        that it does with the hosts."""
        trouble = self.attempt.suspect_since is not None
        answers = self.agent.ask(self.targets, requests.StatusRequest(*self._ids(), host=trouble))
        return [status_of(answer) for answer in answers]

    def late(self) -> bool:
        """So much of the step is over that what may take long is for the next one."""
        return is_late(self.services.clock, self.until)

    def promised(self, rows: Sequence[Mapping[str, str]]) -> dict[int, list[Mapping[str, Any]]]:
        """What each worker has to have when a program starts there, as it was seen."""
        return {int(row["worker"]): [kind.promise(row) for kind in self.kept] for row in rows if self.kept}

    def address(self, first: PrepareReply) -> str:
        """Where the first worker serves the others."""
        return f"{self._coordinator_ip}:{first.free_port}"

    def start(self) -> RunFinding:
        """Phase two, on every worker at once. A worker that runs the attempt already is left alone; all tell
        with which variables."""
        begin = self.start_request(self.attempt, self.run.spec.argv)
        debug = {"set": self.debug.set, "append": self.debug.append}
        launch = render_launch(self.run, self.attempt)
        promised = self.promised(self.attempt.hosts)

        def request(target: HostTarget) -> requests.StartRequest:
            return replace(
                begin(target),
                beat_s=timeouts.HOST_HEARTBEAT_S,
                progress=self.run.spec.progress or "",
                tell=tuple(EFFECTIVE),
                check_weights="" if self.run.spec.check == "off" else self.run.spec.check,
                watch_join=self.is_for_chips() and not self.run.spec.allow_cpu,
                debug=debug if any(debug.values()) else None,
                launch={**launch, "node": self.attempt.workers.index(target.worker)},
                promised=tuple(promised.get(target.worker, ())),
            )

        try:
            replies = require_values(self.agent.ask(self.targets, request), "start")
        except PartialError as error:
            return explain_refusal(self, error)
        seen = {t.worker: reply.variables for t, reply in zip(self.targets, replies, strict=True)}
        changes = {"variables": effective_rows(seen, load_secret_patterns())}
        if all(reply.state in _BEGUN for reply in replies):
            return RunFinding(RunEvent.ALL_STARTED, "every worker runs", changes=changes)
        waits = "every worker to run"
        return RunFinding(RunEvent.START_SENT, waits, wait_for(waits), changes=changes)

    def start_request(
        self, attempt: Attempt, argv: Sequence[str]
    ) -> Callable[[HostTarget], requests.StartRequest]:
        """What starts a program with the variables, secrets and environment of the run."""
        secrets = {name: self.services.secrets.resolve(ref) for name, ref in self.run.spec.secrets.items()}
        pinned = self.environment.variables() if self.environment else {}
        spec = self.slice.spec
        paths = [*(each.path for each in spec.disks), *(each.path for each in spec.mounts)]

        def request(target: HostTarget) -> requests.StartRequest:
            variables = render_environment(self.run, attempt, target.worker)
            key = self._host_row(target.worker).get("environment_key", "")
            cache = self._compile_cache(target.worker, key, {**pinned, **variables})
            bytecode = bytecode_directories(self.environment.spec, key) if self.environment else {}
            held = {name: secret.reveal() for name, secret in secrets.items()}
            return requests.StartRequest(
                *self._ids(),
                attempt.fence,
                tuple(argv),
                cwd=self.run.spec.cwd or "",
                env={**pinned, **cache.variables, **variables, **held},
                env_defaults=render_defaults(self.run),
                env_dirs={**bytecode, **cache.directories, **self._driver_logs()},
                secrets=tuple(secrets),
                path_prepend=(f"envs/{key}/bin",) if key else (),
                chips=tuple(self.run.chips),
                container=start_in_container(self.run.spec, self._host_row(target.worker), paths),
                grace_s=self.run.spec.policy.grace_s,
            )

        return request

    def _driver_logs(self) -> Mapping[str, str]:
        """Where libtpu logs for this run alone; it does for all of a host in one folder otherwise."""
        folder = f"runs/{self.run.id}/{self.attempt.attempt_id}/{DRIVER_LOGS.folder}"
        return {"TPU_LOG_DIR": folder} if DRIVER_LOGS.asked(self.run) else {}

    def _host_row(self, worker: int) -> Mapping[str, str]:
        """What the record says of the host of a worker."""
        return next((row for row in self.attempt.hosts if row["worker"] == str(worker)), {})

    def _compile_cache(self, worker: int, key: str, variables: Mapping[str, str]) -> CompileCache:
        if self.environment is None or not key or self.debug.recompile:
            return CompileCache()
        rank = self.attempt.workers.index(worker)
        kind, chips = self.slice.spec.accelerator_type, self.run.chips
        return compile_cache(self.environment.spec, key, kind, variables, rank, chips)

    def is_for_chips(self) -> bool:
        """Whether the program is to use the chips, as far as its variables and its environment say."""
        pinned = self.environment.variables() if self.environment else {}
        platforms = {**HOST_DEFAULTS, **pinned, **self.run.spec.variables}["JAX_PLATFORMS"]
        on_cpu = self.environment is not None and self.environment.on_cpu
        return not on_cpu and (not platforms or "tpu" in platforms)

    def stop_preparations(self) -> None:
        """Ends copies from host to host and probes that this attempt began, where its workers answer."""

        def ours(run: str, attempt: str) -> bool:
            return is_copy_of(self.owner, run, attempt) or is_own_probe(self, run, attempt)

        self.stop_alive(self.agent.ask(self.targets, requests.AttemptsRequest()), ours)

    def stop_alive(self, answers: Attempts, chosen: Callable[[str, str], bool]) -> list[tuple[str, str]]:
        """Asks those of the attempts that live on workers to stop which are `chosen` by run and attempt."""
        found: dict[tuple[str, str], list[HostTarget]] = {}
        for target, answer in zip(self.targets, answers, strict=True):
            for each in answer.value.attempts if answer.value is not None else ():
                if (each.state in ALIVE or each.survivors) and chosen(each.run, each.attempt):
                    found.setdefault((each.run, each.attempt), []).append(target)
        for (run, attempt), targets in found.items():
            self.agent.ask(targets, requests.StopRequest(run, attempt, self.run.spec.policy.grace_s))
        return list(found)

    def stop(self, grace_s: float) -> None:
        """Asks every worker's supervisor to stop the attempt; returns at once."""
        self.agent.ask(self.targets, requests.StopRequest(*self._ids(), grace_s))

    def fetch_logs(self, *, emit: bool) -> Fetched:
        """One round of what the workers wrote since the last one, appended to this machine's log files; with
        `emit` whoever watches is told."""
        more, unread = False, []
        limit = min(LOG_CHUNK, LOG_ROUND // max(1, len(self.targets)))
        names = [*self.attempt.streams, *self.attempt.beside_streams]
        answers = self.agent.read_news(self.targets, lambda it: self._news(it.worker, names, limit))
        for target, answer in zip(self.targets, answers, strict=True):
            if answer.result.failure is FailureKind.TIMEOUT:
                unread.append(target.worker)
            news = answer.value or LogNews()
            if answer.value is not None and not self.services.logs.has(self.run.id, self.attempt.number):
                self.append(target.worker, "stdout", b"")  # an empty file: asked, and nothing was written
            # Who has more to say and says nothing of it has none: it would be asked for ever.
            said = any(news.output.values()) or any(news.times.values()) or not answer.result.ok
            more = more or (news.more and said)
            self._keep_times(target.worker, news)
            for stream, data in news.output.items():
                if (target.worker, stream) not in self._positions:
                    continue  # of a process that this record does not know
                self._skip(target.worker, stream, news.skipped.get(stream, 0))
                if data:
                    self.keep_output(target.worker, stream, data)
                if data and emit:
                    self.emit_output(target.worker, stream, data)
        return Fetched(more, tuple(unread))

    def fetch_times(self) -> None:
        """When what came while it was followed had been written, and the metrics of it."""
        names = self.attempt.beside_streams
        answers = self.agent.read_news(self.targets, lambda it: self._news(it.worker, names, LOG_CHUNK, True))
        for target, answer in zip(self.targets, answers, strict=True):
            self._keep_times(target.worker, answer.value or LogNews())

    def _keep_times(self, worker: int, news: LogNews) -> None:
        for stream, data in news.times.items():
            if data:
                self.keep_output(worker, stream if stream == METRICS else times_of(stream), data)

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
        return self.services.logs.size(self.run.id, self.attempt.number, worker, stream)

    def stacks(self, workers: Collection[int] | None = None) -> list[WorkerStacks]:
        """What the processes of the attempt do, on these workers, or on all."""
        chosen = [target for target in self.targets if workers is None or target.worker in workers]
        replies = self.agent.ask(chosen, requests.StacksRequest(*self._ids()))
        return [reply.value or WorkerStacks(reply.worker, error=reply.message) for reply in replies]

    def keep_diagnosis(self, workers: Collection[int]) -> None:
        """What these workers' hosts say of themselves, as `worker-N.host.log` beside their output."""
        for reply in self.diagnose([target for target in self.targets if target.worker in workers]):
            said = reply.value.text if reply.value is not None else f"no answer: {reply.message}\n"
            self.append(reply.worker, "host", said.encode())

    def diagnose(self, targets: Sequence[HostTarget]) -> list[Reply[TextReply]]:
        """What these hosts say of themselves."""
        return self.agent.ask(targets, requests.DiagnoseRequest(self._driver_logs().get("TPU_LOG_DIR", "")))

    def append(self, worker: int, stream: str, data: bytes) -> None:
        """To `worker-N.STREAM.log` on this machine."""
        self.services.logs.append(self.run.id, self.attempt.number, worker, stream, data)

    def follow_request(self, target: HostTarget) -> requests.FollowRequest:
        """The request that continues each worker's output where this machine's files end."""
        return requests.FollowRequest(*self._ids(), self._offsets(target.worker, self.attempt.streams))

    def _news(self, worker: int, names: Sequence[str], limit: int, alone: bool = False) -> requests.NewsRequest:
        return requests.NewsRequest(*self._ids(), self._offsets(worker, names), limit, times_only=alone)

    def _offsets(self, worker: int, names: Sequence[str]) -> Mapping[str, int]:
        """Where this machine's files end, as hosts name them: what is asked for next."""
        offsets = {name: self._offset(worker, name) for name in names}
        self._positions.update({(worker, name): offset for name, offset in offsets.items()})
        return {name.replace("-", "_"): offset for name, offset in offsets.items()}

    def keep_output(self, worker: int, stream: str, data: bytes) -> None:
        """What comes next of what `follow_request` asked for."""
        at = self._positions[worker, stream]
        self.services.logs.write(self.run.id, self.attempt.number, worker, stream, at, data)
        self._positions[worker, stream] = at + len(data)

    def emit_output(self, worker: int, stream: str, data: bytes) -> None:
        """Tells whoever watches what a worker wrote."""
        place, kind = split_stream(worker, stream)
        writers = len(self.attempt.workers) * (1 if isinstance(place, int) else self.attempt.processes)
        self.services.emit(WorkerOutput(self.run.slice_name, place, kind, data, writers))


def _debug_of(run: RunRecord, environment: PinnedEnvironment | None) -> DebugVariables:
    """What `--debug` sets; most runs have none, and need no table for it."""
    if not run.spec.debug:
        return DebugVariables()
    return render_debug(parse_profiles(load_debug_profiles()), run.spec.debug, packages_of(environment))


def kill_hint(slice_name: str, worker: int, pids: Sequence[int]) -> str:
    """What ends processes that a stop could not."""
    return f"tpuctl exec --worker {worker} {slice_name} -- sudo kill -9 {' '.join(map(str, pids))}"


def explain_refusal(hosts: AttemptHosts, error: PartialError) -> RunFinding:
    """What it means for the run that some hosts could not be prepared or started."""
    found = judge_refusal(hosts.run, hosts.attempt, error, hosts.services.store.now())
    if found.event is not RunEvent.CLOSED:
        return found
    return replace(found, verdict=why_closed(hosts.services, hosts.slice, error.message))


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


def is_own_probe(hosts: AttemptHosts, run: str, attempt: str) -> bool:
    """Whether it is a probe before the attempt of these hosts."""
    return run == hosts.run.id and is_probe_of(hosts.attempt.attempt_id, attempt)


def find_hosts(services: Services, run: RunRecord, until: float | None = None) -> AttemptHosts | None:
    """The same, of the slice as its record is now."""
    stored = find_slice(services, run.slice_name)
    return attempt_hosts(services, run, stored.record if stored else None, until)


def busy(what: str) -> RunFinding:
    """The hosts are at work; what is waited for."""
    return RunFinding(RunEvent.BUSY, what, wait_for(what))


def in_the_way(hosts: AttemptHosts, why: str, hint: str) -> RunFinding:
    """Written down once, and told by `status` and `runs` until it is gone: its slice costs money."""
    verdict, reason = Blocked(why, hint), f"{why}: {hint}" if hint else why
    if hosts.attempt.suspect_why == why:
        return RunFinding(RunEvent.IN_THE_WAY, why, verdict)
    changes = {"suspect_why": why}
    return RunFinding(RunEvent.IN_THE_WAY, why, verdict, changes, journal="blocked", reason=reason)
