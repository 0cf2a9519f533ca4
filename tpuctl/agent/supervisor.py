"""`start`: the daemon that runs an attempt, outlives every connection and records the end."""

import os
import time

import join
import quick_json as json
import secret_files
from base import (
    DUMPS,
    KEPT,
    SCHEMA,
    Attempt,
    Refused,
    read_json,
    reserve_end,
    root,
    suppress,
    sync_dir,
    write_end,
    write_json,
)
from contained import is_contained, program
from contents import is_inside
from log_times import LOOK_S, STARTED, STREAMS, LogTimes
from processes import (
    Tree,
    boot_id,
    descendants,
    environment_of,
    is_alive,
    not_started,
    process_stat,
    split_status,
)
from programs import programs, stream_names, variables
from state import look, members
from survivors import MARK, is_holder, mark_of

LEFT_MAX = 40  # of what could not be ended is named, so that the end of an attempt stays small


def start(request, _stdin):
    attempt, fence, argv = Attempt(request), request["fence"], request["argv"]
    if not argv:
        raise Refused("bad-request", "argv is empty")
    attempt.locked()
    attempt.check_fence(fence)
    found = look(attempt)
    if found["state"] == "absent":
        raise Refused(
            "not-prepared", "attempt %s of run %s is not prepared here" % (attempt.number, attempt.run)
        )
    if found["state"] != "prepared":
        environment = environment_of(program(attempt, found))
        return dict(
            {"state": found["state"], "pid": found["pid"], "already": True}, **told(request, environment)
        )
    if request["promised"]:
        from facts_storage import check_promised

        check_promised(request["promised"])
    work = os.path.realpath(attempt.path("work"))
    cwd = os.path.realpath(os.path.join(work, request["cwd"]))
    if not is_inside(cwd, work):
        raise Refused("bad-request", "cwd leaves the work directory: %r" % request["cwd"])
    if os.path.exists(attempt.path("stop.json")):
        raise Refused("stopped", "attempt %s was stopped before it started" % attempt.number)
    environment, container = variables(request), request["container"]
    if request["chips"]:
        from launch import independent

        environment.update(independent(request["chips"]))
    unseen = join.watch(attempt, environment, request["watch_join"], request["check_weights"])
    if unseen:
        say(attempt, unseen)
    prefix = [root(part) for part in request["path_prepend"]]
    environment["PATH"] = os.pathsep.join([*prefix, environment.get("PATH") or os.defpath])
    secrets = {name: environment[name] for name in request["secrets"]}
    begun = programs(request, attempt, argv, environment)
    if request["debug"]:
        from dumps import given

        joined = (request["launch"] or {}).get("per") == "torchrun"
        begun = given(attempt, request["debug"], begun, joined)
    told_of = begun[0][1]
    if container:
        import containers

        begun = containers.contained(request, attempt, begun)
    names = stream_names(request)
    grace, beat = request["grace_s"], request["beat_s"]
    if not launch(attempt, fence, begun, cwd, grace, beat, request["progress"], secrets, names):
        return {"state": "starting", "pid": None, "already": True}
    found = look(attempt)
    return dict({"state": found["state"], "pid": found["pid"], "already": False}, **told(request, told_of))


def told(request, environment):
    """The variables that a program has whose names begin like one of `tell`, without the `secrets`."""
    names, secrets = tuple(request["tell"]), request["secrets"]
    found = {k: v for k, v in environment.items() if k.startswith(names) and k not in secrets}
    if not secrets:
        return {"variables": found}
    from secret_forms import all_forms, masked_text

    patterns = all_forms(environment[name] for name in secrets if name in environment)
    return {"variables": {k: masked_text(v, patterns) for k, v in found.items()}}


