"""The developer's loop: what changes in a directory here goes to all workers, and a command runs again."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tpuctl.engine.events import Note, Warn
from tpuctl.engine.services import Services
from tpuctl.envs.install import load_pinned
from tpuctl.envs.pinned import environment_keys
from tpuctl.errors import ConflictError, TpuctlError
from tpuctl.hosts.agent import HostAgent
from tpuctl.hosts.targets import host_targets
from tpuctl.lib.text import counted, fold_label, group_equal, sized
from tpuctl.model.hosts import RemoteResult
from tpuctl.model.records import HOSTS_ANSWER, SliceRecord
from tpuctl.slices.reconcile import wait_for_slice
from tpuctl.state.repository import get_slice
from tpuctl.transfer.bundle import freeze_directory, list_code
from tpuctl.transfer.tree import Content, TreeFile, list_blobs, parse_tree
from tpuctl.workers.copy_to import Pushed, push
from tpuctl.workers.exec import by_cause, execute

LOOK_S = 0.15
"""How often the directory is looked at."""
LOOK_SHARE = 10
"""A look may take one part in so many of the time: in a large tree there are fewer."""
SETTLE_S = 0.1
"""What did not change for so long is sent: an editor, or git, writes more than one file."""
RETRY_S = 10.0
"""What could not be sent is tried again after so long."""
RECORD_S = 10.0
"""How often it is looked whether the slice is still wanted."""
QUIET_S = 60.0
"""After so long without a change, connections that carry nothing are closed: they count as use of the slice."""

_IN_ENVIRONMENT = """\
for key in %s; do
  bin="$HOME/.tpuctl/envs/$key/bin"
  if test -d "$bin"; then PATH="$bin:$PATH"; export PATH; break; fi
