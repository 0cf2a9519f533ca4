"""Traces a run's program when it is asked to: `tpuctl trace`. It is loaded by `join_hook.py`, its neighbour.

A thread waits in a read of a named pipe, `PID.trace` in the folder of the hook, until `traces.py` writes what
is asked into it. Until then it costs nothing, and a pipe without a reader says that its process is gone. It
calls the start_trace and stop_trace of the framework that has the devices: no server, no port. The program
comes first: a trace of its own ends ours, its end waits until what there is has been written, and nothing is
raised into it.
"""

import json
import os
import select
import shutil
import sys
import threading
import time
from contextlib import suppress

FOLDER = "TPUCTL_JOIN"  # as in `join_hook.py`
PIPE = ".trace"
OUT = "out"  # of the folder of a session: what is fetched
SUFFIX = ".xplane.pb"
EXPORT_S = 30.0  # the end of a program waits for so long
KEPT_S = 600.0  # after that, what nobody fetched is removed


class Tracer:
    """Of one process. A fork of it has no such thread, and is not traced."""

    def __init__(self, folder):
        import atexit

        self.pid = os.getpid()
        path = os.path.join(folder, "%d%s" % (self.pid, PIPE))
        with suppress(FileExistsError):  # of an earlier process of that number
            os.mkfifo(path, 0o600)
        self.handle = os.open(path, os.O_RDWR)  # with a writer of its own it never reads an end of file
        self.rest = b""
        self.said = {}
        self.dropped = False
        self.starting = threading.Lock()
        self.idle = threading.Event()
        self.idle.set()
        threading.Thread(target=self.listen, name="tpuctl-trace", daemon=True).start()
        atexit.register(self.cut, "the program ended", EXPORT_S)

    def cut(self, why, limit=None):
        """Ends a trace of ours that is under way, and waits until it is written."""
        if self.pid == os.getpid() and not self.idle.is_set():
            os.write(self.handle, (json.dumps({"cut": why}) + "\n").encode())
            self.idle.wait(limit)

    def guard(self, module):
        """Has a trace that the program itself begins end ours before."""
        start = module.start_trace

        def start_trace(*arguments, **named):
            while True:
                with self.starting:
                    if self.idle.is_set() or self.pid != os.getpid():
                        return start(*arguments, **named)
                self.cut("the program began a trace of its own")

        start_trace.__dict__.update(getattr(start, "__dict__", {}), __wrapped__=start)
        start_trace.__name__, start_trace.__doc__ = "start_trace", start.__doc__
        module.start_trace = start_trace

    def listen(self):
        until = None
        done = ""
        while True:
            word = self.read(until)
            if word is None or word.get("end", "") == done or "folder" in word:
                shutil.rmtree(done, ignore_errors=True)
                until = None
                done = ""
            if word is not None and "folder" in word:
                done = self.obey(word)
                until = time.monotonic() + KEPT_S

    def read(self, until):
        """The next request; None when it is `until`."""
        while b"\n" not in self.rest:
            left = None if until is None else max(0.0, until - time.monotonic())
            if not select.select([self.handle], [], [], left)[0]:
                return None
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
            word = self.read(until)
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
    for top, _, names in os.walk(own):
        for each in names:
            if each.endswith(SUFFIX):
                target = os.path.join(folder, OUT, name + SUFFIX)
                os.makedirs(os.path.dirname(target), exist_ok=True)
                os.rename(os.path.join(top, each), target)
                shutil.rmtree(own, ignore_errors=True)
                return os.path.getsize(target)
    raise OSError("it wrote no trace")


tracers: dict = {}


def hook(module, _note, _load):
    """Has this process listen once `module` was imported, and guards its traces if it has them."""
    pid = os.getpid()
    if pid not in tracers:
        tracers[pid] = Tracer(os.environ[FOLDER])
    if hasattr(module, "start_trace"):
        tracers[pid].guard(module)
