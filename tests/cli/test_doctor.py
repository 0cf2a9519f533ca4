"""`tpuctl doctor` through the real command line: a sound set-up, and broken ones that it must name.

Every breakage is made in the world (the simulated project, the store's file, the crontab, the key), none in
tpuctl.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.session import SIM_FIRST, Session, open_session
from tests.support.spool import Spool

ZONE = "us-central2-b"
CHECKS = {
    *("credentials", "clock", "apis", "permissions", "tpu quota", "side quotas", "ssh key", "os login"),
    *("vpc", "buckets", "tpus", "disks", "store", "watchdog", "tools"),
}


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as session:
        session.add_quick_gcloud()
        # Without this, google.auth looks for a Google VM's metadata server when there are no credentials.
        session.environ["NO_GCE_CHECK"] = "true"
        session.type("grant", "add", "32", "spot", "v4", ZONE)
        session.type("up", "v4-8", "small", "--spot")
        session.type("watch", "once")
        yield session


@pytest.fixture(autouse=True)
def mended(session: Session) -> Iterator[None]:
    """Whatever a test breaks in the simulated project or the environment is whole again afterwards."""
    environ = dict(session.environ)
    yield
    session.environ = environ
    session.type("sim", "fault", "--clear")


def state(session: Session) -> Path:
    return session.root / "state"


def store(session: Session) -> Path:
    return state(session) / "sim" / "sim-project" / "store.sqlite"


def findings(session: Session, *, status: int) -> list[dict[str, Any]]:
    report = json.loads(session.type("doctor", "--json", status=status).stdout)
    found: list[dict[str, Any]] = report["findings"]
    assert report["problems"] == sum(each["level"] == "problem" for each in found)
    assert {each["check"] for each in found} == CHECKS, "every check runs, whatever the others find"
    return found


def problems(session: Session) -> list[tuple[str, str, str]]:
    """(check, what, fix) of every problem; there must be some."""
    found = findings(session, status=1)
    return [(each["check"], each["what"], each["fix"]) for each in found if each["level"] == "problem"]


def the_problem(session: Session, check: str) -> tuple[str, str]:
    """What is wrong and what mends it, when exactly one check finds a problem."""
    found = problems(session)
    assert [each[0] for each in found] == [check], found
    return found[0][1], found[0][2]


def test_a_sound_set_up_has_no_problem(session: Session) -> None:
    found = findings(session, status=0)
    assert {each["level"] for each in found} == {"ok"}
    words = {each["check"]: each["what"] for each in found}
    assert "8 of 100000 used" in words["tpu quota"]
    assert "google-cloud-tpu 1." in words["tools"]
    assert "schema" in words["store"]


def test_the_report_fits_eighty_columns_and_says_what_to_type(session: Session) -> None:
    session.type("sim", "fault", "api-off")
    done = session.type("doctor", status=1)
    lines = done.stdout.splitlines()
    assert max(len(line) for line in lines if "fix: " not in line) <= 80
    assert any(f"fix: {SIM_FIRST}gcloud services enable tpu.googleapis.com" in line for line in lines)
    assert lines[0].startswith("[sim] ")
    assert "1 problem," in done.stderr


def test_it_changes_nothing(session: Session) -> None:
    before = (store(session).read_bytes(), session.sim_journal())
    session.type("doctor")
    assert (store(session).read_bytes(), session.sim_journal()) == before


# The broken set-ups.


def test_no_credentials(session: Session) -> None:
    profile = state(session) / "sim" / "profile.json"
    good = profile.read_text()
    profile.write_text(json.dumps({k: v for k, v in json.loads(good).items() if k != "token_file"}))
    try:
        what, fix = the_problem(session, "credentials")
    finally:
        profile.write_text(good)
    assert "no Google credentials" in what
    assert "gcloud auth application-default login" in fix


def test_expired_credentials(session: Session) -> None:
    session.type("sim", "fault", "expired-token")
    what, fix = the_problem(session, "credentials")
    assert "expired" in what
    assert fix


def test_an_api_that_is_off(session: Session) -> None:
    session.type("sim", "fault", "api-off")
    what, fix = the_problem(session, "apis")
    assert "tpu.googleapis.com is not enabled" in what
    assert fix == f"{SIM_FIRST}gcloud services enable tpu.googleapis.com --project=sim-project"


def test_an_api_that_is_off_where_the_list_of_apis_cannot_be_read(session: Session) -> None:
    session.type("sim", "fault", "api-off", "--set", "name=compute.googleapis.com")
    session.type("sim", "fault", "no-permission", "--set", "name=serviceusage.*")
    what, _ = the_problem(session, "apis")
    assert "compute.googleapis.com is not enabled" in what


def test_a_permission_that_is_missing(session: Session) -> None:
    session.type("sim", "fault", "no-permission")
    what, fix = the_problem(session, "permissions")
    assert "tpu.nodes.create" in what
    assert "--role=roles/tpu.admin" in fix


@pytest.mark.parametrize(("seconds", "word"), [("900.0", "behind"), ("-900.0", "ahead of")])
def test_a_clock_that_is_off(session: Session, seconds: str, word: str) -> None:
    session.type("sim", "fault", "clock-off", "--set", f"seconds={seconds}")
    what, fix = the_problem(session, "clock")
    assert f"15 min {word} the API's clock" in what
    assert "timedatectl" in fix


@pytest.mark.parametrize(
    ("mode", "content", "said", "mends"),
    [
        (0o000, None, "cannot be read", "chmod 600"),
        (0o600, b"no key at all\n", "no usable key", "mv "),
        (0o644, None, "can be read by others", "chmod 600"),
    ],
)
def test_a_key_that_is_not_usable(
    session: Session, mode: int, content: bytes | None, said: str, mends: str
) -> None:
    key = state(session) / "ssh_ed25519"
    good = key.read_bytes()
    if content is not None:
        key.write_bytes(content)
    key.chmod(mode)
    try:
        what, fix = the_problem(session, "ssh key")
    finally:
        key.chmod(0o600)
        key.write_bytes(good)
    assert said in what
    assert fix.startswith(mends)


def set_schema(session: Session, version: int) -> int:
    """Returns the one before."""
    with closing(sqlite3.connect(store(session))) as db:
        before = int(db.execute("PRAGMA user_version").fetchone()[0])
        db.execute(f"PRAGMA user_version = {version}")
        db.commit()
    return before


def test_cron_is_gone(session: Session, tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    session.environ["PATH"] = f"{spool.bin}:{session.environ['PATH']}"
    session.type("watch", "install", "--yes")
    spool.table.write_text("")
    try:
        what, fix = the_problem(session, "watchdog")
    finally:
        session.type("watch", "uninstall")
        session.type("watch", "once")
    assert "gone from the crontab" in what
    assert "tpuctl watch install --yes" in fix


def test_os_login_of_the_project_is_told_and_no_problem(session: Session) -> None:
    from tpuctl.sim.server import control

    info = session.sim()
    control.set_metadata(info, {"enable-oslogin": "TRUE"})
    try:
        found = [each for each in findings(session, status=0) if each["check"] == "os login"]
    finally:
        control.set_metadata(info, {"enable-oslogin": "FALSE"})
    assert [each["level"] for each in found] == ["ok"]
    assert "every node that tpuctl makes says enable-oslogin=FALSE" in found[0]["what"]


def test_many_things_at_once_are_all_named(session: Session) -> None:
    session.type("sim", "fault", "clock-off")
    session.type("sim", "fault", "no-permission")
    session.type("sim", "fault", "api-off", "--set", "name=storage.googleapis.com")
    before = set_schema(session, 99)
    try:
        named = [check for check, _, _ in problems(session)]
    finally:
        set_schema(session, before)
    assert named == ["clock", "apis", "permissions", "store"]


def test_without_a_simulator_the_tools_are_still_looked_at(tmp_path: Path) -> None:
    session = Session(tmp_path)
    done = session.type("doctor", "--json", status=1)
    found = json.loads(done.stdout)["findings"]
    made = [each for each in found if not each["what"].startswith("not checked: ")]
    assert [(each["check"], each["level"], each["fix"]) for each in made] == [
        ("settings", "problem", "tpuctl sim up"),
        ("tools", "ok", None),
    ]
    assert {each["check"] for each in found} == CHECKS | {"settings"}


def test_a_typo_in_the_settings_is_named_with_its_place(session: Session) -> None:
    path = session.work / "tpuctl.yaml"
    path.write_text("settings:\n  teir: spot\n")
    try:
        done = session.type("doctor", "--json", status=1)
    finally:
        path.unlink()
    found = json.loads(done.stdout)["findings"][0]
    assert (found["check"], found["level"]) == ("settings", "problem")
    assert "tpuctl.yaml" in found["what"]
    assert found["fix"] == "change it to 'tier'"


def test_what_cannot_be_read_is_a_warning_and_no_problem(session: Session) -> None:
    session.type("sim", "fault", "no-permission", "--set", "name=cloudquotas.*")
    found = findings(session, status=0)
    warned = {each["check"]: each for each in found if each["level"] == "warning"}
    assert set(warned) == {"permissions", "tpu quota"}
    assert warned["tpu quota"]["what"].startswith("not checked: ")
    assert "roles/viewer" in warned["permissions"]["fix"]


def the_warning(session: Session, check: str) -> dict[str, Any]:
    told = [each for each in findings(session, status=0) if each["level"] == "warning"]
    (found,) = [each for each in told if each["check"] == check]
    # The last pass grows old while a slow machine runs these tests.
    assert {each["check"] for each in told} <= {check, "watchdog"}
    return found


def test_a_project_without_the_network_of_new_slices(session: Session) -> None:
    session.type("sim", "fault", "no-network")
    found = next(each for each in findings(session, status=1) if each["level"] == "problem")
    assert "there is no network default" in found["what"]
    assert found["fix"] == f"{SIM_FIRST}gcloud compute networks create default --project=sim-project"
    refused = session.type("up", "v4-8", "other", "--spot", status=2)
    assert "gcloud compute networks create default" in refused.stderr
    session.type("down", "other", "--yes")


def test_whoever_has_disks_is_told_of_their_role(session: Session) -> None:
    session.type("sim", "fault", "no-permission", "--set", "name=compute.disks.*")
    assert "permissions" not in {each["check"] for each in findings(session, status=0) if each["level"] != "ok"}
    session.type("sim", "fault", "--clear")
    session.type("disk", "create", "data", "--size", "10", "--zone", ZONE)
    session.type("sim", "fault", "no-permission", "--set", "name=compute.disks.create*")
    try:
        told = [each for each in findings(session, status=0) if each["check"] == "permissions"]
    finally:
        session.type("sim", "fault", "--clear")
        session.type("disk", "rm", "data", "--yes")
    assert [each["level"] for each in told] == ["warning"]
    assert "compute.disks.createSnapshot" in told[0]["what"]
    assert told[0]["fix"].endswith("--role=roles/compute.storageAdmin")


def test_a_caller_who_may_not_act_as_the_service_account(session: Session) -> None:
    session.type("sim", "fault", "no-actas")
    found = the_warning(session, "permissions")
    assert "iam.serviceAccounts.actAs" in found["what"]
    assert "--role=roles/iam.serviceAccountUser" in found["fix"]
    refused = session.type("up", "v4-8", "other", "--spot", status=4)
    assert "roles/iam.serviceAccountUser" in refused.stderr
    session.type("down", "other", "--yes")


def test_an_api_that_quotas_come_from_is_off(session: Session) -> None:
    session.type("sim", "fault", "api-off", "--set", "name=cloudquotas.googleapis.com")
    found = [each for each in findings(session, status=0) if each["check"] == "apis"]
    assert [each["fix"] for each in found] == [
        f"{SIM_FIRST}gcloud services enable cloudquotas.googleapis.com --project=sim-project"
    ]


def test_no_network_at_all_is_one_problem(session: Session) -> None:
    profile = state(session) / "sim" / "profile.json"
    good = profile.read_text()
    simulated = json.loads(good)["endpoint_tpu"]
    profile.write_text(good.replace(simulated, "http://127.0.0.1:9"))
    try:
        report = json.loads(session.type("doctor", "--json", status=1).stdout)
        waited = session.type("up", "small", "--timeout", "1s", status=8)
    finally:
        profile.write_text(good)
    assert "hint: tpuctl sim up; nothing listens there" in waited.stderr
    bad = [each for each in report["findings"] if each["level"] != "ok"]
    assert [each["check"] for each in bad if each["level"] == "problem"] == ["network"]
    assert "127.0.0.1:9 does not answer" in bad[0]["what"]
    assert bad[0]["fix"] == "tpuctl sim up"
    assert {each["what"] for each in bad[1:]} == {"not checked: no API answers"}


def test_no_project_does_not_hide_what_else_is_wrong(session: Session) -> None:
    del session.environ["TPUCTL_PROFILE"]
    session.environ["CLOUDSDK_CONFIG"] = str(session.root / "no-gcloud")
    report = json.loads(session.type("doctor", "--json", status=1).stdout)
    told = " ".join(session.type("doctor", status=1).stdout.split())
    levels = {each["check"]: each["level"] for each in report["findings"]}
    assert (levels["settings"], levels["credentials"]) == ("problem", "problem")
    assert set(levels) == CHECKS | {"settings"}
    (line,) = re.findall(r"not checked +([^:]*): no project and no credentials", told)
    assert set(line.split(", ")) == CHECKS - {"credentials", "ssh key", "tools"}
