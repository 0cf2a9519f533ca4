"""Runs with several processes on each host: who they are, how one of them ends all, and how they come back; and
environments that say how many there are, and what else is so for all runs in them."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.frameworks import write_torchrun
from tests.support.hosts import wait_until
from tests.support.jax_python import flax_packages
from tests.support.require import require_torch_xla
from tests.support.session import Session, open_session
from tests.support.wheels import MINOR, Project
from tpuctl.envs.load import read_environment
from tpuctl.envs.spec import Backend, KernelSettings
from tpuctl.envs.write import render_environment

pytestmark = pytest.mark.slow

CHIP = ("--on", "big", "--per", "chip", "--no-checkpoint", "--var", "JAX_PLATFORMS=cpu")
WHO = """\
import os, sys
names = ("TPUCTL_RANK", "TPUCTL_LOCAL_RANK", "TPUCTL_WORLD_SIZE", "TPUCTL_LOCAL_WORLD_SIZE",
         "CLOUD_TPU_TASK_ID",
         "TPU_VISIBLE_CHIPS", "TPU_PROCESS_BOUNDS", "TPU_PROCESS_PORT", "TPU_RUNTIME_METRICS_PORTS")
print(*(os.environ.get(name) for name in names), os.environ["TPU_PROCESS_ADDRESSES"].count(","))
"""
FAILS = """\
import os, sys, time
if os.environ["TPUCTL_RANK"] == "7":
    time.sleep(1)
    sys.exit("out of luck")
time.sleep(300)
"""


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as made:
        made.type("up", "v4-16", "big", "--spot", "--pay")
        made.project = Project(made.work)
        (made.work / "who.py").write_text(WHO)
        (made.work / "fails.py").write_text(FAILS)
        yield made


def test_each_chip_has_a_process_that_knows_who_it_is(session: Session) -> None:
    done = session.type("run", *CHIP, "--var", "TPU_PROCESS_PORT=9", "who.py")
    assert "--var TPU_PROCESS_PORT stays as it is, for all processes alike" in done.stderr
    told = {
        f"{worker}.{own}": f"{4 * worker + own} {own} 8 4 {4 * worker + own} {own} 2,2,2 9 {8431 + own} 7"
        for worker in (0, 1)
        for own in range(4)
    }
    rows = session.json("logs", "last")
    assert {row["processes"][0]: row["text"] for row in rows} == told
    assert session.type("logs", "--worker", "1.3").stdout == f"big-1.3 │ {told['1.3']}\n"
    both = session.type("logs", "--worker", "1.3,0").stdout.splitlines()
    assert sorted(line.split(" ")[0] for line in both) == [
        "big-0.0",
        "big-0.1",
        "big-0.2",
        "big-0.3",
        "big-1.3",
    ]
    refused = session.type("logs", "--worker", "1.4", status=2).stderr
    assert "there is no 1.4: each worker has 4 processes" in refused


def test_one_process_that_fails_stops_all_and_is_named(session: Session) -> None:
    began = time.monotonic()
    failed = session.type("run", *CHIP, "--max-failures", "0", "--grace", "2", "fails.py", status=None)
    assert failed.returncode in (1, 3), failed
    assert time.monotonic() - began < 100, "nobody waited for the programs that sleep"
    assert "worker 1.3: " in failed.stderr
    workers = session.json("status", "last")["workers"]
    assert [(row["worker"], row["process"]) for row in workers] == [(0, None), (1, 3)]
    assert [each["exit_status"] for each in workers[1]["processes"]][3] == 1
    assert workers[1]["last_line"] == "out of luck"
    [exit_] = [row for row in session.json("manifest", "last")["attempts"][0]["exits"] if row["worker"] == 1]
    assert (exit_["exit_status"], exit_["process"], len(exit_["processes"])) == (1, 3, 4)
    assert "worker 1.3" in session.type("why", session.json("status", "last")["id"]).stdout


PROCESSES = [f"{worker}.{own}" for worker in (0, 1) for own in range(4)]


def test_after_a_preemption_and_a_killed_client_all_processes_come_back(session: Session) -> None:
    (session.work / "goes.py").write_text(
        "import os, time\nprint('attempt', os.environ['TPUCTL_ATTEMPT'], flush=True)\n"
        "time.sleep(300 if os.environ['TPUCTL_ATTEMPT'] == '1' else 0)\n"
    )
    words = ("run", *CHIP, "--name", "goes", "goes.py")
    client = session.start(*words)

    def printed() -> list[str]:
        told = session.type("logs", "goes", "--json", status=None)
        rows = json.loads(told.stdout) if told.returncode == 0 else []
        return sorted(name for row in rows for name in row["processes"])

    wait_until(lambda: printed() == PROCESSES)
    client.send_signal(signal.SIGKILL)
    client.wait()
    assert session.json("status", "goes")["state"] == "running"
    stacks = session.json("stacks", "goes", "--worker", "1")
    assert {row["process"] for row in stacks[0]["processes"]} == {0, 1, 2, 3}
    session.type("sim", "preempt", "big-1")
    done = session.type(*words, within_s=240.0)
    assert "succeeded" in done.stderr
    lines = [row for row in session.json("logs", "goes", "--attempt", "2") if row["text"] == "attempt 2"]
    assert sorted(name for row in lines for name in row["processes"]) == PROCESSES


STARTED = """\
import os, sys, time
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
same = all(os.environ[f"TPUCTL_{name}"] == os.environ[name] for name in names)
print(os.environ["RANK"], same, os.environ["MASTER_PORT"] == os.environ["TPUCTL_COORDINATOR"].split(":")[1],
      os.environ.get("TPU_VISIBLE_CHIPS"), flush=True)
