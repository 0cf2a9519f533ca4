"""A bucket as a folder, as a user writes it: gs://BUCKET[/DIR]:/PATH[:PROFILE][,OPTION…]. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated

from msgspec import Struct, field

from tpuctl.errors import ConflictError, UsageError
from tpuctl.lib.mount_paths import check_apart, check_place
from tpuctl.lib.options import Flag, Option, argument, hints_of, registry
from tpuctl.model.refs import MountRef

FORM = "gs://BUCKET[/DIR]:/PATH[:PROFILE][,OPTION…]"
EXAMPLE = "gs://my-bucket/data:/mnt/data:train"
_FORM = re.compile(
    r"gs://(?P<bucket>[^/:]*)(/(?P<directory>[^:]*))?:(?P<path>/[^:,]*)(:(?P<profile>[^:,]*))?(,(?P<words>.*))?\Z"
)
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]\Z")
_PATH = re.compile(r"(/[A-Za-z0-9][A-Za-z0-9._-]*)+\Z")
FOREVER = "forever"

Refs = tuple[MountRef, ...]


def parse_option(text: str) -> tuple[str, str]:
    """`metadata-cache:ttl-secs=30` as key and value. Raises UsageError."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError.of("opt", f"--opt {text!r} is not KEY=VALUE", "--opt metadata-cache:ttl-secs=30")
    return key.replace(":", "."), value


_flag = partial(Option, group="How it is mounted")


class MountOptions(Struct, frozen=True, kw_only=True):
    """What a user may say of a mount beside its profile: flags of `mount add`, and words behind the profile.
    `api` is the key of gcsfuse's configuration file."""

    ttl: Annotated[
        str | None,
        _flag("How long hosts believe what they saw; as the profile says.", metavar="0|SECONDS|forever"),
    ] = None
    opt: Annotated[
        Mapping[str, str],
        _flag("Option of gcsfuse's configuration file; repeatable.", metavar="KEY=VALUE", pair=parse_option),
    ] = field(default_factory=dict)
    read_only: Annotated[bool, _flag("Let nobody write.")] = False
    uid: Annotated[
        int | None, _flag("Owner of the files; the login user.", metavar="ID", minimum=0, api="file-system.uid")
    ] = None
    gid: Annotated[int | None, _flag("Group of the files.", metavar="ID", minimum=0, api="file-system.gid")] = (
        None
    )
    file_mode: Annotated[str | None, _flag("Mode of files.", metavar="OCTAL", api="file-system.file-mode")] = (
        None
    )
    dir_mode: Annotated[str | None, _flag("Mode of folders.", metavar="OCTAL", api="file-system.dir-mode")] = (
        None
    )
    implicit_dirs: Annotated[
        bool | None,
        _flag(
            "Show folders that no object stands for.",
            (Flag("--implicit-dirs"), Flag("--no-implicit-dirs")),
            api="implicit-dirs",
        ),
    ] = None
    cache_dir: Annotated[
        str | None, _flag("Folder of the hosts for a file cache.", metavar="DIR", api="cache-dir")
    ] = None
    cache_size: Annotated[
        int | None,
        _flag("What the file cache may grow to.", metavar="GIB", minimum=1, api="file-cache.max-size-mb"),
    ] = None
    cross_region: Annotated[bool, _flag("Mount a bucket of another region, and pay for its traffic.")] = False


class MountRequest(MountOptions, frozen=True, kw_only=True):
    """What `mount add` was told."""

    what: Annotated[
        str,
        argument(
            "gs://BUCKET[/DIR]:/PATH[:PROFILE]",
            "The bucket or a folder of it, where, and how: checkpoint, train (the default), dataset or"
            " shared-code.",
        ),
    ]
    on: Annotated[str | None, Option("The slice; optional if you have just one.", metavar="SLICE")] = None
    create: Annotated[bool, Option("Make the bucket first, in the region of the slice.")] = False
    flat: Annotated[
        bool, Option("With --create: without the hierarchical namespace of profile checkpoint.")
    ] = False


WORDS = tuple(name.replace("_", "-") for name in registry(MountOptions) if name != "opt")
_KEYS = {name.replace("_", "-"): each.api for name, each in registry(MountOptions).items() if each.api}
_ALONE = {name.replace("_", "-") for name, kind in hints_of(MountOptions).items() if kind is bool}
"""Those that need no value."""


class Options(Struct, frozen=True):
    """What is said of a mount beside its profile: `keys` of gcsfuse's configuration file, and tpuctl's own."""

    keys: Mapping[str, str] = field(default_factory=dict)
    read_only: bool = False
    cross_region: bool = False


def parse_mount(text: str, profiles: Sequence[str], default: str, said: Options | None = None) -> MountRef:
    """`said` counts over the options in the text. Raises UsageError for what is no mount, or a place where
    hosts have something else."""
    match = _FORM.match(text)
    if match is None:
        raise UsageError.of("mount", f"{text!r} is not {FORM}", EXAMPLE)
    bucket, path = match["bucket"], match["path"]
    directory = (match["directory"] or "").strip("/")
    if not _BUCKET.match(bucket):
        slash = "; what is behind the slash is a folder" if directory else ""
        raise UsageError.of("mount", f"{bucket!r} is no name of a bucket{slash}", EXAMPLE)
    if directory and (posixpath.normpath(directory) != directory or directory.startswith("..")):
        raise UsageError.of("mount", f"{directory!r} is no folder of a bucket", EXAMPLE)
    check_place(path, field="mount", what="mount", hint=f"gs://{bucket}:/mnt/data")
    if not _PATH.match(path):
        raise UsageError.of("mount", f"{path} is no place for a mount", f"gs://{bucket}:/mnt/data")
    profile = match["profile"] or default
    if profile not in profiles:
        raise UsageError.of("mount", f"there is no profile {profile!r}", f"one of: {', '.join(profiles)}")
    own, more = parse_words((match["words"] or "").split(",") if match["words"] else ()), said or Options()
    return MountRef(
        bucket,
        path,
        profile,
        directory,
        {**own.keys, **more.keys},
        read_only=own.read_only or more.read_only,
        cross_region=own.cross_region or more.cross_region,
    )


