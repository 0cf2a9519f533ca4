"""`tpuctl data receipt` and runs that read data: on two hosts, against the simulator's bucket."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator

import pytest
from google.oauth2.credentials import Credentials

from tests.support.hosts import wait_until
from tests.support.proc import programs_of
from tests.support.session import Session, open_session
from tpuctl.cloud.storage import GoogleObjects

TOKENS = "gs://sim-bucket/tokens"
CONTRACT = "sequence_length: 4\nbos_token: 7\ndtype: uint16\nobjects: 2\npacking: greedy\n"
FLEET = f"""
settings: {{tier: spot, zone: us-central2-b}}
fleet:
  name: lab
  slices:
    one: {{accelerator: v4-8, pay: true}}
  runs:
    read: {{on: one, script: main.py, no_checkpoint: true, data: [{TOKENS}]}}
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as made:
        (made.work / "main.py").write_text("print('read')\n")
        (made.work / "contract.yaml").write_text(CONTRACT)
        made.type("up", "v4-16", "big", "--spot", "--pay")
        yield made


@pytest.fixture
def objects(session: Session) -> GoogleObjects:
    info = session.sim()
    found = GoogleObjects(info.project, info.http, Credentials(token=info.token))
    for number in range(2):
        found.write(f"{TOKENS}/part-{number}.bin", struct.pack("<8H", *([7, 1, 2, 3] * 2)))
    return found


def run(session: Session, *words: str, status: int = 0) -> str:
    done = session.type("run", "--on", "big", "main.py", "--no-checkpoint", *words, status=status)
    return " ".join(done.stderr.split())


def test_a_run_reads_what_its_receipt_says_or_does_not_start(session: Session, objects: GoogleObjects) -> None:
    assert f"there is no receipt of {TOKENS}" in run(session, "--data", TOKENS, status=2)
    shown = session.type("data", "receipt", TOKENS, "--contract", "contract.yaml")
    assert "2 objects, 32 B" in " ".join((shown.stdout + shown.stderr).split())
    receipt = session.json("data", "receipt", TOKENS, "--contract", "contract.yaml")
    assert {each["field"]: each["met"] for each in receipt["checks"]} == {
        "packing": None, "sequence_length": True, "bos_token": True, "dtype": None, "objects": True,
    }  # fmt: skip
    session.environ["MY_TOKEN"] = "not-to-be-seen"
    secret = ("--secret", "HF_TOKEN=env:MY_TOKEN")
    run(session, "--name", "first", "--data", TOKENS, "--var", "XLA_FLAGS=--mine", *secret)
    manifest = session.json("manifest", "show", "first")
    assert manifest["data"] == [receipt]
    checks = {row["check"]: row["detail"] for row in manifest["attempts"][0]["checks"]}
    assert checks[f"data {TOKENS}"] == f"listing {receipt['digest']['value'][:12]}"
    session.type("manifest", "verify", "first")
    effective = {row["name"]: (row["value"], row["workers"]) for row in manifest["attempts"][0]["variables"]}
    assert (effective["JAX_PLATFORMS"], effective["XLA_FLAGS"]) == (("tpu,cpu", "0-1"), ("--mine", "0-1"))
    assert "HF_TOKEN" not in effective
    assert "not-to-be-seen" not in json.dumps(manifest)

    objects.write(f"{TOKENS}/part-2.bin", b"1234")
    assert "3 objects instead of 2" in run(session, "--data", TOKENS, status=6)
    refused = session.type("rerun", "first", "--dry-run", status=2)
    assert "3 objects instead of 2" in " ".join(refused.stdout.split())
    unmet = session.type("data", "receipt", TOKENS, "--contract", "contract.yaml", status=1)
    assert "objects: 3 instead of 2" in " ".join(unmet.stderr.split())

    newer = session.type("data", "receipt", TOKENS, "--json").stdout
    (session.work / "newer.json").write_text(newer)
    session.type("rerun", "first", "--data", f"{TOKENS}=newer.json", "--name", "second")
    rows = {
        (row["section"], row["key"]): row["right"]
        for row in session.json("manifest", "diff", "first", "second")
    }
    assert rows["data", f"{TOKENS}.objects"] == "3"
    objects.delete(f"{TOKENS}/part-2.bin")


