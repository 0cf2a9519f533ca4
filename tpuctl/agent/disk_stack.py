"""What lies on top of a block device: partitions, mappers, arrays, loop devices over its files, and swap.
Each of them keeps it in use, and no program has it open. As root, apart from `whole_disks`."""

import fcntl
import os
import stat

LOOP_GET_STATUS64 = 0x4C05  # linux/loop.h: a struct of 232 bytes that begins with the device of the file below
LOOP_BYTES = 232
SYSTEM = ("/", "/boot", "/boot/efi")


def number(device):
    return "%d:%d" % (os.major(device), os.minor(device))


def folder_of(device):
    return "/sys/dev/block/" + device


def below(folder):
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def partitions(device):
    folder = folder_of(device)
    parts = [os.path.join(folder, each) for each in below(folder)]
    return [
        read(os.path.join(each, "dev")) for each in parts if os.path.exists(os.path.join(each, "partition"))
    ]


def holders(device):
    folder = os.path.join(folder_of(device), "holders")
    return [read(os.path.join(folder, each, "dev")) for each in below(folder)]


def read(path):
    with open(path) as file:
        return file.read().strip()


def stack(device):
    """`device` (`major:minor`) and all on top of it that the kernel's tree names, the lowest first."""
    found = [device]
    for each in found:
        found += [more for more in (*partitions(each), *holders(each)) if more not in found]
    return found


def with_loops(devices):
    """`devices` with loop devices over them, or over files of file systems that they hold, and all on those."""
    found = list(devices)
    loops = dict(loop_devices())
    while True:
        more = [loop for loop, lower in loops.items() if lower & set(found) and loop not in found]
        if not more:
            return found
        found += [each for loop in more for each in stack(loop) if each not in found]


def on_top(device):
    """It and all on top of it, the lowest first. As root."""
    return with_loops(stack(device))


def loop_devices():
    """(`major:minor`, what it is made of: the file system of its file, and the device if that is one) of each
    loop device that is in use."""
    for name in below("/sys/block"):
        if name.startswith("loop") and os.path.isdir("/sys/block/%s/loop" % name):
            device = read("/sys/block/%s/dev" % name)
            lower = loop_status(device)
            if lower:
                yield device, lower


def loop_status(device):
    try:
        handle = open_device(device)
    except OSError:
        return set()
    try:
        said = fcntl.ioctl(handle, LOOP_GET_STATUS64, bytes(LOOP_BYTES))
    except OSError:
        return set()  # let go meanwhile
    finally:
        os.close(handle)
    words = [int.from_bytes(said[at : at + 8], "little") for at in (0, 16)]
    return {number(each) for each in words if each}


def open_device(device, flags=os.O_RDONLY):
    """By its number: the name of a device may be another's, or missing."""
    major, _, minor = device.partition(":")
    path = "/run/tpuctl-device-%d-%s" % (os.getpid(), device.replace(":", "-"))
    os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(int(major), int(minor)))
    try:
        return os.open(path, flags)
    finally:
        os.unlink(path)


def name_of(device):
    """`/dev/md0`; of a mapper the name by which dmsetup(8) knows it, which is not that of the kernel."""
    folder = folder_of(device)
    if not os.path.isdir(folder):
        return device
    mapped = os.path.join(folder, "dm", "name")
    if os.path.exists(mapped):
        return "/dev/mapper/" + read(mapped)
    return "/dev/" + os.path.basename(os.path.realpath(folder))


def kind_of(device):
    """What is made of other devices; empty for a disk, and for a partition."""
    if os.path.exists(os.path.join(folder_of(device), "partition")):
        return ""
    name = os.path.basename(os.path.realpath(folder_of(device)))
    kinds = (("dm-", "mapper"), ("md", "array"), ("loop", "loop"))
    return next((kind for begin, kind in kinds if name.startswith(begin)), "")


def swaps(devices):
    """Paths of swap on those devices, or in files of their file systems."""
    with open("/proc/swaps") as file:
        paths = [line.split()[0].replace("\\040", " ") for line in file.readlines()[1:]]
    return [path for path in paths if lies_on(path) & set(devices)]


def lies_on(path):
    try:
        found = os.stat(path)
    except OSError:
        return set()  # of another namespace; what it keeps in use cannot be opened alone
    return {number(found.st_rdev)} if stat.S_ISBLK(found.st_mode) else {number(found.st_dev)}


def is_system(devices, mounts):
    """Whether this is the disk that the host itself lives on."""
    return any(each["device"] in devices and each["path"] in SYSTEM for each in mounts)
