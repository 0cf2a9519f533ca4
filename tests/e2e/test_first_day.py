"""The first day in a project that has nothing: what the documents say is typed, and what doctor and errors say.

No network, no firewall rules, no role of the hosts' account on the bucket, OS Login on for the project, no
external addresses, a quota for four chips. The lines are those of the README and of "Your first real slice", as
they stand there, with the names replaced that the pages say stand for something else.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import bastion
from tests.support.pages import section, typed_lines
from tests.support.require import require_index, require_isolated_hosts, require_tool
from tests.support.session import ROOT, SIM_FIRST, TPUCTL, Session, open_session
from tests.support.spool import Spool
from tpuctl.model.timeouts import KEY_SHOWS_S
from tpuctl.sim.hosts.files import SYSTEM_PATH
from tpuctl.sim.server import control
from tpuctl.sim.world.iam import PROJECT_NUMBER

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.gcloud, pytest.mark.timeout(1800)]
ZONE = "us-west4-a"
BUCKET = "sim-bucket"
QUOTAS = ("--quota", f"{ZONE}/v5e:serving=4", "--quota", f"{ZONE}/v5e=0")
FOUR, SIXTEEN = "v5litepod-4", "v5litepod-16"
README, PAGE = ROOT / "README.md", ROOT / "docs" / "start" / "first-real-slice.md"
MEANT = {
    "PROJECT": "sim-project",
    "PROJECT_NUMBER": PROJECT_NUMBER,
    "BUCKET": BUCKET,
    "ADDRESS": "192.0.2.1",
    "v4-8": FOUR,
    "us-central2-b": ZONE,
}
"""What the pages say stands for something else."""
SMALL = """\
name: jax-tpu
backend: cpu
python: ["3.11", "3.12", "3.13", "3.14"]
requirements: []
imports: [json]
"""
AT_GOOGLE = "gcloud auth application-default login"
"""The one line that nobody can type here: it opens a page of Google's in a browser."""


@contextmanager
def hostile_project() -> Iterator[Session]:
    """The project as an organisation hands it out, and the settings of the documents' page for hosts without
    external addresses."""
    require_isolated_hosts()
    require_tool("nft", SYSTEM_PATH)
    require_tool("gcloud")
    require_tool("script")
    with open_session("--instant", "--hosts", "isolated", "--firewall", "strict", *QUOTAS) as made:
        made.type("sim", "fault", "no-network")
        control.set_metadata(made.sim(), {"enable-oslogin": "TRUE"})
        forget_roles(made)
        at_home(made)
        yield made


def at_home(session: Session) -> None:
    """The user's settings, and a crontab that is not this machine's."""
    proxy = f"{sys.executable} {bastion.__file__} %h %p"
    settings = {"zone": [ZONE], "external_ips": False, "proxy_command": proxy}
    config = session.root / ".config" / "tpuctl" / "config.yaml"
    config.parent.mkdir(parents=True)
    config.write_text(json.dumps({"settings": settings}))
    programs = Spool(session.root / "cron").bin
    session.environ["PATH"] = f"{programs}:{Path(TPUCTL).parent}:{session.environ['PATH']}"


def write_project(session: Session) -> None:
    """`train.py` is the user's, and so is an environment that is called like the one of the pages: simulated
    hosts have no chips for the shipped one. The demo (tests/cli/test_demo.py) shows how JAX trains."""
    (session.work / "train.py").write_text("print('step 60/60')\n")
    own = session.work / "envs"
    own.mkdir()
    (own / "jax-tpu.yaml").write_text(SMALL)
    session.type("env", "lock", "jax-tpu")


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    require_index()
    with hostile_project() as made:
        write_project(made)
        yield made


def forget_roles(session: Session) -> None:
    """Nobody has a role on the bucket but those who own the project."""
    owners = {"role": "roles/storage.legacyBucketOwner", "members": ["projectOwner:sim-project"]}
    session.ask("PUT", f"/storage/v1/b/{BUCKET}/iam", {"bindings": [owners]})


def hint_of(said: str) -> str:
    """What an error, which comes last, says to type."""
    return str(re.findall(r"^(?:\[sim\] )?hint: (.*)", said.replace("\r", ""), re.M)[-1])


