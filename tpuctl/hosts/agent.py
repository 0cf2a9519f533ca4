"""The agent on the hosts as typed calls: installs itself where it is missing, keeps every worker's answer.

Nothing here decides: a worker that cannot be reached, answers nonsense or refuses gets a reply that says so,
in its place in the list.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.engine.ports import OutputSink, RemoteCall
from tpuctl.hosts import log_news, protocol
from tpuctl.hosts.agent_link import AgentLink
from tpuctl.hosts.commands import SILENCE_S, render_agent_command
from tpuctl.hosts.requests import AgentRequest
from tpuctl.lib.codec import to_data
from tpuctl.model.hosts import FailureKind, HostTarget, RemoteResult

T = TypeVar("T")
R = TypeVar("R")
S = TypeVar("S")
H = TypeVar("H", bound=protocol.HostReply)
Asked = AgentRequest[R] | Callable[[HostTarget], AgentRequest[R]]
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

    def ask(
        self, targets: Sequence[HostTarget], request: Asked[R], *, timeout_s: float = 20.0
    ) -> list[Reply[R]]:
        """What each host answers to a request: the same for all, or made per host."""
        if not targets:
            return []
        verb, data = _rendered(targets, request)
        return _read(targets, request, self.call(targets, verb, data, timeout_s=timeout_s))

    def ask_both(
        self, targets: Sequence[HostTarget], first: Asked[R], second: Asked[S], *, timeout_s: float = 20.0
    ) -> tuple[list[Reply[R]], list[Reply[S]]]:
        """Two requests in one call; see `call_several`."""
        if not targets:
            return [], []
        calls = dict(_rendered(targets, each) for each in (first, second))
        said, more = self.call_several(targets, calls, timeout_s=timeout_s)
        return _read(targets, first, said), _read(targets, second, more)

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
        return _parse_as(protocol.LacksReply, replies)

    def copy(
        self, targets: Sequence[HostTarget], request: Request, *, timeout_s: float = 20.0
    ) -> list[Reply[protocol.CopyStatus]]:
        """Has the verb that `does` names done by each host's supervisor, which goes on without us. `request`
        holds run, attempt, fence and deadline_s, and what that verb is told."""
        return _parse_as(protocol.CopyStatus, self.call(targets, "copy", request, timeout_s=timeout_s))

    def prepare_or_lack(
        self, targets: Sequence[HostTarget], request: Asked[protocol.PrepareReply], lacks: Request
    ) -> tuple[list[Reply[protocol.PrepareReply]], list[Reply[protocol.LacksReply]]]:
        """`prepare`, and `lacks` of the same tree, in one call."""
        if not targets:
            return [], []
        verb, data = _rendered(targets, request)
        prepared, lacking = self.call_several(targets, {verb: data, "lacks": lacks})
        return _read(targets, request, prepared), _parse_as(protocol.LacksReply, lacking)

    def receive(
        self,
        targets: Sequence[HostTarget],
        request: Request,
        payload: Payload,
        *,
        prepare: Asked[protocol.PrepareReply] | None = None,
        timeout_s: float,
    ) -> tuple[list[RawReply], list[Reply[protocol.PrepareReply]]]:
        """Takes contents; then, where it is given, `prepare`, in the same call."""
        if prepare is None or not targets:
            return self.call(targets, "receive", request, payload=payload, timeout_s=timeout_s), []
        verb, data = _rendered(targets, prepare)
        calls = {"receive": request, verb: data}
        received, prepared = self.call_several(targets, calls, payload=payload, timeout_s=timeout_s)
        return received, _read(targets, prepare, prepared)

    def read_news(
        self, targets: Sequence[HostTarget], request: Asked[log_news.LogNews]
    ) -> Iterator[Reply[log_news.LogNews]]:
        """What the logs have behind the offsets of a `NewsRequest`. What came before a call was cut off counts;
        `error` is there all the same. Each answer is unpacked when it is taken: together they are large."""
        call = self._call_of(targets, request) if targets else RemoteCall("")
        results = self.with_install(targets, lambda asked: self.remote.run(asked, call))
        results.reverse()
        return (_news_of(results.pop()) for _ in targets)

    def follow(
        self,
        targets: Sequence[HostTarget],
        request: Asked[log_news.LogNews],
        sink: OutputSink,
        should_stop: Callable[[], bool] | None = None,
    ) -> list[RemoteResult]:
        """Streams the logs of an attempt, by a `FollowRequest`, until it ended (exit status 0) or there is
        nothing to follow (98). The follower ends with us."""
        call = self._call_of(targets, request)
        return self.run_held(targets, replace(call, sink=sink, timeout_s=None, should_stop=should_stop))

    def _call_of(self, targets: Sequence[HostTarget], request: Asked[Any]) -> RemoteCall:
        verb, data = _rendered(targets, request)
        return RemoteCall(render_agent_command(verb, self.sha256), _stdin(data, b""))

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


def _rendered(targets: Sequence[HostTarget], request: Asked[Any]) -> tuple[str, Request]:
    """The verb of a request, and it as data for each host."""
    if isinstance(request, AgentRequest):
        return request.verb, to_data(request)
    return request(targets[0]).verb, lambda target: to_data(request(target))


def _read(targets: Sequence[HostTarget], request: Asked[R], replies: list[RawReply]) -> list[Reply[R]]:
    one = request if isinstance(request, AgentRequest) else request(targets[0])
    return [_parsed(reply, one.read) for reply in replies]


def _parse_as(cls: type[H], replies: list[RawReply]) -> list[Reply[H]]:
    return [_parsed(reply, cls.parse) for reply in replies]


def _parsed(reply: RawReply, parse: Callable[[Mapping[str, Any], int], T]) -> Reply[T]:
    if reply.value is None:
        return Reply(reply.worker, None, reply.error, reply.message, reply.result)
    try:
        return Reply(reply.worker, parse(reply.value, reply.worker), None, "", reply.result)
    except protocol.NO_ANSWER as error:
        return Reply(reply.worker, None, "malformed", str(error), reply.result)
