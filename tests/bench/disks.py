"""A disk cloned, attached to all hosts of a slice and mounted: tpuctl beside gcloud in a shell loop.

Once with a cloud that takes no time, where 32 hosts on this machine's few cores cost CPU and nothing else, and
once with the delays of the real one, which is what a user waits for.
"""

from __future__ import annotations

import getpass
import shutil
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tests.bench.gcloud import ZONE, gcloud_environment, plain_python
from tests.bench.harness import BenchError, Budget, Contender, Line, Plan, Report, Sample, execute, unmeasured
from tests.support.session import TPUCTL, Session, open_session
from tpuctl.errors import UsageError
from tpuctl.sim.hosts.isolated.requirements import check_possible
from tpuctl.sim.server import control
from tpuctl.sim.server.info import SimInfo
from tpuctl.sim.world.delays import Delays

TITLE = "A disk cloned, attached and mounted"
TITLE_REAL = "A disk cloned, attached and mounted, at the pace of the real cloud"
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
    setting = f"from a slice that writes it, read-only on {wide[1]} isolated hosts"
    why = _impossible()
    if why:
        return [unmeasured(title, setting, why, plan) for title in (TITLE, TITLE_REAL)]
    with plain_python(), open_session("--instant", "--hosts", "isolated") as session:
        for name, accelerator in (("dev", "v4-8"), ("wide", wide[0]), ("few", few[0])):
            session.type("up", accelerator, name, "--spot", "--pay", "--zone", ZONE, within_s=300)
        session.type("disk", "create", "data", "--size", "10", "--zone", ZONE)
        session.type("disk", "attach", "data", "--to", "dev")
        session.type("exec", "dev", "--", "sh", "-c", "head -c 1000000 /dev/urandom > /mnt/data/set; sync")
        contenders = _contenders(session, wide[1], few[1])
        for each in contenders:  # keys, host keys and agents are put in place once
            _sample(session, each, Delays.instant())
        at_once = _compare(session, contenders, plan.rounds, Delays.instant())
        real = _compare(session, contenders, 1, Delays())
    counts = wide[1], few[1]
    shared = f"{setting}; a cloud without delays: what is left is the CPU of hosts that share this machine"
    paced = f"{setting}; a copy takes {Delays().disk_copy:.0f} s, an attachment {Delays().node_patch:.0f} s"
    return [_report_at_once(shared, at_once, *counts), _report_real(paced, real, *counts)]


class Journeys(NamedTuple):
    """One contender's line, and how many calls of each journey changed the cloud."""

    line: Line
    changes: int


def _compare(session: Session, contenders: list[Contender], rounds: int, delays: Delays) -> list[Journeys]:
    """One for each contender, in their order."""
    found: dict[str, list[tuple[Sample, int]]] = {each.name: [] for each in contenders}
    for _ in range(rounds):
        for each in contenders:
            found[each.name].append(_sample(session, each, delays))
    journeys = []
    for name, taken in found.items():
        walls, cpus = [sample.wall_s for sample, _ in taken], [sample.cpu_s for sample, _ in taken]
        line = Line(name, median(walls), median(cpus))
        journeys.append(Journeys(line, max(changes for _, changes in taken)))
    return journeys


def _report_at_once(setting: str, found: list[Journeys], wide: int, few: int) -> Report:
    theirs, on_wide, on_few = (each.line for each in found)
    further_s = (on_wide.cpu_s - on_few.cpu_s) / (wide - few)
    return Report(
        TITLE,
        setting,
        THEIRS,
        (theirs, on_wide, on_few),
        (
            Budget("wall, of gcloud's", on_wide.wall_s / theirs.wall_s, 1.0),
            Budget("CPU, of gcloud's", on_wide.cpu_s / theirs.cpu_s, 0.5),
            Budget("CPU per further host", 1000 * further_s, 12.0, unit="ms"),
            _only_nodes(found, wide, few),
        ),
    )


def _report_real(setting: str, found: list[Journeys], wide: int, few: int) -> Report:
    theirs, on_wide, on_few = (each.line for each in found)
    return Report(
        TITLE_REAL,
        setting,
        THEIRS,
        (theirs, on_wide, on_few),
        (
            Budget("wall, of gcloud's", on_wide.wall_s / theirs.wall_s, 1.0),
            Budget(f"wall on {wide} hosts, of that on {few}", on_wide.wall_s / on_few.wall_s, 1.5),
            _only_nodes(found, wide, few),
        ),
    )


def _only_nodes(found: list[Journeys], wide: int, few: int) -> Budget:
    """Both slices are one node."""
    _, on_wide, on_few = found
    text = f"changes of the cloud on {wide} hosts of one node, of those on {few} ({on_few.changes})"
    return Budget(text, on_wide.changes / on_few.changes, 1.0)


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
    (session.root / "theirs").mkdir()
    theirs = gcloud_environment(_sim(session), session.root / "theirs")
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


def _sample(session: Session, contender: Contender, delays: Delays) -> tuple[Sample, int]:
    """One journey, whose end is looked at on every host, and how many calls of it changed the cloud; nothing of
    it is left, and removing that takes no time."""
    info = _sim(session)
    before = len(control.journal(info))
    control.set_delays(info, asdict(delays))
    try:
        sample = execute(contender)
    finally:
        control.set_delays(info, asdict(Delays.instant()))
    changes = len(control.journal(info)) - before
    name = contender.argv[-1] if contender.name != THEIRS else "wide"
    session.type("exec", name, "--", "grep", "-q", " /mnt/data ext4 ro,", "/proc/mounts")
    if contender.name == THEIRS:
        execute(Contender("clean up", ["bash", "-c", CLEAN], contender.env))
        return sample, changes
    [copy] = [row["name"] for row in session.json("disk", "ls") if row["generation"]]
    session.type("disk", "detach", copy, "--to", name)
    session.type("disk", "gc", "--keep", "0", "--yes")
    return sample, changes


def _sim(session: Session) -> SimInfo:
    info = control.status(Path(session.environ["TPUCTL_STATE_DIR"]) / "sim")
    if info is None:
        raise BenchError("the simulator is gone")
    return info
