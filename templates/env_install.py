"""Installs one pinned Python environment on a host, or verifies it: `python3 env_install.py [--verify]`. With
`--tree PATH` it prints the digest of all files below PATH instead.

Python 3.8 standard library. The working directory holds `requirements.txt` (exact versions with hashes) and
`env.json`, which `tpuctl/envs/pinned.py` writes. The result is the virtual environment ~/.tpuctl/envs/<key>
with `tpuctl-files.json`, the sha256 of every file, and `tpuctl-env.json`, what the interpreter reported. That
marker is written last and never stands beside a half-made environment, so a kill at any moment is repaired by
running this again. Exit status: 0 only when verified; 2 when the input is unusable, 3 when what was installed
does not work (neither is changed by the same again), 1 otherwise.

Where `env.json` lists wheels, they come from the folder `wheels` of the working directory or from the
wheelhouse in the bucket, and no index is asked. Else downloads are shared through TPUCTL_WHEEL_CACHE (several
hosts with one disk), else ~/.tpuctl/cache; uv does the work where pip can fetch it, because it installs from
a warm cache in a second or two, else pip.

With `seal` the proved environment is laid out below ~/.tpuctl/sealed for the other hosts of the slice: what is
large by its sha256, all the rest in one archive. With `sealed` it is made of those contents, which the agent
brought from there, and looked at like any other.

Where `env.json` has `unmanaged`, nothing is installed: the environment is links to the folder that it names,
whose files must have its digest. Nothing is ever written there.
"""

import contextlib
import fcntl
import glob
import hashlib
import json
import marshal
import os
import platform
import re
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import tempfile
import time

SCHEMA = 1
MARKER = "tpuctl-env.json"
INDEX = "tpuctl-files.json"
BYTECODE = "tpuctl-bytecode"  # in an environment whose files are not ours to write beside
CACHE, COMPILED = "__pycache__", ".pyc"
# What Python compiles is taken for the source by its size and time alone, so what lies there must be known by
# its digest, too, and nobody adds to it later: not runs, and not who starts this interpreter by hand.
KEEPER, KEEPER_SAYS = "tpuctl-bytecode.pth", "import sys; sys.dont_write_bytecode = True\n"
LINK = "link:"  # in place of a digest
CONFIG = "pyvenv.cfg"
ENVIRONMENT, PYTHON, ARCHIVE = "env", "python", "rest.tar"
LARGE_BYTES = 1 << 17  # 180 of 3300 files of JAX have nine tenths; what the archive has is written twice
ACCOUNT_URL = "http://%s/computeMetadata/v1/instance/service-accounts/default/%s"
# Read after the imports: frameworks change some of them.
EFFECTIVE = ["LIBTPU_INIT_ARGS", "XLA_FLAGS", "JAX_PLATFORMS", "PJRT_DEVICE", "TPU_LIBRARY_PATH"]
GOOGLE_STORAGE = "https://storage.googleapis.com"
SPARE_BYTES = 100 << 20  # left free on the disk: logs and checkpoints of a run need some
KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)")
MINOR = re.compile(r"3\.\d+\Z")
# sha256 of every wheel of this version on PyPI.
UV_VERSION = "0.13.8"
UV_HASHES = [
    "0b3e8b1a4f5e405e31e2ff33de8af4744831e9f7338539671efbd8c3c94e791d",
    "0ec33661a14e38dea8dfb18167d2a4a5c7fe3d476c62dd8eb6acf5f378727201",
    "13050c64530a1ccfc223af0306a8152d41c0d36ea63bc19161221ca65dfe480a",
    "29451c60f5e8b07403e0a175d5229efc36b0289b34143ff4aaa499a5dd52553a",
    "5337c30bb893b4f9ce0ceb921ba2da0d13f649da644f40ad3bef84083bef0203",
    "55c0b405e75dea1d1c53efc9a8e0725f4031be0e219ec2a08b15d78ece9a616a",
    "5ace7ec339798aca31be51a75fa7c1544fe84e02fadd17a9fa3324813bbaf237",
    "62b6943c7fd64fac6854f780bea6e0359e5a5bc3241f83ee357bb38276afac49",
    "63d807451e63c8d21b1b33c945af16438ac9d8ffddc59b31ce69c692135891f5",
    "6999618363d03a0a085a9491db319e00b461dbda205db06ef1fd55dfcbf6472b",
    "86f1319f851e645bc295bb921e6be19beae7e69216c75ae809010ca7817393aa",
    "87614f62b09e3571593ffe01bf2e1dccb8df928a8423324dba80c6d0e33060eb",
    "9cf0b7b12f13da6ab1c85694ab618d97a2bbd0c904cdea7f0172fb1dd768b9d5",
    "b26fe533dc6153787e40443b7d9428ed41349127bff36a954ec82c48be01ded9",
    "b4184029b1b7c54409b9cd4372c73a36ef9c2d1d7cf3b0aca59c8b1932f041dc",
    "b7124ca1956ec2e476a1003ea5715a15f0266afaec37f4dc9c6972ba8183e6d1",
    "bfcaada3989c7716ad4b58673cd1413fad4fdc6b2e446f9553db0ef18da20850",
    "cfbc13020a64cdf2f116d2936824c38edbf41e5c07f1ea291baf02e31ebf3ed0",
    "e18a57b8b352eb7c8feb317b9f6f533c8f0ad9673fd6cf34bbe3cf1a9f6a8984",
]

