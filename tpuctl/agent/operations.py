"""What operations of all kinds share, and the one that runs a program."""

import os
import sys

import quick_json as json
from base import KEPT, read_json, write_json
from mask import USER_UMASK
from rooted import as_root, run_program

TAIL = 4000


class Failed(Exception):
    """An operation did not succeed. `permanent`: trying again without a change is in vain. `hint`: what to type
    next, or what for: then `on_host` is a command for this host."""

    def __init__(self, message, permanent=False, hint="", on_host=""):
        super().__init__(message)
        self.permanent = permanent
        self.hint = hint
        self.on_host = on_host

    def told(self):
        return {
            "message": str(self),
            "permanent": self.permanent,
            "hint": self.hint,
            "on_host": self.on_host,
        }


class Job:
    """The job that an operation is part of. `folder`, where it runs, has the files that came with it, and is
    its to write in; `log` is where what it says goes, `say` tells a person what it is at."""

    def __init__(self, folder, log, say):
        self.folder = folder
        self.log = log
        self.say = say

    def keep(self, processes):
        """Lets processes, as [number, start time], outlive this job."""
        path = os.path.join(os.path.dirname(self.folder), KEPT)
        write_json(path, [*(read_json(path) or []), *processes])

    def run(self, argv, root=False, seconds=None, permanent=()):
        """Runs a program to its end and returns what it wrote to standard output; all its output is logged.

        Raises Failed, with what it said last, for any exit status but 0; with one of `permanent` the same again
        is in vain.
        """
        argv = as_root(argv) if root else list(argv)
        begin = os.stat(self.log).st_size
        try:
            ours = os.umask(USER_UMASK)
            try:
                status, said = run_program(argv, seconds)
            finally:
                os.umask(ours)
        except TimeoutError as error:
            raise Failed("%s took longer than %d s" % (argv[0], seconds)) from error
        except OSError as error:
            raise Failed("cannot run %s: %s" % (argv[0], error.strerror), permanent=True) from error
        out = said.decode(errors="replace")
        with open(self.log, "rb") as log:
            log.seek(max(begin, os.fstat(log.fileno()).st_size - TAIL))
            complaint = log.read().decode(errors="replace").strip()
        sys.stderr.write(out)
        sys.stderr.flush()
        if status < 0:
            raise Failed("%s was ended by signal %d" % (argv[0], -status))
        if status != 0:
            last = (complaint or out.strip()).splitlines()[-1:] or ["exit status %d" % status]
            raise Failed(last[0], permanent=status in permanent)
        return out


def run(parameters, job):
    """`argv`; `root`; `seconds`; `permanent`, exit statuses after which the same again is in vain. The result
    is the last line of its output that is a JSON object, if any."""
    again = parameters.get("permanent") or ()
    out = job.run(parameters["argv"], bool(parameters.get("root")), parameters.get("seconds"), again)
    for line in reversed(out.splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    return None
