"""Data disks: found, formatted once, mounted, and repaired.

Names of devices differ (SCSI, NVMe) and a copy has the UUID and label of its master, so a disk is known by what
is on it: its label, the word that its file system held when it was copied, and whether it is to be written,
which the cloud says (disk_roles.py).
A journal that would have to be replayed is never passed over (`noload`): files would be wrong, and nobody would
notice.
"""

import fcntl
import os
import stat
import sys

from disk_roles import RO, RW, with_roles
from disk_stack import folder_of, number, partitions, read
from facts_storage import mounts
from operations import Failed
from points import CLOSE, check_point, left_open, typed
from rooted import as_root, output_of, run_root

WORD = ".tpuctl-disk"  # at the top of a file system: the copy that it was last made ready for
SECTOR = 512
GROW_S, BLANK_S = 300, 120
LOOK = "what has it, or what is on it"
MKFS = ["mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0,discard"]
UNSAFE = ("noload", "norecovery")
CONTENTS = """for each; do
    blkid -p -o export "$each"
    case $? in 0 | 2) ;; 8) printf 'DEVNAME=%s\\nTYPE=ambivalent\\n' "$each" ;; *) exit 1 ;; esac
done
"""  # blkid(8): 2 is nothing, 8 several things at once
IN_USE = "end what has it open"
DIRTY = "needs_recovery"  # a feature of the file system, ext4(5)
MOUNT_COPY = (
    CLOSE
    + """label=$1 word=$2 look=$3 name=$4 path=$5 dirty=; shift 5
for each; do
    head=$(dumpe2fs -h "$each") || { test $? -lt 126 && continue; exit 1; }
    case $head in "Filesystem volume name:   $label
"*) ;; *) continue ;; esac
    case $head in *needs_recovery*) dirty=$each; continue ;; esac
    held=$(unshare -m sh -c 'mount -t ext4 -o ro "$1" "$2" || exit
        test ! -f "$2/$3" || exec head -c 200 "$2/$3"' sh "$each" "$look" "$name") || exit
    test -z "$word" || test "$held" = "$word" || continue
    blockdev --setro "$each" || exit
    close_point "$path" && mount -t ext4 -o ro "$each" "$path" && echo "mounted $each"
    exit
done
test -z "$dirty" || echo "needs_recovery $dirty"
"""
)  # dumpe2fs fails for what is no ext4; 126 and more: it could not be started
GET_UUID = 0x8008662C  # EXT4_IOC_GETFSUUID of linux/ext4.h, since Linux 6.0; what is told has a head of 8 bytes
UUID_BYTES = 16


def disks_facts(_request):
    """Mounts of disks, with the word that each holds."""
    found = []
    for mount in mounts():
        if mount["device"].startswith("0:"):
            continue
        found.append(
            {
                "path": mount["path"],
                "device": mount["device"],
                "read_only": mount["read_only"],
                "unsafe": any(each in mount["options"] for each in UNSAFE),
                "word": word_at(mount["path"]),
                "uuid": uuid_on(mount["source"], mount["path"]),
            }
        )
    return found


def word_at(path):
    """Of the file system that is mounted at `path`; empty where it has none."""
    try:
        with open(os.path.join(path, WORD)) as file:
            return file.read(200).strip()
    except OSError:
        return ""


def is_disk(name):
    """`sdb` or `nvme0n1`: no partition, and nothing else."""
    if name.startswith("sd"):
        return name[2:].isalpha() and name.islower()
    controller, _, number = name[4:].partition("n")
    return name.startswith("nvme") and controller.isdigit() and number.isdigit()


def uuid_on(source, path):
    """Of the file system of a disk that is mounted at `path`; empty for what is no disk of its own, and where
    nobody may look."""
    if not is_disk(os.path.basename(source)):
        return ""
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            said = fcntl.ioctl(handle, GET_UUID, UUID_BYTES.to_bytes(4, sys.byteorder) + bytes(4 + UUID_BYTES))
        finally:
            os.close(handle)
        text = said[8:].hex()
        return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
    except OSError:  # an older kernel: ask the device, which takes root
        said = output_of(as_root(["blkid", "-p", "-s", "UUID", "-o", "value", source]), any_status=True)
        return (said or "").strip()


