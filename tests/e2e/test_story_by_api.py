"""One story by either API, on isolated hosts: a slice with an environment, a bucket and the copy of a disk, a
run that is preempted twice and ends like an unbroken one, and nothing is left, as the real gcloud sees it.

CI has it once, with what its manifest says (test_manifest_story.py); on instances and groups of Compute Engine
in memory (test_compute_slices.py), and with a disk on isolated hosts (test_disk_bytes.py)."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from tests.e2e.test_training_examples import Followed
from tests.gcloud.test_real_gcloud import Gcloud
from tests.support.require import require_gcsfuse, require_index, require_isolated_hosts, require_tool
from tests.support.session import ROOT, Session, open_session
from tests.support.soak import soak
from tests.support.wheels import Project

pytestmark = [pytest.mark.slow, pytest.mark.gcloud, pytest.mark.timeout(1800)]

INSTALL_S = 600.0
SAID_ON_DISK = "SEED=7"
SAID_IN_BUCKET = "CHECKPOINT_EVERY=10"
PROGRAM = ("--", "sh", "-c", "export $(cat /mnt/data/said /mnt/ckpt/said); exec python train.py")
"""What it is told decides how it ends: the disk tells it the seed, the bucket how often it saves."""
HOLD = ("--var", "HOLD_AT=20")
"""Where the first attempt waits for its preemption; the second has 40 steps of a second for its own."""
SCRIPT = """\
import hashlib, os, pathlib, time, tiny
attempt, rank = int(os.environ["TPUCTL_ATTEMPT"]), os.environ["TPUCTL_RANK"]
kept = pathlib.Path("/mnt/ckpt", os.environ["TPUCTL_RUN_ID"] + "-" + rank)
done, state = kept.read_text().split() if kept.exists() else (0, "")
if int(done):
    print(f"resumed from step {done} (attempt {attempt})", flush=True)
for step in range(int(done) + 1, int(os.environ["STEPS"]) + 1):
    seen = os.environ["SEED"] + tiny.VERSION + os.environ["TINY"] + state + str(step)
    state = hashlib.sha256(seen.encode()).hexdigest()
    if step % int(os.environ["CHECKPOINT_EVERY"]) == 0:
        kept.write_text(f"{step} {state}")
        print("saved step", step, flush=True)
    while attempt == 1 and step == int(os.environ.get("HOLD_AT", 0)):
        time.sleep(1)
    time.sleep(float(os.environ["STEP_SECONDS"]) / 5)