# Run by the environment's own interpreter: what is really there.
PROBE = """
import gc
gc.disable()  # nothing that an import makes is garbage: looking for it takes a fifth of the time
import importlib, importlib.metadata, json, os, platform, sys
asked = json.load(sys.stdin)
found, broken = {}, {}
if asked["all"]:
    found = {each.metadata["Name"]: each.version for each in importlib.metadata.distributions()}
for name in asked["pins"]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        found[name] = None
for name in asked["verify"]:
    try:
        importlib.import_module(name)
    except BaseException as error:
        broken[name] = "%s: %s" % (type(error).__name__, error)
print("\\n" + json.dumps({
    "python": platform.python_version(), "executable": sys.executable, "packages": found, "broken": broken,
    "effective": {k: os.environ[k] for k in asked["names"] if k in os.environ}}), flush=True)
os._exit(0)  # taking all that apart again would take another tenth
"""


class Failed(Exception):
    """The environment could not be installed or is not what it should be."""


class Wrong(Failed):
    """It is what the lock says, and does not work: in vain to install again."""


class BadInput(Exception):
    """env.json or requirements.txt is unusable; nothing was changed."""


def say(text):
    print(text, flush=True)


# ---------------------------------------------------------------- input


def normal(name):
    """A package name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins_of(requirements):
    """{name: version} of the lock file's lines. Markers are not supported: one lock file per Python."""
    pins = {}
    for line in requirements.splitlines():
        if not line.strip() or line.startswith(("#", " ", "\t")):
            continue
        match = PIN.match(line)
        if match is None or ";" in line:
            raise BadInput("requirements.txt: not an exact version: %r" % line)
        pins[normal(match.group(1))] = match.group(2)
    return pins


def read_input():
    """(spec, pins), checked."""
    try:
        with open("env.json", encoding="utf-8") as file:
            spec = json.load(file)
        with open("requirements.txt", encoding="utf-8") as file:
            pins = pins_of(file.read())
    except (OSError, ValueError) as error:
        raise BadInput(str(error)) from error
    if not isinstance(spec, dict) or not KEY.match(str(spec.get("key", ""))):
        raise BadInput("env.json: `key` is missing or no file name: %r" % (spec,))
    if not MINOR.match(str(spec.get("python", ""))):
        raise BadInput("env.json: `python` must be a version like 3.11: %r" % (spec.get("python"),))
    spec.setdefault("imports", [])
    spec.setdefault("variables", {})
    return spec, pins


# ---------------------------------------------------------------- files and locks


def envs_dir():
    return os.path.join(os.path.expanduser("~"), ".tpuctl", "envs")


def cache_dir():
    shared = os.environ.get("TPUCTL_WHEEL_CACHE")
    return os.path.abspath(shared or os.path.join(os.path.expanduser("~"), ".tpuctl", "cache"))


@contextlib.contextmanager
def locked(path, waiting_for):
    """Holds the lock file at `path`.

    The kernel frees it when this process and the commands it started are gone, however they end: a uv that
    outlives a killed installer still keeps the next installer out.
    """
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        os.set_inheritable(file.fileno(), True)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for %s" % waiting_for)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write_json(path, data, indent=1):
    """Complete or not there: temporary file, fsync, rename."""
    descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".tmp-")
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump(data, file, indent=indent, sort_keys=True)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def remove_tree(path):
    """Removes an environment; the marker first, so that a kill in between leaves nothing that looks whole."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(path, MARKER))
    if os.path.lexists(path):
        shutil.rmtree(path)


def remove_leftovers(spec):
    """Working folders of an installation of this environment that was killed."""
    for name in os.listdir(envs_dir()):
        if re.match(r"\.(house|sealed)-%s-" % re.escape(spec["key"]), name):
            shutil.rmtree(os.path.join(envs_dir(), name))


# ---------------------------------------------------------------- wheels


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            digest.update(piece)
    return digest.hexdigest()


def contents_dir():
    return os.path.join(os.path.expanduser("~"), ".tpuctl", "wheels")


def content(item, spec):
    """The path of one file of the wheelhouse, by its digest: {"name", "sha256", "source"?}."""
    brought = os.path.abspath(os.path.join("wheels", item["sha256"]))
    if os.path.exists(brought):
        found = sha256_of(brought)
        if found != item["sha256"]:
            raise Failed("%s has the sha256 %s, not %s" % (item["name"], found, item["sha256"]))
        return brought
    path = os.path.join(contents_dir(), item["sha256"])
    if os.path.exists(path):
        if sha256_of(path) == item["sha256"]:
            return path
        os.unlink(path)  # damaged on the disk
    os.makedirs(contents_dir(), mode=0o700, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=contents_dir(), prefix=".tmp-")
    try:
        with open(descriptor, "wb") as file:
            bring(item, spec, file)
            file.flush()
            os.fsync(file.fileno())
        found = sha256_of(temporary)
        if found != item["sha256"]:
            raise Failed("%s has the sha256 %s, not %s" % (item["name"], found, item["sha256"]))
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    return path


def bring(item, spec, file):
    """From this host's disk, or a bucket."""
    source = item.get("source") or ""
    if source.startswith("/"):
        with open(source, "rb") as given:
            shutil.copyfileobj(given, file, 1 << 20)
    elif source.startswith("gs://"):
        download(source, file)
    elif spec.get("wheelhouse"):
        download("%s/%s/%s" % (spec["wheelhouse"].rstrip("/"), item["sha256"], item["name"]), file)
    else:
        raise Failed("%s is not on this host, and there is no wheelhouse" % item["name"])


