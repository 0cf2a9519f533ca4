"""The agent on the hosts as typed calls: installs itself where it is missing, keeps every worker's answer.

Nothing here decides: a worker that cannot be reached, answers nonsense or refuses gets a reply that says so,
in its place in the list.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.engine.ports import OutputSink, RemoteCall
from tpuctl.hosts import log_news, protocol, worker_status
from tpuctl.hosts.agent_link import AgentLink
from tpuctl.hosts.commands import SILENCE_S, render_agent_command
from tpuctl.hosts.facts import BegunJob, FactsReply, Section, parse_begun_job, parse_facts
from tpuctl.model.hosts import FailureKind, HostTarget, RemoteResult

T = TypeVar("T")
Request = Mapping[str, Any] | Callable[[HostTarget], Mapping[str, Any]]
Payload = bytes | Callable[[HostTarget], Iterable[bytes]]

UNREACHED = {FailureKind.CONNECT, FailureKind.HOST_KEY, FailureKind.AUTH}
EXIT_NO_COMMAND = 127


class Reply(Struct, Generic[T], frozen=True):
    """One worker's answer: `value`, or None and `error` (a code, the agent's or ours) with a message for a
    person; `result` is the call itself.

    Codes of ours: the values of `FailureKind`, `no-python` and `malformed`.
    """

    worker: int
    value: T | None
    error: str | None
    message: str
    result: RemoteResult

    @property
    def unreached(self) -> bool:
        """The command was never sent, so it had no effect."""
        return self.result.failure in UNREACHED


class Hello(Struct, frozen=True):
    """What a host says of itself, and of its facts what was asked for with that."""

    host: protocol.HostFacts
    facts: FactsReply | None = None


RawReply = Reply[Mapping[str, Any]]
"""What the agent said, before it is read as a type of its own."""


class HostAgent(AgentLink):
    """Calls the verbs of the agent."""

    def call(
        self,
        targets: Sequence[HostTarget],
        verb: str,
        request: Request,
        *,
        payload: Payload = b"",
        timeout_s: float = 20.0,
    ) -> list[RawReply]:
        """One verb on all targets at once; answers in the order of `targets`. Hosts without the agent get it
        and are asked again once. `payload` follows the request, in pieces if it is made per target."""
        call = RemoteCall(render_agent_command(verb, self.sha256), _stdin(request, payload), timeout_s)
        results = self.with_install(targets, lambda asked: self.remote.run(asked, call))
        return [_reply_of(result) for result in results]

    def call_several(
        self,
        targets: Sequence[HostTarget],
        calls: Mapping[str, Request],
        *,
        payload: Payload = b"",
        timeout_s: float = 20.0,
    ) -> list[list[RawReply]]:
        """The requests of several verbs, in their order, with one start of the agent, which costs a host more
        than most verbs do. For each verb what `call` returns; what comes after a refusal is not done and has
        that for its answer. `payload` is for the first verb."""

        def request(target: HostTarget) -> Mapping[str, Any]:
            return {"calls": [each(target) if callable(each) else each for each in calls.values()]}

        replies = self.call(targets, "+".join(calls), request, payload=payload, timeout_s=timeout_s)
        return [[_part_of(reply, number) for reply in replies] for number in range(len(calls))]

    def _ask(
        self, cls: type[T], targets: Sequence[HostTarget], verb: str, request: Request, timeout_s: float = 20.0
    ) -> list[Reply[T]]:
        """`call`, with the answers as `cls`."""
        return _parse_as(cls, self.call(targets, verb, request, timeout_s=timeout_s))

    def hello(
        self, targets: Sequence[HostTarget], *, chips: bool = False, sections: Iterable[Section] = ()
    ) -> list[Reply[Hello]]:
        """What each host says of itself; with `chips` also who has those, and those `sections` of its facts."""
        return _parse(self.call(targets, "hello", _hello_request(chips, sections)), _parse_hello)

    def hello_and_attempts(
        self, targets: Sequence[HostTarget], *, claim: Sequence[int] | None, sections: Iterable[Section]
    ) -> tuple[list[Reply[Hello]], list[Reply[tuple[worker_status.WorkerStatus, ...]]]]:
        """`hello` and `attempts` in one call. `claim`: the chips that are to be used, empty for all, None for
        no chips."""
        hello = {**_hello_request(claim is not None, sections), "claim": claim}
        calls = {"hello": hello, "attempts": {}}
        said, listed = self.call_several(targets, calls)
        return _parse(said, _parse_hello), _parse_of_worker(worker_status.parse_attempts, listed)

    def free_chips(self, targets: Sequence[HostTarget], request: Request) -> list[Reply[protocol.FreeReply]]:
        """Ends the processes `pids` of the request that dead supervisors left behind; with `lock` removes the
        file of the lock that nobody holds."""
        return self._ask(protocol.FreeReply, targets, "free_chips", request)

    def facts(self, targets: Sequence[HostTarget], request: Request) -> list[Reply[FactsReply]]:
        """What each host is and has: the `sections` of the request, all without."""
        return _parse(self.call(targets, "facts", request), parse_facts)

    def provision(self, targets: Sequence[HostTarget], request: Request) -> list[Reply[BegunJob]]:
        """Begins a provisioning job on each host, or finds it begun; see `tpuctl/agent/provision.py`."""
        return _parse(self.call(targets, "provision", request), parse_begun_job)

    def converse(
        self,
        targets: Sequence[HostTarget],
        verb: str,
        request: Request,
        on_progress: Callable[[int, Mapping[str, Any]], None],
        *,
        hold: bool = False,
        timeout_s: float = 20.0,
        should_stop: Callable[[], bool] | None = None,
    ) -> list[RawReply]:
        """Like `call`, for verbs that report on their way: `on_progress` gets the worker and the report.

        `hold` makes it a session: the verb ends when this call does.
        """
        said = {target.worker: (bytearray(), bytearray()) for target in targets}

        def sink(worker: int, name: str, data: bytes) -> None:
            stdout, stderr = said[worker]
            if name == "stderr":
                stderr.extend(data)
                return
            stdout.extend(data)
            *lines, rest = bytes(stdout).split(b"\n")
            for line in lines:
                report = _report(line)
                if report is not None:
                    with suppress(protocol.MalformedReplyError):  # it says nothing; the answer counts
                        on_progress(worker, report)
            if lines:
                stdout[:] = b"\n".join([*(x for x in lines if _report(x) is None), b""]) + rest

        command, stdin = render_agent_command(verb, self.sha256), _stdin(request, b"")
        call = RemoteCall(command, stdin, timeout_s, sink, hold_stdin=hold, should_stop=should_stop)
        results = self.with_install(targets, lambda asked: self.remote.run(asked, call))
        return [
            _reply_of(
                replace(result, stdout=bytes(said[result.worker][0]), stderr=bytes(said[result.worker][1]))
            )
            for result in results
        ]

    def lacks(
        self,
        targets: Sequence[HostTarget],
        request: Request,
        *,
        payload: Payload = b"",
        timeout_s: float = 60.0,
    ) -> list[Reply[protocol.LacksReply]]:
        """What each host lacks of a tree, which is the `payload` where it `follows`."""
        replies = self.call(targets, "lacks", request, payload=payload, timeout_s=timeout_s)
        return _parse(replies, protocol.parse_lacks_reply)

    def copy(
        self, targets: Sequence[HostTarget], request: Request, *, timeout_s: float = 20.0
    ) -> list[Reply[protocol.CopyStatus]]:
        """Has the verb that `does` names done by each host's supervisor, which goes on without us. `request`
        holds run, attempt, fence and deadline_s, and what that verb is told."""
        return self._ask(protocol.CopyStatus, targets, "copy", request, timeout_s)

    def prepare(self, targets: Sequence[HostTarget], request: Request) -> list[Reply[protocol.PrepareReply]]:
        """Makes the work directory from the contents that a host has, or names some that it lacks. `request`
        holds run, attempt, fence, bundle (the sha256 of a tree, or None) and perhaps want_port."""
        return self._ask(protocol.PrepareReply, targets, "prepare", request)

    def prepare_or_lack(
        self, targets: Sequence[HostTarget], request: Request, lacks: Request
    ) -> tuple[list[Reply[protocol.PrepareReply]], list[Reply[protocol.LacksReply]]]:
        """`prepare`, and `lacks` of the same tree, in one call."""
        prepared, lacking = self.call_several(targets, {"prepare": request, "lacks": lacks})
        return _parse_as(protocol.PrepareReply, prepared), _parse(lacking, protocol.parse_lacks_reply)

    def receive(
        self,
        targets: Sequence[HostTarget],
        request: Request,
        payload: Payload,
        *,
        prepare: Request | None = None,
        timeout_s: float,
    ) -> tuple[list[RawReply], list[Reply[protocol.PrepareReply]]]:
        """Takes contents; then, where it is given, `prepare`, in the same call."""
        if prepare is None:
            return self.call(targets, "receive", request, payload=payload, timeout_s=timeout_s), []
        calls = {"receive": request, "prepare": prepare}
        received, prepared = self.call_several(targets, calls, payload=payload, timeout_s=timeout_s)
        return received, _parse_as(protocol.PrepareReply, prepared)

    def reach(
        self, targets: Sequence[HostTarget], request: Request, *, timeout_s: float
    ) -> list[Reply[protocol.ReachReply]]:
        """Whether what each host sends to `port` of `address` gets there in `seconds`."""
        return self._ask(protocol.ReachReply, targets, "reach", request, timeout_s)

    def bucket_access(
        self, target: HostTarget, request: Request, *, timeout_s: float
    ) -> Reply[protocol.AccessReply]:
        """What a host's own account may do with `buckets`; see `tpuctl/agent/bucket_access.py`."""
        return self._ask(protocol.AccessReply, [target], "bucket_access", request, timeout_s)[0]

    def start(
        self, targets: Sequence[HostTarget], request: Request, *, timeout_s: float = 20.0
    ) -> list[Reply[protocol.StartReply]]:
        """Starts the prepared attempt under its supervisor. `request` holds run, attempt, fence, argv, env,
        path_prepend, cwd and grace_s; env may hold secrets and travels on stdin only."""
        return self._ask(protocol.StartReply, targets, "start", request, timeout_s)

    def status(
        self, targets: Sequence[HostTarget], run: str, attempt: str, *, host: bool = False
    ) -> list[Reply[worker_status.WorkerStatus]]:
        """How an attempt stands; with `host` also what the metadata server says of each host."""
        request = {"run": run, "attempt": attempt, "host": host}
        return _parse_of_worker(worker_status.parse_worker_status, self.call(targets, "status", request))

    def usage(
        self, targets: Sequence[HostTarget], run: str = "", attempt: str = "", *, timeout_s: float = 20.0
    ) -> tuple[list[Reply[protocol.HostUsage]], list[Reply[worker_status.WorkerStatus]]]:
        """How busy each host is and, in the same call, how an attempt stands, if one is named."""
        if not attempt:
            alone = self.call(targets, "usage", {}, timeout_s=timeout_s)
            return _parse_of_worker(protocol.parse_usage, alone), []
        calls = {"usage": {}, "status": {"run": run, "attempt": attempt}}
        told, stands = self.call_several(targets, calls, timeout_s=timeout_s)
        statuses = _parse_of_worker(worker_status.parse_worker_status, stands)
        return _parse_of_worker(protocol.parse_usage, told), statuses

    def stacks(
        self, targets: Sequence[HostTarget], run: str, attempt: str
    ) -> list[Reply[protocol.WorkerStacks]]:
        """What each process of an attempt does."""
        request = {"run": run, "attempt": attempt}
        return _parse_of_worker(protocol.parse_stacks, self.call(targets, "stacks", request))

    def trace(
        self, targets: Sequence[HostTarget], request: Request, *, timeout_s: float = 20.0
    ) -> list[Reply[protocol.TraceReply]]:
        """Begins, looks at or ends a trace of an attempt's processes, as the request `does`."""
        return self._ask(protocol.TraceReply, targets, "trace", request, timeout_s)

    def diagnose(self, targets: Sequence[HostTarget], driver_logs: str = "") -> list[Reply[str]]:
        """How each host stands, as text: kernel messages, memory, disks, processes, and libtpu's logs, which a
        run may have in a folder of its own."""
        request = {"driver_logs": driver_logs}
        return _parse(self.call(targets, "diagnose", request), lambda data: str(data.get("text", "")))

    def tree(
        self, targets: Sequence[HostTarget], request: Request, *, timeout_s: float = 20.0
    ) -> list[Reply[protocol.TreeReply]]:
        """The files below the `path` of the request as one digest; see `tpuctl/agent/sending.py`."""
        return self._ask(protocol.TreeReply, targets, "tree", request, timeout_s)

    def attempts(self, targets: Sequence[HostTarget]) -> list[Reply[tuple[worker_status.WorkerStatus, ...]]]:
        """All attempts that each host knows."""
        return _parse_of_worker(worker_status.parse_attempts, self.call(targets, "attempts", {}))

    def stop(
        self, targets: Sequence[HostTarget], run: str, attempt: str, grace_s: float
    ) -> list[Reply[worker_status.WorkerStatus]]:
        """Asks for the end and returns at once with the state before it."""
        request = {"run": run, "attempt": attempt, "grace_s": grace_s}
        return _parse_of_worker(worker_status.parse_worker_status, self.call(targets, "stop", request))

    def read_news(
        self, targets: Sequence[HostTarget], request: Request, *, limit: int
    ) -> Iterator[Reply[log_news.LogNews]]:
        """What both logs have behind the offsets of the request, at most `limit` bytes. What came before a call
        was cut off counts; `error` is there all the same. Each answer is unpacked when it is taken: together
        they are large."""
        body = lambda target: {**(request(target) if callable(request) else request), "limit": limit}  # noqa: E731
        call = RemoteCall(render_agent_command("news", self.sha256), _stdin(body, b""))
        results = self.with_install(targets, lambda asked: self.remote.run(asked, call))
        results.reverse()
        return (_news_of(results.pop()) for _ in targets)

    def follow(
        self,
        targets: Sequence[HostTarget],
        request_for: Callable[[HostTarget], Mapping[str, Any]],
        sink: OutputSink,
        should_stop: Callable[[], bool] | None = None,
    ) -> list[RemoteResult]:
        """Streams the logs of an attempt until it ended (exit status 0) or there is nothing to follow (98).

        `request_for` gives run, attempt, stdout_offset and stderr_offset. The follower ends with us.
        """

        def request(target: HostTarget) -> Mapping[str, Any]:
            return {**request_for(target), "silence_s": SILENCE_S}

        command, stdin = render_agent_command("follow", self.sha256), _stdin(request, b"")
        return self.run_held(targets, RemoteCall(command, stdin, None, sink, should_stop=should_stop))

    def send_back(
        self,
        targets: Sequence[HostTarget],
        path: str,
        wants_for: Callable[[HostTarget], bytes],
        sink: OutputSink,
        *,
        timeout_s: float,
        should_stop: Callable[[], bool],
        on_end: Callable[[RemoteResult], None],
        more: Mapping[str, Any] | None = None,
    ) -> list[RemoteResult]:
        """Frames of files below `path`; what is wanted of each host is told by `render_wants` of
        `tpuctl/transfer/frames.py`, `more` is for that verb, too. It ends with us."""

        def request(target: HostTarget) -> Mapping[str, Any]:
            return {**(more or {}), "path": path, "size": len(wants_for(target)), "silence_s": SILENCE_S}

        def payload(target: HostTarget) -> Iterable[bytes]:
            return [wants_for(target)]

        command, stdin = render_agent_command("send", self.sha256), _stdin(request, payload)
        call = RemoteCall(command, stdin, timeout_s, sink, should_stop=should_stop, on_end=on_end)
        return self.run_held(targets, call)


