"""The helper on the hosts, put where it is missing, and the one verb that most commands need: the leash.

Apart from `host_helper.py`, which parses the answers of all the others: a short command is over before the
classes of those answers are made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tpuctl.core.host_commands import (
    EXIT_NOT_INSTALLED,
    render_helper_command,
    render_install_command,
    render_leash_request,
)
from tpuctl.core.nouns import HostTarget, RemoteResult
from tpuctl.ports import OutputSink, Remote, Stdin


class HelperLink:
    """The way to the host-side helper whose archive is `source`."""

    def __init__(self, remote: Remote, source: bytes) -> None:
        self.remote = remote
        self._source = source
        self.sha256 = hashlib.sha256(source).hexdigest()

    def ensure_installed(self, targets: Sequence[HostTarget], *, timeout_s: float = 20.0) -> list[RemoteResult]:
        """Puts the helper on all targets; harmless where it already is."""
        command = render_install_command(self.sha256)
        return self.remote.run(targets, command, stdin=self._source, timeout_s=timeout_s)

    def leash(
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
        on_end: Callable[[RemoteResult], None] | None = None,
    ) -> list[RemoteResult]:
        """Runs a command (arguments, or text for the login shell) that dies with us, descendants included.

        The exit status is the command's own, 128+n when signal n ended it.
        """
        request = render_leash_request(command, env or {}, cwd=cwd, grace_s=grace_s)
        return self.stream_held(targets, "leash", request, sink, timeout_s, should_stop, on_end)

    def stream_held(
        self,
        targets: Sequence[HostTarget],
        verb: str,
        stdin: Stdin,
        sink: OutputSink,
        timeout_s: float | None,
        should_stop: Callable[[], bool] | None,
        on_end: Callable[[RemoteResult], None] | None = None,
    ) -> list[RemoteResult]:
        """A verb that ends with this call: its raw output goes to `sink`."""
        command = render_helper_command(verb, self.sha256)

        def ended(result: RemoteResult) -> None:
            if on_end is not None and result.exit_status != EXIT_NOT_INSTALLED:
                on_end(result)

        return self.with_install(
            targets,
            lambda asked: self.remote.stream(
                asked,
                command,
                sink,
                stdin=stdin,
                hold_stdin=True,
                timeout_s=timeout_s,
                should_stop=should_stop,
                on_end=ended,
            ),
        )

    def with_install(
        self, targets: Sequence[HostTarget], ask: Callable[[Sequence[HostTarget]], list[RemoteResult]]
    ) -> list[RemoteResult]:
        """What `ask` finds; hosts without the helper get it and are asked again once."""
        results = ask(targets)
        bare = [i for i, result in enumerate(results) if result.exit_status == EXIT_NOT_INSTALLED]
        if not bare:
            return results
        installs = self.ensure_installed([targets[i] for i in bare])
        ready = []
        for i, install in zip(bare, installs, strict=True):
            if install.ok:
                ready.append(i)
            else:
                results[i] = _install_failed(install)
        if ready:
            for i, result in zip(ready, ask([targets[i] for i in ready]), strict=True):
                results[i] = result
        return results


def _install_failed(install: RemoteResult) -> RemoteResult:
    said = install.stderr.decode(errors="replace").strip()[-400:]
    status = f"the helper could not be installed (exit status {install.exit_status}) {said}".strip()
    detail = install.detail or status
    return replace(install, detail=detail)
