"""The first day in a project that has nothing: only what the documents and hints say is typed.

No network, no firewall rules, no role of the hosts' account on the bucket, OS Login on for the project, no
external addresses, a quota for four chips.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.support import bastion
from tests.support.jax_python import VARIABLES, jax_python
from tests.support.require import require_isolated_hosts, require_tool
from tests.support.session import ROOT, SIM_FIRST, TPUCTL, Session, open_session
from tpuctl.model.timeouts import KEY_SHOWS_S
from tpuctl.sim.hosts.files import SYSTEM_PATH
from tpuctl.sim.server import control
from tpuctl.sim.server.info import SimInfo

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.gcloud, pytest.mark.timeout(600)]
ZONE = "us-west4-a"
BUCKET = "sim-bucket"
QUOTAS = ("--quota", f"{ZONE}/v5e:serving=4", "--quota", f"{ZONE}/v5e=0")
FOUR, SIXTEEN = "v5litepod-4", "v5litepod-16"
STEPS = ("--var", "STEPS=60", "--var", "CHECKPOINT_EVERY=10", "--var", "STEP_SECONDS=0.1")


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """The project as an organisation hands it out, and the settings of the documents' page for hosts without
    external addresses."""
    require_isolated_hosts()
    require_tool("nft", SYSTEM_PATH)
    require_tool("gcloud")
    with open_session("--instant", "--hosts", "isolated", "--firewall", "strict", *QUOTAS) as made:
        made.type("sim", "fault", "no-network")
        info = the_sim(made)
        control.set_metadata(info, {"enable-oslogin": "TRUE"})
        forget_roles(info)
        (made.work / "train.py").write_text((ROOT / "templates" / "demo_train.py").read_text())
        proxy = f"{sys.executable} {bastion.__file__} %h %p"
        settings = {"zone": [ZONE], "external_ips": False, "proxy_command": proxy}
        config = made.root / ".config" / "tpuctl" / "config.yaml"
        config.parent.mkdir(parents=True)
        config.write_text(json.dumps({"settings": settings}))
        yield made


def the_sim(session: Session) -> SimInfo:
    info = control.status(session.root / "state" / "sim")
    assert info is not None
    return info


def forget_roles(info: SimInfo) -> None:
    """Nobody has a role on the bucket but those who own the project."""
    url = f"{info.http}/storage/v1/b/{BUCKET}/iam"
    owners = {"role": "roles/storage.legacyBucketOwner", "members": [f"projectOwner:{info.project}"]}
    headers = {"Authorization": f"Bearer {info.token}"}
    answer = requests.put(url, json={"bindings": [owners]}, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text


def hint_of(said: str) -> str:
    """What an error, which comes last, says to type."""
    return str(re.findall(r"^(?:\[sim\] )?hint: (.*)", said, re.M)[-1])


def shell(session: Session, command: str) -> None:
    """Types a printed command, as a person pastes it."""
    assert command.startswith((SIM_FIRST, "gcloud "))
    path = f'PATH="{Path(TPUCTL).parent}:$PATH"; '
    first = "" if command.startswith(SIM_FIRST) else SIM_FIRST
    done = session.finish(session.start("-ec", f"{path}{first}{command}", program=("sh",)))
    assert done.returncode == 0, done.stderr


def mend_what_doctor_finds(session: Session) -> list[str]:
    """Types the fixes that doctor prints for the network, until it finds nothing there."""
    typed: list[str] = []
    while True:
        found = session.type("doctor", "--json", status=None)
        rows = [each for each in json.loads(found.stdout)["findings"] if each["level"] != "ok"]
        fixes = [each["fix"] for each in rows if each["check"] == "vpc"]
        if not fixes:
            return typed
        assert fixes[0] not in typed, "what was typed has not helped"
        typed.append(fixes[0])
        shell(session, fixes[0])


def test_the_first_day(session: Session) -> None:
    with jax_python() as python:
        train = ("--", str(python), "train.py")
        chapter_one(session, train)
        chapter_two(session, train)


def chapter_one(session: Session, train: tuple[str, ...]) -> None:
    """One host on the quota for serving."""
    network, rule = mend_what_doctor_finds(session)
    assert "networks create default" in network
    assert "firewall-rules create default-allow-internal" in rule
    up = ("up", FOUR, "--spot", "--zone", ZONE)
    refused = session.type(*up, status=2).stderr
    assert "add --pay to pay for it" in hint_of(refused)
    session.type(*up, "--pay")
    run = ("run", "--on", FOUR, "--checkpoint-dir", f"gs://{BUCKET}/run1", *VARIABLES, *STEPS)
    began = time.monotonic()
    refused = session.type(*run, "--name", "denied", *train, status=1).stderr
    assert time.monotonic() - began < 60
    assert "-compute@developer.gserviceaccount.com has no storage.objects.create" in refused
    [row] = session.json("runs")
    assert (row["state"], row["id"]) == ("failed", "denied")
    shell(session, hint_of(refused))
    session.type(*run, "--name", "one", *train)
    assert "step 60/60" in session.type("logs", "one").stdout
    session.type("down", FOUR, "--yes")


def chapter_two(session: Session, train: tuple[str, ...]) -> None:
    """Two hosts, which draw on the quota for training."""
    up = ("up", SIXTEEN, "big", "--spot", "--zone", ZONE, "--pay")
    refused = session.type(*up, status=7).stderr
    asked = hint_of(refused)
    assert "--quota-id=TPUV5sPreemptibleLitepodPerProjectPerZoneForTPUAPI --preferred-value=16" in asked
    assert f"--dimensions=zone={ZONE}" in asked
    session.type("sim", "quota", f"{ZONE}/v5e=16")  # Google grants it
    session.type(*up)
    run = ("run", "--on", "big", "--worker", "0-1", "--alone", "--checkpoint-dir", f"gs://{BUCKET}/run2")
    following = session.start(*run, *VARIABLES, *STEPS, "--var", "STEP_SECONDS=0.3", "--name", "two", *train)
    until(session, following, "step 20/60")
    session.type("sim", "preempt", "big-1")
    done = session.finish(following, 300)
    assert done.returncode == 0, done.stderr
    [row] = [each for each in session.json("runs") if each["id"] == "two"]
    assert (row["state"], row["attempts"], row["preemptions"]) == ("succeeded", 2, 1)
    manifest = session.json("manifest", "two")
    assert [len(each["hosts"]) for each in manifest["attempts"]] == [2, 2]
    session.type("down", "big", "--yes")
    session.type("bill")  # with 0: nothing is left that costs money


def until(session: Session, following: subprocess.Popen[str], word: str) -> None:
    end = time.monotonic() + 120
    while word not in session.type("logs", "two", status=None).stdout:
        assert following.poll() is None, following.communicate()
        assert time.monotonic() < end, f"{word} was not written"
        time.sleep(0.5)


def test_os_login_that_a_policy_forces_is_for_the_administrator(session: Session) -> None:
    session.type("sim", "fault", "os-login-policy")
    up = ("up", FOUR, "policy", "--spot", "--zone", ZONE, "--pay")
    session.type(*up, "--timeout", "8", status=8)
    told = session.type(*up, "--timeout", "60", status=1, later_s=KEY_SHOWS_S).stderr
    assert "its administrator can exempt the project" in told
    assert "gcloud resource-manager org-policies disable-enforce compute.requireOsLogin" in hint_of(told)
    session.type("down", "policy", "--yes")
