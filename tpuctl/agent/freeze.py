"""A root part: file systems held still, by a process that lets them go again by itself.

A hold is a lease. The process that freezes (ioctl_fifreeze(2)) is a session of its own, keeps an open handle of
each file system, and thaws when it is told to by the id of the hold, when its lease is not renewed in time, or
when it was held for LONGEST_S. No end of who asked, and no lost connection, leaves a file system frozen for
longer. A file system is named by the device that it is on, and is found wherever it is mounted, in any mount
namespace: its label and its type do not matter.

Refused is what would stop those who let it go again: the file systems that the system, the login user and this
program itself live on. What somebody else froze is refused before anything is written to it.
"""

import errno
import fcntl
import os
import sys
import time
from contextlib import suppress

import quick_json as json
from facts_storage import parse_mount
from processes import is_alive, process_stat, signal
from survivors import HOLDER

FOLDER = "/run/tpuctl-holds"
LEASE_S, LONGEST_S = 120.0, 600.0
ANSWER_S = 60.0
"""A freeze first writes what programs have written, which takes as long as it takes."""
LOOK_S, FORGET_S = 0.1, 3600.0
FREEZE, THAW = 0xC0045877, 0xC0045878  # FIFREEZE and FITHAW of linux/fs.h
SYSTEM = ("/", "/usr", "/etc", "/home", "/run", "/tmp", "/var")
START = "import sys; sys.path.insert(0, sys.argv[1]); import freeze; freeze.hold_on(sys.argv[3:])"


def main(request):
    """`do`: `hold` (`devices` as major:minor, `seconds` of the lease, `word`: a name and a text that is written
    to the top of each file system before, `homes`: more that must not stand still, `how`: `freeze` or
    `unmount`), `renew` or `release`; of the hold `id`."""
    name = request["id"]
    if not name or "/" in name or name.startswith("."):
        raise ValueError("no id of a hold: %r" % name)
    return {"hold": hold, "renew": renew, "release": release}[request["do"]](request)


def hold(request):
    """{"state": "held"}, or "refused" with `why` (and `by`, the other hold whose lease ends in `seconds`), or
    "nowhere": no file system of these devices is mounted. Asked again, the same hold answers the same."""
    os.makedirs(FOLDER, mode=0o700, exist_ok=True)
    forget()
    name = request["id"]
    if note_of(name) is None:
        devices, how = request["devices"], request.get("how", "freeze")
        found = [mounts_of(device) for device in devices]
        if not any(found):
            return {"state": "nowhere"}
        stopped = needed(devices, request.get("homes") or ()) if how == "freeze" else ""
        if stopped:
            return {"state": "refused", "why": "%s is on it, and would stand still, too" % stopped}
        other = holder_of(devices)
        if other is not None:
            left = max(0.0, lease_of(other) - time.monotonic())
            why = "it is held already, for another copy"
            return {"state": "refused", "why": why, "by": other["id"], "seconds": left}
        seconds = min(float(request.get("seconds") or LEASE_S), LONGEST_S)
        write_lease(name, time.monotonic() + seconds)
        begin(request)
    until = time.monotonic() + ANSWER_S
    while time.monotonic() < until:
        note = note_of(name)
        if note is not None:
            return note
        time.sleep(LOOK_S)
    ask_end(name)  # else it would begin when nobody reckons with it
    return {"state": "refused", "why": "it could not be frozen within %d s" % ANSWER_S}


def renew(request):
    """Whether the hold stands, and then for another lease from now on."""
    note = note_of(request["id"])
    stands = note is not None and note["state"] == "held" and is_alive(note["pid"], note["start"])
    if stands:
        write_lease(request["id"], time.monotonic() + min(float(request.get("seconds") or LEASE_S), LONGEST_S))
    return {"state": "held" if stands else "ended"}


def release(request):
    """Ends the hold of this id. `stood`: it had not ended before."""
    name = request["id"]
    ask_end(name)
    until = time.monotonic() + ANSWER_S
    while time.monotonic() < until:
        note = note_of(name)
        if note is None or note["state"] != "held":
            return {"stood": note is not None and note.get("by") == "release"}
        if not is_alive(note["pid"], note["start"]):  # somebody killed it: nobody else would thaw
            for each in note["files"]:
                thaw_anywhere(each)
            write_note(name, dict(note, state="ended", by="killed"))
            return {"stood": note["how"] == "frozen"}  # without a holder anybody may mount it again
        time.sleep(LOOK_S)
    return {"stood": False}


def thaw_anywhere(device):
    for pid, path, _ in mounts_of(device):
        handle = open_mount(device, pid, path)
        if handle is not None:
            try:
                fcntl.ioctl(handle, THAW, 0)
            except OSError as error:
                if error.errno != errno.EINVAL:  # it is not frozen any more
                    raise
            finally:
                os.close(handle)
            return