def download(uri, file, tries=3):
    """An object of a bucket, with the token of this host's service account."""
    import urllib.error  # what only some installations need takes a tenth of a second to import
    import urllib.parse
    import urllib.request

    bucket, _, name = uri[len("gs://") :].partition("/")
    base = os.environ.get("STORAGE_EMULATOR_HOST") or GOOGLE_STORAGE
    url = "%s/storage/v1/b/%s/o/%s?alt=media" % (base.rstrip("/"), bucket, urllib.parse.quote(name, safe=""))
    for attempt in range(tries):
        file.seek(0)
        file.truncate()
        try:
            request = urllib.request.Request(url, headers=authorization())
            with urllib.request.urlopen(request, timeout=60) as answer:
                shutil.copyfileobj(answer, file, 1 << 20)
            return
        except urllib.error.HTTPError as error:
            if error.code in (401, 403, 404) or attempt + 1 == tries:
                role = role_to_give(bucket) if error.code == 403 else ""
                raise Failed("%s: Cloud Storage answered %d%s" % (uri, error.code, role)) from error
        except OSError as error:
            if attempt + 1 == tries:
                raise Failed("%s cannot be read: %s" % (uri, error)) from error
        time.sleep(2.0**attempt)


def authorization():
    try:
        return {"Authorization": "Bearer " + json.loads(account("token"))["access_token"]}
    except (OSError, ValueError, KeyError):
        return {}  # the bucket says what it thinks of that


def account(what):
    """What the metadata server says of this host's service account. Raises OSError."""
    import urllib.request

    where = os.environ.get("GCE_METADATA_HOST") or "metadata.google.internal"
    request = urllib.request.Request(ACCOUNT_URL % (where, what), headers={"Metadata-Flavor": "Google"})
    with urllib.request.urlopen(request, timeout=5) as answer:
        return answer.read().decode()


def role_to_give(bucket):
    """What to type for a bucket that the hosts' account may not read."""
    try:
        member = "--member=serviceAccount:%s" % account("email")
    except OSError:
        return ""
    give = "gcloud storage buckets add-iam-policy-binding gs://%s" % bucket
    return "; type: %s %s --role=roles/storage.objectViewer" % (give, member)


def check_space(spec):
    need = spec.get("bytes", 0)
    os.makedirs(envs_dir(), mode=0o700, exist_ok=True)
    found = os.statvfs(envs_dir())
    free = found.f_bavail * found.f_frsize
    if need and free < need + SPARE_BYTES:
        raise Failed("its disk has %d MiB free, and %d are needed" % (free >> 20, (need + SPARE_BYTES) >> 20))


def unpack_uv(spec):
    """uv out of its own wheel, once."""
    home = os.path.join(os.path.expanduser("~"), ".tpuctl", "tools")
    binary = os.path.join(home, "uv-" + spec["installer"]["sha256"][:16])
    if not os.access(binary, os.X_OK):
        import zipfile

        os.makedirs(home, mode=0o700, exist_ok=True)
        with zipfile.ZipFile(content(spec["installer"], spec)) as wheel:
            (name,) = [each for each in wheel.namelist() if each.endswith(".data/scripts/uv")]
            descriptor, temporary = tempfile.mkstemp(dir=home, prefix=".tmp-")
            with wheel.open(name) as packed, open(descriptor, "wb") as file:
                shutil.copyfileobj(packed, file, 1 << 20)
        os.chmod(temporary, 0o700)
        os.replace(temporary, binary)
    return binary


def python_place(spec):
    return os.path.join(os.path.expanduser("~"), ".tpuctl", "pythons", spec["archive"]["sha256"][:16])


def find_interpreter(spec):
    """That of the environment's archive, else one of this host."""
    return unpack_python(spec) if spec.get("archive") else find_python(spec["python"])


def unpack_python(spec):
    """The interpreter of the archive, once."""
    place = python_place(spec)
    if not os.path.isdir(place):
        home = os.path.dirname(place)
        os.makedirs(home, mode=0o700, exist_ok=True)
        work = tempfile.mkdtemp(dir=home, prefix=".tmp-")
        try:
            with tarfile.open(content(spec["archive"], spec)) as archive:
                if hasattr(tarfile, "data_filter"):
                    archive.extractall(work, filter="tar")
                else:
                    archive.extractall(work)
            os.rename(os.path.join(work, "python"), place)
        finally:
            shutil.rmtree(work)
    return os.path.join(place, "bin", "python3")


def wheel_commands(spec, env, house):
    """Offline, from files in the folder `house` with the names that their wheels have.

    uv unpacks into a cache that goes with `house`, and links from there: each file is written once, and shared
    with nothing afterwards.
    """
    for item in spec["wheels"]:
        os.symlink(content(item, spec), os.path.join(house, item["name"]))
    uv = unpack_uv(spec)
    python = find_interpreter(spec)
    common = [uv, "-q", "--cache-dir", os.path.join(house, ".cache"), "--no-config", "--offline"]
    install = ["pip", "sync", "--python", environment_python(env), "--require-hashes",
               "--link-mode", "hardlink", "--only-binary", ":all:", "--no-index", "--find-links", house,
               "requirements.txt"]  # fmt: skip
    # Relocatable: the same files on every host, whatever its home directory is.
    make = ["venv", "--relocatable", "--no-python-downloads", "--python", python, env]
    return [common + make, common + install]


def place_files(spec, env):
    """Files beside the packages, or in the place of one of theirs."""
    for item in spec.get("files", []):
        target = os.path.join(env, item["to"])
        os.makedirs(os.path.dirname(target), exist_ok=True)
        temporary = target + ".tpuctl-new"
        shutil.copyfile(content(item, spec), temporary)
        mode = 0o755 if os.access(target, os.X_OK) else 0o644
        os.chmod(temporary, mode)
        os.replace(temporary, target)


# ---------------------------------------------------------------- sealed


def sealed_path(digest):
    """Where a content lies that hosts give each other. The agent has checked its digest when it came."""
    return os.path.join(os.path.expanduser("~"), ".tpuctl", "sealed", digest)


class HashingFile:
    """What a tarfile is written to, from its beginning to its end."""

    def __init__(self, file):
        self.file, self.digest, self.size = file, hashlib.sha256(), 0

    def write(self, data):
        self.digest.update(data)
        self.size += len(data)
        return self.file.write(data)

    def tell(self):
        return self.size


