"""The two ways in which file systems are held still: their writers wait, or they are unmounted. As root."""

import errno
import fcntl
import os
import time

from mount_spaces import mounts_of, open_mount

FREEZE, THAW = 0xC0045877, 0xC0045878  # FIFREEZE and FITHAW of linux/fs.h
COVERED = "something else is mounted over it at %s"


class Refusal(Exception):
    """It cannot be held; nothing was changed."""


def is_written(mount):
    """Whether programs can write by this mount."""
    return not mount["read_only"] and not mount["fixed"]


class Frozen:
    """File systems whose writers wait."""

    how = "frozen"

    def __init__(self, request):
        self.word = request.get("word")
        self.handles: dict = {}
        self.tops: dict = {}
        self.frozen: list = []
        self.mounts = mounts_of(request["devices"])
        self.written = {mount["device"] for mount in self.mounts if not mount["fixed"]}
        for device in request["devices"]:
            for mount in self.mounts:
                whole = mount["root"] == "/" and is_written(mount)
                wanted = device not in self.handles or (whole and device not in self.tops)
                handle = open_mount(mount) if mount["device"] == device and wanted else None
                if handle is not None:
                    self.handles.setdefault(device, handle)
                    if whole:
                        self.tops[device] = handle

    def check(self):
        """A write to what somebody froze would wait for them, so that is found first."""
        for mount in self.mounts:
            if mount["device"] not in self.handles:
                raise Refusal(COVERED % mount["path"])
        self.begin()
        self.end()

    def write_word(self):
        """Whether each file system that can be written has the word now."""
        if not self.word or not self.tops or self.written - set(self.tops):
            return False
        name, text = self.word
        return all(put_word(top, name, text) for top in self.tops.values())

    def begin(self):
        for device, handle in self.handles.items():
            try:
                fcntl.ioctl(handle, FREEZE, 0)
            except OSError as error:
                if error.errno == errno.EOPNOTSUPP and device not in self.written:
                    continue  # such as squashfs: it stands still anyway
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


def thaw(devices):
    """What a holder that was killed left frozen."""
    done = set()
    for mount in mounts_of(devices):
        handle = open_mount(mount) if mount["device"] not in done else None
        if handle is None:
            continue
        done.add(mount["device"])
        try:
            fcntl.ioctl(handle, THAW, 0)
        except OSError as error:
            if error.errno != errno.EINVAL:  # it is not frozen any more
                raise
        finally:
            os.close(handle)


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
        self.mounts = mounts_of(request["devices"])
        self.gone: list = []
        self.handles: list = []
        self.alone: list = []

    def check(self):
        for mount in self.mounts:
            path, pid = mount["path"], mount["pid"]
            if mount["root"] != "/":
                raise Refusal("%s shows a part of it: unmount that first" % path)
            if pid != os.getpid():
                raise Refusal("process %d has it mounted at %s, in a mount namespace of its own" % (pid, path))
            handle = open_mount(mount)
            if handle is None:  # what is unmounted at its path would be that
                raise Refusal(COVERED % path)
            os.close(handle)

    def write_word(self):
        tops = [each["path"] for each in self.mounts if is_written(each)]
        if not self.word or not tops:
            return False
        top = os.open(tops[0], os.O_RDONLY | os.O_DIRECTORY)
        try:
            return put_word(top, *self.word)
        finally:
            os.close(top)

    def begin(self):
        from rooted import run_program

        self.handles = [os.open(each["source"], os.O_RDONLY) for each in self.mounts]  # the device stays
        for mount in reversed(self.mounts):
            status, _ = run_program(["umount", mount["path"]], quiet=True)
            if status != 0:
                self.end()
                raise Refusal("%s cannot be unmounted: a program uses it" % mount["path"])
            self.gone.append(mount)
        for source in sorted({each["source"] for each in self.mounts}):
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
            mount = self.gone[-1]
            # mount(8): seclabel is told, not taken
            options = ",".join(each for each in mount["options"] if each != "seclabel")
            words = ["mount", "-t", mount["fs"], "-o", options, mount["source"], mount["path"]]
            tries = 60
            while run_program(words, quiet=True)[0] != 0 and tries and not os.path.ismount(mount["path"]):
                tries -= 1
                time.sleep(1.0)
            self.gone.pop()
        while self.handles:
            os.close(self.handles.pop())