if sys.argv[1:] == ["fail"]:
    if os.environ["RANK"] == "5":
        time.sleep(1)
        os.kill(os.getpid(), 9)
    time.sleep(300)
"""
TORCHRUN = ("--on", "big", "--per", "torchrun", "--no-checkpoint", "--var", "JAX_PLATFORMS=cpu")


def test_torchrun_starts_processes_that_are_known_one_by_one(session: Session) -> None:
    write_torchrun(session.work)
    (session.work / "started.py").write_text(STARTED)
    session.type("run", *TORCHRUN, "started.py")
    rows = session.json("logs", "last")
    assert {name: row["text"] for row in rows for name in row["processes"]} == {
        f"{worker}.{own}": f"{4 * worker + own} True True None" for worker in (0, 1) for own in range(4)
    }
    [own] = [row for row in rows if not row["processes"]]
    assert (own["text"], own["workers"]) == ("a word of torchrun", [0, 1])
    killed = session.type("run", *TORCHRUN, "--max-failures", "0", "started.py", "fail", status=None)
    assert killed.returncode in (1, 3), killed
    assert "worker 1.1 was killed by signal 9" in killed.stderr
    [_, row] = session.json("status", "last")["workers"]
    assert (row["process"], row["signal"]) == (1, 9)


def test_without_torch_the_run_says_what_is_missing(session: Session) -> None:
    shutil.rmtree(session.work / "torch", ignore_errors=True)
    failed = session.type("run", *TORCHRUN, "--max-failures", "0", "who.py", status=None)
    assert "Python does not find torch" in failed.stderr


TORCH = """\
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(os.environ["TPUCTL_RANK"])])
dist.all_reduce(total)
same = all(os.environ[f"TPUCTL_{name}"] == os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
print(dist.get_world_size(), int(total), same, flush=True)
dist.barrier()
if os.environ["RANK"] == "6":
    os.kill(os.getpid(), 9)
dist.barrier()
"""


@pytest.mark.long
def test_torchrun_has_its_processes_on_all_hosts_and_one_that_is_killed_is_named(session: Session) -> None:
    """In one run, for each of its processes imports torch, which takes 4 s of a processor."""
    python = require_torch_xla()
    (session.work / "reduce.py").write_text(TORCH)
    words = ("run", *TORCHRUN, "--max-failures", "0", "--", python, "reduce.py")
    killed = session.type(*words, status=None, within_s=500.0)
    assert killed.returncode in (1, 3), killed
    assert "worker 1.2" in killed.stderr
    said = [
        name for row in session.json("logs", "last") if row["text"] == "8 28 True" for name in row["processes"]
    ]
    assert sorted(said) == [f"{worker}.{own}" for worker in (0, 1) for own in range(4)]
    rows = {row["worker"]: row for row in session.json("status", "last")["workers"]}
    assert (rows[1]["process"], rows[1]["signal"]) == (2, 9)


def add_shipped(session: Session, name: str, **variables: str) -> None:
    """A shipped environment for the CPU, with a tiny package in the place of its own; its other keys stay."""
    session.project.add(name, {"tiny": "1.0"})
    shipped = read_environment(name, Path("/nowhere")).written
    assert shipped is not None
    spec = replace(
        shipped,
        backend=Backend.CPU,
        python=(MINOR,),
        requirements=("tiny==1.0",),
        exclude=(),
        imports=("tiny",),
        kernel=KernelSettings(),
        variables={**shipped.variables, "JAX_PLATFORMS": "cpu", **variables},
    )
    (session.project.envs / f"{name}.yaml").write_text(render_environment(spec))


def preset_of(session: Session) -> dict[str, tuple[str, str]]:
    rows = session.json("manifest", "last")["environment"]["preset"]
    return {row["key"]: (row["sets"], row["by"]) for row in rows}


def test_an_environment_says_how_many_processes_there_are_unless_the_run_does(session: Session) -> None:
    add_shipped(session, "torch-xla-chip")
    words = ("--on", "big", "--no-checkpoint", "--env", "torch-xla-chip", "who.py")
    dry = session.json("run", "--dry-run", *words)
    assert (dry["per"], [row["by"] for row in dry["preset"]]) == ("chip", ["environment"])
    session.type("run", *words)
    assert sorted(name for row in session.json("logs", "last") for name in row["processes"]) == [
        f"{worker}.{own}" for worker in (0, 1) for own in range(4)
    ]
    assert preset_of(session) == {"per": ("--per chip", "environment")}
    refused = session.type("run", "--worker", "0", "--alone", *words, status=2).stderr
    assert "environment torch-xla-chip has per: chip, and --per chip and --worker exclude each other" in refused
    session.type("run", "--per", "host", "--var", "TPU_PROCESS_ADDRESSES=", *words)
    assert preset_of(session) == {"per": ("--per host", "--per")}
    assert len({row["text"].split(" ")[0] for row in session.json("logs", "last")}) == 2


MAXTEXT = """\
import os, jax
jax.distributed.initialize(os.environ["TPUCTL_COORDINATOR"], int(os.environ["TPUCTL_WORLD_SIZE"]),
                           int(os.environ["TPUCTL_RANK"]))
from jax.experimental import multihost_utils
error = lambda weights: ((weights - 3.0) ** 2).sum()
weights = jax.numpy.zeros(4)
for step in range(3):
    weights = jax.jit(lambda weights: weights - 0.1 * jax.grad(error)(weights))(weights)
    loss = float(multihost_utils.process_allgather(error(weights)).mean())
    print(f"I1126 13:06:35.3 140 metric_logger.py:265] completed step: {step}, seconds: 0.030, "
          f"TFLOP/s/device: 0.000, Tokens/s/device: 2102.359, total_weights: 64, loss: {loss:.3f}, "
          f"lm_loss: {loss:.3f}, perplexity: 443.863", flush=True)
print(os.environ["LIBTPU_INIT_ARGS"], flush=True)
"""
"""JAX that trains, and says so in the lines of MaxText 0.2.5."""


@pytest.mark.long
def test_the_environment_of_maxtext_has_its_flags_and_finds_its_steps(session: Session) -> None:
    variables = {"PYTHONPATH": str(flax_packages()), "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"}
    add_shipped(session, "maxtext-dense", **variables)
    (session.work / "maxtext.py").write_text(MAXTEXT)
    words = ("--on", "big", "--no-checkpoint", "--env", "maxtext-dense", "--name", "dense")
    session.type("run", *words, "--", sys.executable, "maxtext.py", within_s=400.0)
    flags = " ".join(read_environment("maxtext-dense", Path("/nowhere")).spec.libtpu_flags)
    assert flags in {row["text"] for row in session.json("logs", "dense")}
    assert preset_of(session)["flag_profiles"] == (f"LIBTPU_INIT_ARGS={flags}", "environment")
    numbers = {each["name"]: each["last"] for each in session.json("status", "dense")["metrics"]}
    assert (numbers["loss"], numbers["seconds"]) == (9.437, 0.03)


SPMD = """\
import os, numpy, torch, torch_xla, torch_xla.runtime as runtime, torch_xla.distributed.spmd as spmd
count = runtime.global_runtime_device_count()
mesh = spmd.Mesh(numpy.arange(count), (count,), ("fsdp",))
rows = torch.ones(8, 4, device=torch_xla.device())
spmd.mark_sharding(rows, mesh, ("fsdp", None))
print(runtime.is_spmd(), count, float((rows @ rows.T).sum()), flush=True)
"""


@pytest.mark.long
def test_the_environment_of_spmd_starts_one_process_on_each_host_that_has_its_chips(session: Session) -> None:
    python = require_torch_xla()
    add_shipped(session, "torch-xla-spmd", PJRT_DEVICE="CPU", CPU_NUM_DEVICES="4")
    (session.work / "spmd.py").write_text(SPMD)
    words = ("--on", "big", "--no-checkpoint", "--env", "torch-xla-spmd")
    session.type("run", *words, "--", python, "spmd.py", within_s=500.0)
    rows = [row for row in session.json("logs", "last") if row["text"] == "True 4 256.0"]
    assert sorted(worker for row in rows for worker in row["workers"]) == [0, 1]
    assert {key: by for key, (_, by) in preset_of(session).items()} == {
        "per": "environment",
        "flag_profiles": "environment",
    }
