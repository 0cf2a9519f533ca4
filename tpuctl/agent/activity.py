"""`activity`: whether anybody uses this host. `warn`: a line on all of its terminals."""

import os

from base import suppress
from processes import ancestors, pids, process_stat, read_proc
from rooted import output_of, run_root
from survivors import is_ours

SESSION_MIN_AGE_S = 60.0  # a watchdog's own connections are shorter
# Hosts that share a machine name their own.
CHIP_DEVICES = tuple((os.environ.get("TPUCTL_CHIP_DEVICES") or "/dev/accel:/dev/vfio/").split(":"))


def age_s(pid):
    stat = process_stat(pid)
    if stat is None:
        return 0.0
    with open("/proc/uptime") as file:
        return float(file.read().split()[0]) - stat[2] / os.sysconf("SC_CLK_TCK")


def is_session(title):
    """Titles of OpenSSH: `sshd: ada@pts/0`, `sshd: ada@notty`, `sshd: ada` for forwards alone; since 9.8 the
    program is called sshd-session. Those with brackets are monitors and listeners."""
    return title.startswith((b"sshd: ", b"sshd-session: ")) and b"[" not in title


def sessions():
    """The connection that asks is no use of the host."""
    others = set(pids()) - ancestors()
    found = [pid for pid in others if is_session(read_proc(pid, "cmdline").split(b"\0")[0])]
    return sum(age_s(pid) >= SESSION_MIN_AGE_S for pid in found)


def open_files(pid):
    """Where the file descriptors of a process lead; None where we may not look."""
    folder, found = "/proc/%d/fd" % pid, []
    try:
        for name in os.listdir(folder):
            try:
                found.append(os.readlink(os.path.join(folder, name)))
            except FileNotFoundError:
                continue  # closed while we looked
    except PermissionError:
        return None
    except OSError:
        return []  # gone while we looked
    return found


def have_devices(prefixes):
    for prefix in prefixes:
        folder, name = os.path.split(prefix)
        if os.path.isdir(folder) and any(entry.startswith(name) for entry in os.listdir(folder)):
            return True
    return False


def look_as_root():
    """Where file descriptors of all processes lead, through sudo; None without it."""
    search = ["-maxdepth", "3", "-path", "/proc/[0-9]*/fd/*", "-printf", "%h %l\n"]
    command = ["sudo", "-n", "find", "/proc", *search]
    # Processes that end while find looks make it exit with 1; without sudo there is no output at all.
    return (output_of(command, any_status=True, seconds=10.0) or "").splitlines() or None


def chip_holders(prefixes=CHIP_DEVICES):
    """The processes that have a chip open, each with its devices, and whether there may be more that could not
    be found out."""
    if not have_devices(prefixes):
        return {}, False
    users: dict = {}
    hidden = False
    for pid in filter(is_ours, pids()):
        links = open_files(pid)
        hidden = hidden or links is None
        note_holder(users, pid, links or (), prefixes)
    if users or not hidden:
        return users, False
    lines = look_as_root()
    if lines is None:
        return {}, True
    for where, _, link in (line.partition(" ") for line in lines):
        note_holder(users, int(where.split("/")[2]), [link], prefixes)
    return {pid: devices for pid, devices in users.items() if is_ours(pid)}, False


def note_holder(users, pid, links, prefixes):
    found = {link for link in links if link.startswith(tuple(prefixes))}
    if found:
        users.setdefault(pid, set()).update(found)


def chip_users(prefixes=CHIP_DEVICES):
    """How many processes have a chip open, and whether that could not be found out."""
    holders, unknown = chip_holders(prefixes)
    return len(holders), unknown


def written_devices():
    """Of the data disks and buckets that are mounted here to be written."""
    from disks import is_disk
    from facts_storage import mounts

    return sorted(
        {
            each["device"]
            for each in mounts()
            if not each["read_only"]
            and (is_disk(os.path.basename(each["source"])) or each["fs"] == "fuse.gcsfuse")
        }
    )


def writers():
    """How many programs have a file open for writing there, and whether that could not be found out."""
    from operations import Failed

    devices = written_devices()
    if not devices:
        return 0, False
    try:
        return run_root(None, "disk_users", {"devices": devices}, 20)["writers"], False
    except Failed:
        return 0, True


def load():
    """Of five minutes, see proc(5): where hosts are containers, this file may have their own load, and what
    getloadavg(3) says is that of the machine below them."""
    with open("/proc/loadavg") as file:
        return float(file.read().split()[1])


def activity(_request, _stdin):
    users, unknown = chip_users()
    writing, hidden = writers()
    return {
        "sessions": sessions(),
        "chip_users": users,
        "chips_unknown": unknown,
        "writers": writing,
        "writers_unknown": hidden,
        "load": load(),
        "cpus": os.cpu_count() or 1,
    }


def write_to_terminal(path, text):
    try:
        handle = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:
        return False  # another user's, or gone
    try:
        os.write(handle, ("\r\n%s\r\n" % text).encode())
        return True
    except OSError:
        return False
    finally:
        os.close(handle)


def warn(request, _stdin):
    """Writes to the terminals that we may write to, and through wall(1) to those of other users."""
    text = "".join(char if char.isprintable() else "?" for char in request["text"])
    terminals = []
    if os.path.isdir("/dev/pts"):
        terminals = [os.path.join("/dev/pts", name) for name in os.listdir("/dev/pts") if name.isdigit()]
    written = sum([write_to_terminal(path, text) for path in terminals])
    if written < len(terminals):
        import subprocess

        # Not installed, or hung: what could be written was written.
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                ["wall"], input=text.encode(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=10
            )
    return {"terminals": written}
