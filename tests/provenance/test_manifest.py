"""The manifest of a run: its parts, digests and schema; what a changed, old, newer or torn one is told."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from tests.docs.schemas import run_schema
from tests.provenance.samples import a_manifest
from tests.support.builders import a_run, an_attempt
from tpuctl.errors import BadManifestError
from tpuctl.model.attempts import Cause, RunTotals, TimelineEntry
from tpuctl.provenance.build import build_attempt, build_current, build_totals
from tpuctl.provenance.compare import compare
from tpuctl.provenance.manifest import ManifestPart, assemble, parse_manifest, verify_chain
from tpuctl.provenance.phases import PHASES, cost_by_phase, goodput, sum_phases


def test_a_manifest_is_as_its_schema_says_and_its_digests_hold():
    manifest = a_manifest()
    jsonschema.Draft202012Validator.check_schema(run_schema())
    jsonschema.validate(manifest, run_schema())
    assert verify_chain(manifest) == []
    assert parse_manifest(json.dumps(manifest).encode(), "run.json") == manifest


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda m: m["command"]["argv"].append("--lr"), "the start"),
        (lambda m: m["run"].update(unknown=1), "the start"),
        (lambda m: m["attempts"][0].update(cause="succeeded"), "attempt 1"),
        (lambda m: m["attempts"][1]["hosts"][0].update(kernel="6.2"), "attempt 2"),
        (lambda m: m["end"].update(usd=0.0), "the end"),
        (lambda m: m["end"]["by_phase"]["lost"].update(usd=0.0), "the end"),
        (lambda m: m["attempts"].pop(), "3 parts and 4 digests"),
    ],
)
def test_whatever_is_changed_afterwards_is_named(change, wrong):
    manifest = a_manifest()
    change(manifest)
    assert wrong in verify_chain(manifest)[0]


def test_a_part_that_was_replaced_together_with_its_digest_breaks_what_follows():
    manifest, other = a_manifest(), a_manifest(argv=("python3", "other.py"))
    kept = {"attempts": manifest["attempts"], "end": manifest["end"]}
    mixed = {**other, **kept, "chain": [other["chain"][0], *manifest["chain"][1:]]}
    assert verify_chain(mixed) == ["attempt 1 was changed after it was written"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (lambda text: text[: len(text) // 2], "is cut off after"),
        (lambda text: b"", "is cut off after 0 bytes"),
        (lambda text: b"\x8f\x01\x02", "is not JSON"),
        (lambda text: b"[" * 100_000, "is not JSON"),
        (lambda text: b"[]", "not a JSON object"),
        (lambda text: b"{}", "no manifest of a run"),
        (lambda text: text.replace(b"tpuctl.run/1", b"tpuctl.run/7"), "newer than this tpuctl reads"),
        (lambda text: text.replace(b'"number": 1', b'"number": "one"'), r"damaged: .*attempts\[0\].number"),
    ],
)
def test_what_is_no_manifest_is_refused_by_name(content, said):
    text = json.dumps(a_manifest()).encode()
    with pytest.raises(BadManifestError, match=f"^run.json .*{said}"):
        parse_manifest(content(text), "run.json")


def test_a_part_of_a_newer_tpuctl_is_not_guessed_at():
    with pytest.raises(BadManifestError, match=r"run first is of schema tpuctl.run/2, newer"):
        assemble(ManifestPart("tpuctl.run/2", "", "", {}), [], None, "first")


def test_phases_add_up_and_an_unknown_one_stays_unknown():
    phases = a_manifest()["end"]["phases"]
    assert (phases["waiting_s"], phases["running_s"], phases["lost_s"]) == (180.0, 1500.0, 300.0)
    assert phases["first_step_s"] is None
    assert goodput(phases) == round(1200 / (1500 + 180 + 80 + 20), 4)
    assert sum_phases([]).running_s is None


def test_the_time_in_which_it_is_found_out_why_it_failed_is_lost_too():
    entries = (TimelineEntry(700.0, "failed"), TimelineEntry(720.0, "ended"))
    failed = an_attempt(
        created_at=100.0, started_at=100.0, cause=Cause.FAILED, timeline=entries, ended_at=720.0
    )
    run = a_run(attempt=failed, no_checkpoint=True)
    phases = build_attempt(run, failed, "big", since=100.0)["phases"]
    assert (phases["running_s"], phases["lost_s"]) == (620.0, 620.0)


def test_a_manifest_has_what_went_into_the_run():
    manifest = a_manifest()
    end, first = manifest["end"], manifest["attempts"][0]
    assert (end["state"], end["preemptions"], end["chips"]) == ("succeeded", 1, 8)
    assert end["chip_hours"] == round(8 * (40 + 10 + 600 + 40 + 10 + 900) / 3600, 3)
    assert (first["failure"]["signature"], first["failure"]["whose"]) == ("peer-lost", "cloud")
    assert [row["event"] for row in first["timeline"]] == ["started", "preempted", "ended"]
    assert manifest["configuration"] == {"zone": {"value": ["us-central2-b"], "origin": "tpuctl.yaml"}}


def phases_of(*seconds: float | None) -> dict[str, Any]:
    names = ("waiting_s", "provisioning_s", "preparing_s", "first_step_s", "running_s", "lost_s")
    return {"phases": dict(zip(names, seconds, strict=True))}


WHOLE = phases_of(100, 60, 40, 100, 800, 200)
TAKEN = phases_of(500, 60, 40, None, 0, 0)


@pytest.mark.parametrize(
    ("attempts", "totals", "chip_hours", "usd"),
    [
        pytest.param(
            [WHOLE],
            RunTotals(None, 9.0, 18.0),
            [0, 0.6, 0.4, 1, 5, 2],
            [0, 1.2, 0.8, 2, 10, 4],
            id="waiting-is-free",
        ),
        pytest.param(
            [WHOLE, TAKEN],
            RunTotals(None, 10.0),
            [0, 1.2, 0.8, 1, 5, 2],
            [None] * 6,
            id="taken-before-it-began",
        ),
        pytest.param(
            [phases_of(0, 60, 40, None, 800, None)],
            RunTotals(None, 9.0),
            [0, 0.6, 0.4, None, 8, None],
            [None] * 6,
            id="neither-steps-nor-checkpoints-seen",
        ),
        pytest.param([phases_of(60, 0, 0, 0, 0, 0)], RunTotals(), [None] * 6, [None] * 6, id="only-waited"),
        pytest.param([{}], RunTotals(None, 2.0, 3.0), [None] * 6, [None] * 6, id="no-phases-kept"),
    ],
)
def test_chips_and_cost_go_to_phases_by_their_time(attempts, totals, chip_hours, usd):
    found = cost_by_phase(attempts, totals)
    assert tuple(found) == PHASES
    assert found.pop("unseen").usd is None
    assert [each.chip_hours for each in found.values()] == chip_hours
    assert [each.usd for each in found.values()] == usd


def test_the_cost_of_phases_adds_up_to_that_of_the_run():
    end = a_manifest()["end"]
    for unit in ("chip_hours", "usd"):
        parts = {name: cost[unit] for name, cost in end["by_phase"].items()}
        assert parts.pop("first_step") is None
        assert not parts.pop("unseen")
        assert sum(parts.values()) == pytest.approx(end[unit], abs=0.001)


def test_two_runs_differ_by_section_and_key_alone():
    one, other = a_manifest(), a_manifest("other", argv=("python3", "train.py", "--lr", "1"), kernel="6.2")
    assert [(each.section, each.key, each.left, each.right) for each in compare(one, other)] == [
        ("command", "argv", "python3 train.py", "python3 train.py --lr 1"),
        ("hosts", "kernel", "6.1", "6.2"),
    ]
    assert compare(one, a_manifest("again")) == []


def test_what_a_run_came_to_is_as_of_now_while_it_goes_on():
    """100 s until its slice was there, 50 s of preparing, 850 s of the program; then a wait of 1000 s."""
    attempt = an_attempt(created_at=140.0, started_at=150.0, provisioned_at=100.0)
    run = a_run(created_at=0.0, attempt=attempt)
    price = {"chips": 8, "usd_per_hour": 4.0}
    row = build_current(run, "big", since=0.0, now=1000.0)
    assert build_totals([row], **price) == RunTotals(0.85, 2.0, 1.0)
    waits = build_current(a_run(created_at=0.0, attempt=None), "big", since=1000.0, now=2000.0)
    assert build_totals([row, waits], **price) == RunTotals(0.425, 2.0, 1.0)
    assert build_totals([waits], **price) == RunTotals(0.0, None, None)
    short = a_run(created_at=0.0, attempt=an_attempt(created_at=0.2, started_at=0.3, provisioned_at=0.1))
    assert build_totals([build_current(short, "big", since=0.0, now=0.9)], **price).chip_hours == 0.002
    unstarted = a_run(created_at=0.0, attempt=an_attempt(created_at=140.0, provisioned_at=100.0))
    assert build_totals([build_current(unstarted, "big", since=0.0, now=1000.0)], **price).goodput == 0.0
