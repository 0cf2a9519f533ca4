"""The manifest of a run, `tpuctl.run/1`: what was asked for, what happened in each attempt, how it ended.

It is kept in parts, each written once and never changed: the start, one for each attempt when it has ended, and
the end. The digest of a part covers its content and the digest of the part before it, so that whoever has the
last digest can tell whether anything in front of it was changed. No secrets, only their names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from tpuctl.errors import BadManifestError
from tpuctl.lib.codec import from_data, parse_json
from tpuctl.model.run_spec import RestartPolicy, RunSettings

SCHEMA = "tpuctl.run/1"

Row = Mapping[str, Any]


class RunSection(Struct, frozen=True):
    """Whose run it is, and since when."""

    id: str
    owner: str
    project: str = ""
    created: str | None = None
    tpuctl_version: str = ""
    rerun_of: str | None = None
    """The run whose manifest this one repeats."""
    group: str | None = None
    tags: tuple[str, ...] = ()
    wandb_id: str | None = None
    """The `WANDB_RUN_ID` of its program, where nothing else sets one."""


class CommandSection(RunSettings, frozen=True):
    """What the workers start, and how. `cwd` is below the top of the code, `checkpoint_dir` the run's own."""

    argv: tuple[str, ...]
    cwd: str = "."
    workers: tuple[int, ...] = ()
    """Those that take part; empty means all."""
    secrets: tuple[str, ...] = ()
    """Names of the variables, never values."""
    max_failures: int = RestartPolicy().max_failures
    max_preemptions: int = RestartPolicy().max_preemptions
    grace_s: float = RestartPolicy().grace_s


class SettingSection(Struct, frozen=True):
    """One setting of tpuctl, and which file, variable or flag it came from."""

    value: Any
    origin: str


class CodeSection(Struct, frozen=True):
    """The code: by the digest of its frozen tree, and where it came from. `diff_sha256` is that of the changes
    that were not committed; untracked files are in the tree like all others."""

    bundle_sha256: str
    commit: str | None = None
    branch: str | None = None
    dirty: bool = False
    remote: str | None = None
    """Without user, password and query."""
    diff_sha256: str | None = None


class EnvironmentSection(Struct, frozen=True):
    """The pinned environment: the digest of its definition, the versions in it by package, and what its keys
    about runs came to (`preset`)."""

    name: str
    spec_sha256: str
    pins: Mapping[str, str] = field(default_factory=dict)
    allowed_drift: tuple[str, ...] = ()
    preset: tuple[Row, ...] = ()


class VariablesSection(Struct, frozen=True):
    """Variables of the program. `requested` are those of `--var`; `pinned` those of the environment."""

    requested: Mapping[str, str] = field(default_factory=dict)
    pinned: Mapping[str, str] = field(default_factory=dict)


class SliceSection(Struct, frozen=True):
    """The slice as it was asked for."""

    name: str
    accelerator_type: str | None = None
    topology: str | None = None
    hosts: int | None = None
    chips: int | None = None
    slices: int = 1
    zone: str | None = None
    tier: str | None = None
    runtime_version: str | None = None
    disks: tuple[Row, ...] = ()
    mounts: tuple[Row, ...] = ()


class AttemptSlice(Struct, frozen=True):
    """The slice under one attempt, and when the cloud had it ready and all hosts had answered."""

    incarnation: int
    cloud_name: str | None = None
    node_uid: str | None = None
    zone: str | None = None
    requested: str | None = None
    provisioned: str | None = None
    ready: str | None = None


class ProcessRow(Struct, frozen=True):
    """How one of several processes of a worker ended."""

    process: int
    exit_status: int | None = None
    signal: int | None = None


class ExitRow(Struct, frozen=True):
    """How one worker ended; of several processes the one that ended wrongly first, which `process` names."""

    worker: int
    exit_status: int | None = None
    signal: int | None = None
    ran_s: float | None = None
    note: str | None = None
    process: int | None = None
    processes: tuple[ProcessRow, ...] = ()


