"""A run in a pod: `prepare` brings its code and environment, `start` runs its program as one worker of it.

    python3 -c "$SOURCE" prepare HOME URI SHA256
    python3 HOME/pod.py start HOME HOSTS SLICES CONTAINERS NUMBER DIRECTORY [SECRET...] -- COMMAND...

Python 3.8 standard library. The bundle at URI has `run.json`, the manifest; `blobs/`, contents by their sha256,
of which one is the list of the code's files; and `pod/` with this file, what masks values of secrets, and what
installs the environment. Exit status of `prepare`: 78 where trying again is in vain, else 1.
"""

import hashlib
import http.client
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.parse
import urllib.request

TOKEN = "http://%s/computeMetadata/v1/instance/service-accounts/default/token"
STORAGE = "https://storage.googleapis.com"
TRIES = 5
NEVER_AGAIN, NOT_EXECUTABLE, NOT_FOUND = 78, 126, 127
PORT = "8476"
SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
LOOK_S = 0.2  # between two looks at a program that writes nothing
LAST_BYTES = 1 << 20  # of what its descendants go on writing when it has ended; pipes have less


class Failed(Exception):
    """Why, and the exit status."""

    def __init__(self, why, status=1):
        super().__init__(why)
        self.status = status


def prepare(home, uri, sha256):
    path = os.path.join(home, "bundle.tar")
    fetch(uri, path)
    found = digest_of(path)
    if found != sha256:
        raise Failed("%s has the sha256 %s, not %s: it was changed" % (uri, found, sha256), NEVER_AGAIN)
    with tarfile.open(path) as bundle:
        unpack_code(bundle, os.path.join(home, "code"))
        env = unpack_files(bundle, "pod/", home)
    os.unlink(path)
    if env:
        install(home)


def fetch(uri, path):
    """An object of a bucket, with the token of the pod's account."""
    bucket, _, name = uri[len("gs://") :].partition("/")
    base = (os.environ.get("STORAGE_EMULATOR_HOST") or STORAGE).rstrip("/")
    url = "%s/storage/v1/b/%s/o/%s?alt=media" % (base, bucket, urllib.parse.quote(name, safe=""))
    for attempt in range(TRIES):
        try:
            request = urllib.request.Request(url, headers=authorization())
            with urllib.request.urlopen(request, timeout=60) as answer, open(path, "wb") as file:
                shutil.copyfileobj(answer, file)
                found, size = file.tell(), answer.headers.get("Content-Length")
            if size is None or found == int(size):
                return
            why = "%s: only %d of %s bytes came" % (uri, found, size)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                raise Failed("there is no %s" % uri, NEVER_AGAIN) from error
            why = "%s: Cloud Storage answered %d" % (uri, error.code)
            if error.code in (401, 403):
                why += "; the pod's account needs roles/storage.objectViewer on gs://%s" % bucket
        except (OSError, http.client.HTTPException) as error:
            why = "%s cannot be read: %r" % (uri, error)
        if attempt + 1 == TRIES:
            raise Failed(why)
        time.sleep(2.0**attempt)  # a new pod has its account's token some seconds late


def authorization():
    where = os.environ.get("GCE_METADATA_HOST") or "metadata.google.internal"
    request = urllib.request.Request(TOKEN % where, headers={"Metadata-Flavor": "Google"})
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return {"Authorization": "Bearer " + json.load(answer)["access_token"]}
    except (OSError, ValueError, KeyError, http.client.HTTPException):
        return {}  # the bucket says what it thinks of that


def digest_of(path):
    found = hashlib.sha256()
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            found.update(piece)
    return found.hexdigest()


def unpack_code(bundle, folder):
    """The files and links that the list of the code names, below `folder`."""
    tree = json.loads(read(bundle, "run.json"))["code"]["bundle_sha256"]
    for kind, path, *row in json.loads(read(bundle, "blobs/" + tree))["entries"]:
        target = os.path.join(folder, path)
        os.makedirs(target if kind == "d" else os.path.dirname(target), exist_ok=True)
        if kind == "l":
            if not os.path.lexists(target):
                os.symlink(row[0], target)
        elif kind == "f":
            with open(target, "wb") as file:
                file.write(read(bundle, "blobs/" + row[1]))
            os.chmod(target, row[0])
    os.makedirs(folder, exist_ok=True)


def unpack_files(bundle, prefix, folder):
    """All files whose names begin so, below `folder`; whether an environment is among them."""
    names = [name for name in bundle.getnames() if name.startswith(prefix)]
    for name in names:
        target = os.path.join(folder, name[len(prefix) :])
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "wb") as file:
            file.write(read(bundle, name))
    return prefix + "env/env.json" in names


def read(bundle, name):
    with bundle.extractfile(name) as file:
        return file.read()


def install(home):
    """The environment, verified as on a TPU VM: wheels by their sha256, files by RECORD, imports, its probe."""
    command = [sys.executable, "env_install.py"]
    status = subprocess.call(command, cwd=os.path.join(home, "env"), env=dict(os.environ, HOME=home))
    if status:
        raise Failed("the environment was not installed", NEVER_AGAIN if status in (2, 3) else 1)


