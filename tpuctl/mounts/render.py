"""The configuration file and command line of gcsfuse for a mount, and what they mean. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from tpuctl.errors import UsageError
from tpuctl.model.refs import MountRef
from tpuctl.mounts.rules import MountRules

_TTL = "metadata-cache.ttl-secs"
_NEGATIVE = "metadata-cache.negative-ttl-secs"
_LISTS = "file-system.kernel-list-cache-ttl-secs"
CONFIG_FILE = "gcsfuse.yaml"


def options_of(rules: MountRules, ref: MountRef, version: str) -> Mapping[str, Any]:
    """Every option of a mount by its key: those of its profile, and over them what was said. Keys that this
    version does not have are left out where the profile has them, and refused (UsageError) where a user has."""
    rules.check_version(version)
    keys = rules.keys(version)
    profile = rules.profile(ref.profile)
    found: dict[str, Any] = {**rules.common, **profile.options}
    if profile.cache:
        found["cache-dir"], found["file-cache.max-size-mb"] = rules.cache
    for key, value in ref.options.items():
        rules.check_option(key, value, version)
        found[key] = _typed(value, keys[key][1])
    fuse = ["allow_other", *(["ro"] if ref.read_only else [])]
    found["file-system.fuse-options"] = fuse
    if ref.directory:
        found["only-dir"] = ref.directory
    return {key: found[key] for key in sorted(found) if key in keys}


def _typed(value: str, kind: str) -> Any:
    if kind == "bool":
        return value == "true"
    if kind == "int":
        return int(value)
    return float(value) if kind == "float64" else value


def render_configuration(options: Mapping[str, Any]) -> str:
    """gcsfuse's YAML: a block for each part of the keys."""
    tree: dict[str, Any] = {}
    for key, value in options.items():
        place = tree
        *folders, leaf = key.split(".")
        for each in folders:
            place = place.setdefault(each, {})
        place[leaf] = value
    return "".join(_lines(tree, ""))


def _lines(tree: Mapping[str, Any], indent: str) -> list[str]:
    found: list[str] = []
    for key in sorted(tree):
        value = tree[key]
        if isinstance(value, dict):
            found += [f"{indent}{key}:\n", *_lines(value, indent + "  ")]
        else:
            found.append(f"{indent}{key}: {json.dumps(value)}\n")
    return found


def command_line(ref: MountRef, options: Mapping[str, Any], config_file: str = CONFIG_FILE) -> list[str]:
    """How gcsfuse is called; files belong to the login user of the host unless somebody said otherwise."""
    own = [f"--{name}=$(id -{name[0]})" for name in ("uid", "gid") if f"file-system.{name}" not in options]
    return ["gcsfuse", f"--config-file={config_file}", *own, ref.bucket, ref.path]


def digest_of(ref: MountRef, configuration: str) -> str:
    """16 hex digits that name what is mounted, and how: another one is mounted anew."""
    text = json.dumps([ref.bucket, ref.path, configuration, ref.program])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def what_others_see(options: Mapping[str, Any]) -> str:
    """Two sentences: what another host sees of a change, and when."""
    ttl, negative = int(options[_TTL]), int(options[_NEGATIVE])
    changed = {-1: "never, until it mounts again", 0: "at once, when it opens the file the next time"}.get(
        ttl, f"after {ttl} s at the latest"
    )
    seen = max(negative, int(options.get(_LISTS, 0)))
    new = {-1: "never, until it mounts again", 0: "at once"}.get(negative, f"after {seen} s at the latest")
    first = f"Once a writer has closed a file, another host sees a change of one that it knows {changed}."
    return f"{first} A new file that it looked for in vain it sees {new}; unclosed ones it does not see."


def check_ttl(options: Mapping[str, Any]) -> None:
    """Raises UsageError for a time to live below -1, which no gcsfuse takes."""
    for key in (_TTL, _NEGATIVE, _LISTS):
        if int(options.get(key, 0)) < -1:
            raise UsageError.of("opt", f"{key}={options[key]}: -1 is for ever, 0 never", "--ttl forever")


def cache_of(options: Mapping[str, Any]) -> tuple[str, int] | None:
    """Folder and greatest size in MiB of the file cache; None without one, -1 for all of the disk."""
    folder, size = options.get("cache-dir"), int(options.get("file-cache.max-size-mb", -1))
    return (str(folder), size) if folder and size else None
