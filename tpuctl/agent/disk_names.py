"""Which devices of this host are the disks that its node lists as writable, whoever made and mounted them."""

from disk_stack import is_system, stack
from disks import contents_of, whole_devices
from facts_storage import mounts


def writable():
    """Whole disks that can be written, but for the one that the host itself is on."""
    seen = mounts()
    found = [each for each in whole_devices() if not each["read_only"]]
    return [each for each in found if not is_system(stack(each["device"]), seen)]


def choose(found, listed, only):
    """Which of the devices are the disks called `only`. Devices that cannot be told apart are all given, with
    `unclear`: it is proved of each of them, or of none."""
    known = contents_of([each["path"] for each in found])
    at = {mount["path"]: mount["device"] for mount in mounts()}
    labels = {each["device"]: known.get(each["path"], {}).get("LABEL", "") for each in found}
    names = assign(listed, labels, at)
    chosen = [dict(each, disk=names[each["device"]]) for each in found if names.get(each["device"]) in only]
    if len(chosen) == len(only):
        return chosen
    left = [each for each in found if each["device"] not in names]
    missing = [name for name in only if name not in names.values()]
    return chosen + [dict(each, disk=missing[0], unclear=len(left) > 1) for each in left]


def assign(listed, labels, at):
    """{device: name of its disk} as far as that is certain: by its label, and where several have the same, as a
    master and its copy, by where it is mounted; the last of those is the one that is left. Pure.

    `labels` are those of all devices that can be written, `at` the device at each mount point."""
    names: dict = {}
    for label in {disk["label"] for disk in listed if disk["label"]}:
        disks = [disk for disk in listed if disk["label"] == label]
        devices = [device for device, own in labels.items() if own == label]
        if len(devices) > len(disks):
            continue  # one is a disk that the node does not list so, such as a copy that is only read
        for disk in disks:
            if at.get(disk["path"]) in devices:
                names[at[disk["path"]]] = disk["name"]
        rest = [disk["name"] for disk in disks if disk["name"] not in names.values()]
        bare = [device for device in devices if device not in names]
        if len(rest) == len(bare) == 1:
            names[bare[0]] = rest[0]
    return names