class EventRow(Struct, frozen=True):
    """One event of an attempt."""

    at: str | None
    event: str
    detail: str | None = None


class Phases(Struct, frozen=True):
    """Seconds by what they went into; None where nobody can tell. `waiting` for capacity, `provisioning` until
    all hosts answered, `preparing` code and environment, `first_step` until all workers had their devices,
    `training` from then on. `running` is the whole life of the program. `lost` was done after the last
    checkpoint, and is part of it. `unseen` is time in which nobody saw whether the slice was still there, and
    paid for."""

    waiting_s: float | None = None
    provisioning_s: float | None = None
    preparing_s: float | None = None
    first_step_s: float | None = None
    training_s: float | None = None
    running_s: float | None = None
    lost_s: float | None = None
    unseen_s: float | None = None


class PhaseCost(Struct, frozen=True):
    """What one phase of a run cost: its part of `chip_hours` and of `usd`; None where nobody can tell."""

    chip_hours: float | None = None
    usd: float | None = None


class AttemptSection(Struct, frozen=True):
    """One attempt: where, with what on each host, and how it ended."""

    number: int
    slice: AttemptSlice
    created: str | None = None
    started: str | None = None
    ended: str | None = None
    cause: str | None = None
    why: str | None = None
    joined: str | None = None
    """What devices the program had."""
    failure: Mapping[str, Any] | None = None
    step: float | None = None
    """The last step that was seen in its output, of `steps`."""
    steps: float | None = None
    steps_per_s: float | None = None
    hosts: tuple[Row, ...] = ()
    disks: tuple[Row, ...] = ()
    mounts: tuple[Row, ...] = ()
    checks: tuple[Row, ...] = ()
    """What was checked on its hosts before the program started, and found well."""
    variables: tuple[Row, ...] = ()
    """Variables with which programs were started, of those that steer compilers, devices and loaders."""
    exits: tuple[ExitRow, ...] = ()
    phases: Phases = Phases()
    timeline: tuple[EventRow, ...] = ()


class EndSection(Struct, frozen=True):
    """How the run ended, and what went into it. `usd` is by list prices, of the hours from when the cloud had
    the slice ready, for all chips of it; None where no price is known. `by_phase`: chip hours and dollars by
    what they went into, as in `phases`; together they are the whole, and what is `unseen` may come on top."""

    state: str
    reason: str
    ended: str | None = None
    attempts: int = 0
    failures: int = 0
    preemptions: int = 0
    restarts: int = 0
    phases: Phases = Phases()
    chips: int | None = None
    chip_hours: float | None = None
    usd: float | None = None
    by_phase: Mapping[str, PhaseCost] = field(default_factory=dict)


class RunManifest(Struct, frozen=True):
    """A whole manifest. `end` is None while the run goes on. `chain` has the digests of the start, of each
    attempt and of the end; it is empty for runs of versions that kept none."""

    schema: str
    run: RunSection
    command: CommandSection
    code: CodeSection
    slice: SliceSection
    configuration: Mapping[str, SettingSection] = field(default_factory=dict)
    environment: EnvironmentSection | None = None
    variables: VariablesSection = VariablesSection()
    data: tuple[Row, ...] = ()
    """Receipts of the data."""
    synthetic: bool = False
    """It was said to run on made-up data."""
    checks: tuple[Row, ...] = ()
    """What was checked before it was written down; see also those of attempts."""
    attempts: tuple[AttemptSection, ...] = ()
    end: EndSection | None = None
    chain: tuple[str, ...] = ()


NOT_OF_START = ("schema", "attempts", "end", "chain")
"""What of a whole manifest is no section of its start."""