def whole_devices():
    """Whole disks of this host."""
    found = []
    for name in sorted(os.listdir("/dev")):
        path = "/dev/" + name
        if not is_disk(name) or not stat.S_ISBLK(os.stat(path).st_mode):
            continue
        device = number(os.stat(path).st_rdev)
        folder = folder_of(device)
        found.append(
            {
                "path": path,
                "device": device,
                "size": int(read(os.path.join(folder, "size"))) * SECTOR,
                "read_only": read(os.path.join(folder, "ro")) == "1",
            }
        )
    return found


def bare_devices():
    """Those without partitions."""
    return [each for each in whole_devices() if not partitions(each["device"])]


def devices():
    """Whole disks of this host without partitions, with what is on them."""
    found = bare_devices()
    known = contents_of([each["path"] for each in found])
    for each in found:
        rows = known.get(each["path"], {})
        each.update(fs=rows.get("TYPE", ""), label=rows.get("LABEL", ""))
    return found


def contents_of(paths):
    """{path: what is on it} of devices that are not empty, by one program: each sudo costs more than blkid,
    which itself stops at an empty one."""
    if not paths:
        return {}
    said = output_of(as_root(["sh", "-c", CONTENTS, "sh", *paths]))
    if said is None:
        raise Failed("cannot look at disks: blkid did not answer")
    found: dict = {}
    rows: dict = {}
    for line in said.splitlines():
        name, _, value = line.partition("=")
        if name == "DEVNAME":
            rows = found.setdefault(value, {})
        rows[name] = value
    return found


def mount_disk(parameters, job):
    """`path`, `label`, `word` (empty for any), `read_only`, `size` in bytes, `format`."""
    path = parameters["path"]
    check_point(path)
    if parameters["read_only"]:
        device, said = mount_copy(parameters, job)
    else:
        device = find_own(parameters, job)
        # It may have been enlarged while nobody had it; what is as large already stays so.
        script = 'mount -t ext4 -o discard,defaults "$2" "$1" && { resize2fs "$2" || true; }'
        script = CLOSE + 'close_point "$1" && ' + script
        said = job.run(["sh", "-c", script, "sh", path, device], root=True, seconds=300)
    return {"mounted": path, "device": device, "open": left_open(said)}


def find_own(parameters, job):
    """The device of a disk that is written here; formatted if it was made empty and proves empty."""
    known = [each for each in with_roles(devices()) if each["role"] != RO and not each["read_only"]]
    labelled = [each for each in known if each["label"] == parameters["label"]]
    ours = [each for each in labelled if each["role"] == RW]
    if len(ours) > 1:
        raise Failed("%d disks have the label %s" % (len(ours), parameters["label"]), permanent=True)
    if ours:
        return ours[0]["path"]
    if labelled:
        raise Failed("nobody tells whether %s is a disk to write or a copy of it" % labelled[0]["path"])
    empty = [each for each in known if not each["fs"]]
    empty = [each for each in empty if each["size"] == parameters["size"]]
    if not parameters["format"]:
        raise Failed("no disk has the label %s yet" % parameters["label"])
    if len(empty) != 1:
        why = (
            "%d empty disks are of its size" % len(empty) if empty else "no empty disk of its size is here yet"
        )
        raise Failed(why, permanent=len(empty) > 1)
    device = empty[0]["path"]
    if not empty[0]["role"]:
        raise Failed("nobody tells whether %s is a disk to write" % device)
    why = run_root(job, "blank", {"device": device}, BLANK_S)["why"]
    if why:
        look = typed("sudo blkid -p", device)
        raise Failed("not formatted: %s" % why, permanent=True, hint=LOOK, on_host=look)
    owner = "root_owner=%d:%d" % (os.getuid(), os.getgid())
    job.run([*MKFS[:-1], MKFS[-1] + "," + owner, "-L", parameters["label"], device], root=True)
    return device