done
exec sh -c "$1"
"""
_State = Mapping[str, tuple[int, ...]]


def look(root: Path) -> _State:
    """What tells one state of the code below `root` from another. Raises UsageError."""
    found = {}
    for name in list_code(root):
        try:
            seen = os.lstat(f"{root}/{name}")
        except FileNotFoundError:
            continue
        found[name] = (seen.st_mtime_ns, seen.st_size, seen.st_mode, seen.st_ino)
    return found


class Program:
    """A command on all workers, in the environment of the slice, if there is one; stopped before it starts
    again."""

    def __init__(self, services: Services, command: str, cwd: str | None) -> None:
        self.command = command
        self._services = services
        self._cwd = cwd
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._results: list[RemoteResult] | TpuctlError = []

    def start(self, record: SliceRecord) -> None:
        pinned = load_pinned(self._services, record.spec.env)
        keys = environment_keys(pinned) if pinned is not None else []
        argv = ["sh", "-c", _IN_ENVIRONMENT % " ".join(keys) if keys else 'exec sh -c "$1"', "sh", self.command]
        env = {"PYTHONUNBUFFERED": "1", **(pinned.variables() if pinned is not None else {})}
        self._over = over = threading.Event()

        def work() -> None:
            try:
                self._results = execute(
                    self._services, record, argv, env=env, cwd=self._cwd, should_stop=over.is_set
                )
            except TpuctlError as error:
                self._results = error

        self._thread = threading.Thread(target=work, name="tpuctl-dev", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns when nothing of it is left on workers that answer."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def ended(self) -> Sequence[RemoteResult] | TpuctlError | None:
        """What it came to, once; None while it runs, and for one that was stopped."""
        if self._thread is None or self._thread.is_alive():
            return None
        self._thread = None
        return self._results


class DevLoop:
    """Until `over` says that the slice is gone, or Ctrl-C. `over` is asked from time to time, and told whether
    this process uses the slice. `directory` is kept the same on all workers, `command` runs in it, again after
    each change."""

    def __init__(
        self,
        services: Services,
        name: str,
        over: Callable[[bool], bool],
        directory: Path | None = None,
        command: str | None = None,
        *,
        limit_bytes: int = 0,
    ) -> None:
        self._services = services
        self._name = name
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._over = over
        cwd = f"./{directory.name}" if directory is not None else None
        self._program = Program(services, command, cwd) if command is not None else None
        self._state: _State | None = None
        self._due = directory is not None
        self._sent: tuple[int, bytes] | None = None
        """The incarnation that has it, and the tree."""
        self._retry_at = self._looked_at = 0.0
        self._used_at = services.clock.now()
        self._told = ""

    def run(self) -> None:
        clock = self._services.clock
        try:
            while not self._is_over():
                began = clock.now()
                changed = self._directory is not None and self._has_changed(self._directory)
                took = clock.now() - began
                if changed and self._directory is not None:
                    self._send(self._directory)
                self._tell_end()
                settles = self._due and clock.now() >= self._retry_at
                clock.sleep(SETTLE_S if settles else max(LOOK_S, took * LOOK_SHARE))
        finally:
            if self._program is not None:
                self._program.stop()

    def _has_changed(self, directory: Path) -> bool:
        """Whether something is to be sent, and rests."""
        try:
            state = look(directory)
        except TpuctlError as error:
            return self._doubt(error)
        moved, self._state = state != self._state, state
        self._due = self._due or moved
        return self._due and not moved and self._services.clock.now() >= self._retry_at

    def _doubt(self, error: TpuctlError) -> bool:
        """Trouble of this directory, told once."""
        text = f"nothing is sent: {error.message}" + (f" ({error.hint})" if error.hint else "")
        if text != self._told:
            self._services.emit(Warn(self._name, text))
        self._told = text
        return False

    def _send(self, directory: Path) -> None:
        """Stops the command, brings the directory to all workers, and starts the command."""
        try:
            content = freeze_directory(directory, limit_bytes=self._limit_bytes)
        except OSError as error:  # it changed meanwhile, and the next look shows that
            self._doubt(TpuctlError(str(error)))
            return
        except TpuctlError as error:
            self._due = self._doubt(error)
            return
        self._told = ""
        record = get_slice(self._services, self._name).record
        if record.state not in HOSTS_ANSWER:
            self._retry_at = self._services.clock.now() + RETRY_S
            return
        if self._sent == (record.last_incarnation, content.tree):
            self._due = False
            return
        if self._program is not None:
            self._program.stop()
        pushed, text = self._push(record, directory.name, content)
        self._used_at = self._services.clock.now()
        self._tell_kept(pushed)
        if self._failed(pushed.results, "did not get the change"):
            self._retry_at = self._services.clock.now() + RETRY_S
            return
        self._services.emit(Note(self._name, text))
        self._due, self._sent = False, (record.last_incarnation, content.tree)
        if self._program is not None:
            self._services.emit(Note(self._name, f"runs {self._program.command}"))
            self._program.start(record)

    def _push(self, record: SliceRecord, name: str, content: Content) -> tuple[Pushed, str]:
        """Brings `content` to all workers, and says what came of it where it succeeds."""
        services, targets = self._services, host_targets(self._services, record)
        began = services.clock.now()
        pushed = push(
            HostAgent(services.remote, services.agent_source),
            targets,
            content,
            [name],
            "./",
            clock=services.clock,
            emit=services.emit,
            mirror=True,
            before=self._sent[1] if self._sent and self._sent[0] == record.last_incarnation else None,
        )
        files = [entry for entry in parse_tree(content.tree) if isinstance(entry, TreeFile)]
        size = sized(sum(blob.size for blob in list_blobs(files)))
        text = f"{counted(len(targets), 'worker')} have {name}, {counted(len(files), 'file')} of {size}"
        took = f"sent {sized(pushed.sent_bytes)} in {services.clock.now() - began:.1f} s"
        return pushed, f"{text}: {took}"

    def _tell_kept(self, pushed: Pushed) -> None:
        """What somebody changed on workers, said once for all on which it is the same."""
        for rows, members in group_equal(list(pushed.kept.items()), lambda each: each[1]):
            where = fold_label(self._name, [worker for worker, _ in members])
            for path, kept in rows:
                what = f"it is kept there as {kept}" if kept else "it stays, though it is deleted here"
                self._services.emit(Warn(where, f"{path} was changed there: {what}"))

    def _failed(self, results: Sequence[RemoteResult], what: str) -> bool:
        """Tells of the workers that failed, once for each cause; those that do not answer are waited for."""
        bad = [result for result in results if not result.ok]
        for where, why in by_cause(self._name, bad):
            self._services.emit(Warn(where, f"{what}: {why}"))
        if any(result.failure is not None for result in bad):
            self._bring_back()
        return bool(bad)

    def _bring_back(self) -> None:
        """Workers do not answer: the slice is waited for as `up` does, and then gets everything."""
        try:
            wait_for_slice(self._services, self._name)
        except ConflictError as error:  # it is being taken down: the next look at it says why
            self._services.emit(Warn(self._name, error.message))
        self._sent, self._due = None, self._directory is not None
        self._looked_at = 0.0

    def _tell_end(self) -> None:
        ended = self._program.ended() if self._program is not None else None
        if ended is None or self._program is None:
            return
        self._used_at = self._services.clock.now()
        again = "; it runs again after a change"
        if isinstance(ended, TpuctlError):
            self._services.emit(Warn(self._name, f"{self._program.command}: {ended.message}{again}"))
        elif not self._failed(ended, f"{self._program.command} failed"):
            self._services.emit(Note(self._name, f"{self._program.command} ended well{again}"))

    def _is_over(self) -> bool:
        now = self._services.clock.now()
        if now < self._looked_at + RECORD_S:
            return False
        self._looked_at = now
        if self._over(now < self._used_at + QUIET_S or self._services.remote.rest()):
            return True
        record = get_slice(self._services, self._name).record
        if self._sent is not None and record.last_incarnation != self._sent[0]:
            self._sent, self._due = None, True
        return False
