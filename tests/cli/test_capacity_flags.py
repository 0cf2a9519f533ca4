"""The flags about capacity, typed: what they show before, and what is there afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.hosts import shared_folder
from tests.support.session import Session, open_session
from tpuctl.sim.server import control


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as session:
        yield session


def simulated(session: Session, name: str) -> dict[str, Any]:
    info = session.sim()
    return next(node for node in control.state(info)["nodes"] if node["name"].endswith(f"/{name}"))


def test_a_dry_run_shows_the_whole_specification_and_asks_for_nothing(session: Session) -> None:
    words = ("up", "v6e-8", "--zone", "us-east5-a", "--flex-start", "--run-duration", "4h", "--pay")
    shown = json.loads(session.type(*words, "--valid-for", "6h", "--dry-run", "--json").stdout)["spec"]
    assert (shown["tier"], shown["run_duration_s"], shown["valid_for_s"]) == ("flex-start", 14400.0, 21600.0)
    assert session.sim_journal() == []


def test_everything_that_was_said_arrives_at_the_hosts(session: Session) -> None:
    marks = shared_folder(session.root / "marks")
    (session.work / "boot.sh").write_text(f"#!/bin/sh\ntouch {marks}/booted-$HOSTNAME\n")
    done = session.type(
        *("up", "v4", "made", "--topology", "2x2x2", "--spot", "--pay", "--internal-ips", "--boot-disk", "200"),
        *(
            "--network-tag",
            "lab",
            "--network-tag",
            "training",
            "--label",
            "team=vision",
            "--metadata",
            "note=hello there",
        ),
        *(
            "--network",
            "projects/shared/global/networks/mine",
            "--service-account",
            "sa@sim-project.iam.gserviceaccount.com",
        ),
        *("--startup-script", "boot.sh", "--description", "Ablation of the tokenizer"),
    )
    assert "Cloud NAT" in done.stderr
    node = simulated(session, "made-1")
    assert node["acceleratorType"] == "v4-16"
    assert node["tags"] == ["lab", "training"]
    assert node["labels"]["team"] == "vision"
    assert node["metadata"]["note"] == "hello there"
    assert node["description"] == "Ablation of the tokenizer"
    assert "Ablation of the tokenizer" in session.type("status", "made").stdout
    assert node["bootDiskConfig"]["diskSizeGb"] == "200"
    assert node["networkConfig"]["network"] == "projects/shared/global/networks/mine"
    assert all(each["accessConfig"] == {} for each in node["networkEndpoints"])
    assert len(list(marks.glob("booted-*"))) == 2
    again = session.type("sim", "preempt", "made-1")
    assert again.returncode == 0
    (session.work / "boot.sh").unlink()
    session.type("up", "made")
    assert simulated(session, "made-2")["metadata"]["startup-script"].startswith("#!/bin/sh")


def test_a_run_brings_its_slice_up_with_the_same_flags(session: Session) -> None:
    session.type(
        *("run", "--up", "v4-8", "--on", "own", "--keep", "--no-checkpoint", "--preemptible", "--pay"),
        *("--label", "team=vision", "--", "true"),
    )
    node = simulated(session, "own-1")
    assert node["schedulingConfig"]["preemptible"] is True
    assert node["labels"]["team"] == "vision"
    assert "queuedResource" not in node
