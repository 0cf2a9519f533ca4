"""Counts what is compiled in a process of a run: by JAX by function, and by the shapes of its arguments.

It is loaded by `join_hook.py` when the program imports JAX, and wraps the one function through which each
program comes to the compiler. So a step costs nothing, and a compile about a millisecond, for two small files.
PyTorch/XLA compiles where Python does not see it, and counts that itself, as it does operations that it runs on
the CPU: a thread reads its counters now and then. What is known is in a file of this process, `PID.compiles`,
which is bounded however much is compiled.
"""

import json
import os
import sys
import threading
import time
from contextlib import suppress

FOLDER = "TPUCTL_JOIN"  # as in `join_hook.py`
PROGRESS = "progress.json"  # of the supervisor, in the folder above that one
FUNCTIONS_MAX = 64  # what others compile is a number
SHAPES_MAX = 16  # of a function
AGAIN_MAX = 8  # shapes that are named of those that came after the first step
POSITIONS_MAX = 3  # arguments in which programs of a function differ, that are shown
TEXT_MAX = 80
LAMBDA = "<lambda>"
WRITE_S = 1.0  # operations of JAX, of which there may be hundreds, are not written down one by one
LOOK_S = 5.0  # between two looks at the counters of PyTorch/XLA
GRAPHS = "PyTorch/XLA"  # all that it compiles, for which it has no names
ON_CPU = "aten::"  # how its counters of operations begin that it does not compile
EVENTS = {"cache_hits": "loaded", "compile_requests_use_cache": "asked"}


def hook(module, _note, load):
    """Has `module`, just imported, tell what it compiles."""
    HOOKS[module.__name__](module, load)


def hook_compiler(module, _load):
    compiled = module.compile_or_get_cached

    def compile_and_count(*arguments, **named):
        begun = None
        with suppress(Exception):  # a release that is made differently must go on working
            begun = begin(named["computation"] if "computation" in named else arguments[1])
        done = False
        try:
            result = compiled(*arguments, **named)
            done = True
            return result
        finally:
            with suppress(Exception):
                end(begun, done)

    compile_and_count.__wrapped__ = compiled  # type: ignore[attr-defined]
    module.compile_or_get_cached = compile_and_count
    sys.modules["jax._src.traceback_util"].register_exclusion(__file__)  # it leaves our frame out of its errors


def hook_monitoring(module, _load):
    module.register_event_listener(count_cached)


def hook_counters(module, load):
    import atexit

    counters = Counters(module)
    # Not in forks, such as those that load data: another thread may have held the lock of its counters.
    load("tpuctl_trace_hook").begin_thread(counters.run, "tpuctl-compiles")
    atexit.register(counters.end)


HOOKS = {
    "jax._src.compiler": hook_compiler,
    "jax._src.monitoring": hook_monitoring,
    "_XLAC": hook_counters,
}


class Counts:
    """Of one process. A fork has its own, with a lock that nobody holds."""

    def __init__(self):
        self.pid = os.getpid()
        self.lock = threading.RLock()
        self.functions = {}
        self.total = {"asked": 0, "loaded": 0, "operations": 0, "operations_s": 0.0, "left_out": 0}
        self.on_cpu = {}  # operations of PyTorch/XLA with how often
        self.now = []  # what is being compiled: of each thread at most one
        self.written = 0.0


counts = Counts()


def mine():
    global counts
    if counts.pid != os.getpid():
        counts = Counts()
    return counts


def count_cached(event, **_):
    """Of JAX's own events those of its compile cache: a program that was asked for, and one that was there."""
    name = EVENTS.get(event.rpartition("/")[2])
    if name is not None:
        with suppress(Exception):
            # Programs are asked for also where there is no cache.
            mine().total[name] += bool(sys.modules["jax"].config.jax_compilation_cache_dir)