def shell(session: Session, command: str, status: int | None = 0) -> str:
    """Types a line at a terminal, as a person does, who agrees to what is asked; gcloud is the simulator's."""
    first = SIM_FIRST if command.startswith("gcloud ") else ""
    done = subprocess.run(
        ("script", "-qec", f"{first}{command}", "/dev/null"),
        cwd=session.work,
        env={**session.environ, "TERM": "xterm", "COLUMNS": "200"},
        input="y\n",
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert status in (None, done.returncode), f"{command}: {done.returncode}\n{done.stdout}"
    return done.stdout


def follow_doctor(session: Session) -> list[str]:
    """Types the fixes that doctor prints, until there is none that was not typed."""
    typed: list[str] = []
    while True:
        found = session.type("doctor", "--json", status=None)
        rows = [each for each in json.loads(found.stdout)["findings"] if each["level"] != "ok"]
        if any(each["fix"] == "try again" for each in rows):
            continue  # a busy machine did not answer in time
        assert not any(each["fix"] in typed for each in rows), f"what was typed has not helped: {rows}"
        if not rows:
            return typed
        fix = rows[0]["fix"]
        typed.append(fix)
        shell(session, fix)


def until_it_works(session: Session, line: str, status: int) -> str:
    """Types a line that is refused, what its hint says, and the line again."""
    refused = shell(session, line, status)
    shell(session, hint_of(refused))
    shell(session, line)
    return refused


def test_the_first_day(session: Session) -> None:
    chapter_one(session)
    chapter_two(session)


def chapter_one(session: Session) -> None:
    """The session of the README: one host on the quota for serving."""
    project, login, *lines = typed_lines(section(README, "**On the real cloud.**"), MEANT)
    assert login.startswith(AT_GOOGLE)
    enable, identity, doctor, dry, up, run, watch, down = lines
    for line in (project, enable, identity):
        shell(session, line)
    assert doctor.startswith("tpuctl doctor")
    network, rule = follow_doctor(session)
    assert "networks create default" in network
    assert "firewall-rules create default-allow-internal" in rule
    shell(session, doctor)
    assert "add --pay" in up  # what the line says, and what the refusal says, too
    assert "add --pay to pay for it" in hint_of(shell(session, up, 2))
    shell(session, paid(dry))
    shell(session, paid(up))
    refused = until_it_works(session, run, 1)
    assert "-compute@developer.gserviceaccount.com has no storage.objects.create" in refused
    last, first = session.json("runs")
    assert (first["state"], last["state"]) == ("failed", "succeeded")
    assert "step 60/60" in session.type("logs", last["id"]).stdout
    shell(session, watch)
    shell(session, down)
    assert session.json("ls") == []


def paid(line: str) -> str:
    return f"{line.partition('#')[0].rstrip()} --pay"


def chapter_two(session: Session) -> None:
    """Two hosts, which draw on the quota for training. How such a run survives a preemption is what the demo
    shows (tests/cli/test_demo.py)."""
    refused = until_it_works(session, f"tpuctl up {SIXTEEN} big --spot --zone {ZONE} --pay", 7)
    asked = hint_of(refused)
    assert "--quota-id=TPUV5sPreemptibleLitepodPerProjectPerZoneForTPUAPI --preferred-value=16" in asked
    assert f"--dimensions=zone={ZONE}" in asked
    session.type("down", "big", "--yes")
    session.type("bill")  # with 0: nothing is left that costs money


def test_os_login_that_a_policy_forces_is_for_the_administrator(session: Session) -> None:
    session.type("sim", "fault", "os-login-policy")
    up = ("up", FOUR, "policy", "--spot", "--zone", ZONE, "--pay")
    session.type(*up, "--timeout", "8", status=8)
    told = session.type(*up, "--timeout", "60", status=1, later_s=KEY_SHOWS_S).stderr
    assert "its administrator can exempt the project" in told
    assert "gcloud resource-manager org-policies disable-enforce compute.requireOsLogin" in hint_of(told)
    session.type("down", "policy", "--yes")


@pytest.mark.soak
def test_the_first_real_slice_by_its_page() -> None:
    """All of it from top to bottom; without a letter, as step 4 says, with `--pay`. What trains is small."""
    require_index()
    with hostile_project() as session:
        write_project(session)
        [project, login, *rest] = typed_lines(section(PAGE, "## 1."), MEANT)
        assert login.startswith(AT_GOOGLE)
        for line in (project, *rest, *typed_lines(section(PAGE, "## 2."), MEANT)):
            shell(session, line)
        assert follow_doctor(session) == []
        for line in typed_lines(section(PAGE, "## 3."), MEANT):
            shell(session, line)
        for line in typed_lines(section(PAGE, "## 5."), MEANT):
            shell(session, paid(line) if line.startswith("tpuctl up") else line)
        for line in typed_lines(section(PAGE, "## 6."), MEANT):
            shell(session, line)
        [row] = session.json("runs")
        assert row["state"] == "succeeded"
        for line in typed_lines(section(PAGE, "## 7."), MEANT):
            shell(session, line)
