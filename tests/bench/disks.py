"""A disk cloned, attached to all hosts of a slice and mounted: tpuctl beside gcloud in a shell loop."""

from __future__ import annotations

import getpass
import shutil
from pathlib import Path
from statistics import median

from tests.bench.gcloud import ZONE, gcloud_environment, plain_python
from tests.bench.harness import BenchError, Budget, Contender, Line, Plan, Report, Sample, execute, unmeasured
from tests.support.session import TPUCTL, Session, open_session
from tpuctl.errors import UsageError
from tpuctl.sim.hosts.isolated.requirements import check_possible
from tpuctl.sim.server import control

TITLE = "A disk cloned, attached and mounted"
WIDE, FEW = ("v4-256", 32), ("v4-16", 2)
THEIRS = "gcloud in a shell loop"
LOOP = """
set -eu
on() { gcloud compute tpus tpu-vm ssh "$LOGIN@$1" --zone="$ZONE" --worker="$2" --command="$3"; }
on dev-1 0 'sudo fsfreeze -f /mnt/data'
gcloud compute disks create copy --zone="$ZONE" --source-disk=data --type=pd-balanced
on dev-1 0 'sudo fsfreeze -u /mnt/data'
gcloud alpha compute tpus tpu-vm attach-disk wide-1 --zone="$ZONE" --disk=copy --mode=read-only
on wide-1 all 'sudo mkdir -p /mnt/data; sudo mount -o ro /dev/disk/by-id/google-persistent-disk-1 /mnt/data'
"""
"""As published scripts do it; nothing is looked at, and a script that dies leaves the file system frozen."""
CLEAN = """
set -eu
gcloud compute tpus tpu-vm ssh "$LOGIN@wide-1" --zone="$ZONE" --worker=all --command='sudo umount /mnt/data'
gcloud alpha compute tpus tpu-vm detach-disk wide-1 --zone="$ZONE" --disk=copy
gcloud compute disks delete copy --zone="$ZONE"
"""


def measure(plan: Plan) -> list[Report]:
    """32 hosts and two; needs gcloud, and isolated hosts, which take root."""
    wide, few = ("v4-32", 4) if plan.quick else WIDE, FEW
    setting = f"from a slice that writes it, read-only on {wide[1]} isolated hosts; a cloud without delays"
    why = _impossible()
    if why:
        return [unmeasured(TITLE, setting, why, plan)]
    with plain_python(), open_session("--instant", "--hosts", "isolated") as session:
        for name, accelerator in (("dev", "v4-8"), ("wide", wide[0]), ("few", few[0])):
            session.type("up", accelerator, name, "--spot", "--pay", "--zone", ZONE, within_s=300)
        session.type("disk", "create", "data", "--size", "10", "--zone", ZONE)
        session.type("disk", "attach", "data", "--to", "dev")
        session.type("exec", "dev", "--", "sh", "-c", "head -c 1000000 /dev/urandom > /mnt/data/set; sync")
        contenders = _contenders(session, wide[1], few[1])
        for each in contenders:  # keys, host keys and agents are put in place once
            _sample(session, each)
        found: dict[str, list[Sample]] = {each.name: [] for each in contenders}
        for _ in range(plan.rounds):
            for each in contenders:
                found[each.name].append(_sample(session, each))
    rows = tuple(
        Line(name, median(each.wall_s for each in samples), median(each.cpu_s for each in samples))
        for name, samples in found.items()
    )
    theirs, on_wide, on_few = rows
    return [
        Report(
            TITLE,
            setting,
            THEIRS,
            rows,
            (
                Budget("wall, of gcloud's", on_wide.wall_s / theirs.wall_s, 1.0),
                Budget("CPU, of gcloud's", on_wide.cpu_s / theirs.cpu_s, 0.5),
                Budget(f"wall on {wide[1]} hosts, of that on {few[1]}", on_wide.wall_s / on_few.wall_s, 1.5),
            ),
        )
    ]


def _impossible() -> str:
    """Why it cannot be measured here, or an empty string."""
    if shutil.which("gcloud") is None:
        return "gcloud is not installed"
    try:
        check_possible()
    except UsageError as error:
        return error.message
    return ""


def _contenders(session: Session, wide: int, few: int) -> list[Contender]:
    """The first is gcloud, the second does the same."""
    info = control.status(Path(session.environ["TPUCTL_STATE_DIR"]) / "sim")
    if info is None:
        raise BenchError("the simulator is gone")
    (session.root / "theirs").mkdir()
    theirs = gcloud_environment(info, session.root / "theirs")
    theirs |= {"ZONE": ZONE, "LOGIN": getpass.getuser()}
    ours = [
        Contender(
            f"tpuctl disk clone, {hosts} hosts",
            ["env", "-C", str(session.work), TPUCTL, "disk", "clone", "data", "--to", name],
            session.environ,
        )
        for name, hosts in (("wide", wide), ("few", few))
    ]
    return [Contender(THEIRS, ["bash", "-c", LOOP], theirs, single_process=False), *ours]


def _sample(session: Session, contender: Contender) -> Sample:
    """One journey, whose end is looked at on every host; nothing of it is left."""
    sample = execute(contender)
    name = contender.argv[-1] if contender.name != THEIRS else "wide"
    session.type("exec", name, "--", "grep", "-q", " /mnt/data ext4 ro,", "/proc/mounts")
    if contender.name == THEIRS:
        execute(Contender("clean up", ["bash", "-c", CLEAN], contender.env))
        return sample
    [copy] = [row["name"] for row in session.json("disk", "ls") if row["generation"]]
    session.type("disk", "detach", copy, "--to", name)
    session.type("disk", "gc", "--keep", "0", "--yes")
    return sample
