"""The part of `vacate` that needs root: users named or ended, unmounted in every namespace, then the proof.

The proof is the kernel's: a device opens exclusively (O_EXCL) only while no file system, swap, mapper or loop
holds it, in whatever namespace. Nothing is unmounted lazily: a lazy unmount hides a file system that is still
written.
"""

import errno
import fcntl
import os
import select
import time

import quick_json as json
from disk_stack import kind_of, name_of, on_top, open_device, swaps
from disk_users import users_of
from mount_spaces import O_PATH, inside, mount_of, read_mounts, table
from processes import ancestors, is_alive, proc_text, process_stat, signal, signal_all

LOCK = "/run/tpuctl-vacate"
LOOKS, LOOK_S = 4, 0.25  # a program that only passes by, such as udev's, is gone by then
ROUNDS = 8  # of ending and unmounting: what is kept by a service is begun again
KILL_S = 5.0
UNMOUNT_S = 600
FROZEN_S = 600  # as long as may be: a deletion begins at once, and takes minutes
UMOUNT_NOFOLLOW = 8  # sys/mount.h
DELETE = "delete"
BEFORE_DELETION = "delete-"
KTHREADD = 2
SPARED = ("sshd", "systemd", "systemd-logind", "systemd-journald", "dbus-daemon", "google_guest_agent")
"""Without these nobody could log in any more."""
OURS = ("/.tpuctl/bin/", "gcsfuse", "tpuctl-mounts")
"""Programs of tpuctl, in the arguments; a mount of a bucket is ended by its keeper, with all that it holds
uploaded."""


def main(request):
    """`purpose`, `devices` ({"path", "device", "disk", "unclear"}), `grace_s`, `patience_s`, `seconds`. Answers
    `state` done, with `disks`: of each `proved`, `why` not, and `holders`. `state` is working where it takes
    longer than `patience_s`: it goes on, and whoever asks again hears more."""
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        os.close(told)
        work_alone(request, tell)
    os.close(tell)
    until = time.monotonic() + float(request.get("patience_s") or 10.0)
    said = b""
    while True:
        if not select.select([told], [], [], max(0.0, until - time.monotonic()))[0]:
            return {"state": "working", "disks": []}
        part = os.read(told, 1 << 16)
        if not part:
            os.waitpid(child, 0)
            return json.loads(said.decode()) if said else {"state": "working", "disks": []}
        said += part


