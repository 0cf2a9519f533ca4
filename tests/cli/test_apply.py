"""Fleet files against a real simulator, each command a process of its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.session import ROOT, Session, open_session
from tpuctl.transfer.own_output import REPORT_MARK

FOUR = """
settings: {tier: spot, zone: us-central2-b}
fleet:
  name: four
  slices:
    t0: &small {accelerator: v4-8, pay: true}
    t1: *small
    t2: &there {<<: *small, accelerator: v5e-4, zone: us-central1-a}
    t3: *there
"""
LAB = """
settings: {tier: spot, zone: us-central2-b}
fleet:
  name: lab
  slices:
    big: {accelerator: v4-16, pay: true}
  runs:
    train:
      on: big
      script: main.py
      args: [--steps, 3]
      no_checkpoint: true
      policy: {max_failures: 1}
"""


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as session:
        (session.work / "main.py").write_text("import sys\nprint(sys.argv[1:])\n")
        session.type("ls")  # so that there is a store
        yield session


def everything(session: Session) -> tuple[str, str]:
    """What the simulated cloud was asked to change, and what the store holds."""
    store = session.root / "state" / "sim" / "sim-project" / "store.sqlite"
    return json.dumps(session.sim_journal()), hashlib.sha256(store.read_bytes()).hexdigest()


def write(session: Session, text: str, name: str = "tpuctl.yaml") -> None:
    (session.work / name).write_text(text)


def test_the_second_apply_of_some_slices_makes_no_call_that_changes_anything(session):
    write(session, FOUR)
    listed = session.type("diff", status=10).stdout
    assert listed.count("create") == 4
    session.type("apply")
    rows = [row for row in session.json("ls") if row["name"].startswith("t")]
    assert {row["name"]: row["state"] for row in rows} == {f"t{i}": "ready" for i in range(4)}
    assert {row["zone"] for row in rows} == {"us-central2-b", "us-central1-a"}
    before = everything(session)
    done = session.type("apply")
    assert "fleet four is as the file says: 4 slices, 0 runs" in done.stderr
    assert everything(session) == before
    assert session.type("diff").stdout == ""
    assert everything(session) == before


THREE = """
settings: {tier: spot, zone: us-central2-b}
fleet:
  name: three
  slices:
    p0: &small {accelerator: v4-8, pay: true}
    p1: *small
    p2: *small
