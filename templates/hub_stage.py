"""What `tpuctl data stage` runs on one host: files of the Hugging Face hub into a bucket, one after the other.

Its argument is what was asked for, as JSON. Needs huggingface_hub and google-cloud-storage, which environment
hf-hub has. A few files at once are on the disk, each is removed once the bucket has it. Into what commit the
revision resolves, and which files that has, is written into the bucket before anything else, so that whoever
goes on brings the same ones. An object appears when all of it has arrived, and none is ever replaced.

A line behind REFUSED says why it is in vain to try again, and in brackets what to type.
"""

import base64
import errno
import fcntl
import hashlib
import json
import os
import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import google_crc32c
import huggingface_hub
from google.api_core.exceptions import Forbidden, NotFound, PreconditionFailed
from google.cloud import storage
from huggingface_hub.errors import (
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import filter_repo_objects

REFUSED = "tpuctl data stage: "
USAGE, DENIED, NOT_FOUND, CONFLICT = 2, 4, 5, 6  # exit statuses, as those of tpuctl
RECORD = ".tpuctl-stage.json"
OWN = ".tpuctl-stage"  # the folder in `scratch`
FORMAT = "tpuctl-stage/1"
FILES_MAX = 100_000  # as many as a receipt has
AT_ONCE = 4  # files: one alone waits for each answer, and they share the disk
TOLD_EVERY_S = 5.0
PAUSES_S = (1, 5, 20, 60)
LEFT_FREE = 1 << 30  # bytes of the disk for everybody else
PIECE = 1 << 20


class Refused(Exception):
    """Trying again is in vain. `fix` is what to type, `status` what tpuctl ends with for such an error."""

    def __init__(self, why, fix, status=1):
        super().__init__(why)
        self.fix, self.status = fix, status


class Hub:
    """The repository of which files are wanted."""

    def __init__(self, asked):
        self.repo, self.kind, self.revision = asked["repo"], asked["kind"], asked["revision"]
        self.name = "hf://%s%s" % ("datasets/" if self.kind == "dataset" else "", self.repo)
        self.api = huggingface_hub.HfApi(token=os.environ.get("HF_TOKEN") or False)

    def resolve(self):
        """The commit."""
        with self.refusals():
            return self.api.repo_info(self.repo, revision=self.revision, repo_type=self.kind).sha

    def files(self, commit, include, exclude):
        """A row for each file that is asked for: `name`, `size`, and `sha256` where the hub knows it, else
        `blob`, its git object id."""
        with self.refusals():
            tree = self.api.list_repo_tree(self.repo, recursive=True, revision=commit, repo_type=self.kind)
            found = [each for each in tree if hasattr(each, "blob_id")]
        chosen = filter_repo_objects(
            found, allow_patterns=include or None, ignore_patterns=exclude or None, key=lambda each: each.path
        )
        return [
            {
                "name": each.path,
                "size": each.size,
                "sha256": each.lfs.sha256 if each.lfs else "",
                "blob": "" if each.lfs else each.blob_id,
                "crc32c": "",
            }
            for each in chosen
        ]

    def download(self, name, commit, folder):
        with self.refusals():
            return huggingface_hub.hf_hub_download(
                self.repo, name, repo_type=self.kind, revision=commit, local_dir=folder, token=self.api.token
            )

    @contextmanager
    def refusals(self):
        """Answers that will not change, as `Refused`."""
        page = "%s/%s" % (huggingface_hub.constants.ENDPOINT, self.name.removeprefix("hf://"))
        token = "--token env:HF_TOKEN" if not self.api.token else "a token of an account that may read it"
        try:
            yield
        except GatedRepoError as error:
            raise Refused(
                self.name + " is gated, and this account may not read it",
                "accept its terms at %s, then %s" % (page, token),
                DENIED,
            ) from error
        except RevisionNotFoundError as error:
            why = "%s has no revision %s" % (self.name, self.revision)
            raise Refused(why, "one of %s" % page, NOT_FOUND) from error
        except DisabledRepoError as error:
            raise Refused(self.name + " was disabled", "see " + page, DENIED) from error
        except RepositoryNotFoundError as error:
            other = "hf://datasets/" + self.repo if self.kind == "model" else "hf://" + self.repo
            raise Refused(
                "there is no %s, or it is private" % self.name,
                "%s; %s for a private one" % (other, token),
                NOT_FOUND,
            ) from error
        except HfHubHTTPError as error:
            if error.response.status_code not in (401, 403):
                raise
            why = "the hub refuses %s: %s" % (self.name, error.response.status_code)
            raise Refused(why, token, DENIED) from error


class Disk:
    """A folder of our own within `scratch` for files on their way, and how much of the disk they may take.

    Only that folder is removed: what else is in `scratch` is the user's."""

    def __init__(self, scratch):
        os.makedirs(scratch, exist_ok=True)
        self.folder = folder = os.path.join(scratch, OWN)
        self.lock = os.open(scratch, os.O_RDONLY)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # an attempt that was not told to end yet, or another prefix
            print("waits for another data stage in %s" % scratch, flush=True)
            fcntl.flock(self.lock, fcntl.LOCK_EX)
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        self.room = shutil.disk_usage(folder).free - LEFT_FREE
        self.free = self.room
        self.changed = threading.Condition()

    def check(self, rows):
        """Raises Refused where the largest file has no room."""
        largest = max(rows, key=lambda row: row["size"])
        if largest["size"] > self.room:
            why = "%s needs %s, and %s has room for %s" % (
                largest["name"],
                sized(largest["size"]),
                self.folder,
                sized(self.room),
            )
            raise Refused(why, "--scratch with a folder of a larger disk; --exclude %s" % largest["name"])

    @contextmanager
    def taken(self, size):
        with self.changed:
            self.changed.wait_for(lambda: size <= self.free)
            self.free -= size
        try:
            yield
        finally:
            with self.changed:
                self.free += size
                self.changed.notify_all()

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self.lock)


