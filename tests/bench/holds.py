"""How long programs that write to a disk wait while it is cloned: tpuctl beside fsfreeze by hand.

By hand is the least that a script on the host itself can do: freeze, ask for the copy, thaw. It is bound to
that host, and one that dies leaves the file system frozen.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from statistics import median
from urllib.parse import urlsplit

import requests

from tests.bench.gcloud import ZONE, plain_python
from tests.bench.harness import Budget, Contender, Line, Plan, Report, Sample, execute, unmeasured
from tests.support.session import TPUCTL, Session, open_session
from tpuctl.errors import UsageError
from tpuctl.sim.hosts.isolated.requirements import check_possible

TITLE = "How long writers wait while their disk is cloned"
SETTING = "a program appends lines and brings each to the disk; a cloud without delays, one isolated host"
BY_HAND, OURS = "fsfreeze by hand", "tpuctl disk clone"
LIMIT_S = 1.5
WRITER = """
import os, sys, time
path, told = sys.argv[1:]
handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
longest, last = 0.0, time.monotonic()
while not os.path.exists(told + ".end"):
    os.write(handle, b"one line\\n")
    os.fsync(handle)
    now = time.monotonic()
    longest, last = max(longest, now - last), now
    time.sleep(0.002)
with open(told + ".part", "w") as file:
    file.write(str(longest))
os.rename(told + ".part", told)
"""
"""The longest time from one line to the next."""
SCRIPT = """
set -eu
gateway=$(ip route | sed -n 's/^default via \\([^ ]*\\).*/\\1/p')
sudo fsfreeze -f /mnt/data
trap 'sudo fsfreeze -u /mnt/data' EXIT
curl -sSf -H 'Authorization: Bearer TOKEN' -H 'Content-Type: application/json' \
    -d '{"name": "by-hand", "sourceDisk": "projects/sim-project/zones/ZONE/disks/data"}' \
    "http://$gateway:PORT/compute/v1/projects/sim-project/zones/ZONE/disks" >/dev/null
"""


def measure(plan: Plan) -> list[Report]:
    """Needs isolated hosts, which take root."""
    try:
        check_possible()
    except UsageError as error:
        return [unmeasured(TITLE, SETTING, error.message, plan)]
    with plain_python(), open_session("--instant", "--hosts", "isolated") as session:
        session.type("up", "v4-8", "dev", "--spot", "--pay", "--zone", ZONE)
        session.type("disk", "create", "data", "--size", "10", "--zone", ZONE)
        session.type("disk", "attach", "data", "--to", "dev")
        session.type("disk", "clone", "data", "--zone", ZONE)  # the agent is put in place once
        session.type("disk", "gc", "--keep", "0", "--yes")
        taken: dict[str, list[_Wait]] = {BY_HAND: [], OURS: []}
        for _ in range(plan.rounds):
            for name, found in taken.items():
                found.append(_wait(session, name))
    lines = tuple(
        Line(
            name,
            median(each.longest_s for each in found),
            median(each.sample.cpu_s for each in found),
            note=f"the command took {median(each.sample.wall_s for each in found):.2f} s",
        )
        for name, found in taken.items()
    )
    theirs, ours = lines
    more_s = ours.wall_s - theirs.wall_s
    budget = Budget("longest wait, beyond that of fsfreeze by hand", more_s, LIMIT_S, unit="s")
    return [Report(TITLE, SETTING, BY_HAND, lines, (budget,))]


@dataclass(frozen=True)
class _Wait:
    """The longest wait of the writer, and what the command cost."""

    longest_s: float
    sample: Sample


def _wait(session: Session, name: str) -> _Wait:
    """One clone under a writer; nothing of either is left."""
    told = "/tmp/longest-wait"
    text = base64.b64encode(WRITER.encode()).decode()
    start = (  # the writer is root, whose files in /tmp nobody else removes
        f"sudo rm -f {told} {told}.end && echo {text} | base64 -d > /tmp/waiter.py;"
        f" sudo setsid -f python3 /tmp/waiter.py /mnt/data/lines {told} </dev/null >/dev/null 2>&1;"
        " until test -s /mnt/data/lines; do sleep 0.1; done"
    )
    _on(session, start)
    sample = execute(_contender(session, name))
    longest = _on(session, f"touch {told}.end; until test -s {told}; do sleep 0.1; done; cat {told}")
    if name == OURS:
        session.type("disk", "gc", "--keep", "0", "--yes")
    else:
        _delete_copy(session)
    return _Wait(float(longest), sample)


def _contender(session: Session, name: str) -> Contender:
    words = ["env", "-C", str(session.work), TPUCTL]
    if name == OURS:
        return Contender(name, [*words, "disk", "clone", "data", "--zone", ZONE], session.environ)
    info = session.sim()
    script = SCRIPT.replace("TOKEN", info.token).replace("ZONE", ZONE)
    script = script.replace("PORT", str(urlsplit(info.http).port))
    return Contender(name, [*words, "exec", "dev", "--", "sh", "-c", script], session.environ)


def _delete_copy(session: Session) -> None:
    info = session.sim()
    url = f"{info.http}/compute/v1/projects/sim-project/zones/{ZONE}/disks/by-hand"
    requests.delete(url, headers={"Authorization": f"Bearer {info.token}"}, timeout=60).raise_for_status()


def _on(session: Session, script: str) -> str:
    found = json.loads(session.type("exec", "dev", "--json", "--", "sh", "-c", script).stdout)
    [row] = found if isinstance(found, list) else found["workers"]
    return str(row["stdout"]).strip()
