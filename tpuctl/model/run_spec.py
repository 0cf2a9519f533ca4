"""A run as a user writes it, and as it follows from that.

Keys of the fleet file, its schema, help texts and the reference documents are made of these fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Struct, field

from tpuctl.lib.names import parse_expression, parse_secret, parse_var
from tpuctl.lib.options import Flag, Option
from tpuctl.lib.text import PLACE, WORKERS_HELP
from tpuctl.lib.time import parse_duration
from tpuctl.model import timeouts
from tpuctl.model.receipt import Receipt
from tpuctl.model.refs import EnvironmentRef

PROGRAM, RESTARTS = "What it runs", "Checkpoints and restarts"
LISTED = "How it is listed"
"""Groups of the flags in help."""


class RestartPolicy(Struct, frozen=True):
    """How often a run is started again, by cause."""

    max_failures: int = timeouts.MAX_FAILURES
    max_preemptions: int = timeouts.MAX_PREEMPTIONS
    max_restarts: int = timeouts.MAX_RESTARTS
    grace_s: float = timeouts.STOP_GRACE_S

    @property
    def restarts(self) -> bool:
        """Whether anything is started again at all."""
        return max(self.max_failures, self.max_preemptions, self.max_restarts) > 0


class PolicyRequest(Struct, frozen=True):
    """When a run is started again, and how it is stopped. `grace` is in seconds."""

    max_failures: Annotated[
        int,
        Option(
            "Restarts after failures of the program; two equal ones within a minute of its start end the run.",
            group=RESTARTS,
            metavar="N",
            minimum=0,
            examples=(1,),
        ),
    ] = RestartPolicy().max_failures
    max_preemptions: Annotated[
        int, Option("Restarts after preemptions.", group=RESTARTS, metavar="N", minimum=0, examples=(20,))
    ] = RestartPolicy().max_preemptions
    grace: Annotated[
        float,
        Option(
            "Seconds between SIGTERM and SIGKILL at a stop.",
            group=RESTARTS,
            metavar="SECONDS",
            minimum=0,
            examples=(60,),
        ),
    ] = RestartPolicy().grace_s

    def policy(self) -> RestartPolicy:
        return RestartPolicy(
            max_failures=self.max_failures, max_preemptions=self.max_preemptions, grace_s=self.grace
        )


class RunOptions(Struct, frozen=True, kw_only=True):
    """What a user wrote of a run and what is kept unchanged: in its record, in its manifest, and in a run that
    does it again from there."""

    allow_cpu: Annotated[
        bool,
        Option(
            "Let it compute on the CPU, or on fewer devices than there are chips.",
            group=PROGRAM,
            examples=(True,),
        ),
    ] = False
    per: Annotated[
        str,
        Option(
            "Processes of each host: one (host), one for each chip (chip), or torchrun with one for each chip. "
            "Else as its environment says, else host.",
            group=PROGRAM,
            metavar="WHAT",
            examples=("chip",),
        ),
    ] = ""
    join_limit: Annotated[
        float,
        Option(
            "Stop it when workers wait so long for one that has not taken its devices.",
            group=PROGRAM,
            metavar="SECONDS",
            minimum=1,
            examples=(600,),
        ),
    ] = field(default=timeouts.JOIN_MAX_S, name="join_limit_s")
    progress: Annotated[
        str | None,
        Option(
            "Regular expression that finds the step in its output, and in a second group all steps; or numbers "
            "by the names of groups, such as step, steps and loss. Else that of its environment.",
            group=PROGRAM,
            metavar="REGEX",
            text=True,
            parse=parse_expression,
            check=parse_expression,
            examples=(r"step (\d+)/(\d+)", r"step (?P<step>\d+) loss (?P<loss>\S+)"),
        ),
    ] = None
    on_stall: Annotated[
        str,
        Option(
            "What is done then: report (say so and keep stacks) or restart.",
            group=RESTARTS,
            metavar="WHAT",
            examples=("restart",),
        ),
    ] = "report"
    on_nan: Annotated[
        str,
        Option(
            "When a number that --progress names is infinite or none: report (say so) or stop (end the run).",
            group=RESTARTS,
            metavar="WHAT",
            examples=("stop",),
        ),
    ] = "report"
    check: Annotated[
        str,
        Option(
            "Look at its parameters once it has them: weights (say what is wrong), strict (end it) or off.",
            group=PROGRAM,
            metavar="WHAT",
            examples=("strict",),
        ),
    ] = "off"
    debug: Annotated[
        tuple[str, ...],
        Option(
            "Dump or check what it does: xla, hlo, nans or sdc; repeatable. See `tpuctl collect`.",
            group=PROGRAM,
            metavar="WHAT",
            single=True,
            examples=(("hlo", "nans"),),
        ),
    ] = ()
    container: Annotated[
        str | None,
        Option(
            "Container image in which it runs; on hosts by docker or podman.",
            group=PROGRAM,
            metavar="IMAGE",
            text=True,
            examples=("us-docker.pkg.dev/lab/images/train:1",),
        ),
    ] = None
    pull: Annotated[
        str,
        Option(
            "Pull the image once for the run where a host has it: missing (no) or always.",
            group=PROGRAM,
            metavar="WHEN",
            examples=("always",),
        ),
    ] = "missing"
    privileged: Annotated[
        bool,
        Option("With --container: as root, with all devices and rights.", group=PROGRAM, examples=(True,)),
    ] = False
    checkpoint_dir: Annotated[
        str | None,
        Option(
            "gs:// directory for checkpoints.", group=RESTARTS, metavar="URI", examples=("gs://bucket/run1",)
        ),
    ] = None
    no_checkpoint: Annotated[
        bool,
        Option(
            "The program keeps no checkpoints: restarts begin from scratch.", group=RESTARTS, examples=(True,)
        ),
    ] = False
    any_region: Annotated[
        bool,
        Option("Also try zones outside the region of the checkpoint bucket.", group=RESTARTS, examples=(True,)),
    ] = False
    chips: Annotated[
        str,
        Option(
            "On a slice of one host: 1, a free chip, so that other runs may have the others; or all.",
            group=PLACE,
            metavar="1|all",
            text=True,
            examples=("1",),
        ),
    ] = "all"
    chip: Annotated[
        str | None,
        Option(
            "On a slice of one host: this chip, so that other runs may have the others.",
            group=PLACE,
            metavar="NUMBER",
            text=True,
            examples=("2",),
        ),
    ] = None
    unproven: Annotated[
        bool,
        Option(
            "With --chip: take several chips, such as 0,2, of which nobody has shown that they start alone.",
            group=PLACE,
            examples=(True,),
        ),
    ] = False

    def kept(self) -> dict[str, Any]:
        """These options by name, for what keeps them, too."""
        return {name: getattr(self, name) for name in RunOptions.__struct_fields__}


class ProgramRequest(RunOptions, frozen=True):
    """What is to run, and where: one of `script`, `module` and `command`."""

    on: Annotated[str | None, Option("The slice.", group=PLACE, metavar="NAME", examples=("big",))] = None
    script: Annotated[
        str | None, Option("A script, run by Python.", flags=(Flag("SCRIPT"),), examples=("train.py",))
    ] = None
    module: Annotated[
        str | None,
        Option("Run a module.", flags=(Flag("-m"),), group=PROGRAM, metavar="MODULE", examples=("pkg.train",)),
    ] = None
    command: Annotated[
        tuple[str, ...],
        Option(
            "Any command, word by word.", flags=(Flag("COMMAND"),), text=True, examples=(("bash", "train.sh"),)
        ),
    ] = ()
    args: Annotated[
        tuple[str, ...],
        Option(
            "Arguments of the script or module.", flags=(Flag("ARGS"),), text=True, examples=(("--lr", 0.1),)
        ),
    ] = ()
    worker: Annotated[
        str | None,
        Option(WORKERS_HELP, flags=(Flag("--worker"), Flag("--all-workers")), text=True, examples=("0-3,7",)),
    ] = None
    alone: Annotated[
        bool,
        Option("With --worker: confirm that the other workers take no part.", group=PLACE, examples=(True,)),
    ] = False
    var: Annotated[
        Mapping[str, str],
        Option(
            "Variable for the program; repeatable.",
            group=PROGRAM,
            metavar="K=V",
            pair=parse_var,
            text=True,
            examples=({"SEED": 1},),
        ),
    ] = field(default_factory=dict)
    secret: Annotated[
        Mapping[str, str],
        Option(
            "Secret from env:VAR, file:PATH or sm://PROJECT/SECRET; repeatable.",
            group=PROGRAM,
            metavar="NAME=REF",
            pair=parse_secret,
            examples=({"TOKEN": "env:TOKEN"},),
        ),
    ] = field(default_factory=dict)
    env: Annotated[
        str | None, Option("Pinned environment.", group=PROGRAM, metavar="NAME", examples=("demo-cpu",))
    ] = None
    allow_drift: Annotated[
        tuple[str, ...],
        Option(
            "Start although hosts differ in this column of `env verify`; repeatable.",
            group=PROGRAM,
            metavar="COLUMN",
            examples=(("clock",),),
        ),
    ] = ()
    stall: Annotated[
        str,
        Option(
            "Say so when it wrote nothing, or made no step, for this long.",
            group=RESTARTS,
            metavar="TIME",
            examples=("15m",),
        ),
    ] = timeouts.STALL
    first_step_limit: Annotated[
        str,
        Option(
            "The same before its first step, which compiles.", group=RESTARTS, metavar="TIME", examples=("3h",)
        ),
    ] = timeouts.FIRST_STEP_LIMIT


class RunRequest(ProgramRequest, frozen=True, kw_only=True):
    """A run as a user wrote it."""

    lint: Annotated[
        str,
        Option(
            "Errors that `tpuctl lint` finds in its code: warn, strict (do not start it) or off.",
            group=PROGRAM,
            metavar="WHAT",
            examples=("strict",),
        ),
    ] = "warn"
    group: Annotated[
        str | None,
        Option("Group of runs that belong together.", group=LISTED, metavar="NAME", examples=("sweep-1",)),
    ] = None
    tag: Annotated[
        tuple[str, ...],
        Option(
            "Tag to find it by; repeatable.",
            group=LISTED,
            metavar="KEY[=VALUE]",
            text=True,
            single=True,
            examples=(("baseline", "stage=pretrain"),),
        ),
    ] = ()
    data: Annotated[
        tuple[str, ...],
        Option(
            "Data that it reads, by its receipt; URI=FILE takes that receipt; repeatable.",
            group=PROGRAM,
            metavar="URI",
            examples=(("gs://bucket/tokens",),),
        ),
    ] = ()
    synthetic: Annotated[
        bool, Option("It runs on made-up data, which every list shows.", group=PROGRAM, examples=(True,))
    ] = False
    policy: Annotated[
        PolicyRequest,
        Option("How often it is started again, and how it is stopped.", examples=({"max_failures": 1},)),
    ] = PolicyRequest()


class RunSettings(RunOptions, frozen=True, kw_only=True):
    """What a record and a manifest both keep of a run's options: those, and what follows from the others."""

    per: str = "host"
    progress: str | None = ""
    """Never null in a record: an older tpuctl that shares the store could not read it."""
    stall_s: float = parse_duration(timeouts.STALL, "--stall")
    first_step_limit_s: float = parse_duration(timeouts.FIRST_STEP_LIMIT, "--first-step-limit")

    def kept(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in RunSettings.__struct_fields__}