class Function:
    """What was compiled of one function of the program."""

    def __init__(self, name, place):
        self.name, self.place = name, place
        self.times, self.seconds = 0, 0.0
        self.first_at = self.last_at = 0.0
        self.first: tuple = ()
        self.shapes = {}  # by what tells them apart: [where it differs from the first, ordinal]
        self.more = 0  # programs whose shapes are not kept
        self.again: dict = {"times": 0, "step": None, "seconds": 0.0, "ordinals": []}
        self.json = ""  # of `told`; empty where it has to be made anew

    def add(self, types, placed, at, seconds, step):
        self.json = ""
        key, ordinal = hash((types, placed)), None
        if not self.times:
            self.first, self.first_at = types, at
        if key in self.shapes:
            ordinal = self.shapes[key][1]
        elif len(self.shapes) < SHAPES_MAX:
            ordinal = len(self.shapes)
            self.shapes[key] = [self.difference(types), ordinal, hash(types)]
        else:
            self.more += 1
        if self.times and step is not None:
            again = self.again
            again["step"] = step if not again["times"] else again["step"]
            again["times"] += 1
            again["seconds"] += seconds
            if ordinal is not None and ordinal not in again["ordinals"]:
                again["ordinals"].append(ordinal)
        self.times, self.seconds, self.last_at = self.times + 1, self.seconds + seconds, at

    def difference(self, types):
        """By position the types that differ from those of the first program; None with another number."""
        if len(self.first) != len(types):
            return None
        return {i: now for i, (then, now) in enumerate(zip(self.first, types)) if then != now}

    def texts(self):
        """The shapes in words, by ordinal: of those arguments in which programs of this function differ."""
        found = [row[0] for row in self.shapes.values()]
        positions = sorted({i for row in found if row for i in row})[:POSITIONS_MAX]
        rows = [[(row or {}).get(i, self.first[i]) for i in positions] for row in found]
        kinds = [len({parse_type(row[at])[1] for row in rows}) for at in range(len(positions))]
        told, seen = [], set()
        for (differs, _, types), row in zip(self.shapes.values(), rows):
            words = [render_type(each, kinds[at] > 1) for at, each in enumerate(row)]
            text = " ".join(dict.fromkeys(words)) if differs is not None else "another number of arguments"
            told.append((text + (" placed otherwise" if types in seen else "")).strip()[:TEXT_MAX])
            seen.add(types)
        return told

    def render(self):
        if not self.json:
            self.json = json.dumps(self.told())
        return self.json

    def told(self):
        again = dict(self.again)
        texts = self.texts()
        again["shapes"] = [texts[ordinal] for ordinal in again.pop("ordinals")[:AGAIN_MAX]]
        return {
            "name": self.name,
            "place": self.place,
            "times": self.times,
            "seconds": round(self.seconds, 3),
            "first_at": self.first_at,
            "last_at": self.last_at,
            "shapes": texts,
            "more": self.more,
            "again": again,
        }


class Counters:
    """Those of PyTorch/XLA in this process."""

    def __init__(self, module):
        self.module, self.pid, self.ended = module, os.getpid(), threading.Event()
        self.compiled = (0, 0.0)

    def run(self):
        while not self.ended.wait(LOOK_S):
            with suppress(Exception):
                self.look()

    def end(self):
        if self.pid == os.getpid() and not self.ended.is_set():
            self.ended.set()
            with suppress(Exception):
                self.look()

    def look(self):
        names = [name for name in self.module._xla_counter_names() if name.startswith(ON_CPU)]
        rows = {name[:TEXT_MAX]: self.module._xla_counter_value(name) or 0 for name in names}
        on_cpu = dict(sorted(rows.items(), key=lambda row: -row[1])[:FUNCTIONS_MAX])
        times, total_ns = (self.module._xla_metric_data("CompileTime") or (0, 0.0))[:2]
        state, before = mine(), self.compiled
        if times == before[0] and on_cpu == state.on_cpu:
            return
        with state.lock:
            new = times - before[0] if times >= before[0] else times  # the program may have set them to 0
            spent_ns = total_ns - before[1] if times >= before[0] else total_ns
            self.compiled, state.on_cpu = (times, total_ns), on_cpu
            for _ in range(new):
                begun = {"name": GRAPHS, "place": "", "types": (), "placed": 0}
                add(state, begun, spent_ns / new / 1e9)
            write(state)


def parse_type(text):
    """`tensor<8x4xf32>` as its shape and its kind."""
    inner = text[7:-1] if text.startswith("tensor<") else text
    parts = inner.split("x")
    sizes = [part for part in parts[:-1] if part.isdigit() or part == "?"]
    return sizes, "x".join(parts[len(sizes) :])


def render_type(text, with_kind):
    sizes, kind = parse_type(text)
    shape = "(%s%s)" % (",".join(sizes), "," if len(sizes) == 1 else "")
    return kind + shape if with_kind else shape


def begin(computation):
    """What is to be compiled, as it is kept until that is done."""
    name = computation.operation.attributes["sym_name"].value
    name = name.partition("_")[2] if name.startswith(("jit_", "pmap_")) else name
    said, place, own = origin()
    name = said or (LAMBDA if name in ("_lambda", "_lambda_") else name)
    state, now = mine(), time.time()
    begun = {"name": name[:TEXT_MAX], "place": place, "own": own, "at": now, "clock": time.monotonic()}
    if own:
        begun["types"], begun["placed"] = arguments_of(computation)
        with state.lock:
            state.now.append(begun)
            write(state)
    return begun