def launch(attempt, fence, begun, cwd, grace, beat=0.0, pattern="", secrets=None, names=STREAMS):
    """Begins a prepared attempt, or finds that this was done: of the programs in `begun` each has arguments and
    variables. Returns when the supervisor has written its first status, or died."""
    try:
        marker = os.open(attempt.path(STARTED), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    said = {"schema": SCHEMA, "boot_id": boot_id(), "fence": fence, "streams": list(names)}
    os.write(marker, json.dumps(said).encode())
    os.fsync(marker)
    os.close(marker)
    sync_dir(attempt.dir)
    report = detach(lambda: supervise(attempt, begun, cwd, grace, beat, pattern, secrets))
    os.read(report, 1)
    os.close(report)
    return True


def detach(body):
    """Runs `body(ready)` in a daemon that outlives this process; returns a pipe that ends when it is ready."""
    report, ready = os.pipe()
    child = os.fork()
    if child:
        os.close(ready)
        os.waitpid(child, 0)
        return report
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for handle in (0, 1, 2):
        os.dup2(null, handle)
    keep = os.dup2(ready, 3) if ready != 3 else 3
    os.set_inheritable(keep, False)
    os.closerange(4, 1024)  # this program opens a handful
    os.chdir("/")
    code = 1
    try:
        body()
        code = 0
    finally:
        os._exit(code)


class Record:
    """What the supervisor writes down for whoever looks later."""

    def __init__(self, attempt):
        pid = os.getpid()
        self.path, self.spare = attempt.path("status.json"), attempt.path("end.json")
        self.status = {
            "schema": SCHEMA,
            "boot_id": boot_id(),
            "supervisor": {"pid": pid, "start_time": process_stat(pid)[2]},
            "state": "starting",
        }
        reserve_end(self.spare)
        write_json(self.path, self.status)

    def note(self, **more):
        """A full disk must not end the run: the next write repeats what this one could not."""
        self.status.update(more)
        with suppress(OSError):
            write_json(self.path, self.status)

    def insist(self, **more):
        """The end of a run is written down: on a full disk into the room that was kept for it. Where even that
        fails (a disk that is gone, or copies what it overwrites) it waits for somebody to mend that."""
        self.status.update(more)
        while True:
            with suppress(OSError):
                return write_json(self.path, self.status)
            with suppress(OSError):
                full = "the disk was full at its end: what it wrote last may be missing"
                return write_end(self.spare, dict(self.status, detail=self.status.get("detail") or full))
            time.sleep(1.0)


def supervise(attempt, begun, cwd, grace, beat, pattern="", secrets=None):
    """Runs the programs of one attempt to their end and records it; runs in the daemon, file descriptor 3 tells
    `start`. One that ends wrongly stops the others. Meanwhile the host's heartbeat is published each `beat`
    seconds, 0 for never, steps that `pattern` finds are written down, `secrets` are also files in memory."""
    record, tree, killed = Record(attempt), Tree(), oom_kills()
    more = {MARK: mark_of(record.status["supervisor"])}
    secret_files.sweep()
    masks = begin_masks(attempt, secrets) if secrets else None
    if secrets:
        folder = secret_files.write(more[MARK], secrets)
        if folder is None:
            say(attempt, "no file system in memory takes the secrets: $%s is not set" % secret_files.VARIABLE)
        else:
            more[secret_files.VARIABLE] = folder
    try:
        for argv, env in begun:
            run_main(tree, attempt, argv, dict(env, **more), cwd, len(begun) > 1)
    except OSError as error:
        why = "cannot run %s: %s" % ("a job" if callable(argv) else argv[0], error.strerror)
        end_programs(tree, attempt, 0.0, ())
        say(attempt, why)
        if masks is not None:
            masks.look(last=True)
        secret_files.remove(more[MARK])
        record_unstarted(record, not_started(error), why)
        return
    rows = [described(pid, number if len(begun) > 1 else None) for number, pid in enumerate(tree.mains)]
    first = {name: rows[0][name] for name in ("pid", "start_time")}
    record.note(state="running", started_at=time.time(), processes=rows, **first)
    os.close(3)
    heartbeat, times = begin_heartbeat(beat), LogTimes(attempt)
    looking = [each for each in (times, masks, begin_progress(attempt, pattern), begin_bound(attempt)) if each]
    wait_for_end(tree, attempt, looking)
    stopped = not is_over(tree, attempt) or tree.asked_to_stop
    record.note(stopped=stopped)
    left = end_programs(tree, attempt, grace, [each for each in (times, masks) if each])
    end = outcome(tree, attempt, rows)
    if end["exit_status"] != 0:
        # A host that goes down tells all processes at once, and the program may have been faster than we.
        stopped = stopped or tree.asked_to_stop
    for each in looking:
        each.look(last=True)
    secret_files.remove(more[MARK])
    alive = [[pid, found[2]] for pid, found in ((pid, process_stat(pid)) for pid in sorted(left)) if found]
    record.insist(
        state="exited",
        ended_at=time.time(),
        stopped=stopped,
        oom_kills=oom_kills() - killed,
        left=alive[:LEFT_MAX],
        **end,
    )
    if heartbeat is not None:
        heartbeat.stop()


def end_programs(tree, attempt, grace, looking):
    """Ends what is left of the programs, with their containers; what could not be ended."""
    mains = set(tree.mains) if is_contained(attempt) else None

    def kept():
        for each in looking:
            each.look()
        return kept_processes(attempt, mains)

    left = tree.end_all(lambda: wanted_grace(attempt, grace), kept)
    if mains is not None:
        import containers

        left = containers.end(tree, attempt)
    tree.reap()
    return left


def record_unstarted(record, exit_status, why):
    """The end of what never began."""
    now = time.time()
    record.insist(state="exited", exit_status=exit_status, started_at=now, ended_at=now, detail=why)


def described(pid, number):
    """A process for the record; `process` is its number where there are several."""
    return {"pid": pid, "start_time": (process_stat(pid) or (0, 0, 0))[2], "process": number}


def is_over(tree, attempt):
    """Whether a process ended wrongly, or all ended."""
    return tree.is_over() or first_wrong(members(attempt) or ()) is not None


def outcome(tree, attempt, rows):
    """How the programs ended, for the record: of several the first that ended wrongly speaks for all."""
    for index, (status, at) in tree.ends.items():
        exit_status, number = split_status(status)
        rows[index].update(exit_status=exit_status, signal=number, ended_at=at)
    below = members(attempt)
    wrong = first_wrong(rows if below is None else below)
    last = wrong or next((row for row in rows if row.get("exit_status") != 0), rows[0])
    return {
        "exit_status": last.get("exit_status"),
        "signal": last.get("signal"),
        "process": wrong["process"] if wrong and not tree.asked_to_stop else None,
        "processes": rows if below is None else below,
    }


def first_wrong(rows):
    """The process that ended wrongly before all others; None where none did."""
    wrong = [row for row in rows if row.get("ended_at") is not None and row["exit_status"] != 0]
    return min(wrong, key=lambda row: row["ended_at"]) if wrong else None


def say(attempt, words):
    """A line of ours in the program's log."""
    with suppress(OSError), open(attempt.path("stderr.log"), "ab") as log:
        log.write(("tpuctl: %s\n" % words).encode("utf-8", "surrogateescape"))


def begin_masks(attempt, secrets):
    """Before the program can write. Where its values cannot be written down as hashes, logs are masked all the
    same."""
    from secret_masks import LogMasks, note_hashes

    masks = LogMasks(attempt, secrets.values())
    if masks.patterns:
        with suppress(OSError):
            note_hashes(attempt, secrets.values(), secrets)
    return masks


def oom_kills():
    """How many processes the kernel killed for want of memory since it booted; every user may read that."""
    with suppress(OSError), open("/proc/vmstat") as file:
        for line in file:
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0  # a kernel before 4.13


def begin_heartbeat(interval):
    """Only now, when the command runs and `start` has answered: nobody waits for these imports."""
    if interval <= 0:
        return None
    try:
        from heartbeat import Heartbeat

        return Heartbeat(interval)
    except (ImportError, RuntimeError):
        return None  # the agent's file was removed meanwhile, or there can be no more threads: the run goes on


def begin_progress(attempt, pattern):
    """None where nobody asks for steps, or the expression is none here: the run goes on without."""
    if not pattern:
        return None
    import re

    from progress import Progress

    try:
        return Progress(attempt, pattern)
    except re.error:
        return None


def begin_bound(attempt):
    """None where nothing is dumped."""
    if not os.path.isdir(attempt.path(DUMPS)):
        return None
    from dumps import Bound

    return Bound(attempt)


def kept_processes(attempt, mains=None):
    """Services that an operation began, with their children: they outlive its job. So does what holds a file
    system, which ends by itself, and by the id of the hold only. Of containers `mains` end the rest."""
    if mains is not None:
        return descendants(os.getpid()) - mains
    found = {pid for pid in descendants(os.getpid()) if is_holder(pid)}
    for pid, start in read_json(attempt.path(KEPT)) or []:
        if is_alive(pid, start):
            found |= {pid} | descendants(pid)
    return found


def wanted_grace(attempt, default):
    """The latest stop may be more patient or less than what the start asked for."""
    return float((read_json(attempt.path("stop.json")) or {}).get("grace_s", default))


def run_main(tree, attempt, argv, env, cwd, several):
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    names = ["%d.%s" % (len(tree.mains), stream) if several else stream for stream in STREAMS]
    out, err = (os.open(attempt.path(name + ".log"), flags, 0o600) for name in names)
    try:
        tree.spawn(argv, env, cwd, out, err)
    finally:
        os.close(out)
        os.close(err)


def wait_for_end(tree, attempt, looking):
    """Has each of `looking` look again and again, until a process ended wrongly, all ended, or a stop was asked
    for, by signal or by file."""
    while not is_over(tree, attempt) and not tree.asked_to_stop:
        tree.wait(LOOK_S)
        for each in looking:
            each.look()
        if os.path.exists(attempt.path("stop.json")):
            return