"""


def test_what_is_no_longer_listed_goes_with_prune_and_nothing_else_does(session):
    def ours() -> list[str]:
        return sorted(row["name"] for row in session.json("ls") if row["name"][0] in "ph")

    session.type("up", "v4-8", "handmade", "--spot", "--pay", "--zone", "us-central2-b")
    write(session, THREE)
    session.type("apply")
    write(session, THREE.partition("    p1:")[0])
    assert session.type("diff").stdout.count("no longer in the file") == 2
    session.type("apply")
    assert ours() == ["handmade", "p0", "p1", "p2"]
    assert "--yes" in session.type("apply", "--prune", status=2).stderr
    assert session.type("apply", "--prune", "--dry-run", status=10).stdout.count("remove") == 2
    session.type("apply", "--prune", "--yes")
    assert ours() == ["handmade", "p0"]
    write(session, "fleet: {name: three}")
    session.type("apply", "--prune", "--yes")
    assert ours() == ["handmade"]
    session.type("down", "handmade", "--yes")


def test_a_run_is_submitted_once_and_again_only_when_asked_or_changed(session):
    write(session, LAB)
    done = session.json("apply")
    assert [(row["item"], row["change"]) for row in done["changes"]] == [
        ("slice big", "create"),
        ("run train", "create"),
    ]
    (run,) = [row for row in session.json("runs") if row["slice"] == "big"]
    session.type("attach", run["id"])
    tier = session.json("manifest", run["id"])["configuration"]["tier"]
    assert (tier["value"], Path(tier["origin"]).name) == ("spot", "tpuctl.yaml")
    before = everything(session)
    session.type("apply")
    write(session, LAB + "# a remark in the fleet file is no change of the code\n")
    session.type("apply")
    assert everything(session) == before
    session.type("apply", "--again", "train")
    assert [row["id"] for row in session.json("runs")] == [f"{run['id']}-2", run["id"]]
    session.type("attach", f"{run['id']}-2")
    (session.work / "main.py").write_text("print('changed')\n")
    assert "it has changed since it last ran" in session.type("diff", status=10).stdout
    page = session.work / "r1.html"
    page.write_text(f'{REPORT_MARK.decode()}1">')
    assert "not part of the code, as tpuctl wrote it: r1.html" in session.type("diff", status=10).stderr
    page.unlink()
    session.type("apply")
    newest = session.json("runs")[0]
    assert newest["id"].startswith("train-")
    session.type("attach", newest["id"])
    assert len(session.json("runs")) == 3


def test_types_of_a_file_race_and_are_no_conflict_when_it_is_applied_again(session):
    zones = "zone: [us-west4-a, us-east1-d]"
    race = f"{{accelerator: 'v5e-16,v6e-16', race: true, {zones}, pay: true}}"
    file = f"settings: {{tier: spot}}\nfleet:\n  name: types\n  slices: {{either: {race}}}\n"
    write(session, file)
    session.type("apply", "--no-wait")
    assert session.json("diff")[0]["change"] == "none"
    write(session, file.replace("v5e-16,v6e-16", "v6e-16").replace("race: true, ", ""))
    assert "accelerator" in " ".join(session.type("diff", status=10).stdout.split())
    session.type("down", "either", "--yes")


def test_runs_of_a_file_share_the_chips_of_one_slice(session):
    says = "import time\nfor _ in range(36_000):\n    print('tick', flush=True)\n    time.sleep(0.1)\n"
    (session.work / "hours.py").write_text(says)
    shared = "{on: host, script: hours.py, chips: 1, no_checkpoint: true, policy: {grace: 1}}"
    slices = "fleet:\n  name: shared\n  slices: {host: {accelerator: v4-8, pay: true}}\n  runs:\n"
    head = "settings: {tier: spot, zone: us-central2-b}\n" + slices
    other = shared.replace("chips: 1", "chips: 1, tag: [second]")
    write(session, f"{head}    a: {shared}\n    b: {other}\n")
    session.type("apply")
    runs = {row["id"].rpartition("-")[0]: row for row in session.json("status", "host")["runs"]}
    assert {name: row["chips"] for name, row in runs.items()} == {"a": [0], "b": [1]}
    before = everything(session)
    session.type("apply")
    assert everything(session) == before
    for again, why in (
        (shared, "run a is the same on slice host"),
        (shared.replace("chips: 1, ", ""), "slice host has run a already, and takes one at a time"),
    ):
        write(session, f"{head}    a: {shared}\n    b: {again}\n")
        assert why in " ".join(session.type("diff", status=2).stderr.split())
    many = (f"    {name}: {shared.replace('1,', f'1, tag: [{name}],')}\n" for name in "abcde")
    write(session, head + "".join(many))
    assert "5 runs want 5 chips of a slice that has 4" in session.type("diff", status=2).stderr
    write(session, f"{head}    a: {shared}\n    c: {shared.replace('chips: 1', 'chip: 3')}\n")
    session.type("apply", "--prune", "--yes")
    session.watch_until(lambda: len(session.json("status", "host")["runs"]) == 2)
    assert {row["id"].rpartition("-")[0] for row in session.json("status", "host")["runs"]} == {"a", "c"}
    ended = session.type("down", "host", "--yes")
    assert "tick" not in ended.stdout + ended.stderr, "what runs wrote is for logs"
    assert "tick" in session.type("logs", "last").stdout


def test_what_new_slices_cost_is_shown_before_they_are_asked_for(session):
    write(session, LAB.partition("  runs:")[0].replace("big:", "priced:"))
    for words in (("diff",), ("apply", "--dry-run")):
        assert (
            "priced: v4-16, 2 hosts, 8 chips, us-central2-b, spot, about $"
            in session.type(*words, status=10).stderr
        )
    document = json.loads(session.type("diff", "--json", status=10).stdout)
    assert ["per hour" in (row["cost"] or "") for row in document if row["name"] == "priced"] == [True]


def test_another_spec_is_a_conflict_and_is_replaced_only_when_asked(session):
    text = LAB.partition("  runs:")[0].replace("big:", "other:")
    write(session, text)
    session.type("apply")
    write(session, text.replace("v4-16", "v4-8"))
    before = everything(session)
    done = session.type("apply", status=6)
    assert "v4-16 is there, v4-8 in the file" in done.stderr
    assert "--replace" in done.stderr
    assert session.type("diff", status=10).stdout.count("conflict") == 1
    assert "--yes" in session.type("apply", "--replace", status=2).stderr
    assert everything(session) == before
    session.type("apply", "--replace", "--yes")
    (row,) = [row for row in session.json("ls") if row["name"] == "other"]
    assert (row["type"], row["state"], row["node"]) == ("v4-8", "ready", "other-2")


BAD = """
settings: {tier: spot, zoen: us-central2-b}
fleet:
  name: bad
  slices:
    big:
      acelerator: v4-8
      zone: nowhere
      queued: perhaps
  runs:
    train: {on: bgi, script: main.py, scirpt: x}