def test_data_on_hosts_has_a_digest_of_its_tree(session: Session) -> None:
    folder = session.root / "data"
    folder.mkdir(mode=0o755)
    session.root.chmod(0o755)
    (folder / "part-0.bin").write_bytes(struct.pack("<8H", *([7, 1, 2, 3] * 2)))
    place = f"big:{folder}"
    (session.work / "tree.yaml").write_text("sequence_length: 4\nbos_token: 7\ndtype: uint16\n")
    receipt = session.json("data", "receipt", place, "--contract", "tree.yaml")
    assert (receipt["kind"], receipt["path"], receipt["objects"]) == ("disk", str(folder), 1)
    assert [each["met"] for each in receipt["checks"]] == [True, True, None]
    run(session, "--name", "tree", "--data", place)
    (folder / "part-0.bin").write_bytes(b"changed")
    assert "7 bytes instead of 16" in run(session, "--data", place, status=6)
    (folder / "part-0.bin").unlink()
    folder.rmdir()
    assert "no such file" in run(session, "--data", place, status=6)


def probe(session: Session, *words: str) -> None:
    """Has the data probed by a program of three lines."""
    (session.work / "first.py").write_text(
        "import os, sys, time\nprint('batch', os.environ['TPUCTL_RANK'] if sys.argv[1:] else '')\n"
        "time.sleep(600 if 'slow' in sys.argv else 0)\n"
    )
    command = ", ".join(("python3", "first.py", *words))
    (session.work / "probe.yaml").write_text(f"probe: [{command}]\ndistinct: true\n")
    session.type("data", "receipt", TOKENS, "--contract", "probe.yaml")


def probed(session: Session, name: str) -> list[int]:
    """For each attempt of a run, how many different first batches its hosts had."""
    attempts = session.json("manifest", "show", name)["attempts"]
    checks = [{row["check"]: row["detail"] for row in each["checks"]} for each in attempts]
    found = [each.get(f"probe {TOKENS}", "").split(", ") for each in checks]
    return [len({entry.split()[-1] for entry in each if entry}) for each in found]


def test_first_batches_that_repeat_each_other_keep_a_program_from_starting(
    session: Session, objects: GoogleObjects
) -> None:
    probe(session)
    said = run(session, "--name", "repeats", "--data", TOKENS, status=1)
    assert "workers 0-1 have the same first batch" in said
    assert "(bad-data, data)" in said
    assert session.type("logs", "repeats").stdout == ""
    assert session.json("manifest", "show", "repeats")["attempts"][0]["cause"] == "bad-data"
    (kept,) = session.root.glob("state/**/repeats/1/worker-1.probe-1.log")
    assert "tpuctl-probe" in kept.read_text()


def test_a_stop_ends_a_probe_that_hangs(session: Session, objects: GoogleObjects) -> None:
    probe(session, "own", "slow")
    words = ("--on", "big", "--no-checkpoint", "--grace", "1", "main.py")
    client = session.start("run", "--name", "hangs", "--data", TOKENS, *words)
    try:
        wait_until(lambda: len(programs_of("hangs")) >= 2, 60.0)
        session.type("stop", "hangs", "--yes")
        wait_until(lambda: not programs_of("hangs"), 60.0)
        assert session.finish(client).stdout == ""
    finally:
        client.kill()
        client.communicate()