def end(begun, done):
    if begun is None:
        return
    state, seconds = mine(), time.monotonic() - begun["clock"]
    with state.lock:
        if begun in state.now:
            state.now.remove(begun)
        if done and not begun["own"]:
            state.total["operations"] += 1
            state.total["operations_s"] = round(state.total["operations_s"] + seconds, 3)
        elif done:
            add(state, begun, seconds)
        if begun["own"] or time.monotonic() - state.written >= WRITE_S:
            write(state)


def add(state, begun, seconds):
    key = (begun["name"], begun["place"])
    if not begun["place"] and key[0] != LAMBDA:  # compiled ahead of time: by its name alone
        key = next((known for known in state.functions if known[0] == begun["name"]), key)
    if key not in state.functions and len(state.functions) >= FUNCTIONS_MAX:
        state.total["left_out"] += 1
        return
    function = state.functions.setdefault(key, Function(*key))
    function.add(begun["types"], begun["placed"], time.time(), seconds, step_now())


def step_now():
    """The step that the program's output has told; None before the first, or where nobody looks for steps."""
    path = os.path.join(os.path.dirname(os.environ[FOLDER]), PROGRESS)
    with suppress(OSError, ValueError, KeyError, TypeError), open(path) as file:
        return float(json.load(file)["step"])
    return None


def arguments_of(computation):
    """The types of the arguments of a program, and how they lie on devices and in memory."""
    for operation in computation.body.operations:
        attributes = operation.attributes
        if "function_type" in attributes and str(attributes["sym_name"]) == '"main"':
            types = tuple(sys.intern(str(each)) for each in attributes["function_type"].value.inputs)
            return types, hash(str(attributes["arg_attrs"])) if "arg_attrs" in attributes else 0
    return (), 0


def origin():
    """(name, place, own) of the function whose call is compiled: not its own are operations of JAX, which it
    compiles one by one outside of `jit`. Of what is compiled ahead of time nothing is known."""
    frame = sys._getframe().f_back
    while frame is not None and frame.f_code.co_name != "cache_miss":
        frame = frame.f_back
    if frame is None:
        return "", "", True
    kept = frame.f_locals
    said = getattr(kept.get("jit_info"), "fun_sourceinfo", None) or ""
    name, _, place = said.rpartition(" at ") if " at " in said else ("", "", "")
    if not name or is_of_jax(place):
        code = code_of(kept.get("fun"))
        if code is not None and not (name and is_of_jax(code.co_filename)):
            name, place = code.co_name, "%s:%d" % (code.co_filename, code.co_firstlineno)
    folder, _, file = place.rpartition(os.sep)
    return name, file, not (folder and is_of_jax(place))


def is_of_jax(place):
    return place.startswith(os.path.dirname(str(sys.modules["jax"].__file__)) + os.sep)


def code_of(function):
    """The code of a function of the program, also inside of what `pmap` makes of it; None where it has none."""
    for _ in range(8):
        function = getattr(function, "__wrapped__", None) or getattr(function, "func", None) or function
        code = getattr(function, "__code__", None)
        if code is not None and not is_of_jax(code.co_filename):
            return code
        inner = dict(zip(code.co_freevars, function.__closure__ or ())) if code is not None else {}
        function = inner["fun"].cell_contents if "fun" in inner else getattr(function, "f", None)
        if function is None:
            return code
    return None


def write(state):
    """Writes down how it stands. A full disk is no reason to disturb the program."""
    process = (
        os.environ.get("TPUCTL_LOCAL_RANK") if os.environ.get("TPUCTL_LOCAL_WORLD_SIZE", "1") != "1" else None
    )
    oldest = min(state.now, key=lambda each: each["at"], default=None)
    told = dict(state.total, pid=state.pid, process=None if process is None else int(process))
    told["on_cpu"] = state.on_cpu
    told["now"] = None if oldest is None else {"name": oldest["name"], "since": oldest["at"]}
    path = os.path.join(os.environ[FOLDER], "%d.compiles" % state.pid)
    with suppress(OSError):
        with open(path + ".new", "w") as file:
            functions = ", ".join(function.render() for function in state.functions.values())
            file.write('{"functions": [%s], %s' % (functions, json.dumps(told)[1:]))
        os.rename(path + ".new", path)
        state.written = time.monotonic()
