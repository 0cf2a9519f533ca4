"""`tpuctl bill` at the terminal: its tables, its exit status, its receipt."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import yaml
from google.oauth2.credentials import Credentials

from tests.support.session import Session, open_session
from tpuctl.cloud.rest import RestClient

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as made:
        yield made


@pytest.fixture(scope="module")
def rest(session: Session) -> RestClient:
    profile = json.loads((session.root / "state/sim/profile.json").read_text())
    token = (session.root / "state/sim/token").read_text().strip()
    return RestClient(profile["endpoint_compute"], Credentials(token=token))


def test_an_empty_project_exits_0_and_a_receipt_proves_it(session):
    done = session.type("bill", "--receipt", "proof.yaml")
    assert "sim-bucket" in done.stdout
    receipt = yaml.safe_load((session.work / "proof.yaml").read_text())
    assert (receipt["zero"], receipt["not_read"], receipt["project"]) == (True, [], "sim-project")
    assert receipt["read_at"].endswith("Z")
    again = session.type("bill", "--receipt", "proof.yaml", status=2)
    assert "the file exists" in again.stderr
    session.type("bill", "-o", "proof.txt", status=2)


def test_what_is_to_be_paid_exits_1_with_its_price(session, rest):
    zone = "/compute/v1/projects/sim-project/zones/us-central2-b/disks"
    rest.change(
        "POST",
        zone,
        "make a disk",
        {"name": "data", "sizeGb": "730", "type": "zones/us-central2-b/diskTypes/pd-standard"},
    )
    session.type("up", "v4-8", "mine", "--spot", "--pay")
    shown = session.type("bill", status=1)
    assert "covered" not in shown.stderr
    assert "2 to be paid" in shown.stderr
    disk = next(line for line in shown.stdout.splitlines() if " data " in line)
    assert disk.split()[-7:-4] == ["you", "0.0400", "29.20"]
    session.type("grant", "add", "32", "spot", "v4", "us-central2-b")
    data = json.loads(session.type("bill", "--json", status=1).stdout)
    assert [line["name"] for line in data["covered"]] == ["mine-1"]
    assert [line["name"] for line in data["paid"]] == ["data"]
    rest.change("DELETE", f"{zone}/data", "delete a disk")
    session.type("bill")
    session.type("down", "mine", "--yes")


def test_what_cannot_be_read_is_named_and_exits_3(session, rest):
    fault = {"kind": "error", "method": "addresses.aggregatedList", "code": 7, "message": "API off", "times": 1}
    rest.change("POST", "/_sim/faults", "plan a fault", fault)
    shown = session.type("-q", "bill", status=3)  # what the answer lacks belongs to it
    assert "not read: addresses" in shown.stderr
    assert "API off" in shown.stderr