def mounts_of(device):
    """(a process of the mount namespace, path there, row of its mounts) of the device, own ones first."""
    found, seen = [], set()
    for pid in ["self", *(name for name in os.listdir("/proc") if name.isdigit())]:
        try:
            space = os.readlink("/proc/%s/ns/mnt" % pid)
            if space in seen:
                continue
            seen.add(space)
            with open("/proc/%s/mountinfo" % pid) as file:
                rows = [dict(parse_mount(line), root=line.split(" ")[3]) for line in file]
        except OSError:
            continue  # it is gone
        found += [(pid, row["path"], row) for row in rows if row["device"] == device]
    return found


def open_mount(device, pid, path):
    """A handle of the file system of `device`; None where something else is on top of it."""
    try:
        handle = os.open("/proc/%s/root%s" % (pid, path), os.O_RDONLY)
    except OSError:
        return None
    if device_of(os.fstat(handle)) == device:
        return handle
    os.close(handle)
    return None


def device_of(told):
    return "%d:%d" % (os.major(told.st_dev), os.minor(told.st_dev))


def needed(devices, homes):
    """What the system or the login user has on one of the devices; empty for nothing."""
    for path in [*SYSTEM, *homes]:
        try:
            if device_of(os.stat(path)) in devices:
                return path
        except OSError:
            continue  # nobody needs what is not there
    return ""


def holder_of(devices):
    """The note of a hold that stands on one of the devices."""
    for name in notes():
        note = note_of(name)
        if note and note["state"] == "held" and set(note["files"]) & set(devices):
            if is_alive(note["pid"], note["start"]):
                return note
            release({"id": name})
    return None


def notes():
    return [name[: -len(".json")] for name in os.listdir(FOLDER) if name.endswith(".json")]


def place(name, kind):
    return os.path.join(FOLDER, "%s.%s" % (name, kind))


def note_of(name):
    try:
        with open(place(name, "json")) as file:
            return json.loads(file.read())
    except FileNotFoundError:
        return None


def write(path, text):
    temp = "%s.%d.tmp" % (path, os.getpid())
    with open(temp, "w") as file:
        file.write(text)
    os.rename(temp, path)


def write_note(name, note):
    write(place(name, "json"), json.dumps(note))


def write_lease(name, until):
    write(place(name, "lease"), repr(until))


def lease_of(note):
    """Until when it is held: by its lease, and at most."""
    try:
        with open(place(note["id"], "lease")) as file:
            return min(float(file.read()), note["longest"])
    except FileNotFoundError:
        return 0.0


def ask_end(name):
    os.makedirs(FOLDER, mode=0o700, exist_ok=True)
    write(place(name, "end"), "")


def forget():
    """Removes what is left of holds that ended long ago."""
    for name in os.listdir(FOLDER):
        path = os.path.join(FOLDER, name)
        note = note_of(name.rpartition(".")[0])
        try:
            old = time.time() - os.stat(path).st_mtime > FORGET_S
        except FileNotFoundError:
            continue
        if old and (note is None or note["state"] != "held"):
            os.unlink(path)


