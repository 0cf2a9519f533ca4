"""A bucket as a folder, as a user writes it: gs://BUCKET[/DIR]:/PATH[:PROFILE], with options. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence

from tpuctl.errors import UsageError
from tpuctl.model.slice_spec import MountRef

FORM = "gs://BUCKET[/DIR]:/PATH[:PROFILE]"
EXAMPLE = "gs://my-bucket/data:/mnt/data:train"
_FORM = re.compile(r"gs://(?P<bucket>[^/:]*)(/(?P<directory>[^:]*))?:(?P<path>/[^:]*)(:(?P<profile>[^:]*))?\Z")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]\Z")
_PATH = re.compile(r"(/[A-Za-z0-9][A-Za-z0-9._-]*)+\Z")
_SYSTEM = frozenset({"bin", "boot", "dev", "etc", "lib", "lib64", "proc", "run", "sbin", "sys", "usr", "var"})
_TOP = frozenset({"/home", "/mnt", "/opt", "/root", "/srv", "/tmp"})  # noqa: S108 (named to be refused)
FOREVER = "forever"

Refs = tuple[MountRef, ...]


def parse_mount(text: str, profiles: Sequence[str], default: str) -> MountRef:
    """Raises UsageError for what is no mount, or a place where hosts have something else."""
    match = _FORM.match(text)
    if match is None:
        raise UsageError.of("mount", f"{text!r} is not {FORM}", f"--mount {EXAMPLE}")
    bucket, path = match["bucket"], match["path"]
    directory = (match["directory"] or "").strip("/")
    if not _BUCKET.match(bucket):
        raise UsageError.of("mount", f"{bucket!r} is no name of a bucket", f"--mount {EXAMPLE}")
    if directory and (posixpath.normpath(directory) != directory or directory.startswith("..")):
        raise UsageError.of("mount", f"{directory!r} is no folder of a bucket", f"--mount {EXAMPLE}")
    if not _PATH.match(path) or path in _TOP or path.split("/")[1] in _SYSTEM:
        raise UsageError.of("mount", f"{path} is no place for a mount", f"--mount gs://{bucket}:/mnt/data")
    profile = match["profile"] or default
    if profile not in profiles:
        raise UsageError.of("mount", f"there is no profile {profile!r}", f"one of: {', '.join(profiles)}")
    return MountRef(bucket, path, profile, directory)


def parse_ttl(text: str) -> int:
    """Seconds, -1 for `forever`. Raises UsageError."""
    if text == FOREVER:
        return -1
    if not re.fullmatch(r"\d{1,9}", text):
        raise UsageError.of(
            "ttl", f"--ttl {text!r} is no number of seconds", "--ttl 0, --ttl 60 or --ttl forever"
        )
    return int(text)


def parse_option(text: str) -> tuple[str, str]:
    """`metadata-cache:ttl-secs=30` as gcsfuse's key, with dots, and its value. Raises UsageError."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError.of("opt", f"--opt {text!r} is not KEY=VALUE", "--opt metadata-cache:ttl-secs=30")
    return key.replace(":", "."), value


def ttl_options(ttl_s: int) -> dict[str, str]:
    """What a time to live comes to: for names that exist, for those that do not, and for listings."""
    if ttl_s < 0:
        return {"metadata-cache.ttl-secs": "-1", "metadata-cache.negative-ttl-secs": "0"}
    return {
        "metadata-cache.ttl-secs": str(ttl_s),
        "metadata-cache.negative-ttl-secs": str(min(ttl_s, 5)),
        "file-system.kernel-list-cache-ttl-secs": "0",
    }


def check_together(refs: Refs, others: Sequence[str] = ()) -> None:
    """Raises UsageError for two mounts at one path, or one inside another. `others`: paths of disks."""
    paths = [each.path for each in refs]
    for at, path in enumerate(paths):
        for other in [*paths[:at], *others]:
            if path == other:
                raise UsageError.of("mount", f"{path} is used twice", "another path")
            if path.startswith(other + "/") or other.startswith(path + "/"):
                raise UsageError.of(
                    "mount",
                    f"{max(path, other, key=len)} is inside {min(path, other, key=len)}",
                    "paths beside each other, such as /mnt/a and /mnt/b",
                )


def merge_mounts(known: Refs, more: Refs) -> Refs:
    """One mount per path; the later one counts, in the place of the earlier."""
    new = {each.path: each for each in more}
    return (*(new.pop(each.path, each) for each in known), *new.values())


def is_asked(known: Refs, ref: MountRef) -> bool:
    """Whether a mount is there as it is asked for: what is not said of it stays as it is."""
    mine = next((each for each in known if each.path == ref.path), None)
    return mine is not None and (mine.source, mine.profile) == (ref.source, ref.profile) and _has(mine, ref)


def _has(mine: MountRef, ref: MountRef) -> bool:
    said: Mapping[str, str] = ref.options
    return all(mine.options.get(key) == value for key, value in said.items()) and (
        mine.read_only or not ref.read_only
    )


def check_variables(variables: Mapping[str, str], refs: Refs) -> None:
    """Raises UsageError where HF_HOME is on a mount: that cache needs symbolic links and locks."""
    home = variables.get("HF_HOME", "")
    for each in refs:
        if home == each.path or home.startswith(each.path + "/"):
            raise UsageError.of(
                "var",
                f"HF_HOME={home} is on the mount {each.path}: its cache needs symbolic links and locks that "
                "gcsfuse lacks, and takes an hour for what takes minutes",
                "--var HF_HOME=/tmp/hf, and copy the model there once",
            )


def said_options(
    texts: Sequence[str],
    *,
    ttl: str | None,
    uid: int | None,
    gid: int | None,
    file_mode: str | None,
    dir_mode: str | None,
    implicit_dirs: bool | None,
    cache_dir: str | None,
    cache_gib: int | None,
) -> dict[str, str]:
    """Flags of the command line by gcsfuse's keys; `--opt` counts over all others. Raises UsageError."""
    found = ttl_options(parse_ttl(ttl)) if ttl is not None else {}
    said = {
        "file-system.uid": uid,
        "file-system.gid": gid,
        "file-system.file-mode": file_mode,
        "file-system.dir-mode": dir_mode,
        "implicit-dirs": None if implicit_dirs is None else str(implicit_dirs).lower(),
        "cache-dir": cache_dir,
        "file-cache.max-size-mb": None if cache_gib is None else cache_gib * 1024,
    }
    found |= {key: str(value) for key, value in said.items() if value is not None}
    if cache_dir is not None and cache_gib is None:
        raise UsageError.of("cache_dir", "--cache-dir without a limit fills the disk", "--cache-size GIB, too")
    return {**found, **dict(parse_option(text) for text in texts)}
