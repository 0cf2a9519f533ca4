"""A slice as a user writes it, and as it follows from that: the one declaration of all options about capacity.

Flags of `up` and `run --up`, keys of the fleet file, its schema and the reference documents are made of these
fields. An option that is kept as it was written is one field of `SliceOptions`, sent only if
`cloud/requests.py` uses it; any other is a field of `SliceRequest` that `slices/resolve.py` resolves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Struct, field
from msgspec.structs import replace

from tpuctl.lib.options import Flag, Option
from tpuctl.model.hosts import Api, Tier
from tpuctl.model.refs import DiskRef, EnvironmentRef, MountRef
from tpuctl.model.resources import ResourceKind

PAID, WHERE, WHAT, ACCESS = "How it is paid for", "Where and how long", "What it is", "Network and identity"
"""Groups of the flags in help."""
_TIERS = (
    Flag("--spot", "Spot capacity: cheap, can be preempted.", "v2 `spot`"),
    Flag("--on-demand", "On-demand capacity.", "v2 `guaranteed`"),
    Flag(
        "--preemptible",
        "Preemptible capacity: older than spot, at most 24 hours.",
        "v2 `schedulingConfig.preemptible`",
    ),
    Flag("--reserved", "Capacity of a reservation.", "v2 `reservationName`"),
    Flag("--flex-start", "Capacity for a fixed time, in some zones.", "v2alpha1 `provisioningModel`"),
)
_QUEUED = (
    Flag("--queued", "Wait in the queue for capacity; the default.", "`queuedResources`"),
    Flag("--direct", "Ask for the node itself, without a place in a queue.", "`nodes`"),
)


IN_PLACE = frozenset({"disks", "mounts", "env"})
"""Fields of a `SliceSpec` that are about hosts only: they change on the slice that is there, and what is not
said of them stays as it is."""


class SliceOptions(Struct, frozen=True, kw_only=True):
    """What is kept as it was written; sent only if `cloud/requests.py` uses it. None and empty mean: not said,
    or the setting of that name."""

    reservation: Annotated[
        str | None,
        Option(
            "With --reserved: the reservation.",
            group=PAID,
            metavar="NAME",
            api="v2 `reservationName`",
            examples=("my-reservation",),
        ),
    ] = None
    """A short name, or the full name of a reservation of another project."""
    network: Annotated[
        str | None,
        Option("VPC network.", group=ACCESS, metavar="NAME", api="v2 `networkConfig`", examples=("default",)),
    ] = None
    subnetwork: Annotated[
        str | None,
        Option(
            "Subnetwork of the region.",
            group=ACCESS,
            metavar="NAME",
            api="v2 `networkConfig`",
            examples=("default",),
        ),
    ] = None
    service_account: Annotated[
        str | None,
        Option(
            "Service account of programs on the hosts.",
            group=ACCESS,
            metavar="EMAIL",
            api="v2 `serviceAccount`",
            examples=("trainer@my-project.iam.gserviceaccount.com",),
        ),
    ] = None
    metadata: Annotated[
        Mapping[str, str],
        Option(
            "Entry of the metadata server; repeatable.",
            group=WHAT,
            metavar="K=V",
            api="v2 `metadata`",
            text=True,
            examples=({"team": "vision"},),
        ),
    ] = field(default_factory=dict)

    description: Annotated[
        str | None,
        Option(
            "What it is for; shown with the TPU.",
            group=WHAT,
            metavar="TEXT",
            api="v2 `description`",
            examples=("Ablation of the tokenizer",),
        ),
    ] = None
    race: Annotated[
        bool,
        Option("Ask in all zones at once; keep the first that comes.", group=WHERE, examples=(True,)),
    ] = False


class SliceRequest(SliceOptions, frozen=True):
    """A slice as a user wrote it; None and empty mean: the setting, else what the grants or the tables make
    plain."""

    accelerator: Annotated[
        str | None,
        Option("Accelerator type, such as v4-32.", flags=(Flag("ACCELERATOR"),), examples=("v4-32",)),
    ] = None
    api: Annotated[
        Api | None,
        Option(
            "Which API makes it, where both do: Cloud TPU or Compute Engine.",
            group=WHAT,
            metavar="tpu|compute",
            examples=("compute",),
        ),
    ] = None
    zone: Annotated[
        tuple[str, ...],
        Option(
            "Zone; repeat it to try several in order; `auto` for all that are allowed.",
            group=WHERE,
            metavar="ZONE",
            api="`locations`",
            single=True,
            examples=("us-central2-b",),
        ),
    ] = ()
    tier: Annotated[
        Tier | None,
        Option("How the capacity is paid for.", flags=_TIERS, group=PAID, examples=("spot",)),
    ] = None
    pay: Annotated[
        bool, Option("Agree to pay for what no grant covers.", group=PAID, examples=(True,), in_place=True)
    ] = False
    queued: Annotated[
        bool | None,
        Option(
            "Wait in the queue for capacity, or create the node directly.",
            flags=_QUEUED,
            group=WHERE,
            examples=(False,),
        ),
    ] = None
    runtime_version: Annotated[
        str | None,
        Option(
            "TPU VM software, or an image or its family of Compute Engine; default by type.",
            group=WHAT,
            metavar="NAME",
            api="v2 `runtimeVersion`",
            examples=("tpu-ubuntu2204-base",),
        ),
    ] = None
    run_duration: Annotated[
        str | None,
        Option(
            "With --flex-start, or by Compute Engine: how long; flex-start at most 7d.",
            group=PAID,
            metavar="TIME",
            api="v2alpha1 `runDuration`",
            examples=("4h",),
        ),
    ] = None
    valid_until: Annotated[
        str | None,
        Option(
            "Create nothing after this time (UTC unless it has an offset).",
            group=WHERE,
            metavar="WHEN",
            api="v2 `queueingPolicy`",
            examples=("2026-12-24T18:00Z",),
        ),
    ] = None
    valid_for: Annotated[
        str | None,
        Option(
            "Let each request wait at most this long.",
            group=WHERE,
            metavar="TIME",
            api="v2 `queueingPolicy`",
            examples=("6h",),
        ),
    ] = None
    topology: Annotated[
        str | None,
        Option(
            "Topology; the accelerator is then a generation, such as v4.",
            group=WHAT,
            metavar="AxBxC",
            api="v2 `acceleratorConfig`",
            examples=("4x4x12",),
        ),
    ] = None
    slices: Annotated[
        int | None,
        Option(
            "Several slices in one request: multislice.",
            group=WHAT,
            metavar="N",
            api="v2 `multisliceParams`",
            minimum=1,
            examples=(2,),
        ),
    ] = None
    internal_ips: Annotated[
        bool, Option("No external addresses.", group=ACCESS, api="v2 `networkConfig`", examples=(True,))
    ] = False
    network_tag: Annotated[
        tuple[str, ...],
        Option(
            "Network tag; repeatable.",
            group=ACCESS,
            metavar="TAG",
            api="v2 `tags`",
            examples=(("training",),),
        ),
    ] = ()
    label: Annotated[
        Mapping[str, str],
        Option(
            "Label; repeatable.",
            group=WHAT,
            metavar="K=V",
            api="v2 `labels`",
            text=True,
            examples=({"team": "vision"},),
        ),
    ] = field(default_factory=dict)
    boot_disk: Annotated[
        int | None,
        Option(
            "Size of the boot disk in GiB.",
            group=WHAT,
            metavar="GIB",
            api="v2alpha1 `bootDiskConfig`",
            examples=(200,),
        ),
    ] = None
    startup_script: Annotated[
        str | None,
        Option(
            "File that runs as root at every boot of every host.",
            group=WHAT,
            metavar="FILE",
            api="v2 `metadata`",
            examples=("boot.sh",),
        ),
    ] = None
    disk: Annotated[
        tuple[str, ...],
        Option(
            "Disk, mounted on every host before the slice is ready; repeatable.",
            group=WHAT,
            metavar="NAME[:ro|rw][:/PATH]",
            api="v2 `dataDisks`",
            examples=(("data-g1:/mnt/data",),),
            in_place=True,
        ),
    ] = ()
    mount: Annotated[
        tuple[str, ...],
        Option(
            "Bucket, mounted as a folder on every host before the slice is ready; repeatable.",
            group=WHAT,
            metavar="gs://BUCKET[/DIR]:/PATH[:PROFILE][,OPTION...]",
            examples=(("gs://my-bucket/data:/mnt/data:train,ttl=0",),),
            in_place=True,
        ),
    ] = ()
    env: Annotated[
        str | None,
        Option(
            "Pinned environment: on every host before the slice is ready; none takes it off.",
            group=WHAT,
            metavar="NAME",
            examples=("demo-cpu",),
            in_place=True,
        ),
    ] = None
    ttl: Annotated[
        str | None,
        Option(
            "Delete the slice after this long.", group=WHERE, metavar="TIME", examples=("8h",), in_place=True
        ),
    ] = None
    stop_when_idle: Annotated[
        str | None,
        Option(
            "Delete the slice when it has been idle this long.",
            group=WHERE,
            metavar="TIME",
            examples=("30m",),
            in_place=True,
        ),
    ] = None

    def of(self, accelerator: str | None) -> SliceRequest:
        """The same, of this accelerator type."""
        return replace(self, accelerator=accelerator)

    @property
    def given(self) -> bool:
        """Whether anything was said, apart from an agreement to pay and from what a run has a flag for, too."""
        return replace(self, pay=False, env=None) != SliceRequest()


class SliceSpec(SliceOptions, frozen=True):
    """What follows from a request: kept in the record of the slice, and sent for each of its incarnations.

    Another spec under the same name is a conflict, not an update.
    """

    accelerator_type: str
    zone: str
    tier: Tier
    runtime_version: str
    hosts: int
    chips: int
    queued: bool = True
    external_ips: bool = True
    login_user: str = "tpuctl"
    config_type: str | None = None
    """With `topology`, asks for an accelerator by shape instead of by `accelerator_type`."""
    topology: str | None = None
    slices: int = 1
    """Nodes of one queued resource; `hosts` and `chips` count those of all."""
    run_duration_s: float | None = None
    valid_until: float | None = None
    """Epoch seconds after which the queue must not fill the request any more."""
    valid_for_s: float | None = None
    """How long each request may wait for capacity."""
    boot_disk_gib: int | None = None
    tags: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    startup_script: str | None = None
    """The sha256 of the blob with its text."""
    disks: tuple[DiskRef, ...] = ()
    mounts: tuple[MountRef, ...] = ()
    env: EnvironmentRef | None = None
    api: Api = Api.TPU
    machine_type: str = ""
    """Of each host; empty where the TPU API chooses it."""

    @property
    def made_as(self) -> ResourceKind:
        """What it is asked for as; of Compute Engine, what has its hosts."""
        if self.api is Api.COMPUTE:
            return ResourceKind.INSTANCE if self.hosts == 1 else ResourceKind.GROUP
        return ResourceKind.QUEUED if self.queued else ResourceKind.NODE


_OPTIONS = {
    "accelerator_type": "accelerator",
    "external_ips": "internal_ips",
    "run_duration_s": "run_duration",
    "valid_for_s": "valid_for",
    "boot_disk_gib": "boot_disk",
    "tags": "network_tag",
    "labels": "label",
    "machine_type": "accelerator",
}


def option_of(name: str) -> str:
    """The option, as a key of the fleet file, from which the field `name` of a `SliceSpec` follows."""
    return _OPTIONS.get(name, name)