def parse_words(words: Sequence[str]) -> Options:
    """`ttl=0`, `read-only`, `metadata-cache:ttl-secs=30`, … Raises UsageError."""
    said: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals and name not in _ALONE:
            hint = f"one of: {', '.join(WORDS)}, or KEY=VALUE of gcsfuse's configuration file"
            raise UsageError.of("mount", f"{word!r} is no option of a mount", hint)
        said[name] = value if equals else "true"
    return options_said(said)


def parse_options(said: MountOptions) -> Options:
    """Flags, as they were typed. Raises UsageError."""
    typed = {word: getattr(said, word.replace("-", "_")) for word in WORDS}
    texts = {
        word: str(value).lower() if isinstance(value, bool) else str(value)
        for word, value in typed.items()
        if value is not None
    }
    return options_said({**texts, **said.opt})


def options_said(said: Mapping[str, str]) -> Options:
    """Values by the names of flags (`WORDS`) or by gcsfuse's keys, which count over the others. Raises
    UsageError."""
    found = ttl_options(parse_ttl(said["ttl"])) if "ttl" in said else {}
    found |= {_KEYS[name]: value for name, value in said.items() if name in _KEYS}
    if "cache-size" in said:
        if not re.fullmatch(r"[1-9]\d{0,6}", said["cache-size"]):
            raise UsageError.of("cache_size", f"{said['cache-size']!r} is no number of GiB", "--cache-size 100")
        found[_KEYS["cache-size"]] = str(int(said["cache-size"]) * 1024)
    elif "cache-dir" in said:
        raise UsageError.of("cache_dir", "a cache without a limit fills the disk", "--cache-size GIB, too")
    if not said.get("cache-dir", "/").startswith("/"):
        why = f"{said['cache-dir']!r} is no folder of a host"
        raise UsageError.of("cache_dir", why, "--cache-dir /mnt/disk/cache")
    own = {key.replace(":", "."): value for key, value in said.items() if key not in WORDS}
    return Options(
        {**found, **own},
        read_only=_is_true(said, "read-only"),
        cross_region=_is_true(said, "cross-region"),
    )


def _is_true(said: Mapping[str, str], name: str) -> bool:
    value = said.get(name, "false")
    if value not in ("true", "false"):
        raise UsageError.of("mount", f"{name}={value} is neither true nor false", f"{name}=true")
    return value == "true"


def typed_as(key: str, value: str, *, flag: bool) -> str:
    """How an option of gcsfuse's is written: as a flag of `mount add`, or behind the profile of a mount."""
    word = next((word for word, known in _KEYS.items() if known == key and word != "cache-size"), "")
    own = key.replace(".", ":")
    if not flag:
        return f"{word or own}={value}"
    if word == "implicit-dirs":
        return "--implicit-dirs"
    return f"--{word} {value}" if word else f"--opt {own}={value}"


def typed_mount(ref: MountRef) -> str:
    """How it is said again: what `parse_mount` makes `ref` of."""
    words = [typed_as(key, value, flag=False) for key, value in ref.options.items()]
    alone = {"read-only": ref.read_only, "cross-region": ref.cross_region}
    words += [word for word, meant in alone.items() if meant]
    return ",".join([f"{ref.source}:{ref.path}:{ref.profile}", *words])


def parse_ttl(text: str) -> int:
    """Seconds, -1 for `forever`. Raises UsageError."""
    if text == FOREVER:
        return -1
    if not re.fullmatch(r"\d{1,9}", text):
        raise UsageError.of(
            "ttl", f"--ttl {text!r} is no number of seconds", "--ttl 0, --ttl 60 or --ttl forever"
        )
    return int(text)


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
    known = dict.fromkeys(others, "a disk")
    for each in refs:
        check_apart(each.path, known, field="mount", hint="another path")
        known[each.path] = each.source


def check_unused(known: Refs, refs: Refs) -> None:
    """Raises ConflictError for a path at which another folder is mounted: programs that read there would find
    other files without a word. Only a fleet file, which says all, changes that."""
    sources = {each.path: each.source for each in known}
    for each in refs:
        there = sources.get(each.path, each.source)
        if there != each.source:
            hint = f"another path, or first tpuctl mount rm {each.path}"
            raise ConflictError(f"{there} is mounted at {each.path}, not {each.source}", hint=hint)


def merge_mounts(known: Refs, more: Refs) -> Refs:
    """One mount per path; the later one counts, in the place of the earlier."""
    new = {each.path: each for each in more}
    return (*(new.pop(each.path, each) for each in known), *new.values())


def is_asked(known: Refs, ref: MountRef) -> bool:
    """Whether a mount is there as it is asked for: what is not said of it stays as it is."""
    mine = next((each for each in known if each.path == ref.path), None)
    if mine is None or mine.leaving:
        return False
    return (mine.source, mine.profile) == (ref.source, ref.profile) and _has(mine, ref)


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