def canonical(data: Any) -> bytes:
    """The one way in which data is written to be digested: keys sorted, no spaces, UTF-8."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def chain_digest(previous: str, content: Any) -> str:
    """The digest of a part that follows the part with digest `previous` (empty for the first)."""
    return hashlib.sha256(canonical({"previous": previous, "content": content})).hexdigest()


class ManifestPart(Struct, frozen=True):
    """A part as it is stored. `previous` is the digest of the part before."""

    schema: str
    previous: str
    sha256: str
    content: dict[str, Any]


def render_part(previous: str, content: Mapping[str, Any]) -> ManifestPart:
    """The part that follows `previous`."""
    return ManifestPart(SCHEMA, previous, chain_digest(previous, content), json.loads(canonical(content)))


def assemble(
    start: ManifestPart | None, attempts: Sequence[ManifestPart], end: ManifestPart | None, run_id: str = ""
) -> dict[str, Any]:
    """The whole manifest from its parts as they are stored.

    Raises BadManifestError for parts of a newer schema, and where there is nothing.
    """
    if start is None:
        raise BadManifestError(f"run {run_id} has no manifest", hint="tpuctl runs")
    for part in (start, *attempts, end):
        if part is not None:
            check_schema(part.schema, f"the manifest of run {run_id}")
    return {
        "schema": SCHEMA,
        **start.content,
        "attempts": [part.content for part in attempts],
        "end": None if end is None else end.content,
        "chain": [part.sha256 for part in (start, *attempts, end) if part is not None],
    }


def check_schema(schema: str, what: str) -> None:
    """Raises BadManifestError for a schema that this tpuctl does not read, saying whether it is a newer one."""
    if schema == SCHEMA:
        return
    kind, _, version = schema.partition("/")
    if kind == SCHEMA.partition("/")[0] and version.isdigit():
        raise BadManifestError(
            f"{what} is of schema {schema}, newer than this tpuctl reads ({SCHEMA})",
            hint="use the tpuctl that wrote it, or a newer one",
        )
    raise BadManifestError(
        f"{what} is no manifest of a run: its schema is {schema!r}, not {SCHEMA}",
        hint="tpuctl manifest show RUN --json writes one",
    )


def parse_manifest(content: bytes, what: str) -> dict[str, Any]:
    """A whole manifest from a file as `export` and `show --json` write it, as plain data that was checked.

    Raises BadManifestError that tells a file that is cut off from one that is something else.
    """
    again = "tpuctl manifest show RUN --json writes it again"
    try:
        data = parse_json(content)
    except (ValueError, RecursionError) as error:
        cut = content.lstrip()[:1] in (b"{", b"") and not content.rstrip().endswith(b"}")
        why = f"is cut off after {len(content)} bytes" if cut else f"is not JSON: {error}"
        raise BadManifestError(f"{what} {why}", hint=again) from error
    if not isinstance(data, dict):
        raise BadManifestError(f"{what} is no manifest: it is not a JSON object", hint=again)
    check_schema(str(data.get("schema")), what)
    typed(data, what)
    return data


def typed(data: Row, what: str = "the manifest") -> RunManifest:
    """The manifest as records. Raises BadManifestError naming the field that is not as it should be."""
    try:
        return from_data(RunManifest, data)
    except ValueError as error:
        raise BadManifestError(f"{what} is damaged: {error}") from error


def verify_chain(data: Row) -> list[str]:
    """What is wrong with the digests of a whole manifest; nothing where every part is as it was written."""
    chain = data.get("chain") or []
    if not chain:
        return ["it has no digests: an earlier version of tpuctl wrote it"]
    start = {key: value for key, value in data.items() if key not in NOT_OF_START}
    parts: list[tuple[str, Any]] = [("the start", start)]
    parts += [(f"attempt {row.get('number')}", row) for row in data.get("attempts") or ()]
    if data.get("end") is not None:
        parts.append(("the end", data["end"]))
    if len(parts) != len(chain):
        return [f"it has {len(parts)} parts and {len(chain)} digests"]
    wrong, previous = [], ""
    for (name, content), written in zip(parts, chain, strict=True):
        if chain_digest(previous, content) != written:
            wrong.append(f"{name} was changed after it was written")
        previous = written
    return wrong