def work_alone(request, tell):
    """The work, one at a time on a host; it outlives who asked."""
    status = 1
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for handle in (0, 1, 2):
            os.dup2(null, handle)  # who asked waits for the end of what it has written to
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.alarm(int(request["seconds"]))
        lock = os.open(LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        if not lock_within(lock, float(request.get("patience_s") or 10.0)):
            return  # another is at work: whoever asked asks again
        answer = {"state": "done", "disks": [vacate_device(each, request) for each in request["devices"]]}
        os.write(tell, json.dumps(answer).encode())
        status = 0
    finally:
        os._exit(status)


def lock_within(lock, seconds):
    """Whether it is ours now. Nobody waits for longer than who asked: those who wait would pile up."""
    until = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(0.1)


def vacate_device(asked, request):
    """What came of one device."""
    device = asked["device"]
    ends = request["purpose"] == DELETE
    found = dict(asked, proved=False, why="", holders=[])
    if asked.get("unclear"):
        ends, holders = False, in_use(device)
        why = "which device of this host is disk %s cannot be told, and %s is in use" % (
            asked["disk"],
            asked["path"],
        )
        if holders or mounts_in(on_top(device)):
            return dict(found, why=why, holders=holders)
    wait_for_copies(device)
    holders = end_users(device, float(request.get("grace_s") or 0.0)) if ends else in_use_for_long(device)
    if holders and not ends:
        return dict(found, holders=holders)
    left = unmount_everywhere(device, ends)
    why = prove(device, asked["path"])
    if not why:
        return dict(found, proved=True)
    holders = in_use(device) or left
    stopped = hold_still(device) if ends else why
    return dict(found, proved=not stopped, why=stopped and why, holders=holders)


def wait_for_copies(device):
    """Until no copy holds its file system still: programs that wait there cannot be ended, nor can it be
    unmounted. A hold ends by itself."""
    import freeze

    while os.path.isdir(freeze.FOLDER):
        held = freeze.holder_of(on_top(device))
        if held is None or held["id"].startswith(BEFORE_DELETION):
            return
        time.sleep(LOOK_S)


def hold_still(device):
    """Freezes what cannot be unmounted, so that all that was written is on the disk and nothing more is
    written; empty where that is so, else why not. It goes on by itself if the deletion comes to nothing."""
    import freeze

    held = {}
    for _ in range(2):
        name = BEFORE_DELETION + os.urandom(8).hex()
        held = freeze.main({"do": "hold", "id": name, "devices": [device], "seconds": FROZEN_S})
        if not str(held.get("by") or "").startswith(BEFORE_DELETION):
            break
        freeze.main({"do": "release", "id": held["by"]})  # of a deletion that came to nothing
    handle = open_device(device)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    return (
        ""
        if held.get("state") == "held"
        else held.get("why") or "nothing of it is mounted where it could be frozen"
    )


def in_use(device):
    """Everybody who has something open there, and what of the kernel's is on top."""
    devices = on_top(device)
    found = users_of(set(devices))
    found += [of_kernel("swap", path) for path in swaps(devices)]
    above = [each for each in devices if each != device and kind_of(each)]
    return found + [of_kernel(kind_of(each), name_of(each)) for each in above]


def of_kernel(what, path):
    return {"pid": 0, "user": "", "program": "", "what": what, "path": path}


def in_use_for_long(device):
    """Those who are still there at a second look."""
    holders = in_use(device) + submounts(device)
    for _ in range(LOOKS):
        if not holders:
            break
        time.sleep(LOOK_S)
        holders = in_use(device) + submounts(device)
    return holders


def submounts(device):
    """Other file systems that are mounted in those of this device, or made of its files."""
    devices = on_top(device)
    return [
        of_kernel("mount", each["path"])
        for _, mounts in mounts_in(devices)
        for each in mounts
        if each["device"] not in devices
    ]


def mounts_in(devices):
    """[(a process of a namespace, what has to go there before those devices are free)], the lowest first."""
    found = []
    for space in table():
        going = depending(space["mounts"] or [], devices)
        if going:
            found.append((space["pid"], going))
    return found


def depending(mounts, devices):
    """Mounts of file systems on those devices, what is mounted in them, and overlays of their folders. Pure."""
    going: list = []
    for mount in mounts:
        own = mount["device"] in devices
        inner = any(mount["parent"] == each["id"] for each in going)
        made = mount["fs"] == "overlay" and any(is_layer(mount, each["path"]) for each in going)
        if own or inner or made:
            going.append(mount)
    return going


def is_layer(mount, folder):
    layers = [each.partition("=") for each in mount["options"] if "dir=" in each]
    paths = [path for _, _, value in layers for path in value.split(":")]
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for path in paths)


def end_users(device, grace_s):
    """TERM, `grace_s`, KILL to all who use it, as often as others come; those that nothing ends."""
    for number in range(ROUNDS):
        pids = mortal(in_use(device))
        if not pids:
            break
        signal_all(pids, signal.SIGTERM)
        wait_for_end(pids, grace_s if number == 0 else 1.0)
        pids = {pid: start for pid, start in pids.items() if is_alive(pid, start)}
        signal_all(pids, signal.SIGKILL)
        wait_for_end(pids, KILL_S)
    return in_use(device)


def mortal(holders):
    """{process: when it started} of those that may be ended."""
    spared, found = ancestors(), {}
    for pid in {each["pid"] for each in holders if each["pid"]}:
        stat = process_stat(pid)
        if stat and pid not in spared and not is_spared(pid, stat) and not is_killed(pid):
            found[pid] = stat[2]
    return found