def seal(env, spec, index):
    """Lays the environment out for other hosts, with what Python compiled in it; [path, mode, sha256, size] of
    each content, or nothing where the disk has no room for the archive.

    Large files are links to those of the environment: nothing is copied, and the environment keeps its files to
    itself. Whoever gets one that has changed since sees that by its sha256. Sources go into the archive, which
    keeps their times: what Python compiled of them goes by those.
    """
    large = {}
    for path, row in index.items():
        wanted = row[1] >= LARGE_BYTES and not path.endswith((".py", COMPILED)) and not row[0].startswith(LINK)
        if wanted and os.lstat(os.path.join(env, path)).st_nlink == 1:
            large.setdefault(row[0], path)  # of two alike, one goes into the archive
    parts = [(ENVIRONMENT, env)]
    if spec.get("archive"):
        parts.append((PYTHON, python_place(spec)))
    apart = {os.path.join(ENVIRONMENT, name) for name in [MARKER, INDEX, *large.values()]}
    need = sum(
        os.lstat(os.path.join(folder, name)).st_size for _, top in parts for folder, _, names in os.walk(top)
        for name in names
    ) - sum(index[path][1] for path in large.values())  # fmt: skip
    found = os.statvfs(env)
    if found.f_bavail * found.f_frsize < need + SPARE_BYTES:
        say("no room to lay it out for other hosts")
        return []
    os.makedirs(sealed_path(""), mode=0o700, exist_ok=True)
    rows = [[ARCHIVE, 0o600, *pack(parts, apart)]]
    for digest, path in large.items():
        full = os.path.join(env, path)
        temporary = "%s.%d.tmp" % (sealed_path(digest), os.getpid())
        os.symlink(full, temporary)
        os.replace(temporary, sealed_path(digest))
        rows.append([path, stat.S_IMODE(os.stat(full).st_mode), digest, index[path][1]])
    return rows


def pack(parts, apart):
    """One archive of folders, without the names in `apart`; its sha256 and size."""
    descriptor, temporary = tempfile.mkstemp(dir=sealed_path(""), prefix=".tmp-")
    try:
        with open(descriptor, "wb", buffering=1 << 20) as file:
            out = HashingFile(file)
            with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT, copybufsize=1 << 20) as archive:
                for name, top in parts:
                    archive.add(top, name, filter=lambda member: None if member.name in apart else member)
        digest = out.digest.hexdigest()
        os.replace(temporary, sealed_path(digest))
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    return digest, out.size


def unpack_sealed(env, spec):
    """Makes the environment of the contents that another host has sealed; {path: row} of its files.

    Large files are moved, so that each is written once, and shared with nothing afterwards.
    """
    (archive,) = [row for row in spec["sealed"] if row[0] == ARCHIVE]
    large = [row for row in spec["sealed"] if row is not archive]
    home = os.path.dirname(env)
    with tempfile.TemporaryDirectory(dir=home, prefix=".sealed-%s-" % spec["key"]) as work:
        digests = unpack(sealed_path(archive[2]), work)
        made = os.path.join(work, ENVIRONMENT)
        for path, mode, digest, _ in large:
            os.replace(sealed_path(digest), os.path.join(made, path))
            os.chmod(os.path.join(made, path), mode)
            digests[os.path.join(ENVIRONMENT, path)] = digest
        if spec.get("archive"):
            place = python_place(spec)
            if not os.path.isdir(place):
                os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
                os.rename(os.path.join(work, PYTHON), place)
            theirs = os.readlink(environment_python(made)).rpartition(os.path.basename(place))[2]
            lead_to(made, place + theirs)
        elif not os.access(environment_python(made), os.X_OK):
            lead_to(made, find_python(spec["python"]))
        os.rename(made, env)
    os.unlink(sealed_path(archive[2]))
    below = len(ENVIRONMENT) + 1
    return {
        name[below:]: [digest, *signature(os.path.join(env, name[below:]))]
        for name, digest in digests.items()
        if name.startswith(ENVIRONMENT + "/") and name != os.path.join(ENVIRONMENT, CONFIG)
    }


def unpack(path, folder):
    """The sha256 of each file in an archive, which is unpacked below `folder`."""
    digests, buffer = {}, memoryview(bytearray(1 << 20))
    with tarfile.open(path) as archive, open(path, "rb", buffering=0) as raw:
        for member in archive:
            target = os.path.join(folder, member.name)
            if member.isdir():
                os.makedirs(target, mode=member.mode & 0o777 | 0o700, exist_ok=True)
            elif member.issym():
                os.symlink(member.linkname, target)
            elif member.islnk():
                os.link(os.path.join(folder, member.linkname), target)
                digests[member.name] = digests[member.linkname]
            elif member.isreg():
                digests[member.name] = unpack_file(raw, member, target, buffer)
            else:
                raise Failed("%s in the archive is neither file, folder nor symbolic link" % member.name)
    return digests


def unpack_file(raw, member, target, buffer):
    """Its sha256. What Python compiled of a file goes by its time."""
    digest = hashlib.sha256()
    raw.seek(member.offset_data)
    file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, member.mode & 0o777)
    try:
        left = member.size
        while left:
            count = raw.readinto(buffer[:left])
            if not count:
                raise Failed("the archive ends within %s" % member.name)
            left -= count
            digest.update(buffer[:count])
            done = 0
            while done < count:
                done += os.write(file, buffer[done:count])
        os.utime(file, (member.mtime, member.mtime))
    finally:
        os.close(file)
    return digest.hexdigest()


