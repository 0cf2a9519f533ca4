"""A root part: file systems held still, by a process that lets them go again by itself.

A hold is a lease. The process that freezes (ioctl_fifreeze(2)) is a session of its own, keeps an open handle of
each file system, and thaws when it is told to by the id of the hold, when its lease is not renewed in time, or
when it was held for LONGEST_S. No end of who asked, and no lost connection, leaves a file system frozen for
longer. A file system is named by the device that it is on, or on top of, and is found wherever it is mounted,
in any mount namespace: its label and its type do not matter. How one stands still is in hold_ways.py.

Refused is what would stop those who let it go again: the file systems that the system, the login user and this
program itself live on. What somebody else froze is refused before anything is written to it.
"""

import errno
import os
import sys
import time
from contextlib import suppress

import quick_json as json
from disk_stack import folder_of, number, on_top, open_device
from hold_ways import Frozen, Refusal, Unmounted, thaw
from mount_spaces import mounts_of
from processes import is_alive, process_stat, signal
from survivors import HOLDER

FOLDER = "/run/tpuctl-holds"
LEASE_S, LONGEST_S = 120.0, 600.0
ANSWER_S = 60.0
"""A freeze first writes what programs have written, which takes as long as it takes."""
LOOK_S, FORGET_S = 0.1, 3600.0
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
        # What lies above first: its bytes are on their way through what is below.
        devices = [each for device in request["devices"] for each in reversed(on_top(device))]
        devices, how = list(dict.fromkeys(devices)), request.get("how", "freeze")
        request = dict(request, devices=devices)
        if not mounts_of(devices):
            why = next(filter(None, map(held_by_kernel, request["devices"])), "")
            return {"state": "refused", "why": why} if why else {"state": "nowhere"}
        stopped = needed(devices, request.get("homes") or ()) if how == "freeze" else ""
        if stopped:
            return {"state": "refused", "why": "%s is on it, and would stand still, too" % stopped}
        other = holder_of(devices)
        if other is not None:
            left = max(0.0, lease_of(other) - time.monotonic())
            why = "it is held already, for another copy"
            return {"state": "refused", "why": why, "by": other["id"], "seconds": left}
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
        write_lease(request)
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
            thaw(note["files"])
            write_note(name, dict(note, state="ended", by="killed"))
            return {"stood": note["how"] == "frozen"}  # without a holder anybody may mount it again
        time.sleep(LOOK_S)
    return {"stood": False}


def held_by_kernel(device):
    """Who has a device although no process shows a mount of it: a mount namespace without processes, swap, or a
    file system of several devices. Empty for nobody; what is made of it is looked at by itself."""
    if not os.path.exists(folder_of(device)) or on_top(device) != [device]:
        return ""
    try:
        os.close(open_device(device, os.O_RDONLY | os.O_EXCL))
    except OSError as error:
        if error.errno == errno.EBUSY:
            return "the kernel holds it for somebody whom the mounts of no process show"
        raise
    return ""


def needed(devices, homes):
    """What the system or the login user has on one of the devices; empty for nothing."""
    for path in [*SYSTEM, *homes]:
        try:
            if number(os.stat(path).st_dev) in devices:
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


def write_lease(request):
    """From now on."""
    seconds = min(float(request.get("seconds") or LEASE_S), LONGEST_S)
    write(place(request["id"], "lease"), repr(time.monotonic() + seconds))


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
            with suppress(FileNotFoundError):  # by another hold that begins
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
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(each, lambda number, _frame: told.append(number))
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
        write_lease(request)
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
