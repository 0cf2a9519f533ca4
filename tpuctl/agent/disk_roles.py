"""Which disk of this host may be written: a master and its copy have the same label, UUID and size.

What the node asks for says the metadata server, for each disk by the name under which udev shows it
(`/dev/disk/by-id/google-NAME`). Where a disk has no such name, as NVMe disks may, all may be alike; else the
kernel's read-only flag counts if it agrees with the metadata in number. What stays unclear is nobody's guess.
"""

import os

import quick_json as json

BY_ID = "/dev/disk/by-id"
MARK = "google-"
RO, RW = "ro", "rw"
MODES = {"READ_ONLY": RO, "READ_WRITE": RW}
BOOT = "0"  # the index of the boot disk


def with_roles(devices):
    """`devices`, each with its `role`: `ro`, `rw`, or empty where nobody can tell."""
    names, told = names_of_devices(), asked_of_this_host()
    found = roles({each["path"]: each["read_only"] for each in devices}, names, told)
    return [dict(each, role=found[each["path"]]) for each in devices]


def roles(flags, names, told):
    """{path: role} of `flags`, {path: whether the kernel never writes it}. `names` is {path: name}, and `told`
    {name: role} of all data disks that the cloud has given this host, None where nobody says. Pure."""
    if told is None:
        return {path: RO if flag else RW for path, flag in flags.items()}
    found = {path: told.get(names.get(path, ""), "") for path in flags}
    unclear = [path for path, role in found.items() if not role]
    left = list(told.values())
    for role in filter(None, found.values()):
        left.remove(role)
    found.update(roles_of_unnamed({path: flags[path] for path in unclear}, left))
    # Who says that it is written while the kernel never does is wrong about which disk it is.
    return {path: "" if flags[path] and role == RW else role for path, role in found.items()}


def roles_of_unnamed(flags, left):
    """Of disks without a name, by the roles that are `left` for them. Pure."""
    if len(flags) == len(left):
        if len(set(left)) == 1:
            return dict.fromkeys(flags, left[0])
        if sum(flags.values()) == left.count(RO):
            return {path: RO if flag else RW for path, flag in flags.items()}
    return dict.fromkeys(flags, "")


def names_of_devices():
    """{path of a whole disk: its name in the cloud}."""
    found = {}
    for name in sorted(os.listdir(BY_ID)) if os.path.isdir(BY_ID) else []:
        if name.startswith(MARK) and "-part" not in name:
            found[os.path.realpath(os.path.join(BY_ID, name))] = name[len(MARK) :]
    return found


def asked_of_this_host():
    """{name: role} of its data disks by the metadata server; None where that does not tell."""
    from metadata import value

    said = value("disks/?recursive=true")
    try:
        rows = json.loads(said or "null")
        data = [each for each in rows if str(each["index"]) != BOOT]
        return {each["deviceName"]: MODES[each["mode"]] for each in data}
    except (KeyError, TypeError, ValueError):
        return None
