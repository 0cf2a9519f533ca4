"""The program of an attempt in a container of docker or podman.

The supervisor runs `contain` in the place of the program: it starts a container, waits for its end and passes a
stop on. A container may outlive whoever started it, so the engine knows its attempt by a label, and the folder
of the attempt has a file with its first process (`contained.py`): by these it is found and ended.

It shares the network, the numbers of processes and the files in memory with the host, and has the folder of the
attempt where the host has it. Its variables come through standard input, so that no engine writes them down.
"""

import os
import stat
import time

import engines
from base import Refused, make_dir, read_json, suppress, write_json
from contained import ENGINE, FOLDER, processes, terminate
from facts_chips import chip_devices
from processes import descendants, is_alive, process_stat, signal, split_status
from rooted import as_root, run_program
from secret_files import VARIABLE
from survivors import MARK, mark_of

LABEL, OWNER = "tpuctl.attempt", "tpuctl.supervisor"
LAUNCHER = 'set_all="$(cat)" && eval "$set_all" && unset set_all && exec "$@" </dev/null'
VFIO = "/dev/vfio/vfio"
CAP_SYS_RESOURCE = 24  # linux/capability.h
LOOK_S, ENGINE_S = 0.1, 30.0
ENDS_S = 10.0  # what an engine has to do after its program
SIGNALLED = 128  # exit statuses above it name the signal that ended a program
ENDS_NOTHING = (
    *(signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH),
    *(signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
)  # signal(7)
NO_ENGINE = "neither docker nor podman is installed"


def contained(request, attempt, begun):
    """The programs of `begun`, as functions that run each in a container as `container` of the request says."""
    asked = request["container"]
    engine, why = engines.find(asked.get("engine"))
    if engine is None:
        raise Refused("no-engine", why or NO_ENGINE)
    make_dir(attempt.path(FOLDER))
    write_json(attempt.path(ENGINE), [engine.name, engine.words, engine.version, engine.storage])
    remove_stale(engine)
    given = set(request["env"])
    defaults = set(request["env_defaults"]) - given
    added = set((request["debug"] or {}).get("append") or ()) - given
    options = [*rights(engine, asked), *devices(request), *binds(attempt, asked), *limits()]
    found = []
    for number, (argv, environment) in enumerate(begun):
        words = [*options, asked["image"], "-c", LAUNCHER, "sh", *argv]
        container = Container(engine, attempt, number, words, (defaults, added))
        found.append((container.contain, dict(environment, **own_view(request))))
    return found


def own_view(request):
    """libtpu counts the chips that it sees, which in a container are its own."""
    chips = request["chips"]
    own = chips and not request["container"]["privileged"]
    return {"TPU_VISIBLE_CHIPS": ",".join(map(str, range(len(chips))))} if own else {}


def names(request):
    """The variables that programs ask who they are, where the image does not know the number of this user."""
    import pwd

    if request["container"]["privileged"]:
        return {}
    name = pwd.getpwuid(os.getuid()).pw_name
    return {"HOME": "/tmp", "USER": name, "LOGNAME": name}


def rights(engine, asked):
    """Its program is this user, so that what it writes is this user's; with all rights it is root."""
    if asked["privileged"]:
        return ["--privileged", "--user", "0:0"]
    if engine.is_users:
        return ["--user", "0:0"]
    groups = sorted(set(os.getgroups()) - {os.getgid()})
    return ["--user", "%d:%d" % (os.getuid(), os.getgid()), *("--group-add=%d" % each for each in groups)]


def devices(request):
    """The device files of those chips that the program is to have."""
    if request["container"]["privileged"]:
        return []
    chips = request["chips"]
    mine = [path for number, path in enumerate(chip_devices()) if not chips or number in chips]
    return ["--device=" + each for each in (*mine, *([VFIO] if mine else [])) if is_device(each)]


def is_device(path):
    return os.path.exists(path) and stat.S_ISCHR(os.stat(path).st_mode)


def binds(attempt, asked):
    """What of the host it sees, at the same paths; the first one also by the path without links."""
    return [bind(path) for path in dict.fromkeys([attempt.dir, os.path.realpath(attempt.dir), *asked["binds"]])]


def bind(path):
    return "--mount=type=bind,source=%s,target=%s" % (path, path)


def limits():
    """None on what it locks in memory. Where not even root may raise a limit, it has those of its engine."""
    with open("/proc/self/status") as file:
        bound = int(file.read().partition("CapBnd:")[2].split()[0], 16)
    may_raise = bound >> CAP_SYS_RESOURCE & 1
    return [*(["--ulimit=memlock=-1:-1"] if may_raise else []), "--pids-limit=-1"]


class Container:
    """One container of an attempt; `contain` is what the supervisor runs."""

    def __init__(self, engine, attempt, number, words, images_own):
        self.engine = engine
        self.attempt = attempt
        self.number = number
        self.words = words
        self.images_own = images_own
        self.ours = dict(os.environ)
        self.stopped = False
        self.name = ""  # of its supervisor, too: other users of this host may have a run of that name

    def contain(self):
        """Runs it to its end; returns, or dies, as its program did."""
        theirs = dict(os.environ)
        self.name = "tpuctl-%s-%s-%d-%s" % (self.attempt.run, self.attempt.number, self.number, theirs[MARK])
        os.environ.clear()
        os.environ.update(self.ours)
        signal.signal(signal.SIGTERM, self.stop)
        status = self.wait(self.start(theirs))
        if status > SIGNALLED:
            die(status - SIGNALLED)
        return status

    def start(self, theirs):
        """The engine's client, whose standard input are the variables."""
        hidden = os.memfd_create("variables")
        os.write(hidden, render(theirs, *self.images_own).encode("utf-8", "surrogateescape"))
        os.lseek(hidden, 0, os.SEEK_SET)
        secrets = theirs.get(VARIABLE, "")
        argv = [
            *self.engine.words,
            *("run", "--rm", "--interactive", "--name=" + self.name),
            "--label=%s=%s/%s" % (LABEL, self.attempt.run, self.attempt.number),
            "--label=%s=%s" % (OWNER, theirs[MARK]),
            *("--network=host", "--pid=host", "--ipc=host", "--log-driver=none", "--pull=never"),
            "--stop-timeout=0",  # else podman ends one that is removed with a second TERM, and waits
            *("--workdir=" + os.getcwd(), "--entrypoint=/bin/sh"),
            *([bind(secrets)] if secrets and not secrets.startswith("/dev/shm/") else []),
            *self.words,
        ]
        pythons, actions = [signal.SIGPIPE, signal.SIGXFSZ], [(os.POSIX_SPAWN_DUP2, hidden, 0)]
        return os.posix_spawnp(argv[0], argv, os.environ, file_actions=actions, setsigdef=pythons)

    def wait(self, client):
        """The exit status of the client."""
        known = False
        while True:
            found, status = os.waitpid(client, 0 if known else os.WNOHANG)
            if found:
                exit_status, number = split_status(status)
                return SIGNALLED + number if exit_status is None else exit_status
            known = self.look()
            if not known:
                time.sleep(LOOK_S)

    def look(self):
        """Whether it has a first process, which is written down then."""
        for row in engines.inspected(self.engine, "container", [self.name]):
            pid = int((row.get("State") or {}).get("Pid") or 0)
            found = process_stat(pid) if pid else None
            if found:
                said = {"name": self.name, "pid": pid, "start_time": found[2], "process": self.number}
                write_json(os.path.join(self.attempt.path(FOLDER), "%d.json" % self.number), said)
                if self.stopped:
                    self.stop()
                return True
        return False

    def stop(self, *_):
        self.stopped = True
        terminate(
            self.attempt, [pid for pid, number in processes(self.attempt).items() if number == self.number]
        )


def die(number):
    """Ends this process by the signal that ended the program, as far as a signal ends one."""
    import resource

    if number in ENDS_NOTHING:
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, ValueError):  # such as SIGKILL, and numbers that are none
        signal.signal(number, signal.SIG_DFL)
    with suppress(OSError):
        os.kill(os.getpid(), number)