def lead_to(env, python):
    """Has an environment that another host made start the interpreter of this one (PEP 405)."""
    link, config = environment_python(env), os.path.join(env, CONFIG)
    os.unlink(link)
    os.symlink(python, link)
    with open(config, encoding="utf-8") as file:
        text = re.sub("(?m)^home *=.*$", lambda _: "home = " + os.path.dirname(python), file.read())
    with open(config, "w", encoding="utf-8") as file:
        file.write(text)


# ---------------------------------------------------------------- files


def walk(env):
    """Paths of all files of the environment, seen from it, without what Python compiles by itself."""
    for folder, folders, files in os.walk(env):
        folders[:] = sorted(name for name in folders if name != CACHE)
        below = folder[len(env) :].strip(os.sep)
        for name in sorted(files):
            if name not in (MARKER, INDEX) and not name.endswith(COMPILED):
                yield os.path.join(below, name)


def walk_compiled(env, tree):
    """Paths of all that Python may load in the place of a source, seen from the environment. What lies beside
    the sources of a tree that is not ours is not looked up by programs, and others write it."""
    for top in (env,) if tree == env else (tree, os.path.join(env, BYTECODE)):
        for folder, folders, files in os.walk(top):
            if top == tree != env:
                folders[:] = [name for name in folders if name != CACHE]
            below = folder[len(tree if top == tree else env) :].strip(os.sep)
            for name in files:
                if name.endswith(COMPILED):
                    yield os.path.join(below, name)


def full_path(env, tree, path):
    """Where a file of the list lies: what is compiled is always the environment's own."""
    return os.path.join(env if path.startswith(BYTECODE + os.sep) else tree, path)


def compile_all(env, spec):
    """Of an environment that nobody lists the imports of. What does not compile, such as a template with the
    name of a source, is left out: programs do not import it either."""
    run_quietly(
        [*interpreter(env, spec), "-m", "compileall", "-q", "-j", "0", *site_packages(env)],
        env=clean_environment(),
        cwd=env,
    )


def site_packages(env):
    return glob.glob(os.path.join(env, "lib", "python3*", "site-packages"))


def keep_bytecode(env):
    """From now on the environment's interpreter compiles nothing that stays."""
    for site in site_packages(env):
        path = os.path.join(site, KEEPER)
        if not os.path.exists(path):
            with open(path, "w", encoding="utf-8") as file:
                file.write(KEEPER_SAYS)


def row_of(full):
    """The digest of a file, or where a link leads, and its signature."""
    found = os.lstat(full)
    content = LINK + os.readlink(full) if stat.S_ISLNK(found.st_mode) else sha256_of(full)
    return [content, *signature(full, found)]


def rows_of(tree):
    """{path: row} of all files, by all CPUs of the host: libtpu.so alone has 700 MB."""
    from concurrent.futures import ThreadPoolExecutor

    paths, parts = list(walk(tree)), 8 * (os.cpu_count() or 1)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        rows = pool.map(
            lambda part: [(path, row_of(os.path.join(tree, path))) for path in paths[part::parts]], range(parts)
        )
        return {path: row for part in rows for path, row in part}


def signature(path, found=None):
    """What changes with the content: size, times, inode. A write sets the ctime, which nobody can set back."""
    found = found or os.lstat(path)
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def make_index(env, spec, known):
    """Writes down every file with its sha256 and signature, after a look at what RECORD says of it; a file that
    was asked for counts with its own digest. What `known` says of a file is not computed again."""
    own = {item["to"]: item["sha256"] for item in spec.get("files", [])}
    tree = tree_of(env, spec)
    recorded = recorded_digests(env) if tree == env else {}
    index = {}
    for path in [*walk(tree), *walk_compiled(env, tree)]:
        row, full = known.get(path), full_path(env, tree, path)
        if row is None or row[1:] != signature(full):
            row = row_of(full)
        wanted = own.get(path) or (None if path.endswith(COMPILED) else recorded.get(path))
        if wanted is not None and wanted != row[0] and not row[0].startswith(LINK):
            raise Failed("%s is not what its package says" % path)
        index[path] = row
    digest = tree_digest({path: row[0] for path, row in index.items() if not path.endswith(COMPILED)})
    if tree != env and digest != spec["unmanaged"]["sha256"]:
        raise Wrong("%s is not as it was: its digest is %s" % (tree, digest))
    write_json(os.path.join(env, INDEX), index, indent=None)  # as quick to read as it may be
    return digest, index


def signatures_digest(index):
    """By which the agent sees at once that nothing changed, without reading the list of files; marshal's format
    2 is the same for every Python."""
    rows = sorted((path, *row[1:]) for path, row in index.items())
    return hashlib.sha256(marshal.dumps(rows, 2)).hexdigest()


def tree_digest(digests):
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def tree_of(env, spec):
    """Where the files are: what is unmanaged lies elsewhere."""
    return spec["unmanaged"]["path"] if spec.get("unmanaged") else env


def print_tree(path):
    """The digest of a folder, as `make_index` has it."""
    digests = {each: row[0] for each, row in rows_of(path).items()}
    print(json.dumps({"sha256": tree_digest(digests), "files": len(digests)}))
    return 0 if digests else 1


def link_tree(env, path):
    """An environment that leads to one that is there: Python finds all it needs from where it was started."""
    if not os.access(os.path.join(path, "bin", "python"), os.X_OK):
        raise Failed("there is no %s/bin/python" % path)
    os.makedirs(env, mode=0o700)
    for name in os.listdir(path):
        if name not in (MARKER, INDEX, BYTECODE):
            os.symlink(os.path.join(path, name), os.path.join(env, name))