def test_every_way_to_a_run_probes_its_data(session: Session, objects: GoogleObjects) -> None:
    probe(session, "own")
    run(session, "--name", "parts", "--data", TOKENS)
    session.type("rerun", "parts", "--on", "v4-8", "--pay", "--name", "again")
    assert [probed(session, name) for name in ("parts", "again")] == [[2], [1]]
    (session.work / "fleet.yaml").write_text(FLEET)
    session.type("apply", "--file", "fleet.yaml")
    name = next(row["id"] for row in session.json("runs") if row["slice"] == "one")
    session.type("attach", name)
    assert probed(session, name) == [1]
    assert [row["uri"] for row in session.json("manifest", "show", name)["data"]] == [TOKENS]
    session.type("down", "one", "--yes")


def test_data_that_changed_before_a_restart_keeps_the_next_attempt_from_starting(
    session: Session, objects: GoogleObjects
) -> None:
    probe(session, "own")
    (session.work / "twice.py").write_text(
        "import os, time\ntime.sleep(600 if os.environ['TPUCTL_ATTEMPT'] == '1' else 0)\n"
    )
    words = ("--on", "big", "--no-checkpoint", "--grace", "1", "--detach", "twice.py")
    session.type("run", "--name", "later", "--data", TOKENS, *words)
    objects.write(f"{TOKENS}/part-2.bin", b"1234")
    try:
        session.type("sim", "preempt", "big-1")
        refused = session.type("attach", "later", status=None)
        assert refused.returncode != 0
        said = " ".join(refused.stderr.split())
        assert f"{TOKENS} is not as its receipt says: 3 objects instead of 2" in said
        assert f"tpuctl data receipt {TOKENS} --contract FILE, tpuctl rerun later --data {TOKENS}" in said
        assert session.json("manifest", "show", "later")["attempts"][0]["cause"] == "preempted"
    finally:
        objects.delete(f"{TOKENS}/part-2.bin")
    session.type("attach", "later")
    assert probed(session, "later") == [2, 2]


def test_made_up_data_is_shown_wherever_the_run_is(session: Session) -> None:
    (session.work / "tpuctl.yaml").write_text("settings: {require_data: true}\n")
    try:
        assert "does not say what it reads" in run(session, status=2)
        run(session, "--name", "noise", "--synthetic")
    finally:
        (session.work / "tpuctl.yaml").unlink()
    assert "synthetic" in session.type("runs").stdout
    assert session.json("manifest", "show", "noise")["synthetic"] is True
    assert "synthetic data" in session.type("why", "noise").stderr
    session.type(
        "run", "--on", "big", "--name", "long", "--synthetic", "--no-checkpoint", "-d", "--", "sleep", "99"
    )
    assert "synthetic" in session.type("ls").stdout
    assert "synthetic" in session.type("status", "big").stdout
    session.type("stop", "long", "--yes", "--grace", "1")
    assert "synthetic" not in session.type("ls").stdout


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("data", "receipt", "gs://sim-bucket/nothing"), 5, "there is nothing at gs://sim-bucket/nothing"),
        (("data", "receipt", "gs://My_Bucket/p"), 2, "no bucket can be called 'My_Bucket'"),
        (("data", "receipt", "/mnt/data"), 2, "is no place of data"),
        (("data", "receipt", "disk-of-nobody"), 2, "no slice has disk disk-of-nobody"),
        (("data", "receipt", "big:/nowhere"), 5, "no such file or directory: /nowhere"),
        (("data", "receipt", TOKENS, "--contract", "none.yaml"), 5, "there is no file none.yaml"),
        (("data", "pack", ".", "gs://My_Bucket/p"), 2, "for example gs://my_bucket"),
        (("run", "--on", "big", "main.py", "--data", TOKENS, "--synthetic"), 2, "exclude each other"),
        (
            ("run", "--on", "big", "main.py", "--no-checkpoint", "--data", f"{TOKENS}=main.py"),
            2,
            "no receipt of data",
        ),
    ],
)
def test_what_cannot_be_is_one_line(
    session: Session, objects: GoogleObjects, words: tuple[str, ...], status: int, said: str
) -> None:
    refused = session.type(*words, status=status)
    assert said in " ".join(refused.stderr.split())
