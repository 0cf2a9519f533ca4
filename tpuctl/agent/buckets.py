"""Buckets mounted by gcsfuse: what their keepers say, and the operations that begin and end them.

What needs root is in the keeper, a program that comes with the operation (templates/mount_keeper.py).
"""

import os
import sys

import quick_json as json
from base import suppress
from facts_storage import mounts, probe_all
from metadata import value
from operations import Failed
from processes import process_stat
from rooted import output_of

STATE = "/var/lib/tpuctl-mounts"
PROGRAMS = "/opt/tpuctl-gcsfuse"
PASSED_ON = r"(https?_proxy|no_proxy|all_proxy|SSL_CERT_(FILE|DIR)|GRPC_DEFAULT_SSL_ROOTS_FILE_PATH|LANG|TZ)\Z"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LIMIT_S = 200
PROBE_S = 5.0
UNKNOWN_ACCOUNT = "ACCOUNT_OF_THE_HOSTS"


def gcsfuse_facts(_request):
    """gcsfuse itself, and the mounts that tpuctl made: each is looked at twice, by children that have PROBE_S.
    The first gcsfuse answers by itself, the second the bucket."""
    found = [each for each in map(read_status, folders()) if each]
    alive = probe_all([each["path"] for each in found], PROBE_S, look_at_server)
    asked = probe_all([path for path in alive if not alive[path]["error"]], PROBE_S, look_for_nothing)
    kernel = {mount["path"]: mount for mount in mounts()}
    return {
        "version": version_on_path(),
        "programs": sorted(os.listdir(PROGRAMS)) if os.path.isdir(PROGRAMS) else [],
        "fuse": os.path.exists("/dev/fuse"),
        "mounts": [
            judged(each, alive.get(each["path"]), asked.get(each["path"]), kernel.get(each["path"]))
            for each in found
        ],
    }


def look_at_server(path):
    os.statvfs(path)
    return {}


def look_for_nothing(path):
    """No cache of gcsfuse knows of a file that is not there, so that the bucket has to answer. A listing may be
    cached, and takes minutes where there are a million files."""
    with suppress(FileNotFoundError):
        os.stat(os.path.join(path, ".tpuctl-probe-" + os.urandom(8).hex()))
    return {}


def mount_reports(since):
    """The mounts of this host that are not well, or were not at a time after `since`, by the word of their
    keepers: nothing is looked at that could hang."""
    found = []
    for status in filter(None, map(read_status, folders())):
        why = unwell(status)
        if why or (since is not None and status.get("troubled_at", 0.0) >= since):
            found.append(
                {
                    "path": status["path"],
                    "well": not why,
                    "why": why or status.get("detail", ""),
                    "restarts": status.get("restarts", 0),
                    "kept": runs(status.get("keeper")),
                }
            )
    return found


def unwell(status):
    """What is wrong with a mount; empty for nothing."""
    if status["state"] != "up":
        return status.get("detail") or status["state"]
    for what in ("keeper", "gcsfuse"):
        if not runs(status.get(what)):
            return "%s is not running" % what
    error = status.get("bucket_error")
    return "the bucket does not answer: %s" % error if error else ""


def folders():
    names = sorted(os.listdir(STATE)) if os.path.isdir(STATE) else []
    return [os.path.join(STATE, name) for name in names]


def read_status(folder):
    try:
        with open(os.path.join(folder, "status.json")) as file:
            return json.loads(file.read())
    except (OSError, ValueError):
        return None  # it is being made, or removed


def judged(status, server, bucket, mount):
    """`alive`: gcsfuse answers; `error` is then what the bucket has answered."""
    dead = [what for what in ("keeper", "gcsfuse") if not runs(status.get(what))]
    alive, error = False, "it is not mounted"
    if status["state"] != "up":
        error = status.get("detail") or error
    elif mount is not None and mount["fs"].startswith("fuse"):
        if dead:
            error = "%s is not running" % dead[0]
        elif server is None:
            error = "gcsfuse does not answer"
        elif server["error"]:
            error = server["error"]
        else:
            alive, error = True, bucket["error"] if bucket else "nothing within %d s" % PROBE_S
    return {
        "path": status["path"],
        "bucket": status["bucket"],
        "digest": status["digest"],
        "state": status["state"],
        "alive": alive,
        "error": error,
        "open": status.get("open", False),
        "restarts": status.get("restarts", 0),
        "version": status.get("version", ""),
        "program": status.get("program", ""),
        "keeper": status.get("keeper_sha256", ""),
        "options": mount["options"] if mount else [],
    }


def runs(process):
    found = process_stat(process[0]) if process else None
    return found is not None and found[2] == process[1]


def version_on_path():
    """`gcsfuse version 3.11.3 (Go version …)`"""
    said = output_of(["gcsfuse", "--version"])
    if not said:
        return ""
    import re

    found = re.search(r"version v?(\d+\.\d+\.\d+)", said)
    return found.group(1) if found else ""


def mount_bucket(parameters, job):
    """`path`, `bucket`, `configuration`, `flags`, `digest`, `program` (its sha256, empty for the one on PATH),
    `version`, `cache` (folder and MiB), `keeper` and `unit` (their content), `denied` (what to type where the
    bucket refuses). The program, if any, is a file of the job."""
    import hashlib
    import re

    passed = {key: value for key, value in os.environ.items() if re.match(PASSED_ON, key, re.I)}
    ids = {"$(id -u)": str(os.getuid()), "$(id -g)": str(os.getgid())}
    flags = [each.partition("=") for each in parameters["flags"]]
    plan = dict(
        {key: value for key, value in parameters.items() if key != "keeper"},
        flags=[name + equals + ids.get(value, value) for name, equals, value in flags],
        environment=dict(passed, PATH=PATH, HOME="/root"),
    )
    account = value("service-accounts/default/email")
    if account:
        plan["denied"] = plan["denied"].replace(UNKNOWN_ACCOUNT, account)
    name = "mount-%s.json" % hashlib.sha256(parameters["path"].encode()).hexdigest()[:12]
    with open(os.path.join(job.folder, name), "w") as file:
        file.write(json.dumps(plan))
    try:
        as_keeper(job, parameters["keeper"], "up", os.path.join(job.folder, name))
    finally:
        keep_service(job, parameters["path"])
    return {"mounted": parameters["path"]}


def unmount_bucket(parameters, job):
    """`path`, `keeper` as of mount_bucket; `end_users`: whoever has it open is ended, else it stays. One that
    is not mounted is done."""
    try:
        verb = "leave" if parameters.get("end_users") else "down"
        as_keeper(job, parameters["keeper"], verb, parameters["path"])
    finally:
        keep_service(job, parameters["path"])  # of one that somebody has open
    return {"unmounted": parameters["path"]}


def keep_service(job, path):
    """Where no systemd has it, the keeper is a child of this job."""
    for status in filter(None, map(read_status, folders())):
        if status["path"] == path:
            job.keep([each for each in (status.get("keeper"), status.get("gcsfuse")) if each])


def as_keeper(job, content, *words):
    keeper = os.path.join(job.folder, "keeper.py")
    with open(keeper, "w") as file:
        file.write(content)
    try:
        job.run([sys.executable, "-I", "-S", keeper, *words], root=True, seconds=LIMIT_S)
    except Failed as error:
        if not str(error).startswith('{"refused"'):
            raise
        said = json.loads(str(error))
        raise Failed(said["refused"], True, said["hint"], said.get("on_host") or "") from error