def start(home, hosts, slices, containers, number, directory, secrets, command):
    """Becomes the program of one worker, or what masks the values of its `secrets` in its output."""
    variables = dict(os.environ)
    variables.update(worker_variables(variables, hosts, slices, containers, number))
    env = os.path.join(home, "env", "env.json")
    if os.path.exists(env):
        with open(env) as file:
            place = os.path.join(home, ".tpuctl", "envs", json.load(file)["key"])
        variables["VIRTUAL_ENV"] = place
        variables["PATH"] = os.path.join(place, "bin") + os.pathsep + variables.get("PATH", os.defpath)
    if secrets:
        mask_output(home, [variables[name] for name in secrets if name in variables])
    os.chdir(os.path.join(home, "code", directory))
    try:
        os.execvpe(command[0], command, variables)
    except FileNotFoundError as error:
        raise Failed("there is no program %r in this image" % command[0], NOT_FOUND) from error
    except OSError as error:
        raise Failed("%s: %s" % (command[0], error.strerror), NOT_EXECUTABLE) from error


def mask_output(home, values):
    """Returns in a child of this process, which passes the output on with a mask over each value, as the agent
    does on a slice, and signals to it; and ends as the child does."""
    sys.path.insert(0, home)
    from secret_forms import MaskedStream, all_forms

    patterns = all_forms(values)
    if not patterns:
        return
    numbers = [getattr(signal, name) for name in SIGNALS]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    pipes = {handle: os.pipe() for handle in (1, 2)}
    child = os.fork()
    if not child:
        for handle, (_, end) in pipes.items():
            os.dup2(end, handle)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    for _, end in pipes.values():
        os.close(end)
    for number in numbers:
        signal.signal(number, lambda sent, _: send(child, sent))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    outputs = {end: (handle, MaskedStream(patterns)) for handle, (end, _) in pipes.items()}
    os._exit(pass_on(child, outputs))


def pass_on(child, outputs):
    """Copies what comes out of each pipe to its handle until the child has ended; its exit status."""
    status, left = None, LAST_BYTES
    while left > 0:
        ready = select.select(list(outputs), [], [], LOOK_S if status is None else 0)[0]
        for end in ready:
            handle, masks = outputs[end]
            data = os.read(end, 1 << 16)
            write(handle, masks.feed(data, last=not data))
            if not data:
                del outputs[end]
            left -= 0 if status is None else len(data)
        if status is not None and not ready:
            break
        status = reap(child) if status is None else status
    for handle, masks in outputs.values():
        write(handle, masks.feed(b"", last=True))
    return status


def reap(child):
    """The exit status of the child, as of a container of its own; None while it runs. Whoever has lost its
    parent is ours in a pod, and ends here, too."""
    while True:
        pid, found = os.waitpid(-1, os.WNOHANG)
        if pid == child:
            return 128 + os.WTERMSIG(found) if os.WIFSIGNALED(found) else os.WEXITSTATUS(found)
        if not pid:
            return None


def send(child, number):
    try:
        os.kill(child, number)
    except ProcessLookupError:
        return  # it has ended


def write(handle, data):
    while data:
        data = data[os.write(handle, data) :]


def worker_variables(told, hosts, slices, containers, number):
    """What a worker is told, as on a slice. What GKE says of MEGASCALE counts over ours."""
    slice_id, leader = int(told["TPUCTL_SLICE_ID"]), told["TPUCTL_LEADER"]
    worker = slice_id * hosts + int(told["JOB_COMPLETION_INDEX"])
    found = {
        "TPUCTL_RANK": str(worker * containers + number),
        "TPUCTL_WORLD_SIZE": str(slices * hosts * containers),
        "TPUCTL_LOCAL_RANK": str(number),
        "TPUCTL_LOCAL_WORLD_SIZE": str(containers),
        "TPUCTL_COORDINATOR": "%s:%s" % (leader, PORT),
        "TPUCTL_ATTEMPT": str(int(told["TPUCTL_RESTARTS"]) + 1),
    }
    if slices > 1:
        megascale = {
            "MEGASCALE_COORDINATOR_ADDRESS": leader,
            "MEGASCALE_NUM_SLICES": str(slices),
            "MEGASCALE_SLICE_ID": str(slice_id),
        }
        found.update((name, value) for name, value in megascale.items() if name not in told)
    return found


def main(words):
    if words[:1] == ["prepare"] and len(words) == 4:
        prepare(*words[1:])
    elif words[:1] == ["start"] and "--" in words[7:-1]:
        behind = words.index("--", 7)
        start(words[1], *map(int, words[2:6]), words[6], words[7:behind], words[behind + 1 :])
    else:
        raise Failed("not understood: %s" % " ".join(words), NEVER_AGAIN)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Failed as error:
        print("tpuctl: %s" % error, file=sys.stderr, flush=True)
        sys.exit(error.status)
