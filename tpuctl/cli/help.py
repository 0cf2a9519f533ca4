"""How help reads: what it does, examples, arguments, then options in groups, all in 80 columns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from typer.core import TyperCommand

OTHER = "Options"
"""The group of options that name none; it comes last."""
_RANGE = re.compile(r"^[-\d.]*(<=?)?x([<>]=?[-\d.]+)?$")
_NOTES = re.compile(r"  \[([^\]]+)\]$")

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "mount add": (
        "tpuctl mount add gs://my-bucket/data:/mnt/data --on big --ttl 60",
        "tpuctl mount add gs://my-bucket/ckpt:/mnt/ckpt:checkpoint",
        "tpuctl mount add gs://new-bucket:/mnt/new --create --dry-run",
    ),
    "ui": (
        "tpuctl ui",
        "tpuctl ui --no-open --port 8700    # for ssh -L 8700:127.0.0.1:8700",
        "tpuctl ui --publish gs://my-bucket/fleet",
    ),
    "up": (
        "tpuctl up v4-32 --spot",
        "tpuctl up v6e-8 big --spot --zone us-east1-d --zone europe-west4-a",
        "tpuctl up v6e-8 big --spot --race --zone us-east1-d --zone europe-west4-a",
        "tpuctl up v4-8 --spot --pay --stop-when-idle 30m",
        "tpuctl up big                      # a slice of that name, as before",
    ),
    "dev": (
        "tpuctl dev v4-8 --spot --stop-when-idle 30m",
        "tpuctl dev --sync . --exec 'python train.py' -L 6006",
    ),
    "down": ("tpuctl down big", "tpuctl down big small --yes", "tpuctl down --all --dry-run"),
    "run": (
        "tpuctl run train.py --on big --checkpoint-dir gs://BUCKET/run1 -- --lr 3e-4",
        "tpuctl run -m package.train --up v4-32 --spot --no-checkpoint",
        "tpuctl run --detach --no-checkpoint -- sh -c 'echo $TPUCTL_RANK'",
        "tpuctl run sweep.py --on v6e-8 --chips 1 --no-checkpoint --matrix lr.yaml",
        "tpuctl run train.py --on big --container us-docker.pkg.dev/lab/images/train:1",
    ),
    "collect": ("tpuctl collect", "tpuctl collect r1 --worker 0,3 --limit 200MiB -o r1.tar"),
    "fits": (
        "tpuctl fits --new step.py",
        "tpuctl fits step.py --for v5e-8,v6e-8",
        "tpuctl fits model.py:fsdp --for v6e-16 --mesh data=*,model=4",
    ),
    "check weights": ("tpuctl check weights model.py:init", "tpuctl check weights DIR --strict"),
    "lint": (
        "tpuctl lint                            # all below this folder",
        "tpuctl lint train.py --env torch-xla --deps",
        "tpuctl lint src --port --output-format github",
        "tpuctl lint --explain TPU301",
    ),
    "trace": ("tpuctl trace RUN", "tpuctl trace --seconds 2 --worker 0,3 --to traces --open"),
    "exec": (
        "tpuctl exec big -- df -h /",
        "tpuctl exec big --worker 0-3 --group -- uname -r",
    ),
    "metrics": ("tpuctl metrics", "tpuctl metrics sweep-3 --csv > sweep-3.csv"),
    "data stage": (
        "tpuctl data stage hf://org/name@main gs://my-bucket/models/name --on big",
        "tpuctl data stage hf://datasets/org/name@v1 gs://my-bucket/d --include 'en/*'",
    ),
    "smoke": ("tpuctl smoke big", "tpuctl smoke big --env jax-tpu --limit 300"),
    "ssh": ("tpuctl ssh big", "tpuctl ssh big --worker 3"),
    "cp": (
        "tpuctl cp config.json big:              # to all workers",
        "tpuctl cp big:out results               # results/big-0, results/big-1, …",
        "tpuctl cp --worker 0 big:log.txt .",
    ),
    "forward": ("tpuctl forward big 6006", "tpuctl forward big 9012:6006 --worker 1"),
    "logs": ("tpuctl logs --follow", "tpuctl logs RUN --worker 0"),
    "apply": ("tpuctl diff", "tpuctl apply", "tpuctl apply --file lab.yaml --prune"),
    "capacity": ("tpuctl capacity v4-32", "tpuctl capacity --plot capacity.svg"),
    "quota": ("tpuctl quota --zone us-central2-b",),
    "bill": ("tpuctl bill", "tpuctl bill -o proof.yaml"),
    "manifest show": (
        "tpuctl manifest show RUN",
        "tpuctl manifest show RUN --attempt 1",
        "tpuctl manifest show run.json",
    ),
    "manifest diff": ("tpuctl manifest diff RUN OTHER",),
    "manifest verify": ("tpuctl manifest verify RUN",),
    "manifest export": ("tpuctl manifest export RUN -o run.tar", "tpuctl manifest export RUN --as slsa"),
    "rerun": (
        "tpuctl rerun RUN --dry-run",
        "tpuctl rerun RUN --on v6e-16 --pay",
        "tpuctl rerun run.tar --on big --secret TOKEN=env:TOKEN",
    ),
    "export": (
        "tpuctl export RUN --up v6e-64 --slices 2 --container IMAGE -o train.yaml",
        "tpuctl export train.py --up v6e-16 --env jax-tpu --local-queue tpu",
        "tpuctl export -m package.train --up tpu7x-32 --env jax-tpu --dry-run",
    ),
    "keep": ("tpuctl keep last --until 90d", "tpuctl keep RUN --release"),
    "pause": ("tpuctl pause --until 8h --reason maintenance",),
    "types": ("tpuctl types v6e", "tpuctl types --zone us-east1-d"),
    "adopt": ("tpuctl adopt my-tpu --zone us-central2-b --pay",),
    "reap": ("tpuctl reap --dry-run",),
    "ssh-config": ("tpuctl ssh-config big", "tpuctl ssh-config --write"),
    "grant add": ("tpuctl grant add 32 spot v4 us-central2-b --ends 2026-12-31",),
    "grant import": ("tpuctl grant import letter.txt --ends 2026-12-31",),
    "env new": ("tpuctl env new mine --backend jax", "tpuctl env new mine --like cpu --require einops==0.8.1"),
    "env lock": ("tpuctl env lock mine",),
    "env derive": (
        "tpuctl env derive jax-tpu patched --with libtpu==0.0.50",
        "tpuctl env derive torch-xla mine --file lib/_XLAC.so=build/_XLAC.so",
    ),
    "env apply": ("tpuctl env apply jax-tpu --on big",),
    "env verify": ("tpuctl env verify jax-tpu --on big",),
    "env diff": (
        "tpuctl env diff jax-tpu mine",
        "tpuctl env diff mine --on big",
        "tpuctl env diff --on big --on small",
    ),
    "env ls": ("tpuctl env ls",),
    "env plan": ("tpuctl env plan mine --on big",),
    "env capture": (
        "tpuctl env capture mine --on dev --python /home/me/venv/bin/python",
        "tpuctl env capture mine --on dev --unmanaged --python /data/venv/bin/python",
    ),
    "env gc": ("tpuctl env gc --on big --dry-run",),
    "disk create": ("tpuctl disk create data --size 500 --zone us-central2-b",),
    "disk attach": ("tpuctl disk attach data --to dev",),
    "disk clone": ("tpuctl disk clone data --to big", "tpuctl disk clone data --zone us-east5-a"),
    "disk ls": ("tpuctl disk ls --tree",),
    "config init": ("tpuctl config init --store gs://my-fleet/lab",),
    "watch install": ("tpuctl watch install --dry-run", "tpuctl watch install"),
    "sim up": (
        "tpuctl sim up --instant",
        "tpuctl sim up --speed 20 --quota IN_USE_ADDRESSES/us-central2=8",
    ),
    "sim preempt": ("tpuctl sim preempt big-1",),
    "sim reboot": ("tpuctl sim reboot big-1 --worker 0",),
    "top": ("tpuctl top", "tpuctl top last", "tpuctl top big --once --json"),
    "sim load": (
        "tpuctl sim load big-1 duty=85 hbm_gib=24",
        "tpuctl sim load big-1 --worker 3 duty=5 queue=0",
        "tpuctl sim load big-1 --off",
    ),
    "sim fault": ("tpuctl sim fault stockout --set times=3", "tpuctl sim fault --clear"),
    "sim quota": ("tpuctl sim quota us-central2-b/v4=16",),
    "sim set": (
        "tpuctl sim set big-1 state=REPAIRING health=UNHEALTHY_TENSORFLOW",
        "tpuctl sim set big-1 maintenance=SCHEDULED",
        "tpuctl sim set big-1 state=READY health=HEALTHY",
    ),
    "sim reservation": ("tpuctl sim reservation ours --zone us-central2-b --generation v4 --chips 32",),
    "sim delay": ("tpuctl sim delay node_create=300 preempt_visible=0",),
}
"""What people type, by the words behind `tpuctl`."""


class HelpfulCommand(TyperCommand):
    """A command whose help has no noise in it."""

    def invoke(self, ctx: Any) -> Any:
        shared = ctx.find_root().obj
        if getattr(shared, "json", False) and not any(param.name == "json" for param in self.params):
            from tpuctl.errors import UsageError

            raise UsageError(f"{ctx.command_path} prints no JSON", hint="the same command without --json")
        return super().invoke(ctx)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [param for param in self.get_params(ctx) if param.param_type_name == "argument"]
        return [self.options_metavar or "", *(_name_of(param) for param in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        path = ctx.command_path.partition(" ")[2]
        if path in EXAMPLES:
            with formatter.section("Examples"):
                for line in EXAMPLES[path]:
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")
        arguments: list[tuple[str, str]] = []
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            if param.param_type_name == "argument":
                arguments.append((_name_of(param), str(getattr(param, "help", None) or "")))
                continue
            group = getattr(param, "rich_help_panel", None) or OTHER
            groups.setdefault(group, []).append((record[0], _without_noise(record[1])))
        groups[OTHER] = groups.pop(OTHER, [])
        for title, rows in (("Arguments", arguments), *groups.items()):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _name_of(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _without_noise(text: str) -> str:
    """Help of an option without the range of its number; what its default is stays."""
    found = _NOTES.search(text)
    if found is None:
        return text
    kept = [note for note in found[1].split("; ") if not _RANGE.match(note)]
    return text[: found.start()] + (f"  [{'; '.join(kept)}]" if kept else "")
