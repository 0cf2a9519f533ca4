"""A whole run on isolated hosts, with all that it can stand on, preempted: what its manifest says of it,
that it can be done again from there, and that its secret is nowhere."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import jsonschema
import pytest

from tests.cli.test_manifest import add_secret, losses, make_dirty_repository, read
from tests.docs.schemas import run_schema
from tests.support.require import require_gcsfuse, require_isolated_hosts
from tests.support.session import Session, another_machine, open_session
from tests.support.wheels import Project

ZONE = "us-central2-b"
HOSTS = 2
STEPS = 12
TOKEN = "hf_" + "ZyXwVuTsRqPoNmLkJiHgFeDcBa9876543210"
SECRETS = ("--secret", "KEY=sm://sim-project/planted")
pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

PROGRAM = f"""\
import hashlib, os, pathlib, time, tiny
rank = os.environ["TPUCTL_RANK"]
data = pathlib.Path("/mnt/data/set").read_text() + pathlib.Path("/mnt/more/set").read_text()
seen = data + tiny.VERSION + os.environ["TINY"] + open(os.environ["TPUCTL_SECRETS"] + "/KEY").read()
seen += open("notes.txt").read()
kept = pathlib.Path(os.environ["KEPT"] + "-" + rank)
step, state = kept.read_text().split() if kept.exists() else (0, "")
for step in range(int(step) + 1, {STEPS} + 1):
    state = hashlib.sha256((seen + state + str(step)).encode()).hexdigest()
    beside = kept.with_suffix(".new")
    beside.write_text(f"{{step}} {{state}}")
    beside.replace(kept)
    print("step", step, flush=True)
    time.sleep(float(os.environ["PACE"]))
print("loss", state[:8], flush=True)
"""


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A slice of two hosts with an environment, two buckets and the clone of a disk; state is in a bucket."""
    require_isolated_hosts()
    program = require_gcsfuse()
    with open_session("--instant", "--hosts", "isolated") as made:
        made.environ.update(TPUCTL_GCSFUSE=program)
        made.type("config", "init", "--store", "gs://sim-bucket/lab")
        made.project = Project(made.work)
        made.project.add("tiny", {"tiny": "1.0"}, "imports: [tiny]\nvariables: {TINY: 'yes'}")
        make_dirty_repository(made, PROGRAM, TOKEN)
        add_secret(made, "planted", TOKEN)
        made.type("up", "v4-8", "dev", "--spot", "--pay", "--zone", ZONE)
        made.type("disk", "create", "data", "--size", "10", "--zone", ZONE)
        made.type("disk", "attach", "data", "--to", "dev")
        made.type("exec", "dev", "--", "sh", "-c", "echo data > /mnt/data/set")
        mounts = ("gs://sim-bucket/ckpt:/mnt/ckpt:checkpoint", "gs://sim-bucket/more:/mnt/more:checkpoint")
        words = ("--env", "tiny", *(word for mount in mounts for word in ("--mount", mount)))
        made.type("up", "v4-16", "big", "--spot", "--pay", "--zone", ZONE, *words, within_s=300)
        made.type("disk", "clone", "data", "--to", "big")
        made.type("exec", "big", "--worker", "0", "--", "sh", "-c", "echo more > /mnt/more/set")
        yield made


def training(name: str, pace: float) -> tuple[str, ...]:
    made = ("--var", f"KEPT=/mnt/ckpt/{name}", "--var", f"PACE={pace}", "--progress", r"step (\d+)")
    return ("--checkpoint-dir", "gs://sim-bucket/ckpt", "--env", "tiny", *SECRETS, *made)


def wait_for_step(session: Session, run: str, step: int) -> None:
    """Until a worker has come so far: asked of its checkpoint, which is an object of the bucket."""
    info = session.sim()
    where = f"{info.http}/storage/v1/b/sim-bucket/o/ckpt%2F{run}-0?alt=media"
    asked = Request(where, headers={"Authorization": f"Bearer {info.token}"})
    deadline = time.monotonic() + 120
    while True:
        with suppress(HTTPError), urlopen(asked, timeout=30) as answer:
            words = answer.read().split()
            if words and int(words[0]) >= step:
                return
        assert time.monotonic() < deadline, where
        time.sleep(0.2)


def test_a_run_with_everything_is_preempted_and_told_whole(session: Session) -> None:
    running = session.start("run", "--on", "big", "--name", "whole", *training("whole", 1.0), "train.py")
    wait_for_step(session, "whole", 3)
    session.type("sim", "preempt", "big-1")
    done = session.finish(running, timeout_s=400)
    assert done.returncode == 0, done.stderr
    told = session.json("manifest", "whole")
    jsonschema.validate(told, run_schema())
    assert told["code"]["dirty"] is True
    assert told["code"]["commit"]
    assert told["code"]["diff_sha256"]
    assert told["code"]["remote"] == "https://example.org/code.git"
    assert told["environment"]["pins"] == {"tiny": "1.0"}
    assert told["command"]["secrets"] == ["KEY"]
    assert told["variables"]["requested"]["KEPT"] == "/mnt/ckpt/whole"
    assert [attempt["slice"]["cloud_name"] for attempt in told["attempts"]] == ["big-1", "big-2"]
    for attempt in told["attempts"]:
        assert len(attempt["hosts"]) == HOSTS
        assert [row["name"] for row in attempt["disks"]] == ["data-g1"]
        assert {row["path"] for row in attempt["mounts"]} == {"/mnt/ckpt", "/mnt/more"}
        assert attempt["timeline"]
    assert told["attempts"][0]["cause"] == "preempted"
    assert (told["end"]["state"], told["end"]["preemptions"]) == ("succeeded", 1)
    assert told["end"]["phases"]["running_s"] > STEPS
    assert session.json("manifest", "verify", "whole")["sha256"] == told["chain"][-1]


def test_it_is_done_again_from_a_fresh_state_directory(session: Session) -> None:
    """As on a new laptop: nothing but the store in the bucket. On the slice that was preempted, and so has come
    up from nothing twice: a third time would show nothing more."""
    other = another_machine(session)
    other.environ["TPUCTL_GCSFUSE"] = session.environ["TPUCTL_GCSFUSE"]
    other.type("config", "init", "--store", "gs://sim-bucket/lab", "--join")
    plan = other.json("rerun", "whole", "--dry-run")
    assert plan["possible"] is True, plan
    deadline = time.monotonic() + 120  # until the hosts have the key of the other machine
    while other.type("exec", "big", "--", "true", status=None).returncode:
        assert time.monotonic() < deadline
    other.type("exec", "big", "--worker", "0", "--", "sh", "-c", "rm /mnt/ckpt/whole-*")
    other.type("rerun", "whole", "--name", "again", within_s=300)
    assert losses(other, "again") == losses(session, "whole")
    assert len(losses(session, "whole")) == 1


def test_its_secret_is_found_nowhere(session: Session) -> None:
    """Last: in all files of the state, of the simulator with its buckets, disks and hosts, and in what runs."""
    # grep passes over the holes of disks. The user's own repository has the token, which is what is tried here.
    words = ("grep", "-rlF", "-D", "skip", "--exclude-dir=.git", "-f", "-", str(session.root))
    found = subprocess.run(words, input=TOKEN, text=True, capture_output=True, check=False, timeout=300)
    assert found.stdout.splitlines() == []
    assert [path for path in Path("/proc").glob("[0-9]*/cmdline") if TOKEN.encode() in read(path)] == []
    for asked in (("status", "big"), ("why", "whole"), ("manifest", "whole"), ("config", "show")):
        assert TOKEN not in session.type(*asked, "--json").stdout
