"""The agent on the hosts, put where it is missing, and the one verb that most commands need: the session.

Apart from `hosts/agent.py`, which parses the answers of all the others: a short command is over before the
classes of those answers are made.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from tpuctl.engine.ports import Input, OutputSink, Remedy, Remote, RemoteCall, Server, Stdin
from tpuctl.hosts.commands import (
    EXIT_NOT_INSTALLED,
    NOT_INSTALLED_LINE,
    render_agent_command,
    render_install_command,
    render_session_request,
)
from tpuctl.model.hosts import FailureKind, HostTarget, RemoteResult

FEEDER = -1
"""The worker number of the second way to a host, which brings input."""
FEEDER_PATIENCE_S = 5.0
"""When the command has ended, what fed it says at once how much was read."""


class AgentLink:
    """The way to the agent whose archive is `source`."""

    def __init__(self, remote: Remote, source: bytes) -> None:
        self.remote = remote
        self._source = source
        self.sha256 = hashlib.sha256(source).hexdigest()

    def agent_call(
        self, verb: str, stdin: Stdin, timeout_s: float | None = 20.0, *, lasts: bool = False
    ) -> RemoteCall:
        """What asks the agent. A host that has none, or one that does not start, gets it and is asked again.
        With `lasts` the agent stays for the next request, on connections that last."""
        install = Remedy(
            EXIT_NOT_INSTALLED,
            NOT_INSTALLED_LINE,
            self._install(),
            self._source,
            "the agent could not be installed",
        )
        serve = render_agent_command("serve", self.sha256)
        server = Server(serve, verb, self._install("serve")) if lasts else None
        command = render_agent_command(verb, self.sha256)
        return RemoteCall(command, stdin, timeout_s, remedy=install, server=server)

    def _install(self, verb: str = "") -> str:
        return render_install_command(self.sha256, len(self._source), verb)

    def session(
        self,
        targets: Sequence[HostTarget],
        command: Sequence[str] | str,
        sink: OutputSink,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        grace_s: float = 2.0,
        timeout_s: float | None = None,
        should_stop: Callable[[], bool] | None = None,
        end_within_s: float = 0.0,
        on_end: Callable[[RemoteResult], None] | None = None,
    ) -> list[RemoteResult]:
        """Runs a command (arguments, or text for the login shell) that dies with us, descendants included.

        The exit status is the command's own, 128+n when signal n ended it. With `end_within_s` a call that is
        to stop ends when nothing of the command is left on the hosts, if that comes in time.
        """
        request = render_session_request(command, env or {}, cwd=cwd, grace_s=grace_s)
        call = replace(
            self.agent_call("session", request, timeout_s),
            sink=sink,
            should_stop=should_stop,
            end_within_s=end_within_s,
            on_end=on_end,
        )
        return self.run_held(targets, call)

    def session_fed(
        self,
        target: HostTarget,
        command: Sequence[str],
        given: Input,
        sink: OutputSink,
        *,
        timeout_s: float | None = None,
        should_stop: Callable[[], bool] | None = None,
        on_end: Callable[[RemoteResult], None] | None = None,
    ) -> RemoteResult:
        """Like `session`, for one command that reads what this process was `given`.

        The input goes its own way: see `tpuctl/agent/feed.py`. Nothing of it is read before the agent is
        there.
        """
        [ready] = self.session([target], ["true"], sink, timeout_s=timeout_s, should_stop=should_stop)
        if not ready.ok:
            if on_end is not None:
                on_end(ready)
            return ready
        pipe = secrets.token_hex(16)
        feeding = _Feeding(given, pipe, target.worker, should_stop, on_end)
        request = render_session_request(command, {}, pipe=pipe)

        def heard(worker: int, stream: str, data: bytes) -> None:
            if worker == FEEDER:
                feeding.said[stream].extend(data)
            else:
                sink(worker, stream, data)

        call = RemoteCall(
            lambda aim: render_agent_command("feed" if aim.worker == FEEDER else "session", self.sha256),
            stdin=lambda aim: feeding.pieces() if aim.worker == FEEDER else request,
            sink=heard,
            hold_stdin=True,
            timeout_s=timeout_s,
            should_stop=feeding.is_over,
            on_end=feeding.note_end,
        )
        result, fed = self.remote.run([target, replace(target, worker=FEEDER)], call)
        return feeding.conclude(result, fed)

    def run_held(self, targets: Sequence[HostTarget], call: RemoteCall) -> list[RemoteResult]:
        """A verb that ends with this call: its raw output goes to the sink."""

        def heard(worker: int, stream: str, data: bytes) -> None:
            if stream == "stderr":
                data = data.removesuffix(NOT_INSTALLED_LINE)
            if data and call.sink is not None:
                call.sink(worker, stream, data)

        return self.remote.run(targets, replace(call, sink=heard, hold_stdin=True))


class _Feeding:
    """One command that is fed, and what feeds it: when does the one end because the other has."""

    def __init__(
        self,
        given: Input,
        pipe: str,
        worker: int,
        should_stop: Callable[[], bool] | None,
        on_end: Callable[[RemoteResult], None] | None,
    ) -> None:
        self.said = {"stdout": bytearray(), "stderr": bytearray()}
        self._given = given
        self._pipe = pipe
        self._worker = worker
        self._should_stop = should_stop
        self._on_end = on_end
        self._lost = False
        self._over_at: float | None = None

    def pieces(self) -> Iterator[bytes | None]:
        """What the verb `feed` reads."""
        yield self._pipe.encode() + b"\n"
        while (piece := self._given.read()) != b"":
            yield piece if piece is None else b"%d\n%s" % (len(piece), piece)
        yield b"0\n"

    def note_end(self, result: RemoteResult) -> None:
        if result.worker != self._worker:
            self._lost = self._lost or not result.ok
            return
        self._lost = self._lost or result.failure is not None
        self._over_at = time.monotonic()
        if self._on_end is not None:
            self._on_end(result)

    def is_over(self) -> bool:
        late = self._over_at is not None and time.monotonic() - self._over_at > FEEDER_PATIENCE_S
        return (self._should_stop is not None and self._should_stop()) or late or self._lost

    def conclude(self, result: RemoteResult, fed: RemoteResult) -> RemoteResult:
        """The result of the command; one that could not be fed has the reason for that."""
        if fed.ok:
            from tpuctl.hosts.protocol import parse_taken

            self._given.note_taken(parse_taken(bytes(self.said["stdout"])))
        elif result.failure is FailureKind.LOST and fed.failure is not FailureKind.LOST:
            why = fed.detail or self.said["stderr"].decode(errors="replace").strip()[-400:]
            return replace(
                result,
                failure=fed.failure or FailureKind.LOST,
                detail=f"its standard input was not passed: {why}",
            )
        return result