class Target:
    """The prefix in the bucket."""

    def __init__(self, place):
        self.place = place
        name, _, self.prefix = place.removeprefix("gs://").partition("/")
        # Credentials are those of the host; the project matters only to calls about buckets.
        project = os.environ.get("GOOGLE_CLOUD_PROJECT", "unused")
        self.bucket = storage.Client(project=project).bucket(name)

    def blob(self, name):
        return self.bucket.blob("%s/%s" % (self.prefix, name))

    def read_record(self):
        """(record, generation); (None, 0) where there is none."""
        blob = self.blob(RECORD)
        try:
            content = blob.download_as_bytes()
        except NotFound:
            return None, 0
        return json.loads(content), blob.generation

    def write_record(self, record, generation):
        """The record now, which is that of somebody else where they were first."""
        blob = self.blob(RECORD)
        try:
            content = json.dumps(record, indent=1) + "\n"
            blob.upload_from_string(content, "application/json", if_generation_match=generation)
        except PreconditionFailed:
            return self.read_record()
        return record, blob.generation

    def there(self):
        """Objects by name."""
        found = self.bucket.list_blobs(prefix=self.prefix + "/")
        return {blob.name[len(self.prefix) + 1 :]: blob for blob in found}

    def put(self, path, row, commit):
        """The file as an object."""
        blob = self.blob(row["name"])
        blob.metadata = {"sha256": row["sha256"], "hub-commit": commit}
        try:
            blob.upload_from_filename(path, if_generation_match=0, checksum="crc32c")
        except PreconditionFailed:
            blob.reload()  # ours, whose answer was lost, or not
        self.check(blob, row)

    def check(self, blob, row):
        """Raises Refused where an object is not the file of `row`; completes the row."""
        sha256 = (blob.metadata or {}).get("sha256", "")
        same = blob.size == row["size"] and sha256 and row["sha256"] in ("", sha256)
        if not same or row["crc32c"] not in ("", blob.crc32c):
            uri = "%s/%s" % (self.place, row["name"])
            raise Refused(
                uri + " is something else",
                "if nobody needs it: gcloud storage rm %s; then again" % uri,
                CONFLICT,
            )
        row.update(sha256=sha256, crc32c=blob.crc32c)


def sized(count):
    return "%.1f GB" % (count / 1e9) if count >= 1e9 else "%.1f MB" % (count / 1e6)


def verify(path, row):
    """Compares a file with what the hub says of it, and completes the row."""
    sha256, crc32c = hashlib.sha256(), google_crc32c.Checksum()
    blob = hashlib.sha1(b"blob %d\0" % os.path.getsize(path))
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(PIECE), b""):
            for digest in (sha256, crc32c, blob):
                digest.update(piece)
    wanted, found = (row["sha256"], sha256.hexdigest()) if row["sha256"] else (row["blob"], blob.hexdigest())
    if os.path.getsize(path) != row["size"] or wanted != found:
        os.remove(path)
        raise OSError("%s arrived as %s instead of %s" % (row["name"], found, wanted))
    row.update(sha256=sha256.hexdigest(), crc32c=base64.b64encode(crc32c.digest()).decode())