def recorded_digests(env):
    """{path: sha256} of all RECORD files ("Recording installed projects" of packaging.python.org)."""
    import base64
    import csv

    found = {}
    for record in glob.glob(os.path.join(env, "lib*", "python3*", "site-packages", "*.dist-info", "RECORD")):
        site = os.path.relpath(os.path.dirname(os.path.dirname(record)), env)
        with open(record, newline="", encoding="utf-8") as file:
            for row in csv.reader(file):
                if len(row) == 3 and row[1].startswith("sha256="):
                    path = os.path.normpath(os.path.join(site, row[0]))
                    found[path] = base64.urlsafe_b64decode(row[1][7:] + "==").hex()
    return found


# ---------------------------------------------------------------- libtpu


FLAG_PROBE = """
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1])
lib.GetPjrtApi.restype = ctypes.c_void_p
api = lib.GetPjrtApi()
version = (ctypes.c_int * 2).from_address(api + 32)
print("pjrt %d.%d" % (version[0], version[1]), flush=True)
table = ctypes.cast(api, ctypes.POINTER(ctypes.c_void_p))
class Args(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("extension", ctypes.c_void_p)]
args = Args(ctypes.sizeof(Args), None)
call = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
error = call(table[8])(ctypes.addressof(args))
if not error:
    print("flags accepted", flush=True)
    sys.exit()
class Told(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("extension", ctypes.c_void_p), ("error", ctypes.c_void_p),
                ("text", ctypes.c_void_p), ("length", ctypes.c_size_t)]
told = Told(ctypes.sizeof(Told), None, error, None, 0)
ctypes.CFUNCTYPE(None, ctypes.c_void_p)(table[6])(ctypes.addressof(told))
text = ctypes.string_at(told.text, told.length).decode(errors="replace")
print("not asked: " + " ".join(text.split()), flush=True)
"""


def probe_libtpu(env, spec):
    """{path, sha256, pjrt} of the libtpu that the environment's programs load, or None without one; `not_asked`
    says why it did not look at its flags. Raises Wrong with its own words when it refuses one.

    PJRT_Plugin_Initialize, slot 8 of the PJRT C API, reads them, and ends the program for a bad one. An error
    that it returns, which slot 6 puts into words, is of something else. It opens no chip; without
    TPU_SKIP_MDS_QUERY it asks the metadata server for minutes.
    """
    variables = spec["variables"]
    path = variables.get("TPU_LIBRARY_PATH") or variables.get("PTXLA_TPU_LIBRARY_PATH")
    if not path:
        code = "import importlib.util as u; s = u.find_spec('libtpu')\n"
        code += "print(s.submodule_search_locations[0] if s else '')"
        _, said = run_quietly([environment_python(env), "-I", "-c", code], env=clean_environment())
        folder = said.strip().rsplit("\n", 1)[-1]
        path = os.path.join(folder, "libtpu.so") if folder else ""
    if not path:
        return None
    if not os.path.exists(path):
        raise Failed("there is no %s" % path)
    asked = dict(
        variables,
        ALLOW_MULTIPLE_LIBTPU_LOAD="1",  # or it looks at no flag while a program has /tmp/libtpu_lockfile
        TPU_ACCELERATOR_TYPE="v4-8",
        TPU_SKIP_MDS_QUERY="1",
        TPU_WORKER_HOSTNAMES="localhost",
    )
    status, said = run_quietly(
        [environment_python(env), "-I", "-c", FLAG_PROBE, path], env=clean_environment(asked)
    )
    version = next((line[5:] for line in said.splitlines() if line.startswith("pjrt ")), "")
    unasked = next((line[11:] for line in said.splitlines() if line.startswith("not asked: ")), None)
    if unasked is not None:
        say("libtpu did not look at its flags: %s" % unasked)
        return {"path": path, "sha256": sha256_of(path), "pjrt": version, "not_asked": unasked}
    if "flags accepted" not in said:
        lines = [
            line for line in said.splitlines() if "ERROR" in line or "llegal" in line
        ] or said.splitlines()[-1:]
        raise Wrong("libtpu refuses its flags: %s" % (lines[0] if lines else "exit status %d" % status))
    return {"path": path, "sha256": sha256_of(path), "pjrt": version}


# ---------------------------------------------------------------- verify


def run_quietly(command, **options):
    """(exit status, combined output) of a command; a command that cannot start is a failure, too."""
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            universal_newlines=True,
            close_fds=False,  # they share our locks, see `locked`
            **options,
        )
    except OSError as error:
        return 127, str(error)
    return done.returncode, done.stdout


def environment_python(env):
    return os.path.join(env, "bin", "python")


def interpreter(env, spec):
    """What starts Python here. What it compiles stays for the runs, outside of a folder that is not ours."""
    apart = ["-X", "pycache_prefix=" + os.path.join(env, BYTECODE)]
    return [environment_python(env), *(apart if spec.get("unmanaged") else [])]


def clean_environment(variables=None):
    """Our own variables without those that would lead an interpreter to other packages."""
    keep = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    keep.update(variables or {})
    return keep


def inspect(env, spec, pins):
    """(report, problems): what the environment's interpreter says of itself, and where that is not the lock."""
    python = environment_python(env)
    if not os.access(python, os.X_OK):
        return {}, ["no environment at %s" % env]
    asked = json.dumps(
        {
            "pins": sorted(pins),
            "verify": spec["imports"],
            "names": EFFECTIVE,
            "all": bool(spec.get("unmanaged")),
        }
    )
    status, output = run_quietly(
        [*interpreter(env, spec), "-c", PROBE],
        input=asked,
        env=clean_environment(spec["variables"]),
        cwd=env,
    )
    try:
        report = json.loads(output.strip().rsplit("\n", 1)[-1])
        packages, broken = report["packages"], report.pop("broken")
    except (ValueError, KeyError, TypeError):
        return {}, ["the interpreter gave no report (exit status %d): %s" % (status, output.strip()[-2000:])]
    problems = []
    if not report["python"].startswith(spec["python"] + "."):
        problems.append("python is %s, wanted %s" % (report["python"], spec["python"]))
    for name in sorted(pins):
        if packages.get(name) != pins[name]:
            problems.append("%s is %s, wanted %s" % (name, packages.get(name) or "missing", pins[name]))
    problems.extend("import %s fails: %s" % item for item in sorted(broken.items()))
    return report, problems