def _hello_request(chips: bool, sections: Iterable[Section]) -> Mapping[str, Any]:
    return {"chips": chips, "sections": sorted(sections)}


def _part_of(reply: RawReply, number: int) -> RawReply:
    """The answer to one of several requests, or the refusal before it."""
    if reply.value is None:
        return reply
    answers = reply.value.get("answers")
    if not isinstance(answers, list) or not answers or not all(isinstance(each, dict) for each in answers):
        return RawReply(reply.worker, None, "malformed", f"'answers' is {str(answers)[:40]}", reply.result)
    answer = answers[min(number, len(answers) - 1)]
    if number >= len(answers) and "error" not in answer:
        return RawReply(reply.worker, None, "malformed", f"only {len(answers)} answers came", reply.result)
    return _checked(answer, reply.worker, reply.result)


def _checked(data: Mapping[str, Any], worker: int, result: RemoteResult) -> RawReply:
    if "error" in data:
        return RawReply(worker, None, str(data["error"]), str(data.get("message", "")), result)
    return RawReply(worker, data, None, "", result)


def _stdin(request: Request, payload: Payload) -> Callable[[HostTarget], bytes | Iterable[bytes]]:
    def stdin(target: HostTarget) -> bytes | Iterable[bytes]:
        body = request(target) if callable(request) else request
        line = json.dumps(body).encode() + b"\n"
        return line + payload if isinstance(payload, bytes) else chain([line], payload(target))

    return stdin


