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
from tpuctl.hosts.requests import AgentRequest
from tpuctl.lib.codec import to_data
from tpuctl.model.hosts import HostTarget, RemoteResult

T = TypeVar("T")
R = TypeVar("R")
S = TypeVar("S")
Asked = AgentRequest[R] | Callable[[HostTarget], AgentRequest[R]]
Request = Mapping[str, Any] | Callable[[HostTarget], Mapping[str, Any]]
Payload = bytes | Callable[[HostTarget], Iterable[bytes]]

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
        """One verb on all targets at once; answers in the order of `targets`. `payload` follows the request, in
        pieces if it is made per target."""
        call = self.agent_call(verb, _stdin(request, payload), timeout_s, lasts=True)
        return [_reply_of(result) for result in self.remote.run(targets, call)]

    def ask(
        self,
        targets: Sequence[HostTarget],
        request: Asked[R],
        *,
        payload: Payload = b"",
        timeout_s: float = 20.0,
    ) -> list[Reply[R]]:
        """What each host answers to a request: the same for all, or made per host. `payload`: see `call`."""
        if not targets:
            return []
        verb, data = _rendered(targets, request)
        return _read(targets, request, self.call(targets, verb, data, payload=payload, timeout_s=timeout_s))

    def ask_both(
        self,
        targets: Sequence[HostTarget],
        first: Asked[R],
        second: Asked[S],
        *,
        payload: Payload = b"",
        timeout_s: float = 20.0,
    ) -> tuple[list[Reply[R]], list[Reply[S]]]:
        """Two requests, in their order, with one start of the agent, which costs a host more than most verbs
        do. The second is not done after a refusal, and has that for its answer. `payload` is for the first."""
        if not targets:
            return [], []
        calls = dict(_rendered(targets, each) for each in (first, second))

        def both(target: HostTarget) -> Mapping[str, Any]:
            return {"calls": [each(target) if callable(each) else each for each in calls.values()]}

        replies = self.call(targets, "+".join(calls), both, payload=payload, timeout_s=timeout_s)
        said, more = ([_part_of(reply, number) for reply in replies] for number in (0, 1))
        return _read(targets, first, said), _read(targets, second, more)

    def read_news(
        self, targets: Sequence[HostTarget], request: Asked[log_news.LogNews]
    ) -> Iterator[Reply[log_news.LogNews]]:
        """What the logs have behind the offsets of a `NewsRequest`. What came before a call was cut off counts;
        `error` is there all the same. Each answer is unpacked when it is taken: together they are large."""
        call = self._call_of(targets, request, b"") if targets else RemoteCall("")
        results = list(self.remote.run(targets, call))
        results.reverse()
        return (_news_of(results.pop()) for _ in targets)

    def stream(
        self,
        targets: Sequence[HostTarget],
        request: Asked[Any],
        sink: OutputSink,
        *,
        payload: Payload = b"",
        timeout_s: float | None = None,
        should_stop: Callable[[], bool] | None = None,
        on_end: Callable[[RemoteResult], None] | None = None,
    ) -> list[RemoteResult]:
        """A verb that answers with raw output, and ends with us."""
        if not targets:
            return []
        call = self._call_of(targets, request, payload)
        call = replace(call, sink=sink, timeout_s=timeout_s, should_stop=should_stop, on_end=on_end)
        return self.run_held(targets, call)

    def _call_of(self, targets: Sequence[HostTarget], request: Asked[Any], payload: Payload) -> RemoteCall:
        verb, data = _rendered(targets, request)
        return self.agent_call(verb, _stdin(data, payload))


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


def _parsed(reply: RawReply, parse: Callable[[Mapping[str, Any], int], T]) -> Reply[T]:
    if reply.value is None:
        return Reply(reply.worker, None, reply.error, reply.message, reply.result)
    try:
        return Reply(reply.worker, parse(reply.value, reply.worker), None, "", reply.result)
    except protocol.NO_ANSWER as error:
        return Reply(reply.worker, None, "malformed", str(error), reply.result)