"""


def test_all_problems_are_told_at_once_with_line_and_nearest_key_and_nothing_is_called(session):
    write(session, BAD, "bad.yaml")
    before = everything(session)
    done = session.type("apply", "-f", "bad.yaml", status=2)
    told = done.stderr
    assert "5 problems in bad.yaml" in told
    assert "bad.yaml:2:24: unknown key 'zoen'; did you mean 'zone'?" in told
    assert "bad.yaml:7:7: unknown key 'acelerator' in fleet.slices.big; did you mean 'accelerator'?" in told
    assert "bad.yaml:9:15: fleet.slices.big.queued must be true or false, not perhaps" in told
    assert "bad.yaml:11:13: fleet.runs.train: there is no slice 'bgi' in the file; did you mean 'big'?" in told
    assert "bad.yaml:11:39: unknown key 'scirpt' in fleet.runs.train; did you mean 'script'?" in told
    assert everything(session) == before


def test_faults_of_settings_hide_none_of_the_fleet_in_this_file_or_another(session):
    write(
        session,
        "settings: {tire: spot}\nfleet:\n  nam: lab\n  slices: {big: {accelerator: v4-9}}\n",
        "bad.yaml",
    )
    done = session.type("diff", "-f", "bad.yaml", status=2)
    assert "bad.yaml:1:12: unknown key 'tire'; did you mean 'tier'?" in done.stderr
    assert "bad.yaml:3:3: unknown key 'nam' in fleet; did you mean 'name'?" in done.stderr
    write(
        session,
        "settings: {tire: spot}\nfleet:\n  name: lab\n  slices: {big: {accelerator: v4-9}}\n",
        "bad.yaml",
    )
    own = session.root / ".config" / "tpuctl" / "config.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("settings:\n  zone: mars\n")
    try:
        done = session.type("diff", "-f", "bad.yaml", "--json", status=2)
    finally:
        own.unlink()
    problems = json.loads(done.stdout)["error"]["details"]["problems"]
    assert [(each["file"], each["line"], each["column"]) for each in problems] == [
        (str(own), 2, 9),
        ("bad.yaml", 1, 12),
        ("bad.yaml", 4, 18),
    ]
    assert "there is no accelerator type 'v4-9'" in problems[-1]["message"]


def test_mistakes_in_the_file_hide_no_wrong_type(session):
    write(session, "fleet: {name: lab, slices: {big: {accelerator: v4-9, colour: red}}}\n", "bad.yaml")
    done = session.type("diff", "-f", "bad.yaml", status=2)
    assert "unknown key 'colour'" in done.stderr
    assert "there is no accelerator type 'v4-9'" in done.stderr


def test_what_the_tables_and_grants_refuse_is_told_for_all_slices_at_once(session):
    text = """
fleet:
  name: tables
  slices:
    a: {accelerator: v4-33, tier: spot}
    b: {accelerator: v4-8, tier: spot, zone: us-nowhere9-d, pay: true}
    c: {accelerator: v4-8, zone: us-central2-b}
"""
    write(session, text, "tables.yaml")
    before = everything(session)
    told = session.type("apply", "-f", "tables.yaml", status=2).stderr
    assert "tables.yaml:5:9: fleet.slices.a: there is no accelerator type 'v4-33'" in told
    assert "tables.yaml:6:40: fleet.slices.b: the API knows no zone 'us-nowhere9-d'" in told
    assert "zone: us-central2-b" in told
    assert "tables.yaml:7:5: fleet.slices.c: no tier" in told
    assert "tier: spot" in told
    write(session, "fleet: {name: x, slices: {big9: {accelerator: v4-8, tier: spot}}}", "unpaid.yaml")
    told = session.type("apply", "-f", "unpaid.yaml", status=2).stderr
    assert "not covered" in told
    assert "pay: true" in told
    assert everything(session) == before


def test_the_example_of_the_documents_comes_up_and_its_policy_changes_in_place(session):
    blocks = (ROOT / "docs" / "tasks" / "fleet-file.md").read_text().split("```yaml\n")[1:]
    (text,) = [block.partition("```")[0] for block in blocks if "name: lab" in block]
    slow = text.replace("echo rank $TPUCTL_RANK", "echo rank $TPUCTL_RANK; sleep 600").replace("big", "readme")
    slow = slow.replace("name: lab", "name: readme-lab")  # a fleet of its own in the session that tests share
    write(session, slow)
    session.type("apply")
    (run,) = [row for row in session.json("runs") if row["slice"] == "readme"]
    assert run["state"] == "running"
    write(session, slow.replace("max_failures: 1", "max_failures: 4"))
    assert "goes on with other max failures" in session.type("diff", status=10).stdout
    session.type("apply")
    assert session.type("diff").stdout == ""
    assert [row["id"] for row in session.json("runs") if row["slice"] == "readme"] == [run["id"]]
    write(session, "fleet: {name: readme-lab}")
    session.type("apply", "--prune", "--yes")
    assert [row for row in session.json("ls") if row["name"] in ("readme", "small")] == []


def test_a_run_that_ended_unseen_is_replaced_and_keeps_its_true_end(session):
    text = LAB.replace("name: lab", "name: unseen-lab").replace("big", "unseen").replace("train:", "unseen:")
    write(session, text)
    session.type("apply")
    [run] = [run for run in session.json("runs") if run["slice"] == "unseen"]
    session.type(
        "exec",
        "unseen",
        "--",
        "sh",
        "-c",
        "while pgrep -f '[m]ain.py --steps 3' >/dev/null; do sleep 0.1; done",
    )
    write(session, text.replace("[--steps, 3]", "[--steps, 4]"))
    done = session.type("apply", "--replace", "--yes")
    assert "--steps" not in done.stdout
    found = {each["id"]: each["state"] for each in session.json("runs") if each["slice"] == "unseen"}
    assert len(found) == 2
    assert found[run["id"]] == "succeeded"
