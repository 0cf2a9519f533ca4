"""Traces a run's program when it is asked to: `tpuctl trace`. It is loaded by `join_hook.py`, its neighbour.

Once devices are taken, a thread waits at a named pipe, `PID.trace` in the folder of the hook, until
`traces.py` writes what is asked into it. Until then it costs nothing, and a pipe without a reader says that
its process is gone. It calls the start_trace and stop_trace of the framework that has the devices: no server,
no port. The program comes first: a trace of its own ends ours, its end waits until what there is has been
written, and nothing is raised into it.
"""

import fcntl
import json
import os
import select
import shutil
import signal
import stat
import sys
import threading
import time
from contextlib import suppress

FOLDER = "TPUCTL_JOIN"  # as in `join_hook.py`
PIPE = ".trace"
OUT = "out"  # of the folder of a session: what is fetched
SUFFIX = ".xplane.pb"
EXPORT_S = 30.0  # the end of a program, or a trace of its own, waits for so long
KEPT_S = 600.0  # so long after anybody looked, what nobody fetched is removed
HIGH = 200  # programs close descriptors that are low


class Tracer:
    """Of one process. A fork of it has no such thread, and is not traced."""

    def __init__(self, folder):
        import atexit

        self.pid = os.getpid()
        self.path = os.path.join(folder, "%d%s" % (self.pid, PIPE))
        with suppress(FileExistsError):  # of an earlier process of that number
            os.mkfifo(self.path, 0o600)
        self.handle = open_high(self.path)
        self.pipe = os.fstat(self.handle)
        self.rest = b""
        self.said = {}
        self.dropped = False
        self.starting = threading.Lock()
        self.idle = threading.Event()
        self.idle.set()
        begin_thread(self.listen, "tpuctl-trace")
        atexit.register(self.leave)

    def leave(self):
        if self.pid == os.getpid():
            self.cut("the program ended")
            with suppress(OSError):
                os.remove(self.path)

    def cut(self, why):
        """Ends a trace of ours that is under way, and waits until it is written."""
        if not self.idle.is_set():
            if self.has_pipe():
                os.write(self.handle, (json.dumps({"cut": why}) + "\n").encode())
            self.idle.wait(EXPORT_S)

    def has_pipe(self):
        """Whether the descriptor is still ours: a program may have closed it, and reused its number."""
        try:
            found = os.fstat(self.handle)
        except OSError:
            return False
        return stat.S_ISFIFO(found.st_mode) and os.path.samestat(found, self.pipe)

    def listen(self):
        with suppress(Exception):  # a program without its pipe is not traced, and not disturbed
            until, done = None, ""
            while True:
                word = self.read(until)
                if word is not None and "folder" in word:
                    done = self.obey(word)
                    until = time.monotonic() + KEPT_S
                elif word is None and time.time() < looked_at(done) + KEPT_S:
                    until = time.monotonic() + looked_at(done) + KEPT_S - time.time()
                elif word is None or word.get("end", "") == done:
                    shutil.rmtree(done, ignore_errors=True)
                    until, done = None, ""

    def read(self, until):
        """The next request; None when it is `until`. Raises OSError where the program closed the pipe."""
        while b"\n" not in self.rest:
            waiting = select.poll()
            waiting.register(self.handle, select.POLLIN)
            if not waiting.poll(None if until is None else max(0.0, until - time.monotonic()) * 1000):
                return None
            if not self.has_pipe():
                raise OSError("the pipe was closed")
            self.rest += os.read(self.handle, select.PIPE_BUF)
        line, _, self.rest = self.rest.partition(b"\n")
        try:
            return json.loads(line.decode())
        except ValueError:
            return {}  # nothing of ours

    def obey(self, request):
        """Traces as a request has it; returns its folder, which stays until somebody came for it."""
        folder = request["folder"]
        own = os.path.join(folder, str(self.pid))
        self.said, self.dropped = {"pid": self.pid}, False
        try:
            self.trace(request, folder, own)
        except Exception as error:
            shutil.rmtree(own, ignore_errors=True)  # first: the disk may be full
            text = str(error) or type(error).__name__
            self.note(folder, state="busy" if "already" in text.lower() else "failed", error=text[:500])
        finally:
            self.idle.set()
        if self.dropped:
            shutil.rmtree(folder, ignore_errors=True)
        return folder

    def trace(self, request, folder, own):
        module, why = find_profiler()
        if module is None:
            self.note(folder, state="idle", error=why)
            return
        self.note(folder, state="waiting", framework=module.__name__.partition(".")[0])
        begin = time.monotonic() + request["at"] - time.time()
        cut = self.pause(folder, begin)
        if cut is not None:
            self.note(folder, state="failed", error=cut)
            return
        with self.starting:
            start(module, own, request)
            self.idle.clear()
        self.note(folder, state="tracing", started=time.time())
        cut = self.pause(folder, time.monotonic() + request["seconds"])
        self.note(folder, state="writing", ended=time.time(), cut=cut or "")
        stop(module)
        self.note(folder, state="done", bytes=0 if self.dropped else keep(folder, own))

    def pause(self, folder, until):
        """Why a trace was cut off, or None when it is `until`."""
        while True:
            try:
                word = self.read(until)
            except OSError:
                time.sleep(max(0.0, until - time.monotonic()))
                word = None
            if word is None:
                return None
            if word.get("end") == folder:
                self.dropped = True
                return "nobody wants it any more"
            if "cut" in word:
                return word["cut"]
            if "folder" in word:
                write(word["folder"], {"pid": self.pid, "state": "busy", "error": "another trace is under way"})

    def note(self, folder, **more):
        self.said.update(more)
        write(folder, self.said)