def download(row, hub, commit, folder):
    """The path of the file, as the hub says that it is. The library itself goes on where a connection ended,
    and gives up after seconds."""
    for pause in (*PAUSES_S, None):
        try:
            path = hub.download(row["name"], commit, folder)
            verify(path, row)
            break
        except Refused:
            raise
        except Exception as error:
            if getattr(error, "errno", None) == errno.ENOSPC:
                raise Refused("%s is full" % folder, "--scratch with a folder of a larger disk") from error
            if pause is None:
                raise
            print("%s: %s; again in %d s" % (row["name"], error, pause), file=sys.stderr, flush=True)
            time.sleep(pause)
    return path


class Meter:
    """Says how much the bucket has, while that changes."""

    def __init__(self, rows):
        self.files, self.total = len(rows), sum(row["size"] for row in rows)
        self.done = self.bytes = 0
        self.told = None
        self.lock = threading.Lock()
        self.over = threading.Event()
        threading.Thread(target=self.keep_telling, daemon=True).start()

    def add(self, size):
        with self.lock:
            self.done += 1
            self.bytes += size

    def keep_telling(self):
        while not self.over.wait(TOLD_EVERY_S):
            self.tell()

    def tell(self):
        with self.lock:
            now = (-(-self.bytes // 1_000_000), -(-self.total // 1_000_000), self.done, self.files)
            if now != self.told:
                print("staged %d of %d MB, %d of %d files" % now, flush=True)
            self.told = now


def begin(hub, target, asked):
    """The record, which is there before anything else, and its generation."""
    record, generation = target.read_record()
    if record is None:
        commit = hub.resolve()
        rows = hub.files(commit, asked["include"], asked["exclude"])
        if not rows:
            raise Refused("nothing of %s is asked for" % hub.name, "other --include and --exclude", USAGE)
        if len(rows) > FILES_MAX:
            why = "%s has %d files" % (hub.name, len(rows))
            raise Refused(why, "--include for at most %d" % FILES_MAX, USAGE)
        source = {key: asked[key] for key in ("kind", "repo", "revision", "include", "exclude")}
        record = {"format": FORMAT, "complete": False, **source, "commit": commit, "files": rows}
        record, generation = target.write_record(record, 0)
    if any(record[key] != asked[key] for key in ("kind", "repo", "revision", "include", "exclude")):
        raise Refused(
            "%s has files of %s@%s" % (target.place, record["repo"], record["revision"]),
            "another prefix",
            CONFLICT,
        )
    return record, generation


def bring(row, hub, target, disk, commit, meter, stop):
    if stop.is_set():
        return
    try:
        with disk.taken(row["size"]):
            if stop.is_set():
                return
            path = download(row, hub, commit, disk.folder)
            target.put(path, row, commit)
            os.remove(path)
        meter.add(row["size"])
    except BaseException:
        stop.set()
        raise


def stage(asked):
    hub, target = Hub(asked), Target(asked["place"])
    record, generation = begin(hub, target, asked)
    rows, commit = record["files"], record["commit"]
    print("%s is commit %s: %d files" % (hub.name, commit, len(rows)), flush=True)
    meter, there = Meter(rows), target.there()
    missing = []
    for row in rows:
        if row["name"] in there:
            target.check(there[row["name"]], row)
            meter.add(row["size"])
        else:
            missing.append(row)
    meter.tell()
    if missing:
        bring_all(missing, hub, target, commit, meter, asked["scratch"])
    meter.over.set()
    meter.tell()
    if not record["complete"]:
        written, _ = target.write_record({**record, "complete": True}, generation)
        if not written["complete"]:
            raise OSError("somebody else changes %s/%s" % (target.place, RECORD))


def bring_all(rows, hub, target, commit, meter, scratch):
    disk, stop = Disk(os.path.expanduser(scratch)), threading.Event()
    try:
        disk.check(rows)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for done in [pool.submit(bring, row, hub, target, disk, commit, meter, stop) for row in rows]:
                done.result()
    finally:
        disk.close()


def main(asked):
    bucket = "gs://" + asked["place"].split("/")[2]
    try:
        try:
            stage(asked)
        except Forbidden as error:
            fix = "give the account of the hosts roles/storage.objectUser on " + bucket
            raise Refused("%s refuses: %s" % (bucket, error.message), fix, DENIED) from error
        except NotFound as error:
            fix = "gcloud storage buckets create " + bucket
            raise Refused("there is no bucket " + bucket, fix, NOT_FOUND) from error
    except Refused as error:
        print("%s%s [%s]" % (REFUSED, error, error.fix), file=sys.stderr, flush=True)
        return error.status
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
