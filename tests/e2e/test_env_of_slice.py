"""`up --env`: a slice that is ready has its environment, whatever became of its TPU and of the client."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.session import Session, open_session
from tests.support.wheels import MINOR, Project

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TRACED = Path(__file__).parents[1] / "support/traced.py"
TYPES = {"EnvironmentSpec", "PinnedEnvironment", "EnvironmentRef", "EnvironmentKind"}
UP = ("up", "v4-16", "dev", "--spot", "--pay", "--zone", "us-central2-b")


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as opened:
        opened.project = Project(opened.work)
        opened.project.add("tiny", {"tiny": "1.0"}, "imports: [tiny]")
        opened.project.add(
            "slow", {"slow": "1.0"}, "imports: [slow]", {"slow.py": "import time; time.sleep(3)\n"}
        )
        held = opened.work / "held.json"
        program = (sys.executable, str(TRACED), "--holding", ",".join(sorted(TYPES)), str(held))
        done = opened.finish(opened.start(*UP, "--env", "tiny", program=program))
        assert done.returncode == 0, done.stderr
        yield opened


def test_few_functions_of_few_files_hold_the_environment_on_its_way_to_the_hosts(session: Session) -> None:
    held = json.loads((session.work / "held.json").read_text())
    domains = {file.split("/")[1] for file, _ in held}
    assert 20 < len(held) <= 63
    assert domains == {"envs", "things", "lib"}


def has(session: Session, name: str) -> bool:
    return f"as {name} says" in session.type("env", "verify", name, "--on", "dev").stderr


def on_hosts(session: Session, script: str) -> str:
    return session.type("exec", "dev", "--", "sh", "-c", script).stdout


def test_a_ready_slice_has_its_environment_and_says_so(session: Session) -> None:
    assert has(session, "tiny")
    facts = session.json("status", "dev")
    assert (facts["state"], facts["env"]) == ("ready", "tiny")
    assert "environment" in session.type("status", "dev").stdout
    assert "initializing" in session.type("why", "dev").stdout
    # One host installed it, the other one copied what became of it.
    script = "cat .tpuctl/envs/*/tpuctl-env.json"
    said = json.loads(session.type("exec", "--json", "dev", "--", "sh", "-c", script).stdout)
    assert ["sealed" in json.loads(row["stdout"]) for row in said] == [True, False]


def test_the_same_again_changes_nothing_in_the_cloud_or_on_hosts(session: Session) -> None:
    calls = len(session.sim_journal())
    look = "find .tpuctl/envs .tpuctl/runs -newer .tpuctl/mark | grep -v /lib/ ; true"
    on_hosts(session, "touch .tpuctl/mark")
    for words in ((*UP, "--env", "tiny"), UP, ("up", "dev"), ("up", "dev", "--env", "tiny")):
        session.type(*words)
    assert len(session.sim_journal()) == calls
    assert "provision" not in on_hosts(session, look)
    assert ".tpuctl/envs" not in on_hosts(session, look)


def test_a_run_is_in_the_environment_of_its_slice(session: Session) -> None:
    words = ("run", "--on", "dev", "--no-checkpoint", "--name", "inside", "--", "python", "-c", "import tiny")
    session.type(*words)
    assert "tiny==1.0" in session.type("manifest", "inside").stdout


def test_a_client_that_is_killed_while_hosts_install_is_not_needed(session: Session) -> None:
    calling = session.start("up", "dev", "--env", "slow")
    deadline = time.time() + 60
    while session.json("status", "dev")["env"] != "slow" or "slow" not in on_hosts(
        session, "cat .tpuctl/runs/provision-dev/*/progress.json; true"
    ):
        assert time.time() < deadline
    calling.send_signal(signal.SIGKILL)
    calling.wait()
    assert session.json("status", "dev")["state"] == "initializing"
    session.type("up", "dev")
    assert session.json("status", "dev")["state"] == "ready"
    assert has(session, "slow")


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--env", "nowhere"), 2, "no environment called nowhere"),
        (("--env", "torch-xla"), 2, "environment torch-xla is not locked"),
        (("--env", "jax-v6e"), 2, "environment jax-v6e is for v6e, not for v4"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_created(
    session: Session, words: tuple[str, ...], status: int, said: str
) -> None:
    lock = session.project.add("jax-v6e", {"jax": "0.9.0", "libtpu": "0.0.34"})
    text = (session.project.envs / "jax-v6e.yaml").read_text().replace("backend: cpu", "backend: jax")
    (session.project.envs / "jax-v6e.yaml").write_text(text + "generations: [v6e]\n")
    session.project.write("jax-v6e", lock)
    calls = len(session.sim_journal())
    refused = session.type("up", "v4-8", "other", "--spot", "--pay", *words, status=status)
    assert said in refused.stderr
    assert "hint: " in refused.stderr
    assert "other" not in session.type("ls").stdout
    assert len(session.sim_journal()) == calls


def test_one_that_nobody_saw_work_is_told_of_in_a_fleet_file(session: Session) -> None:
    session.project.add("fresh", {"fresh": "1.0"}, "verified: false")
    told = "environment fresh is verified: false"
    slices = "slices: {v: {accelerator: v4-8, tier: spot, pay: true, zone: us-central2-b%s}}"
    run = "runs: {r: {on: v, command: ['true'], no_checkpoint: true, env: fresh}}"
    for text in (slices % ", env: fresh", f"{slices % ''}, {run}"):
        (session.work / "fresh.yaml").write_text(f"fleet: {{name: fresh, {text}}}\n")
        assert told in " ".join(session.type("diff", "-f", "fresh.yaml", status=10).stderr.split())


def test_a_failure_names_host_and_step_and_what_to_type(session: Session) -> None:
    session.project.add("broken", {"broken": "1.0"}, "imports: [broken]", {"broken.py": "import nowhere\n"})
    waits = session.type("up", "dev", "--env", "broken", "--timeout", "100s", status=1).stderr
    told = " ".join(waits.split())
    named = re.search(
        r"installing environment broken failed on workers? [-\d]+: error: import broken fails.* \(1 try\)", told
    )
    assert named is not None, waits
    tail = re.search(r"tpuctl (exec --worker [01] dev -- tail -n 50 \.tpuctl/runs/provision-dev/\S+)", waits)
    assert tail is not None, waits
    assert "import broken fails" in session.type(*tail[1].split()).stdout
    assert session.json("status", "dev")["state"] == "initializing"
    session.type("up", "dev", "--env", "tiny")
    assert session.json("status", "dev")["state"] == "ready"


def test_a_slice_can_do_without_its_environment_again(session: Session) -> None:
    would = session.type("up", "dev", "--env", "none", "--dry-run").stdout
    assert "no environment on the hosts of dev" in would
    session.type("up", "dev", "--env", "none")
    facts = session.json("status", "dev")
    assert (facts["state"], facts["env"]) == ("ready", None)
    program = ("--", "python3", "-c", "import tiny")
    failed = session.type("run", "--on", "dev", "--no-checkpoint", "--name", "bare", *program, status=1)
    assert "No module named 'tiny'" in failed.stdout + failed.stderr
    session.type("up", "dev")
    assert session.json("status", "dev")["env"] is None
    session.type("up", "dev", "--env", "tiny")


@pytest.mark.long
def test_a_dead_host_is_named_and_replaced_by_what_the_message_says(session: Session) -> None:
    session.type("sim", "crash", session.json("status", "dev")["node"], "--worker", "1")
    verify = ("env", "verify", "tiny", "--on", "dev")
    told = json.loads(session.type(*verify, "--json", status=3).stdout)["error"]
    assert "answer: worker 1 has " in told["message"]
    assert told["details"]["columns"] == ["answer"]
    (difference,) = told["details"]["differences"]
    # It agrees to nothing for the user: to delete, and to pay.
    down, up = difference["hint"].partition("if they are dead: ")[2].split(" && ")
    session.type(*down.split()[1:], "--yes")
    session.type(*up.split()[1:], "--pay")
    session.type(*verify)


def test_a_slice_that_goes_with_its_run_has_the_environment_of_the_run(session: Session) -> None:
    where = ("--up", "v4-8", "--on", "own", "--spot", "--pay", "--zone", "us-central2-b", "--keep")
    program = ("--no-checkpoint", "--env", "tiny", "--", "python", "-c", "import tiny; print(tiny.VERSION)")
    assert "1.0" in session.type("run", *where, *program).stdout
    assert session.json("status", "own")["env"] == "tiny"


@pytest.mark.long
def test_the_environment_of_a_slice_in_a_fleet_file(session: Session) -> None:
    keys = "accelerator: v4-8, tier: spot, pay: true, zone: us-central2-b"
    file = session.work / "fleet.yaml"
    file.write_text(f"fleet: {{name: lab, slices: {{f: {{{keys}, env: tiny}}}}}}\n")
    session.type("apply", "-f", "fleet.yaml")
    assert session.json("status", "f")["env"] == "tiny"
    session.type("diff", "-f", "fleet.yaml")
    file.write_text(f"fleet: {{name: lab, slices: {{f: {{{keys}, env: nowhere}}}}}}\n")
    refused = session.type("diff", "-f", "fleet.yaml", status=2).stderr
    assert "fleet.yaml:1:" in refused
    assert "no environment called nowhere" in refused
    session.project.add("tiny", {"tiny": "1.1"}, "imports: [tiny]")
    file.write_text(f"fleet: {{name: lab, slices: {{f: {{{keys}, env: tiny}}}}}}\n")
    assert "environment tiny has changed" in session.type("diff", "-f", "fleet.yaml", status=10).stdout
    session.type("apply", "-f", "fleet.yaml")
    verified = session.type("env", "verify", "tiny", "--on", "f").stderr
    assert "1 host of f is as tiny says" in verified
    assert MINOR in session.type("exec", "f", "--", "sh", "-c", "cat .tpuctl/envs/*/tpuctl-env.json").stdout