def begin_thread(work, name):
    """It takes no signals: the kernel would give it those that a program blocks, to fetch them itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        threading.Thread(target=work, name=name, daemon=True).start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def open_high(path):
    handle = os.open(path, os.O_RDWR)  # with a writer of its own it never reads an end of file
    with suppress(OSError):  # so many are not allowed
        high = fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, HIGH)
        os.close(handle)
        return high
    return handle


def looked_at(folder):
    """When anybody last did, see `stand` of `traces.py`."""
    with suppress(OSError):
        return os.stat(folder).st_mtime
    return 0.0


def write(folder, said):
    """How the trace of this process stands. A full disk, or a folder that was removed, is told by silence."""
    path = os.path.join(folder, "%d.json" % said["pid"])
    with suppress(OSError):
        with open(path + ".new", "w") as file:
            json.dump(said, file)
        os.rename(path + ".new", path)


def find_profiler():
    """The module that traces the framework which has the devices, or None and why not: to trace one that has
    not taken them would take them."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is not None and bridge.backends_are_initialized():
        return sys.modules["jax._src.profiler"], ""
    if "torch_xla" in sys.modules and has_runtime(sys.modules["torch_xla"]):
        from importlib import import_module

        module = import_module("torch_xla.debug.profiler")
        return (module, "") if hasattr(module, "start_trace") else (None, "its torch_xla cannot: 2.9 can")
    return None, "it has not taken its devices yet"


def has_runtime(package):
    return getattr(package._XLAC, "_xla_runtime_is_initialized", lambda: True)()


def start(module, folder, request):
    """Without a word of the program's calls in Python unless these are asked for: they slow it down."""
    named = {}
    if hasattr(module, "ProfileOptions"):
        options = named["profiler_options"] = module.ProfileOptions()
        wanted = {"python_tracer_level": request["python"], "raise_error_on_start_failure": True}
        for name, value in wanted.items():
            if hasattr(options, name):
                setattr(options, name, value)
    function = module.start_trace
    getattr(function, "__wrapped__", function)(folder, **named)


def stop(module):
    try:
        module.stop_trace()
    except Exception:
        with suppress(Exception):  # else no trace could ever begin again
            module._profile_state.reset()
        raise


def keep(folder, own):
    """Puts what was written where it is fetched from; returns its size."""
    name = str(os.getpid())
    if os.environ.get("TPUCTL_LOCAL_WORLD_SIZE", "1") != "1":
        name = os.environ["TPUCTL_LOCAL_RANK"]
    os.makedirs(os.path.join(folder, OUT), exist_ok=True)
    for top, _, names in os.walk(own):
        for each in names:
            if each.endswith(SUFFIX):
                target = os.path.join(folder, OUT, name + SUFFIX)
                try:
                    os.close(os.open(target, os.O_CREAT | os.O_EXCL))
                except FileExistsError:  # of a process that started this one, with the same variables
                    target = os.path.join(folder, OUT, "%s.%d%s" % (name, os.getpid(), SUFFIX))
                os.rename(os.path.join(top, each), target)
                shutil.rmtree(own, ignore_errors=True)
                return os.path.getsize(target)
    raise OSError("it wrote no trace")


tracers: dict = {}


def hook(module, _note, _load):
    """Has this process listen once its devices are taken, and guards the traces of the program."""
    if module.__name__.endswith("profiler"):
        guard(module)
    elif os.getpid() not in tracers:
        tracers[os.getpid()] = Tracer(os.environ[FOLDER])


def guard(module):
    """Has a trace that the program itself begins end ours before."""
    start = module.start_trace

    def start_trace(*arguments, **named):
        tracer, until = tracers.get(os.getpid()), time.monotonic() + EXPORT_S
        if tracer is None:
            return start(*arguments, **named)
        while True:
            with tracer.starting:
                if tracer.idle.is_set() or time.monotonic() >= until:
                    return start(*arguments, **named)
            tracer.cut("the program began a trace of its own")

    start_trace.__dict__.update(getattr(start, "__dict__", {}), __wrapped__=start)
    start_trace.__name__, start_trace.__doc__ = "start_trace", start.__doc__
    module.start_trace = start_trace
