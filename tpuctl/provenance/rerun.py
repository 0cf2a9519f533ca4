"""What a run that is done again keeps, what must be another, and what cannot be had. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct, field

from tpuctl.lib.text import sized
from tpuctl.model.refs import MountRef
from tpuctl.model.slice_spec import SliceSpec
from tpuctl.provenance.manifest import Row, RunManifest

CONSOLIDATE = "torch_xla.distributed.fsdp.consolidate_sharded_ckpts"
"""The module of PyTorch/XLA that makes one checkpoint of those of all ranks of its FSDP."""
_RANK = re.compile(
    r"(?i)(?P<before>.*?)[._-]?rank[._-]?(?P<rank>\d+)(?:[._-]?of[._-]?(?P<world>\d+))?(?P<after>[^/]*)$"
)


class PartFate(StrEnum):
    """What becomes of a part of a run when it is done again."""

    KEPT = "kept"
    CHANGED = "changed"
    MISSING = "missing"
    """It cannot be had: nothing starts."""


class RerunChange(Struct, frozen=True):
    """One line of the plan."""

    fate: PartFate
    what: str
    detail: str
    hint: str = ""


class Bucket(Struct, frozen=True):
    """Where the checkpoints of the new run go. `from_` are those that it begins with, empty for none; `near` is
    None where nobody can tell; `usd_per_tb` is what reading from another region costs at least, by list."""

    uri: str
    from_: str = ""
    size: int = 0
    shards: tuple[str, ...] = ()
    location: str = ""
    near: bool | None = None
    usd_per_tb: float = 0.0


class DiskThere(Struct, frozen=True):
    """What the target has at the path of a disk of the run; `name` is empty where it has nothing there, and
    `hint` says what to type. `type` is what it has, or has to have; empty where there is none."""

    type: str
    name: str = ""
    same: bool = False
    """It has the content that the run read."""
    cost: str = ""
    """Of what is made first: time and money; empty where nothing is."""
    hint: str = ""


class Available(Struct, frozen=True):
    """What there is for a run that is done again."""

    slice_name: str
    spec: SliceSpec
    new_slice: bool
    code_problem: str = ""
    environment_problem: str = ""
    environment: str = ""
    """The name of what the run is pinned to; empty for none."""
    secrets: frozenset[str] = frozenset()
    """Names of those of which it is known where they are."""
    bucket: Bucket | None = None
    disks: Mapping[str, DiskThere] = field(default_factory=dict)
    """By path: what the disks of the run are there."""
    data: Mapping[str, str] = field(default_factory=dict)
    """Why data is not as its receipt says, by URI; empty where it is."""
    receipts: Mapping[str, str] = field(default_factory=dict)
    """Digests of the receipts that take the place of those in the manifest, by URI."""


def plan_rerun(manifest: RunManifest, there: Available) -> list[RerunChange]:
    """Every part of the run once, in the order of the manifest."""
    return [
        *_code(manifest, there),
        *_secrets(manifest, there),
        *_environment(manifest, there),
        *_hardware(manifest, there),
        *_disks(manifest, there),
        *_mounts(manifest, there),
        *_data(manifest, there),
        *_checkpoints(there),
    ]


def is_possible(plan: Sequence[RerunChange]) -> bool:
    """Whether everything that the run needs can be had."""
    return all(each.fate is not PartFate.MISSING for each in plan)


def _code(manifest: RunManifest, there: Available) -> Iterable[RerunChange]:
    code = manifest.code
    said = f"tree {code.bundle_sha256[:12]}" + (f", commit {code.commit[:12]}" if code.commit else "")
    if code.dirty:
        said += " with uncommitted changes"
    if there.code_problem:
        hint = "use the store in which it ran, or a bundle: tpuctl manifest export RUN --as bundle -o FILE"
        yield RerunChange(PartFate.MISSING, "code", there.code_problem, hint)
    else:
        yield RerunChange(PartFate.KEPT, "code", said)
    yield RerunChange(PartFate.KEPT, "command", " ".join(manifest.command.argv))
    if manifest.variables.requested:
        yield RerunChange(PartFate.KEPT, "variables", " ".join(sorted(manifest.variables.requested)))


def _secrets(manifest: RunManifest, there: Available) -> Iterable[RerunChange]:
    for name in manifest.command.secrets:
        if name in there.secrets:
            yield RerunChange(PartFate.KEPT, f"secret {name}", "read again when it starts")
        else:
            said = "the manifest has its name alone"
            yield RerunChange(PartFate.MISSING, f"secret {name}", said, f"--secret {name}=env:VARIABLE")


def _environment(manifest: RunManifest, there: Available) -> Iterable[RerunChange]:
    found, image = manifest.environment, image_used(manifest)
    if image is not None:
        yield RerunChange(PartFate.KEPT, "image", image)
    elif found is None:
        yield RerunChange(PartFate.KEPT, "environment", "none was pinned: packages are those of the hosts")
    elif there.environment_problem:
        hint = f"tpuctl env ls; another with --env NAME instead of {found.name}"
        yield RerunChange(PartFate.MISSING, "environment", there.environment_problem, hint)
    else:
        yield RerunChange(PartFate.KEPT, "environment", f"{found.name} {found.spec_sha256[:12]}")


def _hardware(manifest: RunManifest, there: Available) -> Iterable[RerunChange]:
    was, now = manifest.slice, there.spec
    if there.new_slice:
        yield RerunChange(
            PartFate.CHANGED, "slice", f"{there.slice_name} is brought up for it, and goes with it"
        )
    else:
        fate = PartFate.KEPT if was.name == there.slice_name else PartFate.CHANGED
        yield RerunChange(fate, "slice", _step(was.name, there.slice_name))
    rows = (
        ("type", was.accelerator_type, now.accelerator_type),
        ("chips", was.chips, now.chips),
        ("hosts", was.hosts, now.hosts),
        ("runtime version", was.runtime_version, now.runtime_version),
        ("zone", was.zone, now.zone),
        ("tier", was.tier, str(now.tier)),
    )
    for what, old, new in rows:
        if old is not None:
            yield RerunChange(
                PartFate.KEPT if old == new else PartFate.CHANGED, what, _step(str(old), str(new))
            )
    beyond = [worker for worker in manifest.command.workers if worker >= now.hosts]
    if beyond:
        said = f"worker {beyond[0]} took part, and {there.slice_name} has {now.hosts} hosts"
        yield RerunChange(PartFate.MISSING, "workers", said, "--on a slice that is as large")


def _disks(manifest: RunManifest, there: Available) -> Iterable[RerunChange]:
    for row in used(manifest, "disks"):
        path, name, kind = str(row.get("path")), str(row.get("name")), str(row.get("type") or "")
        here = there.disks[path]
        if kind and not here.type:
            said = f"{kind}: {there.spec.accelerator_type} has none like it"
            yield RerunChange(PartFate.MISSING, f"disk type {path}", said, here.hint)
        elif kind:
            fate = PartFate.KEPT if kind == here.type else PartFate.CHANGED
            yield RerunChange(fate, f"disk type {path}", _step(kind, here.type))
        if here.name:
            fate = PartFate.KEPT if here.name == name and here.same else PartFate.CHANGED
            other = "" if here.same else ", other content"
            more = f", its copy: {here.cost}" if here.cost else ""
            yield RerunChange(fate, f"disk {path}", f"{_step(name, here.name)}{other}{more}")
        elif here.type or not kind:
            of = f", of snapshot {row['snapshot']}" if row.get("snapshot") else ""
            more = f"; a copy for it: {here.cost}" if here.cost else ""
            said = f"{name}{of} is not on {there.slice_name}{more}"
            yield RerunChange(PartFate.MISSING, f"disk {path}", said, here.hint)


def _mounts(manifest: RunManifest, there: Available) -> Iterable[RerunChange]:
    mounted = {mount.path: mount.source for mount in there.spec.mounts}
    for row in used(manifest, "mounts"):
        path = str(row.get("path"))
        source = str(row.get("source") or _source(row))
        if path not in mounted:
            hint = f"tpuctl mount add {source}:{path} --on {there.slice_name}"
            if there.new_slice:
                kind, zone = there.spec.accelerator_type, there.spec.zone
                hint = (
                    f"tpuctl up {kind} SLICE --zone {zone} --mount {source}:{path}, then rerun with --on SLICE"
                )
            yield RerunChange(PartFate.MISSING, f"mount {path}", f"{source} is not on {there.slice_name}", hint)
        else:
            fate = PartFate.KEPT if mounted[path] == source else PartFate.CHANGED
            yield RerunChange(fate, f"mount {path}", _step(source, mounted[path]))


def _data(manifest: RunManifest, there: Available) -> Iterable[RerunChange]:
    if manifest.synthetic:
        yield RerunChange(PartFate.KEPT, "data", "synthetic")
    for row in manifest.data:
        uri, digest = str(row.get("uri")), str((row.get("digest") or {}).get("value"))[:12]
        new, why = there.receipts.get(uri, "")[:12], there.data.get(uri, "")
        if why:
            hint = f"tpuctl data receipt {uri} --contract FILE, then --data {uri}: another run, on other data"
            yield RerunChange(PartFate.MISSING, f"data {uri}", why, hint)
        elif new and new != digest:
            yield RerunChange(PartFate.CHANGED, f"data {uri}", _step(digest, new))
        else:
            yield RerunChange(PartFate.KEPT, f"data {uri}", digest)


def _source(row: Row) -> str:
    directory = f"/{row['directory']}" if row.get("directory") else ""
    return f"gs://{row.get('bucket')}{directory}"


def used(manifest: RunManifest, kind: str) -> Sequence[Row]:
    """Disks or mounts of the last attempt; those that were asked for where none has ended."""
    if manifest.attempts:
        found: Sequence[Row] = getattr(manifest.attempts[-1], kind)
        return found
    asked: Sequence[Row] = getattr(manifest.slice, kind)
    return asked


def image_used(manifest: RunManifest) -> str | None:
    """The container image of the run, by its digest where its hosts found one; None without a container."""
    named = manifest.command.container
    rows = [row for each in manifest.attempts for row in each.hosts] if named is not None else []
    return next((str(row["image"]) for row in rows if "@" in str(row.get("image"))), named)


def _checkpoints(there: Available) -> Iterable[RerunChange]:
    bucket = there.bucket
    if bucket is None:
        yield RerunChange(PartFate.KEPT, "checkpoints", "none: it starts from scratch")
        return
    if not bucket.from_:
        yield RerunChange(PartFate.CHANGED, "checkpoints", f"a directory of its own: {bucket.uri}")
    else:
        yield RerunChange(PartFate.KEPT, "checkpoints", f"goes on with those in {bucket.uri}")
    if bucket.near is False:
        price, moved = bucket.size / 1e12 * bucket.usd_per_tb, ""
        if bucket.size:
            moved = f"; to read {sized(bucket.size)} from there costs about ${price:.2f} by list"
        said = f"{bucket.location} is away from {there.spec.zone}{moved}"
        yield RerunChange(PartFate.CHANGED, "bucket region", said)
    elif bucket.near:
        yield RerunChange(PartFate.KEPT, "bucket region", bucket.location)
    yield from _ranks(bucket, there)


def _ranks(bucket: Bucket, there: Available) -> Iterable[RerunChange]:
    """Checkpoints that each rank wrote its own part of, for a world of another size."""
    hosts, chips = there.spec.hosts, there.spec.chips
    for prefix, (world, suffix) in sorted(world_sizes(bucket.shards).items()):
        if world in (hosts, chips):
            continue
        what, parts = f"checkpoint {prefix}", f"{world} ranks wrote a part each"
        whole = consolidated(prefix, suffix)
        if whole in bucket.shards:
            yield RerunChange(
                PartFate.CHANGED, what, f"{parts}; its weights are in {whole}, which the program has to load"
            )
        else:
            said = f"{parts}; there are {hosts} hosts with {chips} chips now"
            how = _how_to_consolidate(bucket, prefix, suffix, there)
            yield RerunChange(PartFate.MISSING, what, said, f"{how}; or without --checkpoint-dir, from scratch")


def consolidated(prefix: str, suffix: str) -> str:
    """The object for the weights of a checkpoint whose parts are called `prefix` and then like `suffix`."""
    return f"{prefix}{'/' if suffix.startswith('/') else '_'}consolidated.pth"


def _how_to_consolidate(bucket: Bucket, prefix: str, suffix: str, there: Available) -> str:
    """On worker 0, by way of a mount, for the module reads and writes files."""
    name = bucket.uri.removeprefix("gs://").partition("/")[0]
    slice_name, spec, first = "SLICE" if there.new_slice else there.slice_name, there.spec, ""
    for mount in spec.mounts:
        root = f"{mount.directory}/" if mount.directory else ""
        if mount.bucket == name and not mount.read_only and prefix.startswith(root):
            break
    else:
        mount, root = MountRef(name, f"/mnt/{name}", "train"), ""
        first = f"tpuctl mount add {mount.source}:{mount.path} --on {slice_name}, then "
    if there.new_slice:
        up = f"tpuctl up {spec.accelerator_type} SLICE --zone {spec.zone}"
        first = f"{up} --mount {mount.source}:{mount.path}, then "
    parts, whole = (
        f"{mount.path}/{each.removeprefix(root)}" for each in (prefix, consolidated(prefix, suffix))
    )
    flags = {"--ckpt_prefix": parts, "--ckpt_suffix": suffix, "--save_path": whole}
    words = ("python3", "-m", CONSOLIDATE, *(word for pair in flags.items() for word in pair))
    env = f"--env {there.environment} " if there.environment else ""
    return f"{first}tpuctl run --on {slice_name} --worker 0 --alone {env}--no-checkpoint -- {shlex.join(words)}"


def world_sizes(names: Iterable[str]) -> dict[str, tuple[int, str]]:
    """For each checkpoint of which ranks wrote a file each: how many ranks, and the pattern for what follows it
    in the names of the files."""
    ranks: dict[str, set[int]] = {}
    said: dict[str, int] = {}
    suffixes: dict[str, str] = {}
    for name in names:
        found = _RANK.fullmatch(name)
        if found is None:
            continue
        prefix = found["before"].rstrip("/._-")
        ranks.setdefault(prefix, set()).add(int(found["rank"]))
        suffixes[prefix] = f"{name[len(prefix) : found.start('rank')]}*{name[found.end('rank') :]}"
        if found["world"]:
            said[prefix] = int(found["world"])
    return {
        prefix: (said.get(prefix, max(numbers) + 1), suffixes[prefix])
        for prefix, numbers in ranks.items()
        if prefix in said or len(numbers) > 1
    }


def _step(old: str, new: str) -> str:
    return old if old == new else f"{old} → {new}"