print("final loss", state[:8], flush=True)
"""


class Place:
    """Where a story happens: the words that ask for slices of one API, and what gcloud lists of them."""

    def __init__(self, one: str, several: str, *words: str, disk: str, lists: Iterable[str]) -> None:
        self.one = (one, "dev", *words)
        self.several = (several, "big", *words)
        self.zone = words[words.index("--zone") + 1]
        self.disk = disk
        self.lists = (*lists, "disks", "snapshots")

    def made_of(self, name: str) -> dict[str, list[str]]:
        """All that there is of incarnation `name` of the slice of two hosts, beside the one of one host, their
        disk and its copy, which has another type where one of them is for a single writer."""
        if "tpus tpu-vm" in self.lists:
            return {"tpus tpu-vm": [name, "dev-1"], "disks": ["data", "data-g1"]}
        hosts = ["dev-1", f"{name}-w-001", f"{name}-w-002"]
        own = {kind: [name] for kind in self.lists if kind.startswith(("instance-", "resource-"))}
        disks = sorted([*hosts, "data", "data-g1"])
        return {**own, "instances": sorted(hosts), "disks": disks, "snapshots": ["data-g1-s"]}

    def listed(self, session: Session) -> dict[str, list[str]]:
        """What the real gcloud lists, and no kind of which there is nothing."""
        info = session.sim()
        gcloud = Gcloud(info, session.root, require_tool("gcloud"))
        found = {}
        for kind in self.lists:
            zone = [f"--zone={self.zone}"] if kind.startswith("tpus") else []
            said = gcloud.ok("compute", *kind.split(), "list", *zone, "--format=value(name)").split()
            if said:
                found[kind] = sorted(name.rpartition("/")[2] for name in said)
        return found


TPU = Place("v4-8", "v4-16", "--zone", "us-central2-b", disk="pd-balanced", lists=("tpus tpu-vm",))
COMPUTE = Place(
    *("tpu7x-8", "tpu7x-16", "--api", "compute", "--zone", "us-central1-c"),
    disk="hyperdisk-balanced",
    lists=("instance-groups managed", "instance-templates", "resource-policies", "instances"),
)


@pytest.mark.parametrize(
    ("place", "env", "part"),
    [
        soak(TPU, "demo-cpu", (), id="tpu-jax"),
        soak(COMPUTE, "demo-cpu", ("--worker", "1"), id="compute-jax"),
        soak(TPU, "tiny", (), id="tpu-script"),
        soak(COMPUTE, "tiny", ("--worker", "1"), id="compute-script"),
    ],
)
def test_a_run_whose_hosts_stop_and_then_vanish_ends_like_an_unbroken_one(
    place: Place, env: str, part: Sequence[str]
) -> None:
    require_isolated_hosts()
    gcsfuse = require_gcsfuse()
    with open_session("--instant", "--hosts", "isolated") as session:
        session.environ["TPUCTL_GCSFUSE"] = gcsfuse
        session.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{session.environ['PATH']}"
        prepare(session, env)
        bring_up(session, place, env)

        unbroken = Followed(session, "unbroken", 0.0, ("--env", env, *PROGRAM))
        result = unbroken.wait_for(r"final loss (.*)")
        assert unbroken.process.wait(timeout=60) == 0, unbroken.text()

        broken = Followed(session, "broken", 1.0, ("--env", env, *HOLD, *PROGRAM))
        broken.wait_for(r"saved step 20\b")
        session.type("sim", "preempt", "big-1", *part)
        broken.wait_for(r"resumed from step \d+ \(attempt 2\)")
        session.type("sim", "fault", "preempt-deletes")
        session.type("sim", "preempt", "big-2")
        broken.wait_for(r"resumed from step \d+ \(attempt 3\)")
        assert broken.wait_for(r"final loss (.*)")[1] == result[1]
        assert broken.process.wait(timeout=60) == 0, broken.text()

        check_attempts(session, env)
        assert place.listed(session) == place.made_of("big-3")
        for name in ("big", "dev"):
            session.type("down", name, "--yes")
        for name in ("data-g1", "data"):
            session.type("disk", "rm", name, "--yes")
        assert place.listed(session) == {}


def prepare(session: Session, env: str) -> None:
    """The program and its environment."""
    if env == "tiny":
        Project(session.work).add("tiny", {"tiny": "1.0"}, "imports: [tiny]\nvariables: {TINY: 'yes'}")
        (session.work / "train.py").write_text(SCRIPT)
    else:
        require_index()
        shutil.copy(ROOT / "templates" / "demo_train.py", session.work / "train.py")


def bring_up(session: Session, place: Place, env: str) -> None:
    """A slice of one host that writes a disk, and one of two with its copy, a bucket and the environment."""
    tier = ("--spot", "--pay")
    session.type("up", *place.one, *tier)
    session.type("disk", "create", "data", "--size", "10", "--zone", place.zone, "--type", place.disk)
    session.type("disk", "attach", "data", "--to", "dev")
    session.type("exec", "dev", "--", "sh", "-c", f"echo {SAID_ON_DISK} > /mnt/data/said")
    asked = ("--env", env, "--mount", "gs://sim-bucket:/mnt/ckpt:checkpoint")
    session.type("up", *place.several, *tier, *asked, within_s=INSTALL_S)
    session.type("disk", "clone", "data", "--to", "big")
    session.type("exec", "big", "--worker", "0", "--", "sh", "-c", f"echo {SAID_IN_BUCKET} > /mnt/ckpt/said")


def check_attempts(session: Session, env: str) -> None:
    """Each had both hosts with the disk, the bucket and the environment."""
    told = session.json("manifest", "broken")
    attempts = told["attempts"]
    assert [each["cause"] for each in attempts] == ["preempted", "preempted", "succeeded"]
    assert [each["slice"]["cloud_name"] for each in attempts] == ["big-1", "big-2", "big-3"]
    assert told["environment"]["name"] == env
    for each in attempts:
        assert [row["worker"] for row in each["hosts"]] == ["0", "1"]
        assert {row["environment_key"] for row in each["hosts"]} == {attempts[0]["hosts"][0]["environment_key"]}
        assert [row["name"] for row in each["disks"]] == ["data-g1"]
        assert [row["path"] for row in each["mounts"]] == ["/mnt/ckpt"]