class RunSpec(RunSettings, frozen=True):
    """What follows from a request, checked and complete: what a record keeps for all attempts."""

    slice_name: str
    argv: tuple[str, ...]
    cwd: str
    """Directory below the code's root in which the command runs."""
    policy: RestartPolicy
    variables: Mapping[str, str]
    secrets: Mapping[str, str]
    """References by name, never what they stand for."""
    workers: tuple[int, ...] = ()
    """The workers that take part; empty means all."""
    environment: EnvironmentRef | None = None
    allow_drift: tuple[str, ...] = ()
    """Columns of `env verify` in which hosts may differ when it starts."""
    checkpoint_per_run: bool = False
    """Each run has a directory of its own below `checkpoint_dir`."""
    group: str = ""
    tags: tuple[str, ...] = ()
    """`KEY` or `KEY=VALUE`, each key once, sorted."""
    data: tuple[Receipt, ...] = ()
    """What it reads: no attempt starts while that is not as its receipt says."""
    synthetic: bool = False
    """It runs on made-up data."""
    owns_slice: bool = False
    """The slice is brought up for the run and goes with it."""
    keep_slice: bool = False

    def checkpoint_place(self, run_id: str) -> str | None:
        """Where the run of this id has its checkpoints."""
        if self.checkpoint_dir is None or not self.checkpoint_per_run:
            return self.checkpoint_dir
        return f"{self.checkpoint_dir.rstrip('/')}/{run_id}"
