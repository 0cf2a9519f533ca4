"""`tpuctl sim`: what it says of the simulator that runs, and hints that lead to it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.session import TPUCTL, Session, open_session


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session("--speed", "100", "--quota", "us-central2-b=64") as opened:
        yield opened


def test_delays_are_shown_as_they_are_now(session: Session) -> None:
    assert "ready after 2 s" in session.type("sim", "status").stdout
    session.type("sim", "delay", "node_create=5803", "preempt_visible=700", "list_everywhere=0")
    for verb in ("status", "up"):
        shown = session.json("sim", verb)["delays"]
        assert shown == {"until_ready": 58.5, "until_gone": 0.6, "until_preemption_shows": 7.0}
        assert "ready after 58 s and gone after" in session.type("sim", verb).stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--speed", "20"), "speed 100.0, not 20.0"),
        (("--speed", "1"), "speed 100.0, not 1.0"),
        (("--instant",), "delays realistic, not instant"),
        (("--project", "another-one"), "project sim-project, not another-one"),
        (("--quota", "us-central2-b=8"), "quotas {'us-central2-b': 64}, not {'us-central2-b': 8}"),
        (("--hosts", "isolated"), "hosts process, not isolated"),
    ],
)
def test_options_that_a_running_simulator_does_not_have_are_refused(
    session: Session, words: tuple[str, ...], said: str
) -> None:
    if "isolated" in words and os.geteuid() != 0:
        pytest.skip("refused before: isolated hosts need root")
    before = session.json("sim", "status")
    refused = session.type("sim", "up", *words, status=6).stderr
    assert f"a simulator runs already, with {said}" in refused
    assert "`tpuctl sim down` ends it" in refused
    assert session.json("sim", "status") == before


def test_the_same_options_again_keep_the_one_that_runs(session: Session) -> None:
    before = session.json("sim", "status")["pid"]
    assert session.json("sim", "up", "--speed", "100", "--quota", "us-central2-b=64")["pid"] == before
    assert session.json("sim", "up")["pid"] == before


def test_a_hint_with_gcloud_can_be_pasted_and_asks_the_simulator(session: Session) -> None:
    refused = session.type("config", "init", "--store", "gs://no-such-bucket/x", status=5).stderr
    hint = refused.partition("hint: ")[2]
    tools = session.root / "tools"
    tools.mkdir()
    (tools / "gcloud").write_text('#!/bin/sh\necho "$CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE $*"\n')
    (tools / "gcloud").chmod(0o755)
    environ = {**session.environ, "PATH": f"{tools}:{Path(TPUCTL).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", hint], env=environ, capture_output=True, text=True, timeout=60)
    where, _, asked = done.stdout.partition(" ")
    assert where == f"{session.json('sim', 'status')['http']}/storage/v1/"
    assert asked.startswith("storage buckets create gs://no-such-bucket ")


def test_types_say_by_which_api_they_come_and_what_is_not_in_a_zone(session: Session) -> None:
    shown = session.type("types", "tpu7x-16").stdout
    assert "compute, tpu" in shown
    assert "tpu7x-standard-4t" in shown
    said = session.type("types", "v4", "--zone", "us-east1-d").stderr
    assert "no accelerator type of v4 is known in us-east1-d" in said
