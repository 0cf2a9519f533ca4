"""A fleet that an earlier version left behind goes on under this one."""

from __future__ import annotations

import json

import pytest

from tests.support.recorded_store import RECORDED, RecordedStore
from tests.support.session import open_session
from tests.support.soak import long
from tpuctl.provenance.manifest import assemble
from tpuctl.views.slices import RUN_KEYS

KEPT = (
    *("attempts/", "manifests/", "grants/", "retired", "slices/found", "slices/big", "slices/small"),
    *("runs/plain", "runs/bad", "runs/stopped", "runs/long", "runs/train"),
)
"""What a pass has no reason to change."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", [long("sqlite"), "bucket"])
def test_a_recorded_fleet_is_shown_and_goes_on(kind):
    with open_session() as session:
        store = RecordedStore(session, kind)
        before = store.documents()

        for words, said in RECORDED["said"].items():
            expected = json.loads(store.today(json.dumps(said)))
            if words == "manifest plain":
                expected = assemble(None, [expected], None)  # what was one document for each attempt
            if words == "runs":
                new = {**dict.fromkeys(RUN_KEYS), "tags": [], "data": [], "synthetic": False}
                expected = [{**new, **row} for row in expected]
            assert session.json(*words.split()) == expected, words
        slices = {row["name"]: row["state"] for row in session.json("ls")}
        assert slices["big"] == slices["small"] == "ready"
        assert slices["waiting"] == "provisioning"
        assert "is recorded as ready, but the cloud says SUSPENDED" in session.type("ls").stderr
        assert session.json("status", "big")["incarnation"] == 2

        session.type("sim", "preempt", "v4-8-1")
        for _ in range(12):
            done = session.type("watch", "once", "--json", status=None)
            assert done.returncode in (0, 3), done.stderr
            runs = {row["id"]: row["state"] for row in session.json("runs")}
            slices = {row["name"]: row["state"] for row in session.json("ls")}
            if runs["own"] == "succeeded" and slices["lost"] == "ready" and "cut" not in slices:
                break
        assert runs["own"] == "succeeded", runs
        assert slices["lost"] == "ready", slices
        assert "cut" not in slices
        assert "own 0" in session.type("logs", "own").stdout
        applied = session.type("apply", "--yes").stderr
        assert "fleet lab is as the file says" in applied
        assert "create" not in applied
        after = store.documents()
        for key in before:
            if key.startswith(KEPT):
                assert after[key] == before[key], key