def render(variables, defaults, added):
    """Lines of a shell that set them, those of `defaults` unless the image has them, those of `added` behind
    what it has. The image's PATH stays."""
    lines = []
    for name, value in variables.items():
        if not (name.isidentifier() and name.isascii()) or name == "PATH":
            continue
        word = "'%s'" % value.replace("'", "'\\''")
        word = '"${%s:+$%s }"' % (name, name) + word if name in added else word
        word += '"${PYTHONPATH:+:$PYTHONPATH}"' if name == "PYTHONPATH" else ""
        unless = '[ "${%s+x}" ] || ' % name if name in defaults else ""
        lines.append("%sexport %s=%s\n" % (unless, name, word))
    return "".join(lines)


def end(tree, attempt):
    """Ends the containers of an attempt whose programs ended or had their time; what could not be ended."""
    remove(attempt)
    until = time.monotonic() + ENDS_S
    while tree.reap() and descendants(os.getpid()) and time.monotonic() < until:
        tree.wait(0.05)
    if descendants(os.getpid()):  # a client that made its container after the first look
        left = tree.end_all(lambda: 0.0)
        remove(attempt)
        return left | set(processes(attempt))
    return set(processes(attempt))


def remove(attempt):
    """Ends the containers of an attempt with all that runs in them. What they wrote as root is this user's."""
    known = read_json(attempt.path(ENGINE))  # another one may have come to work meanwhile
    engine = engines.Engine(*known) if known else engines.find()[0]
    if engine is None:
        return
    owner = mark_of(read_json(attempt.path("status.json"))["supervisor"])
    remove_all(engine, listed(engine, "%s=%s" % (OWNER, owner)))
    if os.geteuid() != 0 and not engine.is_users:
        who = "%d:%d" % (os.getuid(), os.getgid())
        words = ["find", attempt.dir, "-xdev", "-user", "0", "-exec", "chown", "-h", who, "{}", "+"]
        with suppress(OSError, TimeoutError):
            run_program(as_root(words), ENGINE_S, quiet=True)


def remove_stale(engine):
    """Those whose supervisor is gone: a host that went down has left them, as nobody could remove them."""
    for row in engines.inspected(engine, "container", listed(engine, OWNER)):
        owner = ((row.get("Config") or {}).get("Labels") or {}).get(OWNER, "")
        pid, _, start = owner.partition(".")
        if not (pid.isdigit() and start.isdigit() and is_alive(int(pid), int(start))):
            remove_all(engine, [row["Id"]])


def listed(engine, label):
    words = [*engine.words, "ps", "--all", "--quiet", "--no-trunc", "--filter", "label=" + label]
    status, said = engines.said_by(words, ENGINE_S)
    return [line for line in said.split() if len(line) == 64] if status == 0 else []


def remove_all(engine, found):
    if found:
        engines.said_by([*engine.words, "rm", "--force", *found], ENGINE_S)
