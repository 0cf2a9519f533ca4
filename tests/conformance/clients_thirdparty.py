"""Command lines and libraries for TPU VMs that neither Google nor we wrote, as a registry has them."""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tests.conformance.client import Check, Client
from tests.conformance.harness import SCRIPTS, TPUCTL, https_of, run_script

COMMANDS = Path(__file__).with_name("commands")
USER = "researcher"
ZONE = "us-central2-b"
PROXIES = "PySocks==1.7.1"
"""Without it httplib2, and so googleapiclient, goes past proxies (httplib2, `ProxyInfo.isgood`)."""
SETTLE_S = 120.0
"""How long a command whose line begins with `soon` is asked again."""
TIMEOUT_S = 180.0


def _ask(words: str, env: Mapping[str, str], work: Path) -> tuple[int, str]:
    """Exit status and everything that was said."""
    done = subprocess.run(
        shlex.split(words),
        env=env,
        cwd=work,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=TIMEOUT_S,
    )
    return done.returncode, done.stdout


def _check(verdict: str, words: str, said: str, env: Mapping[str, str], work: Path) -> Check:
    deadline = time.monotonic() + (SETTLE_S if verdict == "soon" else 0)
    while True:
        try:
            status, text = _ask(words, env, work)
        except subprocess.TimeoutExpired:
            return Check(words, False, f"did not end within {TIMEOUT_S:.0f} s")
        if (status != 0) == (verdict == "no") and re.search(said, text, re.MULTILINE):
            return Check(words, True)
        if time.monotonic() >= deadline:
            return Check(words, False, f"exit {status}: {' '.join(text.split())[-300:]}")
        time.sleep(1)


def _commands(table: str, env: Mapping[str, str], work: Path) -> list[Check]:
    """Every command of a table, one after the other.

    A line begins with `ok`, `no` (does not end with 0), `soon` (`ok` after a while) or `do`, which is no check
    unless it fails, but what the simulator is told to do meanwhile. What is printed comes
    after ` | `, as a regular expression.
    """
    own = {**https_of(env), "USER": USER, "LOGNAME": USER, "COLUMNS": "250"}
    (work / "train.py").write_text("print('step 1')\n")
    (work / "startup.sh").write_text("touch /started\n")
    (work / "launch.sh").write_text("#!/bin/sh\npython3 train.py; sleep 1234\n")
    python = str(Path(own["VIRTUAL_ENV"]) / "bin" / "python")
    checks = []
    for line in (COMMANDS / table).read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        filled = line.replace("{z}", ZONE).replace("{python}", python).replace("{scripts}", str(SCRIPTS))
        verdict, _, rest = filled.partition(" ")
        words, _, said = rest.partition(" | ")
        if verdict == "do":
            done = subprocess.run(
                [TPUCTL, *shlex.split(words)], env=env, cwd=work, capture_output=True, text=True
            )
            if done.returncode:
                checks.append(Check(f"tpuctl {words}", False, f"exit {done.returncode}: {done.stderr[-300:]}"))
        else:
            checks.append(_check(verdict, words, said, own, work))
    return checks


def _script(name: str, env: Mapping[str, str], work: Path) -> list[Check]:
    return run_script(name, {**https_of(env), "CONFORMANCE_TPUCTL": TPUCTL}, work)


CLIENTS = [
    Client("tpunicorn2", ("tpunicorn2==1.0.2", "bin:gcloud"), partial(_commands, "tpunicorn2.txt"), "isolated"),
    Client("eopod", ("eopod==0.0.36", "bin:gcloud"), partial(_commands, "eopod.txt"), "isolated"),
    Client("tpuz", ("tpuz==0.1.11", "bin:gcloud"), partial(_commands, "tpuz.txt"), "isolated"),
    Client(
        "tpu-pod-commander (tpc)",
        ("tpu-pod-commander==0.1.7", "bin:gcloud", "bin:tmux"),
        partial(_commands, "tpc.txt"),
        "isolated",
    ),
    Client(
        "SkyPilot's GCPTPUVMInstance",
        ("skypilot[gcp]==0.14.1", PROXIES),
        partial(_script, "skypilot_checks.py"),
    ),
    Client(
        "Ray's GCPTPU",
        (
            "ray==2.60.0",
            *(f"google-{each}" for each in ("api-python-client==2.202.0", "auth-httplib2==0.4.4")),
            PROXIES,
        ),
        partial(_script, "ray_checks.py"),
    ),
    Client(
        "JAX's cluster detection",
        ("jax==0.10.2", "requests==2.34.2", "bin:gcloud"),
        partial(_commands, "jax.txt"),
    ),
    Client("spotax", ("spotax==0.1.0", "bin:gcloud"), partial(_script, "spotax_checks.py"), "isolated"),
    Client("dstack's TPU parts", ("dstack[gcp]==0.22.5",), partial(_script, "dstack_checks.py"), "isolated"),
]
