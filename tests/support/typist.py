"""Types commands without starting an interpreter for each: a server that has imported tpuctl and forks.

Most of the processor time of a short command goes into imports, 0.6 s of it into Google's libraries. Each
typed command is still a process of its own, with its environment, folder, standard files and exit status, and
runs the same `main`. Tests of start-up, signals and processes by name use `Session.start`: the real script.
The simulator that `sim up` starts is forked in the same way, in processes that are related as always.

The real gcloud is typed so, too: of the second that a command of it takes, imports are three quarters.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[2]
FORKED = ("tpuctl.sim.server.supervisor", "tpuctl.sim.server.process")
"""Both import half a second's worth of modules before they do anything."""
HUGE_PAGE, MADV_COLLAPSE = 2 << 20, 25  # madvise(2), since Linux 6.1


class Typist:
    """The client's side: one server per test process, which ends with it. `words` are its interpreter."""

    def __init__(self, *words: str, serves: str) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._server = subprocess.Popen(
                [*words, "-m", "tests.support.typist", str(theirs.fileno()), serves],
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._line, self._asking = ours, threading.Lock()
        atexit.register(self.close)

    def close(self) -> None:
        self._line.close()
        self._server.wait(timeout=30)

    def type(
        self,
        words: Sequence[str],
        cwd: Path,
        environ: Mapping[str, str],
        timeout_s: float,
        killed: tuple[int, str] | None = None,
        later_s: float = 0.0,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end, or until `killed` (see `killed_cli`). Its clock says that it is `later_s`.
        Raises subprocess.TimeoutExpired, after which it is killed."""
        ours, theirs = socket.socketpair()
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        null = os.open(os.devnull, os.O_RDONLY)
        message = json.dumps(
            {
                "argv": list(words),
                "cwd": str(cwd),
                "environ": dict(environ),
                "killed": killed,
                "later_s": later_s,
            }
        ).encode()
        files = [theirs.fileno(), null, out_write, err_write]
        with self._asking:
            socket.send_fds(self._line, [len(message).to_bytes(8, "big")], files)
            self._line.sendall(message)
        theirs.close()
        for number in files[1:]:
            os.close(number)
        with ours, open(out_read, "rb") as stdout, open(err_read, "rb") as stderr:
            texts = _read_all([out_read, err_read], timeout_s)
            if texts is None:
                ours.sendall(b"kill")
                raise subprocess.TimeoutExpired(list(words), timeout_s)
            del stdout, stderr
            ours.settimeout(timeout_s)
            status = int(ours.recv(16))
        return subprocess.CompletedProcess(list(words), status, *(text.decode() for text in texts))


@cache
def typist() -> Typist:
    """The server of this test process."""
    return Typist(sys.executable, serves="tpuctl")


@cache
def gcloud_typist(binary: str) -> Typist:
    """That of the gcloud whose script `binary` is."""
    root = Path(binary).resolve().parents[1]
    bundled = root / "platform/bundledpythonunix/bin/python3"
    # As the script: its own interpreter if it has one, without site-packages.
    return Typist(str(bundled) if bundled.exists() else sys.executable, "-S", serves=str(root))


def _read_all(numbers: Sequence[int], timeout_s: float) -> list[bytes] | None:
    """All that comes from the pipes `numbers` until their ends; None when it takes too long."""
    texts = {number: bytearray() for number in numbers}
    open_ones = set(numbers)
    deadline = time.monotonic() + timeout_s
    while open_ones:
        readable, _, _ = select.select(list(open_ones), [], [], max(0.0, deadline - time.monotonic()))
        if not readable:
            return None
        for number in readable:
            piece = os.read(number, 65536)
            texts[number] += piece
            if not piece:
                open_ones.discard(number)
    return [bytes(texts[number]) for number in numbers]


def _serve(line: socket.socket) -> Mapping[str, Any]:
    """Forks for each request. Returns it in the child, which then runs its command; the server itself exits."""
    running: dict[int, socket.socket] = {}
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        readable, _, _ = select.select([line, wake_read, *running.values()], [], [])
        if wake_read in readable:
            os.read(wake_read, 4096)
            for pid in list(running):
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    with running.pop(pid) as answer:
                        answer.sendall(str(os.waitstatus_to_exitcode(status)).encode())
        for pid, asker in list(running.items()):
            if asker in readable:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                running.pop(pid).close()
        if line in readable:
            size, files, _, _ = socket.recv_fds(line, 8, 4)
            if not size:
                for pid in running:
                    os.kill(pid, signal.SIGKILL)
                os._exit(0)
            request = json.loads(_receive(line, int.from_bytes(size, "big")))
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for number in (line.fileno(), wake_read, wake_write, *(s.fileno() for s in running.values())):
                    os.close(number)
                _become(request, files)
                return request  # type: ignore[no-any-return]
            running[pid] = socket.socket(fileno=files[0])
            for number in files[1:]:
                os.close(number)


def _receive(line: socket.socket, size: int) -> bytes:
    message = b""
    while len(message) < size:
        message += line.recv(size - len(message))
    return message


def _become(request: Mapping[str, object], files: Sequence[int]) -> None:
    """Makes the forked process look like one that was just started with the request."""
    os.close(files[0])
    for target, number in enumerate(files[1:]):
        os.dup2(number, target)
        os.close(number)
    environ, argv = request["environ"], request["argv"]
    assert isinstance(environ, dict)
    assert isinstance(argv, list)
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(str(request["cwd"]))
    sys.argv = argv
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, closefd=False) for number, mode in ((0, "r"), (1, "w"), (2, "w"))
    )


def _set_clock(later_s: float, real: Callable[[], float] = time.time) -> None:
    """As if so much time had passed for this process and the files of its store, and for nobody else."""
    from tpuctl.state.sqlite import FileTime

    time.time = lambda: real() + later_s
    FileTime._measure = lambda _: 0.0  # type: ignore[method-assign]


class ForkingPopen(subprocess.Popen[Any]):
    """Starts the modules of `FORKED` without an interpreter of their own; all else as its parent class does."""

    def __init__(self, args: Any, **options: Any) -> None:
        if list(args[:2]) == [sys.executable, "-m"] and args[2] in FORKED:
            options["preexec_fn"] = partial(_become_module, *args[2:])
        super().__init__(args, **options)


def _become_module(name: str, *words: str) -> NoReturn:
    """Runs a module's `main` to its end, instead of the interpreter that the caller of Popen is about to be.

    Popen goes on in the parent when its pipe for errors is closed, as by an exec.
    """
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Popen gives them back, for programs that are not Python
        signal.signal(number, signal.SIG_IGN)
    atexit._clear()
    logging.root.handlers.clear()
    sys.argv = [name, *words]
    _end_with(_run(lambda: sys.exit(sys.modules[name].main())))


def _run(main: Callable[[], None]) -> int:
    """The exit status of the command, as the interpreter would make it of what `main` raises."""
    try:
        main()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:  # noqa: BLE001 - printed as the interpreter does
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _end_with(status: int) -> NoReturn:
    """Ends as the interpreter does, but for freeing all modules one by one, which takes longer than most
    commands."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):  # gcloud keeps those of its imports
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            status = 120
    os._exit(status)


def _import_everything() -> None:
    """What commands import and read at their start, so that forks have it."""
    import importlib
    import pkgutil

    import typer.main

    import tpuctl
    from tests.docs.reference import groups
    from tpuctl.model import shipped_files

    gc.disable()  # all of it stays
    importlib.import_module("tests.support.killed_cli")
    for name in (
        "google.cloud.storage",
        "google.cloud.tpu_v2",
        "google.cloud.tpu_v2alpha1",
        "netrc",
        "paramiko",
        "resource",
    ):
        importlib.import_module(name)
    for module in pkgutil.walk_packages(tpuctl.__path__, "tpuctl."):
        if not module.name.startswith("tpuctl.agent") and module.name != "tpuctl.__main__":
            importlib.import_module(module.name)
    for name, read in vars(shipped_files).items():
        if name.startswith("load_") or name == "read_agent":
            read()
    # Typer makes commands of the functions and their annotations in each process: half the time of a short one.
    typer.main.get_command = cache(typer.main.get_command)
    assert list(groups())
    gc.enable()
    gc.freeze()
    _use_huge_pages()


def _use_huge_pages() -> None:
    """A fork copies the page table, here of 170 MB, and gives it back at its end: 17 ms of a processor for each
    command, and 3 where what was imported is in huge pages. A kernel that cannot do that goes on without."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int)
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, modes, _, _, inode, *_ = line.split()
        if modes == "rw-p" and inode == "0":
            begin, end = (int(each, 16) // HUGE_PAGE for each in span.split("-"))
            madvise((begin + 1) * HUGE_PAGE, max(0, end - begin - 1) * HUGE_PAGE, MADV_COLLAPSE)


def _serve_tpuctl(line: socket.socket) -> int:
    _import_everything()
    asked = _serve(line)
    from tests.support.killed_cli import main_until_killed
    from tpuctl.cli.main import main

    subprocess.Popen = ForkingPopen  # type: ignore[misc]
    if asked["later_s"]:
        _set_clock(asked["later_s"])
    return _run(partial(main_until_killed, *asked["killed"]) if asked["killed"] else main)


def _serve_gcloud(line: socket.socket, root: str) -> int:
    import importlib

    sys.path.insert(0, f"{root}/lib")
    importlib.import_module("gcloud")  # finds what gcloud brings along
    gcloud_main = importlib.import_module("googlecloudsdk.gcloud_main")
    compute = "generated_clients.apis.compute.v1.compute_v1_client"  # half of what a command takes
    for name in (compute, "api_lib.compute.base_classes", "api_lib.util.waiter", "core.credentials.requests"):
        importlib.import_module(f"googlecloudsdk.{name}")
    gc.freeze()
    _serve(line)
    return _run(gcloud_main.main)


if __name__ == "__main__":
    its_end, what = socket.socket(fileno=int(sys.argv[1])), sys.argv[2]
    _end_with(_serve_tpuctl(its_end) if what == "tpuctl" else _serve_gcloud(its_end, what))
