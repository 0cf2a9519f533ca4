"""What can be refused of a run by itself, without knowing its slice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from tpuctl.errors import UsageError, with_field
from tpuctl.lib.names import check_progress, check_tag, parse_secret, parse_var
from tpuctl.lib.time import parse_duration
from tpuctl.model.processes import PER, TOPOLOGY
from tpuctl.model.run_spec import RunRequest
from tpuctl.model.secret_patterns import check_argv, check_named
from tpuctl.model.shipped_files import load_secret_patterns
from tpuctl.runs.chips import parse_chips
from tpuctl.runs.containers import check_container
from tpuctl.runs.metrics import metric_names


def check_run(request: RunRequest) -> tuple[str, ...]:
    """The argument vector of the run. Raises UsageError, with the field it is about in its details."""
    if request.worker is not None and not request.alone:
        raise UsageError.of(
            "worker",
            "--worker leaves out workers, which hang a program that waits for them",
            "add --alone if the program does not",
        )
    if request.no_checkpoint and request.checkpoint_dir is not None:
        raise UsageError.of(
            "no_checkpoint", "--checkpoint-dir and --no-checkpoint exclude each other", "keep one"
        )
    if request.synthetic and request.data:
        raise UsageError.of("synthetic", "--synthetic and --data exclude each other", "keep one")
    patterns = load_secret_patterns()
    check_named(patterns, "--var", request.var)
    check_processes(request)
    if request.on_stall not in ("report", "restart"):
        raise UsageError.of("on_stall", f"--on-stall {request.on_stall!r} is unknown", "report or restart")
    if request.on_nan not in ("report", "stop"):
        raise UsageError.of("on_nan", f"--on-nan {request.on_nan!r} is unknown", "report or stop")
    if request.check not in ("weights", "strict", "off"):
        raise UsageError.of("check", f"--check {request.check!r} is unknown", "weights, strict or off")
    if request.lint not in ("warn", "strict", "off"):
        raise UsageError.of("lint", f"--lint {request.lint!r} is unknown", "warn, strict or off")
    parse_chips(request)
    check_container(request)
    with_field("stall", partial(parse_duration, request.stall, "--stall"))
    with_field("first_step_limit", partial(parse_duration, request.first_step_limit, "--first-step-limit"))
    if request.progress:
        try:
            check_progress(request.progress)
        except ValueError as error:
            raise UsageError.of(
                "progress", f"--progress '{request.progress}' {error}", r"'step (\d+)'"
            ) from error
    if request.on_nan == "stop" and request.progress is not None and not metric_names(request.progress):
        raise UsageError.of(
            "on_nan",
            "--on-nan stop has no number to look at: --progress names none",
            r"""--progress 'step (?P<step>\d+) loss (?P<loss>\S+)'""",
        )
    for name, value in request.var.items():
        with_field("var", partial(parse_var, f"{name}={value}"))
    for name, reference in request.secret.items():
        with_field("secret", partial(parse_secret, f"{name}={reference}"))
    check_tags(request.group, request.tag)
    argv = render_argv(request)
    check_argv(patterns, argv)
    return argv


PYTHON = "python3"
"""The interpreter on the host: the pinned environment's when there is one (it is first on PATH)."""


def render_argv(request: RunRequest) -> tuple[str, ...]:
    """What is started. Nothing is quoted or expanded: arguments arrive as they are. Raises UsageError where not
    exactly one of script, module and command is given."""
    if sum(map(bool, (request.script, request.module, request.command))) != 1:
        raise UsageError(
            "say what to run: a script, -m MODULE, or -- COMMAND",
            hint="tpuctl run train.py, or tpuctl run -m pkg.train, or tpuctl run -- bash scripts/x.sh",
        )
    if request.script:
        return (PYTHON, request.script, *request.args)
    return (PYTHON, "-m", request.module, *request.args) if request.module else tuple(request.command)


STARTERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
"""Words of commands that start processes themselves."""


def check_processes(request: RunRequest) -> None:
    """Raises UsageError for processes that would not have a chip each, or not come together."""
    per = request.per or "host"
    if per not in PER:
        hint = "host, chip or torchrun: a host has as many processes as chips, or one"
        raise UsageError.of("per", f"--per {per!r} is unknown", hint)
    if per == "host":
        return
    if any(word.rpartition("/")[2] in STARTERS for word in (*request.command[:3], request.module or "")):
        raise UsageError.of(
            "per",
            f"--per {per} starts the command once for each chip, and the command starts processes itself: that "
            "is more processes than chips",
            "--per host, or --per torchrun with the program alone",
        )
    if request.worker is not None:
        raise UsageError.of(
            "per",
            f"--per {per} and --worker exclude each other: the processes of all hosts take the chips together",
            "leave out --worker",
        )
    if parse_chips(request) != ():
        why = f"--per {per} starts a process on every chip of a host, and --chips and --chip leave some out"
        raise UsageError.of("per", why, "leave out --per, or --chips and --chip")
    check_spmd(per, request.var)


def check_spmd(per: str, variables: Mapping[str, str]) -> None:
    """Raises UsageError for SPMD of PyTorch/XLA in several processes of a host."""
    if per != "host" and variables.get("XLA_USE_SPMD", "0") not in ("", "0", "false", "False"):
        raise UsageError.of(
            "per",
            f"XLA_USE_SPMD=1 wants one process for each host, and --per {per} starts one for each chip",
            "--per host, or XLA_USE_SPMD=0",
        )


def topology_notes(per: str, given: Mapping[str, str], pinned: Mapping[str, str]) -> list[str]:
    """What becomes of the variables by which processes share the chips where `--var` (`given`) has them, and
    where the environment (`pinned`) has."""
    notes = []
    kept = ", ".join(sorted(TOPOLOGY.intersection(given)))
    lost = ", ".join(sorted(TOPOLOGY.intersection(pinned).difference(given)))
    if kept and per != "host":
        notes.append(f"--var {kept} stays as it is, for all processes alike: --per {per} does not set it")
    if lost and per == "chip":
        notes.append(f"{lost} of the environment does not count: --per chip sets it for each process")
    return notes


def check_tags(group: str | None, tags: Sequence[str]) -> None:
    """Raises UsageError for a name that cannot be listed, a key that is given twice, and what looks like a
    secret."""
    patterns = load_secret_patterns()
    if group is not None:
        with_field("group", partial(check_tag, group, "--group"))
    for tag in tags:
        with_field("tag", partial(check_tag, tag))
        key, _, value = tag.partition("=")
        check_named(patterns, "--tag", {key: value or key})
    keys = [tag.partition("=")[0] for tag in tags]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise UsageError.of("tag", f"--tag {twice} is given twice", "give it once")
