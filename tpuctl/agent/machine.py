"""What this host is: its names, and its hardware beside its chips, by sysfs(5); 0 where it does not say."""

import os

NODES = "/sys/devices/system/node"
INTERFACES = "/sys/class/net"


def basics():
    """What all answers say that tell of a host."""
    import pwd

    name = os.uname()
    return {
        "hostname": name.nodename,
        "user": pwd.getpwuid(os.getuid()).pw_name,
        "home": os.path.expanduser("~"),
        "kernel": name.release,
        "worker_id": os.environ.get("TPU_WORKER_ID"),
        "numa_nodes": numa_nodes(),
        "nics": nics(),
    }


def numa_nodes(folder=NODES):
    """How many NUMA nodes its processors and memory are split into."""
    return sum(name[:4] == "node" and name[4:].isdigit() for name in entries(folder))


def nics(folder=INTERFACES):
    """How many network interfaces are devices; bridges, tunnels and the loopback are not."""
    return sum(os.path.exists(os.path.join(folder, name, "device")) for name in entries(folder))


def entries(folder):
    try:
        return os.listdir(folder)
    except OSError:
        return []  # not mounted in this container