def begin(request):
    """Starts the process that holds: a session of its own with nothing of ours open, no child of ours, and
    without our environment, by which the leftovers of a run are found."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    try:
        os.chdir("/")
        null = os.open(os.devnull, os.O_RDWR)
        for handle in (0, 1, 2):
            os.dup2(null, handle)
        os.closerange(3, 1024)  # this program opens a handful
        here = os.path.dirname(os.path.abspath(__file__))
        path = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        words = ["-I", "-S", "-B", "-c", START, here, HOLDER, json.dumps(request)]
        os.execve(sys.executable, [sys.executable, *words], path)
    finally:
        os._exit(1)


def hold_on(words):
    """The whole life of the process that holds."""
    request = json.loads(words[0])
    told: list = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: told.append(number))
    # Short of memory, the kernel ends others first.
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("-1000")
    way = Unmounted(request) if request.get("how") == "unmount" else Frozen(request)
    name = request["id"]
    note = {
        "id": name,
        "pid": os.getpid(),
        "start": process_stat(os.getpid())[2],
        "files": request["devices"],
        "how": way.how,
        "longest": time.monotonic() + LONGEST_S,
    }
    try:
        way.check()
        note["word"] = way.write_word()
        if os.path.exists(place(name, "end")):
            raise Refusal("it was let go before it was held")
        way.begin()
    except (Refusal, OSError) as error:
        way.end()
        write_note(name, dict(note, state="refused", why=str(error)))
        return
    try:
        write_note(name, dict(note, state="held"))
        by = "lease"
        while time.monotonic() < lease_of(note):
            if told or os.path.exists(place(name, "end")):
                by = "signal" if told else "release"
                break
            time.sleep(LOOK_S)
    finally:
        way.end()
    write_note(name, dict(note, state="ended", by=by))


class Refusal(Exception):
    """It cannot be held; nothing was changed."""


class Frozen:
    """File systems whose writers wait."""

    how = "frozen"

    def __init__(self, request):
        self.word = request.get("word")
        self.handles: dict = {}
        self.frozen = []
        self.tops: dict = {}
        for device in request["devices"]:
            for pid, path, row in mounts_of(device):
                handle = self.handles.get(device) or open_mount(device, pid, path)
                if handle is not None:
                    self.handles[device] = handle
                if (
                    handle is not None
                    and row["root"] == "/"
                    and not row["read_only"]
                    and device not in self.tops
                ):
                    top = open_mount(device, pid, path)
                    if top is not None:
                        self.tops[device] = top

    def check(self):
        """A write to what somebody froze would wait for them, so that is found first."""
        self.begin()
        self.end()

    def write_word(self):
        """Whether each file system has the word now."""
        if not self.word or set(self.tops) != set(self.handles):
            return False
        name, text = self.word
        return all(put_word(top, name, text) for top in self.tops.values())

    def begin(self):
        for handle in self.handles.values():
            try:
                fcntl.ioctl(handle, FREEZE, 0)
            except OSError as error:
                self.end()
                if error.errno == errno.EBUSY:
                    raise Refusal("somebody else has frozen its file system") from error
                raise Refusal("its file system cannot be frozen: %s" % os.strerror(error.errno or 0)) from error
            self.frozen.append(handle)

    def end(self):
        while self.frozen:
            try:
                fcntl.ioctl(self.frozen[-1], THAW, 0)
            except OSError as error:
                if error.errno != errno.EINVAL:  # somebody else thawed it
                    raise
            self.frozen.pop()


def put_word(top, name, text):
    """Whether it is there now: a file system that is full or read-only is held without."""
    try:
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644, dir_fd=top)
        try:
            os.fchmod(handle, 0o644)  # facts are told without root
            os.write(handle, text.encode() + b"\n")
            os.fsync(handle)
        finally:
            os.close(handle)
        os.fsync(top)
    except OSError:
        return False
    return True


class Unmounted:
    """A file system that is taken from its programs, for who asked for that. It is mounted again as it was."""

    how = "unmounted"

    def __init__(self, request):
        self.word = request.get("word")
        self.rows = [row for device in request["devices"] for row in mounts_of(device)]
        self.gone = []
        self.handles = []
        self.alone = []

    def check(self):
        own = os.readlink("/proc/self/ns/mnt")
        for pid, path, row in self.rows:
            if row["root"] != "/":
                raise Refusal("%s shows a part of it: unmount that first" % path)
            if pid != "self" and os.readlink("/proc/%s/ns/mnt" % pid) != own:
                raise Refusal("process %s has it mounted at %s, in a mount namespace of its own" % (pid, path))

    def write_word(self):
        tops = [path for _, path, row in self.rows if row["root"] == "/" and not row["read_only"]]
        if not self.word or not tops:
            return False
        top = os.open(tops[0], os.O_RDONLY | os.O_DIRECTORY)
        try:
            return put_word(top, *self.word)
        finally:
            os.close(top)

    def begin(self):
        from rooted import run_program

        self.handles = [os.open(row["source"], os.O_RDONLY) for _, _, row in self.rows]  # the device stays
        for _, path, row in reversed(self.rows):
            status, _ = run_program(["umount", path], quiet=True)
            if status != 0:
                self.end()
                raise Refusal("%s cannot be unmounted: a program uses it" % path)
            self.gone.append((path, row))
        for source in sorted({row["source"] for _, _, row in self.rows}):
            try:  # nobody mounts it again meanwhile
                self.alone.append(os.open(source, os.O_RDONLY | os.O_EXCL))
            except OSError as error:
                self.end()
                raise Refusal("it is still in use: %s" % os.strerror(error.errno or 0)) from error

    def end(self):
        from rooted import run_program

        while self.alone:
            os.close(self.alone.pop())
        while self.gone:
            path, row = self.gone[-1]
            options = ",".join(
                each for each in row["options"] if each != "seclabel"
            )  # mount(8): told, not taken
            words = ["mount", "-t", row["fs"], "-o", options, row["source"], path]
            tries = 60
            while run_program(words, quiet=True)[0] != 0 and tries and not os.path.ismount(path):
                tries -= 1
                time.sleep(1.0)
            self.gone.pop()
        while self.handles:
            os.close(self.handles.pop())
