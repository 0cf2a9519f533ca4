"""Installs one pinned Python environment on a host, or verifies it: `python3 env_install.py [--verify]`.

Python 3.8 standard library. The working directory holds `requirements.txt` (exact versions with hashes) and
`env.json`: {"key", "python": "3.11", "verify": [modules], "variables": {...}}. The result is the virtual
environment ~/.tpuctl/envs/<key>, with `tpuctl-env.json` in it that says what the interpreter itself reported.
That marker is written last and never stands beside a half-made environment, so a kill at any moment is repaired
by running this again. Exit status: 0 only when verified, 1 otherwise, 2 when the input is unusable.

Downloads are shared through TPUCTL_WHEEL_CACHE (several hosts with one disk), else ~/.tpuctl/cache. uv does the
work where pip can fetch it, because it installs from a warm cache in a second or two; else pip.
"""

import contextlib
import fcntl
import json
import os
import platform
import re
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time

SCHEMA = 1
MARKER = "tpuctl-env.json"
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
import importlib, importlib.metadata, json, platform, sys
asked = json.load(sys.stdin)
found, broken = {}, {}
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
    "python": platform.python_version(), "executable": sys.executable, "packages": found, "broken": broken}))
"""


class Failed(Exception):
    """The environment could not be installed or is not what it should be."""


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


def write_json(path, data):
    """Complete or not there: temporary file, fsync, rename."""
    descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".tmp-")
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump(data, file, indent=1, sort_keys=True)
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
    asked = json.dumps({"pins": sorted(pins), "verify": spec["imports"]})
    status, output = run_quietly(
        [python, "-c", PROBE], input=asked, env=clean_environment(spec["variables"]), cwd=env
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
    # Copies, not uv's default of hard links: editing a file of one environment must not change the others.
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
    python, cache = find_python(spec["python"]), cache_dir()
    os.makedirs(os.path.dirname(env), mode=0o700, exist_ok=True)
    with locked(os.path.join(cache, "lock"), "another install with the same cache"):
        for command in install_commands(python, env, cache):
            status, output = run_quietly(command, env=uv_environment())
            if status != 0:
                print(output.strip()[-4000:], file=sys.stderr)
                reason = output.strip().rsplit("\n", 1)[-1].strip()
                raise Failed("%s ended with status %d: %s" % (os.path.basename(command[0]), status, reason))


def ensure(env, spec, pins):
    """Leaves a verified environment at `env` and returns what it reported, or nothing and Failed."""
    if read_marker(env) is not None:
        report, problems = inspect(env, spec, pins)
        if not problems:
            say("environment %s is already installed" % spec["key"])
            return report
        say("environment %s has changed, installing it again: %s" % (spec["key"], problems[0]))
    remove_tree(env)
    began = time.monotonic()
    say("installing %d packages for Python %s" % (len(pins), spec["python"]))
    try:
        install(env, spec)
        say("installed in %.1f s, verifying" % (time.monotonic() - began))
        report, problems = inspect(env, spec, pins)
        if problems:
            raise Failed("; ".join(problems))
        report.update(schema=SCHEMA, key=spec["key"])
        write_json(os.path.join(env, MARKER), report)
    except BaseException:
        remove_tree(env)
        raise
    say("environment %s is ready in %.1f s" % (spec["key"], time.monotonic() - began))
    return report


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
        if arguments not in ([], ["--verify"]):
            raise BadInput("usage: env_install.py [--verify]")
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
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
