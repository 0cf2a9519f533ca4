"""Container engines of this host, docker or podman: which one works, and the section `engine` of `facts`.

Programs on TPU need more locked memory and device files, which a rootless engine cannot give: podman is called
through sudo if that needs no password, docker if this user may not open its socket.
"""

import os
import shutil

import quick_json as json
from rooted import as_root, how_root, output_of, run_program

LOOK_S = 20.0  # docker asks its daemon, which may have just been started
ABOUT = {
    "docker": "{{.ServerVersion}} {{.DockerRootDir}}",
    "podman": "{{.Version.Version}} {{.Store.GraphRoot}}",
}
"""The `info` query of each engine, in order of preference."""
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}  # as images name them, by uname(2)


class Engine:
    """How an engine is called: `words` come before its arguments."""

    def __init__(self, name, words, version, storage):
        self.name = name
        self.words = words
        self.version = version
        self.storage = storage

    @property
    def is_users(self):
        """Whether it has no more rights than this user, to whom its root is mapped."""
        return self.name == "podman" and self.words[0] != "sudo" and os.geteuid() != 0


def find(only=None):
    """(this host's engine, or the one called `only`, or None; why there is none)."""
    why = ""
    for name in [only] if only else ABOUT:
        if shutil.which(name) is None:
            continue
        for words in ways(name):
            ask = [*words, "info", "--format", ABOUT[name]]
            about = (output_of(ask, seconds=LOOK_S) or "").split()
            if len(about) == 2:
                return Engine(name, words, *about), ""
            why = why or "%s: %s" % (name, (said_by(ask)[1].strip().splitlines() or ["it says nothing"])[-1])
    return None, why


def ways(name):
    """The ways to call an engine, in the order in which they are tried."""
    rooted = [as_root([name])] if how_root() == "sudo" else []
    return [*rooted, [name]] if name == "podman" and rooted else [[name], *rooted]


def said_by(argv, seconds=LOOK_S):
    """(exit status, all output of a program)."""
    try:
        status, said = run_program(["sh", "-c", 'exec "$@" 2>&1', "sh", *argv], seconds)
    except (OSError, TimeoutError) as error:
        return 1, str(error)
    return status, said.decode(errors="replace")


def engine_facts(_request):
    """`name` is empty if none works; `why` is then the obstacle, empty if none is installed."""
    engine, why = find()
    if engine is None:
        return {"name": "", "why": why}
    return {
        "name": engine.name,
        "version": engine.version,
        "rooted": engine.words[0] == "sudo",
        "architecture": MACHINES.get(os.uname().machine, os.uname().machine),
        "storage": engine.storage,
        "free_bytes": free_at(engine.storage),
        "images": images(engine),
    }


def free_at(path):
    """Free bytes on the file system that holds, or will hold, a folder."""
    while not os.path.isdir(path) and path != "/":
        path = os.path.dirname(path)
    space = os.statvfs(path)
    return space.f_bavail * space.f_frsize


def images(engine):
    """The images on this host."""
    said = output_of([*engine.words, "image", "ls", "--quiet", "--no-trunc"], seconds=LOOK_S) or ""
    return [described(each) for each in inspected(engine, "image", list(dict.fromkeys(said.split())))]


def inspected(engine, kind, names):
    """What the engine records about images or containers; nothing for those that are gone."""
    if not names:
        return []
    said = output_of([*engine.words, kind, "inspect", *names], any_status=True, seconds=LOOK_S)
    try:
        return json.loads(said or "[]")
    except ValueError:
        return []


def described(image):
    found = image.get("Id", "")
    return {
        "id": found if found.startswith("sha256:") else "sha256:" + found,
        "tags": image.get("RepoTags") or [],
        "digests": image.get("RepoDigests") or [],
        "architecture": image.get("Architecture", ""),
    }
