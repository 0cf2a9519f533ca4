"""`usage`: how busy this host is, by /proc, and on which ports its programs tell what they do."""

import os
import time

from base import suppress
from processes import environment_of, pids
from survivors import is_ours

WINDOW_S = 0.5  # rates are of this time: the longer, the later comes the answer
SECTOR = 512  # of /proc/diskstats, whatever the disk has (Documentation/admin-guide/iostats.rst of Linux)
STACKED = ("loop", "ram", "dm-", "md", "zram")  # what they do is done by a disk below, or by none
PORTS = {
    "ports": ("TPU_RUNTIME_METRICS_PORTS",),
    "prometheus": ("ORBAX_PROMETHEUS_PORT", "PYGRAIN_PROMETHEUS_PORT"),
}  # of libtpu, of Orbax and Grain (tpu-info 0.14.2)
PORTS_MAX = 64


def usage(_request, _stdin):
    begun, before = time.monotonic(), counters()
    ports = named_ports()
    time.sleep(max(0.0, begun + WINDOW_S - time.monotonic()))
    after, seconds = counters(), max(time.monotonic() - begun, 0.01)
    spent = {name: after[name] - before[name] for name in after if name in before}
    told = {name: max(0, spent[name]) / seconds for name in spent if not name.startswith("cpu")}
    if spent.get("cpu_all"):
        told["cpu_percent"] = 100.0 * spent["cpu_busy"] / spent["cpu_all"]
    return dict(told, cpus=os.cpu_count() or 0, **memory(), **ports)


def counters():
    """What was used since the boot. Files that a container hides are left out."""
    found = {}
    for read in (cpu_times, disk_bytes, network_bytes):
        with suppress(OSError, ValueError, IndexError):
            found.update(read())
    return found


def lines_of(name):
    with open("/proc/%s" % name) as file:
        return file.read().splitlines()


def cpu_times():
    """Of all processors together, see proc(5): idle is also who waits for a disk, and guests are in `user`."""
    times = [int(each) for each in lines_of("stat")[0].split()[1:9]]
    return {"cpu_all": sum(times), "cpu_busy": sum(times) - times[3] - times[4]}


def disk_bytes():
    """Of whole disks: what partitions do is in them."""
    rows = [line.split() for line in lines_of("diskstats")]
    disks = [row for row in rows if not row[2].startswith(STACKED) and os.path.exists("/sys/block/" + row[2])]
    read, written = (sum(int(row[place]) for row in disks) * SECTOR for place in (5, 9))
    return {"disk_read_s": read, "disk_written_s": written}


def network_bytes():
    """Of the cards: what goes through bridges and into containers is in them, or does not leave the host. A
    container has no cards; there it is of all ways."""
    lines = (line.partition(":") for line in lines_of("net/dev")[2:])
    rows = {name.strip(): values.split() for name, _, values in lines}
    cards = [name for name in rows if os.path.exists("/sys/class/net/%s/device" % name)]
    ways = [rows[name] for name in cards or rows if name != "lo"]
    return {"net_in_s": sum(int(way[0]) for way in ways), "net_out_s": sum(int(way[8]) for way in ways)}


def memory():
    with suppress(OSError, ValueError):
        rows = (line.partition(":")[::2] for line in lines_of("meminfo"))
        kib = {name: int(value.split()[0]) for name, value in rows if value.split()}
        if "MemTotal" in kib and "MemAvailable" in kib:
            total = kib["MemTotal"] << 10
            return {"memory_total": total, "memory_used": total - (kib["MemAvailable"] << 10)}
    return {}


def ports_of(variables, kind):
    """Those that the variables of one program name."""
    words = ",".join(variables.get(name, "") for name in PORTS[kind]).split(",")
    return [int(word) for word in words if word.strip().isdecimal() and 0 < int(word) < 1 << 16]


def named_ports():
    """Those that the variables of programs name, of all programs of this host into which we may look."""
    found = {kind: [] for kind in PORTS}  # type: dict[str, list[int]]
    for pid in filter(is_ours, pids()):
        variables = environment_of(pid)
        for kind in PORTS:
            found[kind] += [port for port in ports_of(variables, kind) if port not in found[kind]]
    return {kind: ports[:PORTS_MAX] for kind, ports in found.items()}