def _news_of(result: RemoteResult) -> Reply[log_news.LogNews]:
    error = None if result.ok else (result.failure.value if result.failure is not None else "malformed")
    try:
        news, said = log_news.parse_log_news(result.stdout), replace(result, stdout=b"")
        return Reply(result.worker, news, error, result.detail, said)
    except protocol.MalformedReplyError as malformed:
        return Reply(result.worker, None, error or "malformed", str(malformed), result)


def _report(line: bytes) -> Mapping[str, Any] | None:
    """A line on the way to the answer, if that is what it is."""
    if not line.startswith(b'{"progress"'):
        return None
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _reply_of(result: RemoteResult) -> RawReply:
    def failed(code: str, message: str) -> RawReply:
        return RawReply(result.worker, None, code, message, result)

    if result.failure is not None:
        return failed(result.failure.value, result.detail)
    said = result.stderr.decode(errors="replace").strip()[-400:]
    if result.exit_status == EXIT_NO_COMMAND:
        return failed("no-python", said or "python3 is not on the host")
    try:
        data = protocol.parse_reply(result.stdout)
    except protocol.MalformedReplyError as error:
        return failed(
            "malformed", result.detail or f"{error} (exit status {result.exit_status}) {said}".strip()
        )
    if "error" not in data and result.exit_status != 0:
        return failed("malformed", f"the agent ended with {result.exit_status} {said}".strip())
    return _checked(data, result.worker, result)


def _parse_hello(data: Mapping[str, Any]) -> Hello:
    facts = data.get("facts")
    return Hello(protocol.parse_as(protocol.HostFacts, data), parse_facts(facts) if facts is not None else None)


def _parse(replies: list[RawReply], parse: Callable[[Mapping[str, Any]], T]) -> list[Reply[T]]:
    return [_parsed(reply, parse) for reply in replies]


def _parse_as(cls: type[T], replies: list[RawReply]) -> list[Reply[T]]:
    return _parse(replies, partial(protocol.parse_as, cls))


def _parse_of_worker(parse: Callable[..., T], replies: list[RawReply]) -> list[Reply[T]]:
    return [_parsed(reply, partial(parse, worker=reply.worker)) for reply in replies]


def _parsed(reply: RawReply, parse: Callable[[Mapping[str, Any]], T]) -> Reply[T]:
    if reply.value is None:
        return Reply(reply.worker, None, reply.error, reply.message, reply.result)
    try:
        return Reply(reply.worker, parse(reply.value), reply.error, reply.message, reply.result)
    except protocol.NO_ANSWER as error:
        return Reply(reply.worker, None, "malformed", str(error), reply.result)