def is_killed(pid):
    """Whether it was killed already, and waits in the kernel for what it does there."""
    rows = [line.split() for line in proc_text(pid, "status").splitlines()]
    pending = [int(row[1], 16) for row in rows if row and row[0] in ("SigPnd:", "ShdPnd:")]
    return any(each >> (signal.SIGKILL - 1) & 1 for each in pending)


def is_spared(pid, stat):
    if pid in (1, KTHREADD) or stat[1] == KTHREADD or proc_text(pid, "comm").strip() in SPARED:
        return True
    arguments = proc_text(pid, "cmdline").replace("\0", " ")
    return any(each in arguments for each in OURS)


def wait_for_end(pids, seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until and any(is_alive(pid, start) for pid, start in pids.items()):
        time.sleep(0.02)


def unmount_everywhere(device, ends):
    """Until nothing of it is mounted in any namespace, or no more can be: what is left, as holders."""
    left: list = []
    for _ in range(ROUNDS):
        devices = on_top(device)
        if ends:
            take_down(devices)
        spaces = mounts_in(devices)
        if not spaces:
            return []
        gone = 0
        left = []
        for pid, mounts in spaces:
            said = inside(pid, lambda mounts=mounts: unmount(mounts), UNMOUNT_S)
            if said is None:
                left += [of_kernel("mount", "%s of process %d" % (each["path"], pid)) for each in mounts]
                continue
            gone += said[0]
            left += [of_kernel("mount", path) for path in said[1]]
        if not gone:
            break
    return left


def unmount(mounts):
    """In the namespace of these, at its root: [how many went, paths of those that did not]."""
    import ctypes

    umount2 = ctypes.CDLL(None, use_errno=True).umount2
    gone, left = 0, []
    for mount in reversed(mounts):
        path = mount["path"]
        try:
            if not is_top(mount):
                left.append(path)
                continue
        except FileNotFoundError:
            gone += 1  # with another that it was a copy of
            continue
        if umount2(os.fsencode(path), UMOUNT_NOFOLLOW) == 0:
            gone += 1
        else:
            left.append(path)
    return [gone, left]


def is_top(mount):
    """Whether its path leads to it, and not to what was mounted over it. FileNotFoundError where it is gone."""
    if mount["id"] not in {each["id"] for each in read_mounts()}:
        raise FileNotFoundError(mount["path"])
    handle = os.open(mount["path"], O_PATH | os.O_NOFOLLOW)
    try:
        return mount_of(handle) == mount["id"]
    finally:
        os.close(handle)


def take_down(devices):
    """Swap on the first of them and on all above, and loop devices, mappers and arrays that nobody uses any
    more."""
    from rooted import output_of

    for path in swaps(devices):
        output_of(["swapoff", path], seconds=120)
    for each in reversed(devices[1:]):
        words = {
            "loop": ["losetup", "-d"],
            "mapper": ["dmsetup", "remove", "--"],
            "array": ["mdadm", "--stop"],
        }.get(kind_of(each))
        if words and not mounts_in([each]):
            name = name_of(each)
            output_of([*words, os.path.basename(name) if words[0] == "dmsetup" else name], seconds=60)


def prove(device, path):
    """Empty where it is proved that the device is used by nothing, with all on the disk that was written;
    else why not."""
    for number in range(LOOKS):
        time.sleep(LOOK_S if number else 0.0)
        why = try_alone(device, path)
        if not why:
            break
    return why


def try_alone(device, path):
    try:
        handle = open_device(device, os.O_RDONLY | os.O_EXCL)
    except OSError as error:
        if error.errno != errno.EBUSY:
            return "%s cannot be opened: %s" % (path, os.strerror(error.errno or 0))
        return "the kernel holds %s for somebody whom the mounts of no process show" % path
    try:
        os.fsync(handle)
    except OSError as error:
        return "what was written to %s does not reach the disk: %s" % (path, os.strerror(error.errno or 0))
    finally:
        os.close(handle)
    return "%s is open as a device" % path if users_of({device}) else ""