def mount_copy(parameters, job):
    """Mounts a copy for many readers: clean, and with its word. Its device, and what was said. All by one
    program: each sudo costs more than what it is for."""
    taken = {mount["device"] for mount in mounts()}
    known = [each for each in with_roles(bare_devices()) if each["device"] not in taken]
    # What the kernel never writes is safe to look at, whoever says what of it.
    free = [each["path"] for each in known if each["role"] == RO or each["read_only"]]
    look = look_folder(job)
    words = [parameters["label"], parameters["word"], look, WORD, parameters["path"]]
    said = job.run(["sh", "-c", MOUNT_COPY, "sh", *words, *free], root=True, seconds=300) if free else ""
    how, _, device = (said.strip().splitlines() or [""])[-1].partition(" ")
    if how == "mounted":
        return device, said
    if how == DIRTY:
        raise Failed(
            "%s needs recovery: it was copied while its file system was being written" % device,
            permanent=True,
            hint="detach it and repair it on a slice of one host: tpuctl disk repair",
        )
    raise Failed("no disk has the label %s and the word of this copy yet" % parameters["label"])


def look_folder(job):
    """Where a disk is mounted for a look, in a space of mounts (unshare(1)) that ends with the program that
    looks, however that ends. Nobody else sees it, so nobody keeps it busy, and whoever removes the folder of
    the job never finds the files of a disk in it."""
    place = os.path.join(job.folder, "look")
    os.makedirs(place, exist_ok=True)
    return place


def write_word(device, word, job):
    """Writes the word of a copy that nobody has mounted."""
    script = """mount -t ext4 -o rw "$1" "$2" || exit
printf "%s\\n" "$4" > "$2/$3"; status=$?
umount "$2" && exit $status"""
    argv = ["unshare", "-m", "sh", "-c", script, "sh", device, look_folder(job), WORD, word]
    job.run(argv, root=True, seconds=300)


def grow_disk(parameters, job):
    """`path` of a disk that is written here, and its `size` in bytes by now; `id` names this time."""
    found = run_root(job, "grow", {"path": parameters["path"], "size": parameters["size"]}, GROW_S)
    return {"grown": parameters["id"], "fs": found["fs"]}


def unmount_disk(parameters, job):
    """`path`."""
    path = parameters["path"]
    if os.path.ismount(path):
        try:
            job.run(["umount", path], root=True, seconds=120)
        except Failed as error:
            # Programs that use it do not go away by waiting: a person ends them.
            busy = "busy" in str(error)
            if not busy:
                raise Failed(str(error)) from error
            users = typed("sudo fuser -vm", path)
            raise Failed(str(error), permanent=True, hint=IN_USE, on_host=users) from error
    return {"unmounted": parameters["path"]}


def repair_disk(parameters, job):
    """Replays the journal of the copy `label`, which nobody has mounted, and writes its `word`. `of` disks with
    that label can be written here; the others are mounted, so the copy is not taken for its master."""
    taken = {mount["device"] for mount in mounts()}
    label = parameters["label"]
    known = [each for each in devices() if each["label"] == label and not each["read_only"]]
    if len(known) < parameters["of"]:
        raise Failed("no disk to repair has the label %s yet" % label)
    found = [each for each in known if each["device"] not in taken]
    if len(found) != 1:
        why = "%d disks with the label %s are not mounted here, and the copy has to be the only one"
        raise Failed(why % (len(found), label), permanent=True)
    device = found[0]["path"]
    # 1: what was wrong is corrected, e2fsck(8).
    job.run(["sh", "-c", 'e2fsck -p "$1"; test $? -le 1', "sh", device], root=True, seconds=1800)
    write_word(device, parameters["word"], job)
    return {"repaired": parameters["id"]}
