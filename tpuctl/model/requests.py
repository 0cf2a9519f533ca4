"""What commands were told: the flags of `disk`, `adopt`, `rerun`, `exec` and `logs` are made of these fields.

Those of `up` and `run` are in `slice_spec.py` and `run_spec.py`, as fleet files have them, too.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from msgspec import Struct, field

from tpuctl.lib.names import check_disk_name, check_zone_name, parse_secret
from tpuctl.lib.options import Flag, Option, argument
from tpuctl.lib.text import PLACE, WORKERS_HELP


class Purpose(Struct, frozen=True):
    """What a disk is for: slices of a generation, of so many hosts. No generation: nobody has said."""

    generation: str = ""
    hosts: int = 1


def parse_purpose(text: str) -> Purpose:
    """Of an accelerator type such as `v6e-16`, or a generation alone. Raises UsageError for what is neither."""
    from tpuctl.model.shipped_files import load_accelerators

    catalog = load_accelerators()
    generation = catalog.find_generation(text)
    if generation is not None:
        return Purpose(generation.name)
    found = catalog.get(text)
    return Purpose(found.generation, found.hosts)


DiskName = Annotated[str, argument("DISK", "Name of the disk.")]
ToSlice = Annotated[str | None, Option("The slice; optional if you have just one.", metavar="SLICE")]
MountPath = Annotated[str, Option("Where it is mounted; /mnt/DISK if left out.", metavar="DIR")]
Unmount = Annotated[
    bool, Option("Unmount the file system meanwhile instead of freezing it; nothing may be open there.")
]
Detach = Annotated[bool, Option("Start it and return.", short="-d")]
AllWorkers = Annotated[bool, Option("All workers (the default).")]
Workers = Annotated[str | None, Option(WORKERS_HELP, metavar="LIST")]
FleetPath = Annotated[
    Path | None, Option("The fleet file; the nearest tpuctl.yaml if left out.", short="-f", metavar="FILE")
]
_For = Annotated[
    Purpose,
    Option(
        "What it is for, where no slice says it: v6e-16, or a generation such as v6e.",
        flags=(Flag("--for"),),
        metavar="ACCELERATOR",
        parse=parse_purpose,
    ),
]


class CreateRequest(Struct, frozen=True):
    """A new, empty disk. Empty and None: what follows from the zone and the size."""

    name: Annotated[str, argument("DISK", "Name of the disk.", parse=check_disk_name)]
    size: Annotated[int, Option("GiB.", metavar="GIB", minimum=1)] = 100
    zone: Annotated[
        str, Option("Zone of the slices that will use it.", metavar="ZONE", parse=check_zone_name)
    ] = ""
    type: Annotated[str, Option("Disk type.", metavar="TYPE")] = ""
    purpose: _For = Purpose()
    throughput: Annotated[int | None, Option("Throughput of hyperdisk-ml, in MiB/s.", metavar="MIBS")] = None


class AttachRequest(Struct, frozen=True):
    """A disk on a slice. Without a path it is mounted where it was, or at its name."""

    name: DiskName
    to: ToSlice = None
    rw: Annotated[bool, Option("Read-write on one host, or read-only.", flags=(Flag("--rw"), Flag("--ro")))] = (
        True
    )
    path: MountPath = ""
    no_mount: Annotated[bool, Option("Attach it and do not mount it.")] = False


class CloneRequest(Struct, frozen=True):
    """A copy of a disk. Empty and None: what follows from the slice and the master. A copy that goes `to` no
    slice is attached nowhere."""

    master: DiskName
    to: ToSlice = None
    name: Annotated[str, Option("Of the copy.", metavar="NAME")] = ""
    path: MountPath = ""
    zone: Annotated[
        str,
        Option("Create the clone in this zone, and do not attach it.", metavar="ZONE", parse=check_zone_name),
    ] = ""
    type: Annotated[str, Option("Of the copy.", metavar="TYPE")] = ""
    purpose: _For = Purpose()
    throughput: Annotated[
        int | None, Option("Throughput of a hyperdisk-ml clone, in MiB/s.", metavar="MIBS")
    ] = None
    snapshot_only: Annotated[bool, Option("Make the snapshot and stop.")] = False
    from_snapshot: Annotated[str, Option("Clone this older snapshot.", metavar="NAME")] = ""
    rw: Annotated[bool, Option("Create a master of its own, not attached; needs --name.")] = False
    crash_consistent: Annotated[bool, Option("Do not freeze the file system; repair the clone afterwards.")] = (
        False
    )
    """It is repaired `on` a slice of one host, that which writes the master where none is said."""
    on: Annotated[
        str | None, Option("With --crash-consistent: repair it on this slice of one host.", metavar="SLICE")
    ] = None
    unmount: Unmount = False

    @property
    def for_slice(self) -> bool:
        """Whether the copy goes to a slice, though none may be named."""
        return not (self.zone or self.snapshot_only or (self.rw and self.to is None))


class AdoptRequest(Struct, frozen=True):
    """A TPU that was made without tpuctl, and the slice that it becomes."""

    node: Annotated[str, argument("NODE", "The node, or its queued resource.")]
    zone: Annotated[str | None, Option("Where it is.", metavar="ZONE", parse=check_zone_name)] = None
    name: Annotated[str | None, Option("Name of the slice; from the node if left out.", metavar="NAME")] = None
    add_key: Annotated[
        bool, Option("Add the SSH key of this machine to the metadata, and turn OS Login off.")
    ] = False
    pay: Annotated[bool, Option("Agree to pay for what no grant covers, also after a preemption.")] = False


class LaunchRequest(Struct, frozen=True):
    """How a run is started: what is not kept of it."""

    up: Annotated[
        str | None, Option("Bring a slice up for this run; it goes with it.", group=PLACE, metavar="TYPE")
    ] = None
    keep: Annotated[bool, Option("With --up: keep the slice when the run ends.", group=PLACE)] = False
    smoke: Annotated[bool, Option("First test every chip; do not start where one fails.", group=PLACE)] = False
    matrix: Annotated[
        str | None,
        Option("A run for each row of this grid; the name of the file is their --group.", metavar="FILE"),
    ] = None
    parallel: Annotated[
        int | None, Option("With --matrix: how many at the same time.", metavar="N", minimum=1)
    ] = None
    detach: Detach = False
    all_workers: AllWorkers = False
    worker: Workers = None
    name: Annotated[str | None, Option("Id of the run.", metavar="ID")] = None


CLUSTER = "On a cluster of GKE"


class ClusterRequest(Struct, frozen=True, kw_only=True):
    """What a run on a cluster of Kubernetes needs beside what runs on slices do."""

    local_queue: Annotated[
        str | None, Option("LocalQueue of Kueue that admits it.", group=CLUSTER, metavar="NAME")
    ] = None
    kube_account: Annotated[
        str | None,
        Option("Service account of the namespace, with access to its buckets.", group=CLUSTER, metavar="NAME"),
    ] = None
    kube_secret: Annotated[
        str | None,
        Option(
            "Secret of the namespace with a key for each --secret; called like the run if left out.",
            group=CLUSTER,
            metavar="NAME",
        ),
    ] = None
    code_prefix: Annotated[
        str | None,
        Option(
            "gs:// prefix for its code; in the bucket of its checkpoints if left out.",
            group=CLUSTER,
            metavar="URI",
        ),
    ] = None
    machine_type: Annotated[
        str | None,
        Option("Machine type, where a topology is one machine or two.", group=CLUSTER, metavar="TYPE"),
    ] = None
    fatal_exit: Annotated[
        tuple[str, ...],
        Option(
            "Exit status after which it is not started again; repeatable. Else 2, 64, 78, 126 and 127.",
            group=CLUSTER,
            metavar="STATUS",
        ),
    ] = ()
    host_network: Annotated[
        bool, Option("Use the network of the nodes, which several slices are faster with.", group=CLUSTER)
    ] = False


class ApplyRequest(Struct, frozen=True):
    """A fleet file, and what may be done for it."""

    file: FleetPath = None
    replace: Annotated[bool, Option("Delete and create again what exists with another specification.")] = False
    prune: Annotated[bool, Option("Remove what came from this file and is no longer in it.")] = False
    again: Annotated[
        tuple[str, ...], Option("Start this run again although it has ended; repeatable.", metavar="RUN")
    ] = ()
    all_users: Annotated[bool, Option("Also change, --replace and --prune other users' slices.")] = False

    @property
    def command(self) -> str:
        """What applies the same file."""
        return "tpuctl apply" if self.file is None else f"tpuctl apply -f {shlex.quote(str(self.file))}"


class RerunRequest(Struct, frozen=True):
    """How a run is to be done again. `secret` has references by name, `checkpoint_dir` a directory to go on
    with; None for one of its own."""

    source: Annotated[str, argument("RUN", "A run, its manifest or its bundle.")]
    on: Annotated[str | None, Option("On this slice, or on a new one of this type.", metavar="SLICE|TYPE")] = (
        None
    )
    zone: Annotated[tuple[str, ...], Option("For a new slice: where; repeatable.", metavar="ZONE")] = ()
    pay: Annotated[bool, Option("For a new slice: what no grant covers is paid for.")] = False
    secret: Annotated[
        Mapping[str, str],
        Option("Where a secret of the run is; repeatable.", metavar="NAME=REF", pair=parse_secret),
    ] = field(default_factory=dict)
    checkpoint_dir: Annotated[
        str | None, Option("Go on with these checkpoints; else from scratch.", metavar="URI")
    ] = None
    data: Annotated[
        tuple[str, ...], Option("Data that changed, by its newer receipt; repeatable.", metavar="URI")
    ] = ()
    name: Annotated[str | None, Option("Id of the new run.", metavar="ID")] = None
    detach: Detach = False


class ExecRequest(Struct, frozen=True):
    """Where a command runs, and what becomes of its output."""

    on: Annotated[str | None, Option("The slice; optional if you have just one.", metavar="NAME")] = None
    worker: Workers = None
    all_workers: AllWorkers = False
    group: Annotated[bool, Option("Print identical output once, when all have ended.")] = False
    output_dir: Annotated[str | None, Option("One file per worker and stream instead.", metavar="DIR")] = None
    no_stdin: Annotated[
        bool, Option("Do not read standard input, for example in a loop that reads it.", short="-n")
    ] = False


class LogsRequest(Struct, frozen=True):
    """Which lines of a run are meant."""

    run: Annotated[str, argument("[RUN]", "Id of the run; the newest if left out.")] = "last"
    follow: Annotated[bool, Option("Follow until the run ends.", short="-f")] = False
    worker: Workers = None
    attempt: Annotated[
        int | None, Option("This attempt; all if left out, with -f the newest.", metavar="N")
    ] = None
    since: Annotated[str | None, Option("Only lines of the last 10m, 2h or 1d.", metavar="SPAN")] = None
    grep: Annotated[str | None, Option("Only lines in which this is found.", metavar="REGEX")] = None
    timestamps: Annotated[bool, Option("The time (UTC) before each line.", short="-t")] = False


OPTIONS, CHOICE, OUTPUT = "Options", "What is looked for", "Output"


class LintRequest(Struct, frozen=True):
    """What is looked for, and where."""

    paths: Annotated[tuple[str, ...], argument("[PATH]...", "Files and folders; this folder if left out.")] = ()
    backend: Annotated[
        str | None,
        Option("torch_xla, torch_tpu or jax; guessed from imports if left out.", group=CHOICE, metavar="NAME"),
    ] = None
    port: Annotated[bool, Option("Show what PyTorch for CUDA needs on TPUs, too.", group=CHOICE)] = False
    env: Annotated[
        str | None, Option("Pinned environment: its backend and its versions.", group=CHOICE, metavar="NAME")
    ] = None
    deps: Annotated[bool, Option("With --env: also the packages of it that are imported.", group=CHOICE)] = (
        False
    )
    select: Annotated[
        tuple[str, ...], Option("Only rules whose codes begin so; repeatable.", group=CHOICE, metavar="CODES")
    ] = ()
    ignore: Annotated[
        tuple[str, ...], Option("No rules whose codes begin so; repeatable.", group=CHOICE, metavar="CODES")
    ] = ()
    output_format: Annotated[str, Option("text, json, sarif or github.", group=OUTPUT, metavar="FORMAT")] = (
        "text"
    )
    explain: Annotated[
        str | None, Option("Print what rules are about, and end.", group=OUTPUT, metavar="CODE")
    ] = None


class FitsRequest(Struct, frozen=True):
    """A training step, and what it is compiled for."""

    step: Annotated[str | None, argument("[FILE[:FUNCTION]]", "The function; `step` if none is named.")] = None
    types: Annotated[
        str | None, Option("Accelerator types: v5e-8,v6e-8,v4-32.", flags=(Flag("--for"),), metavar="LIST")
    ] = None
    mesh: Annotated[str | None, Option("data=4,model=2; * takes the rest. Else data=*.", metavar="AXES")] = None
    env: Annotated[str | None, Option("The environment; else that of the settings.", metavar="NAME")] = None
    python: Annotated[Path | None, Option("An interpreter in place of the environment.", metavar="FILE")] = None
    var: Annotated[tuple[str, ...], Option("A variable of the program; repeatable.", metavar="K=V")] = ()
    mfu: Annotated[
        float, Option("Share of the chips' peak that is reached.", group=OPTIONS, minimum=0.01, maximum=1.0)
    ] = 0.4
    """Well-written dense training reaches it (MaxText reports 0.35 to 0.65)."""
    new: Annotated[Path | None, Option("Write a file to start from, and end.", metavar="FILE")] = None
    library: Annotated[str | None, Option("With --new: optax, nnx or maxtext.", metavar="NAME")] = None


class SimRequest(Struct, frozen=True):
    """How the simulator is started."""

    foreground: Annotated[bool, Option("Stay in this terminal until Ctrl-C.")] = False
    speed: Annotated[float, Option("Divide the simulator's delays by this.", metavar="FACTOR")] = 1.0
    instant: Annotated[bool, Option("No delays at all.")] = False
    project: Annotated[str, Option("Id of the simulated project.", metavar="ID")] = "sim-project"
    seed: Annotated[int, Option("Seed of ids and addresses.", metavar="N")] = 1
    hosts: Annotated[
        str, Option("process, or isolated: namespaces and a real sshd (root on Linux).", metavar="TIER")
    ] = "process"
    firewall: Annotated[
        str,
        Option(
            "open, or strict: no rule lets hosts reach each other, and rules are obeyed (isolated hosts).",
            metavar="MODE",
        ),
    ] = "open"
    quota: Annotated[
        tuple[str, ...], Option("Set a quota, as `tpuctl sim quota` does; repeatable.", metavar="KEY=N")
    ] = ()
    catalog: Annotated[
        Path | None, Option("Accelerator types and zones, in the form of tpuctl's own table.", metavar="FILE")
    ] = None