def wrong_os_packages(spec):
    """Packages of the operating system that are not there in the versions that are asked for."""
    wanted = spec.get("os_packages") or {}
    if not wanted:
        return []
    form = "-f=${Package} ${Version} ${db:Status-Status}\\n"
    _, said = run_quietly(["dpkg-query", "-W", form, "--", *sorted(wanted)])
    rows = [line.split() for line in said.splitlines()]
    found = {row[0]: row[1] for row in rows if len(row) == 3 and row[2] == "installed"}
    return [
        "the package %s is %s, wanted %s" % (name, found.get(name, "missing"), wanted[name])
        for name in sorted(wanted)
        if found.get(name) != wanted[name]
    ]


def read_marker(env):
    try:
        with open(os.path.join(env, MARKER), encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


# ---------------------------------------------------------------- install


def find_python(minor):
    """An interpreter of this version: the one that runs this file, else one on PATH."""
    for candidate in (sys.executable, "python" + minor, "python3"):
        if candidate == sys.executable and "%d.%d" % sys.version_info[:2] == minor:
            return sys.executable
        code = "import sys; print('%d.%d' % sys.version_info[:2]); print(sys.executable)"
        status, output = run_quietly([candidate, "-I", "-c", code], env=clean_environment())
        lines = output.split("\n")
        if status == 0 and lines[0] == minor:
            return lines[1]
    raise Failed("this host has no Python %s (looked at python%s and python3 on PATH)" % (minor, minor))


def find_uv(cache, python):
    """Path of the pinned uv, fetched into the cache if need be; else any uv on PATH; else None.

    Called with the cache locked.
    """
    home = os.path.join(cache, "tools", "uv-%s-%s" % (UV_VERSION, platform.machine()))
    binary = os.path.join(home, "bin", "uv")
    if os.access(binary, os.X_OK):
        return binary
    tools = os.path.dirname(home)
    os.makedirs(tools, exist_ok=True)
    for leftover in os.listdir(tools):
        if leftover.startswith(".partial-"):
            shutil.rmtree(os.path.join(tools, leftover))  # of an installer that was killed
    work = tempfile.mkdtemp(dir=tools, prefix=".partial-")
    try:
        lock = os.path.join(work, "uv.txt")
        with open(lock, "w", encoding="utf-8") as file:
            file.write(" ".join(["uv==" + UV_VERSION] + ["--hash=sha256:" + h for h in UV_HASHES]) + "\n")
        target = os.path.join(work, "uv")
        status, output = run_quietly(
            [python, "-m", "pip", "install", "-q", "--require-hashes", "--no-deps", "--only-binary", ":all:",
             "--disable-pip-version-check", "--target", target, "-r", lock],
            env=clean_environment(),
        )  # fmt: skip
        if status != 0:
            say("uv %s cannot be fetched: %s" % (UV_VERSION, output.strip().rsplit("\n", 1)[-1]))
            return shutil.which("uv")
        if os.path.isdir(home):
            shutil.rmtree(home)  # a leftover without a working binary
        os.rename(target, home)
    finally:
        shutil.rmtree(work)
    return binary


def uv_commands(uv, python, env, cache):
    common = [uv, "-q", "--cache-dir", os.path.join(cache, "uv"), "--no-config"]
    # Copies, because editing a file of one environment must not change the others. Where the file system shares
    # blocks (XFS, btrfs), a copy does so, too; uv's `clone` makes hard links where it does not, as on ext4.
    # pip's variables are honoured, for hosts that reach only a mirror or a directory of wheels.
    install = ["pip", "sync", "--python", environment_python(env), "--require-hashes", "--link-mode", "copy",
               "--only-binary", ":all:", "--strict", "requirements.txt"]  # fmt: skip
    if os.environ.get("PIP_INDEX_URL"):
        install += ["--default-index", os.environ["PIP_INDEX_URL"]]
    for link in os.environ.get("PIP_FIND_LINKS", "").split():
        install += ["--find-links", link]
    if os.environ.get("PIP_NO_INDEX"):
        install += ["--no-index"]
    return [[*common, "venv", "--python", python, env], common + install]


def pip_commands(python, env, cache):
    install = ["-m", "pip", "install", "-q", "--require-hashes", "--no-deps", "--only-binary", ":all:",
               "--disable-pip-version-check", "--cache-dir", os.path.join(cache, "pip"),
               "-r", "requirements.txt"]  # fmt: skip
    return [[python, "-m", "venv", env], [environment_python(env), *install]]


def install_commands(python, env, cache):
    uv = find_uv(cache, python)
    return uv_commands(uv, python, env, cache) if uv else pip_commands(python, env, cache)


def uv_environment():
    """uv brings certificates of its own; behind a proxy a host trusts others, which pip finds by itself."""
    import ssl

    variables = {}
    paths = ssl.get_default_verify_paths()
    if paths.cafile or paths.capath:
        variables["UV_SYSTEM_CERTS"] = "1"
    if os.environ.get("PIP_CERT"):
        variables["SSL_CERT_FILE"] = os.environ["PIP_CERT"]
    variables.update({k: v for k, v in os.environ.items() if k in ("SSL_CERT_FILE", "UV_SYSTEM_CERTS")})
    return clean_environment(variables)


def install(env, spec):
    """Makes the environment from nothing.

    Installs of hosts that share a cache take turns: one downloads, the next ones copy.
    """
    os.makedirs(os.path.dirname(env), mode=0o700, exist_ok=True)
    if spec.get("wheels"):
        with tempfile.TemporaryDirectory(dir=os.path.dirname(env), prefix=".house-%s-" % spec["key"]) as house:
            run_all(wheel_commands(spec, env, house))
        return
    python, cache = find_python(spec["python"]), cache_dir()
    with locked(os.path.join(cache, "lock"), "another install with the same cache"):
        run_all(install_commands(python, env, cache))


def run_all(commands):
    for command in commands:
        status, output = run_quietly(command, env=uv_environment())
        if status != 0:
            print(output.strip()[-4000:], file=sys.stderr)
            reason = output.strip().rsplit("\n", 1)[-1].strip()
            raise Failed("%s ended with status %d: %s" % (os.path.basename(command[0]), status, reason))


def ensure(env, spec, pins):
    """Leaves a verified environment at `env` and returns what it reported, or nothing and Failed."""
    if read_marker(env) is not None:
        report, problems = inspect(env, spec, pins)
        problems = problems or changed_files(env, tree_of(env, spec)) or wrong_os_packages(spec)
        if not problems:
            say("environment %s is already installed" % spec["key"])
            return dict(read_marker(env), **report)
        say("environment %s has changed, installing it again: %s" % (spec["key"], problems[0]))
    remove_tree(env)
    remove_leftovers(spec)
    check_space(spec)
    began = time.monotonic()
    say("installing %d packages for Python %s" % (len(pins), spec["python"]))
    try:
        known = None
        if spec.get("unmanaged"):
            link_tree(env, spec["unmanaged"]["path"])
        elif spec.get("sealed"):
            known = unpack_sealed(env, spec)
        else:
            install(env, spec)
            place_files(spec, env)
        say("installed in %.1f s, verifying" % (time.monotonic() - began))
        with meanwhile(rows_of, tree_of(env, spec), known) as rows:
            libtpu = probe_libtpu(env, spec)
            report, problems = inspect(env, spec, pins)
            problems += wrong_os_packages(spec)
            if problems:
                raise Wrong("; ".join(problems))
            run_probe(env, spec)
            if spec.get("unmanaged"):
                compile_all(env, spec)
            else:
                keep_bytecode(env)
            digest, index = make_index(env, spec, rows())
        report.update(schema=SCHEMA, key=spec["key"], name=spec["name"], libtpu=libtpu, files_sha256=digest)
        report.update(signatures_sha256=signatures_digest(index), bytecode=True)
        report.update(unmanaged=spec.get("unmanaged"), os_packages=spec.get("os_packages") or {})
        if spec.get("seal"):
            report.update(sealed=seal(env, spec, index))
        write_json(os.path.join(env, MARKER), report)
    except BaseException:
        remove_tree(env)
        raise
    say("environment %s is ready in %.1f s" % (spec["key"], time.monotonic() - began))
    return report


@contextlib.contextmanager
def meanwhile(function, argument, known):
    """Gives a function that returns what is `known`, else what `function` says, which is at work meanwhile."""
    if known is not None:
        yield lambda: known
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(function, argument).result


def run_probe(env, spec):
    """The script of the environment's file, in the environment."""
    if spec.get("probe"):
        status, output = run_quietly(
            [*interpreter(env, spec), "-c", spec["probe"]],
            env=clean_environment(spec["variables"]),
            cwd=env,
        )
        if status != 0:
            last = output.strip().rsplit("\n", 1)[-1] or "it said nothing"
            raise Failed("the probe of the environment ended with status %d: %s" % (status, last))


def changed_files(env, tree):
    """Files below `tree` that are not as they were installed."""
    try:
        with open(os.path.join(env, INDEX), encoding="utf-8") as file:
            index = json.load(file)
    except (OSError, ValueError):
        return ["the list of its files is missing"]
    there = [*walk(tree), *walk_compiled(env, tree)] if (read_marker(env) or {}).get("bytecode") else walk(tree)
    found = [path for path in there if path not in index]
    for path, row in index.items():
        full = full_path(env, tree, path)
        if not os.path.lexists(full) or (
            signature(full) != row[1:] and not os.path.islink(full) and sha256_of(full) != row[0]
        ):
            found.append(path)
    return ["%s has changed" % path for path in found]


def verify(env, spec, pins):
    """Prints one JSON object: the marker's facts as they are now, and every problem."""
    report, problems = inspect(env, spec, pins)
    if read_marker(env) is None:
        problems.insert(0, "no marker: the installation was not completed")
    print(json.dumps(dict(report, schema=SCHEMA, key=spec["key"], ok=not problems, problems=problems)))
    return 1 if problems else 0


def stop_cleanly(number, _frame):
    """SIGTERM as an exception: the running command is killed and what was half made is removed."""
    sys.exit(128 + number)


def main(arguments):
    signal.signal(signal.SIGTERM, stop_cleanly)
    try:
        if arguments[:1] == ["--tree"] and len(arguments) == 2:
            return print_tree(arguments[1])
        if arguments not in ([], ["--verify"]):
            raise BadInput("usage: env_install.py [--verify] [--tree PATH]")
        spec, pins = read_input()
        env = os.path.join(envs_dir(), spec["key"])
        if arguments:
            return verify(env, spec, pins)
        with locked(os.path.join(envs_dir(), ".%s.lock" % spec["key"]), "another install of this environment"):
            report = ensure(env, spec, pins)
        print(json.dumps(dict(report, schema=SCHEMA, key=spec["key"])))
        return 0
    except BadInput as error:
        print("error: %s" % error, file=sys.stderr)
        return 2
    except (Failed, OSError) as error:
        print("error: %s" % error, file=sys.stderr)
        return 3 if isinstance(error, Wrong) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
