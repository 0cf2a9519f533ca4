"""Programs on simulated hosts find the credentials of the machine, and those that forget them are refused."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hosts import TIERS, require_tier
from tests.support.session import Session, open_session
from tpuctl.sim.world.identity import DEFAULT_ACCOUNT


@pytest.fixture(scope="module", params=TIERS)
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    """One slice of one host, called `one`."""
    require_tier(request.param)
    with open_session("--instant", "--hosts", request.param) as opened:
        opened.type("up", "v4-8", "one", "--spot", "--pay")
        opened.tier = request.param  # type: ignore[attr-defined]
        yield opened


def on_host(session: Session, program: str, python: str = "python3") -> dict[str, object]:
    """What a program that is piped into an interpreter on the host prints, as JSON."""
    command = f"{shlex.quote(python)} -c {shlex.quote(program)}"
    done = session.type("exec", "one", "--json", "--", "sh", "-c", command)
    [row] = json.loads(done.stdout)
    assert row["exit_status"] == 0, row
    answer: dict[str, object] = json.loads(row["stdout"])
    return answer


STANDARD_LIBRARY = """
import json, os, urllib.error, urllib.request
where = os.environ.get("GCE_METADATA_HOST") or "metadata.google.internal"

def told(path):
    url = "http://%s/computeMetadata/v1/%s" % (where, path)
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    return urllib.request.urlopen(request, timeout=20).read().decode()

def status(headers):
    url = "https://storage.googleapis.com/storage/v1/b/sim-bucket"
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20).status
    except urllib.error.HTTPError as error:
        return error.code

token = json.loads(told("instance/service-accounts/default/token"))["access_token"]
print(json.dumps({
    "account": told("instance/service-accounts/default/email"),
    "project": told("project/project-id"),
    "with the token": status({"Authorization": "Bearer " + token}),
    "without": status({}),
    "variables": sorted(name for name in os.environ if "EMULATOR" in name or name.startswith("GOOGLE_")),
}))
"""


def test_the_metadata_servers_token_opens_the_doors_and_nothing_else_does(session: Session) -> None:
    assert on_host(session, STANDARD_LIBRARY) == {
        "account": DEFAULT_ACCOUNT,
        "project": "sim-project",
        "with the token": 200,
        "without": 401,
        "variables": [],
    }


GOOGLE_LIBRARIES = """
import json
import google.auth
from google.auth.exceptions import InvalidOperation
from google.auth.transport.requests import Request
from google.cloud import storage, tpu_v2

credentials, project = google.auth.default()
credentials.refresh(Request())
storage.Client().bucket("sim-bucket").blob("from/host").upload_from_string("kept")
try:
    storage.Client.create_anonymous_client().bucket("sim-bucket").blob("from/host").download_as_bytes()
    forgotten = "let in"
except InvalidOperation as error:  # the library's answer to 401
    forgotten = str(error)
print(json.dumps({
    "project": project,
    "read": storage.Client().bucket("sim-bucket").blob("from/host").download_as_text(),
    "account": credentials.service_account_email,
    "anonymous": forgotten,
    "by gRPC": [
        node.name.rpartition("/")[2]
        for node in tpu_v2.TpuClient().list_nodes(parent="projects/sim-project/locations/us-central2-b")
    ],
}))
"""


def test_googles_libraries_work_as_on_a_real_host(session: Session) -> None:
    if session.tier == "isolated" and str(Path(sys.prefix)).startswith(("/root", "/home", "/tmp", "/mnt")):  # type: ignore[attr-defined]
        pytest.skip("an isolated host does not see the virtual environment of these tests where it is")
    assert on_host(session, GOOGLE_LIBRARIES, sys.executable) == {
        "project": "sim-project",
        "read": "kept",
        "account": DEFAULT_ACCOUNT,
        "anonymous": "Anonymous credentials cannot be refreshed.",
        "by gRPC": ["one-1"],
    }
