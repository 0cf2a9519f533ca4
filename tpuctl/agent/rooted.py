"""Other programs of the host, those that need root through sudo, where that asks nothing."""

import os
import select
import sys
import time

import quick_json as json
from processes import signal, signal_all, split_status

COMMAND_S = 5.0
LOOK_S = 0.002
KILL_S = 1.0
ROOT_PART = os.path.join(os.path.dirname(os.path.abspath(__file__)), "root_part.py")
NO_ROOT = "this needs root, and the login user has none: `sudo -n true` fails here"
NO_ROOT_HINT = "with OS Login: roles/compute.osAdminLogin; on the simulator: tpuctl sim up --hosts isolated"


def how_root():
    """`root`, `sudo`, or nothing."""
    if os.geteuid() == 0:
        return "root"
    return "sudo" if output_of(["sudo", "-n", "true"]) is not None else ""


def as_root(argv):
    return list(argv) if os.geteuid() == 0 else ["sudo", "-n", *argv]


def output_of(argv, any_status=False, seconds=COMMAND_S):
    """What a program says; None where it is missing, fails or takes too long."""
    try:
        status, said = run_program(argv, seconds, quiet=True)
    except OSError:
        return None
    return said.decode(errors="replace") if any_status or status == 0 else None


def run_program(argv, seconds=None, quiet=False):
    """(exit status, or minus the signal that ended it; what it wrote to standard output) of a program that
    reads nothing and, if `quiet`, says nothing more. OSError when it cannot be started, TimeoutError when it
    took longer, after it was killed. Not by the module for this, whose import takes longer than most programs.
    """
    told, tell = os.pipe()
    files = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, tell, 1)]
    if quiet:
        files.append((os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0))
    pythons = [signal.SIGPIPE, signal.SIGXFSZ]  # which Python ignores, and other programs expect
    try:
        pid = os.posix_spawnp(argv[0], argv, os.environ, file_actions=files, setsigdef=pythons)
    except BaseException:
        os.close(told)
        raise
    finally:
        os.close(tell)
    until = None if seconds is None else time.monotonic() + seconds
    said, status = [], None
    try:
        while select.select([told], [], [], until and max(0.0, until - time.monotonic()))[0]:
            said.append(os.read(told, 1 << 16))
            if not said[-1]:
                status = wait_for(pid, until)
                break
    finally:
        os.close(told)
        if status is None:
            signal_all([pid], signal.SIGKILL)  # which a sudo does not take
            wait_for(pid, time.monotonic() + KILL_S)
    if status is None:
        raise TimeoutError("%s took longer than %d s" % (argv[0], seconds))
    exit_status, number = split_status(status)
    return (exit_status if number is None else -number), b"".join(said)


def wait_for(pid, until):
    """The wait status of a child, None where it did not end in time."""
    while until is not None:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        if time.monotonic() > until:
            return None
        time.sleep(LOOK_S)
    return os.waitpid(pid, 0)[1]


def run_root(job, module, request, seconds):
    """What `main(request)` of a module of the agent answers as root, in a process of its own that lives
    `seconds` at most. Raises Failed where it fails, takes longer or may not be root. `job`, if any, is whose
    umask and log it has: what it says on standard error goes there."""
    from operations import Failed

    if not how_root():
        raise Failed(NO_ROOT, permanent=True, hint=NO_ROOT_HINT)
    # -B: files that root has compiled could not be replaced by whom this folder belongs to.
    words = [sys.executable, "-I", "-S", "-B", ROOT_PART, module, json.dumps(request), str(int(seconds))]
    if job is not None:
        said = job.run(words, root=True, seconds=seconds + KILL_S)
    else:
        try:
            _, out = run_program(as_root(words), seconds + KILL_S)
        except (OSError, TimeoutError) as error:
            raise Failed("%s as root: %s" % (module, error)) from error
        said = out.decode(errors="replace")
    try:
        found = json.loads(said.strip().splitlines()[-1])
    except (IndexError, ValueError) as error:
        raise Failed("%s as root ended without an answer" % module) from error
    if "failed" in found:
        raise Failed(**found["failed"])
    return found["answer"]
