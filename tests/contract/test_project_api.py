"""The project's own APIs through the real adapter: against the simulator, and what goes over the wire."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from google.oauth2 import service_account
from google.oauth2.credentials import Credentials

from tests.support.sim import RunningSim, running_sim
from tpuctl.cloud.credentials import describe_credentials
from tpuctl.cloud.project import GoogleProject
from tpuctl.cloud.storage import GoogleObjects
from tpuctl.errors import ConflictError, DeniedError, NotFoundError, TransientError
from tpuctl.model.cloud import Api, Tier
from tpuctl.model.facts import BucketSpec
from tpuctl.money.quotas import ADDRESSES, HEALTH_CHECKS

ENDPOINTS = ("resource_manager", "service_usage", "compute", "quotas", "tpu", "storage")


def project_at(endpoint: str, token: str) -> GoogleProject:
    credentials = Credentials(token=token)
    return GoogleProject("sim-project", lambda: credentials, **dict.fromkeys(ENDPOINTS, endpoint))


@pytest.fixture(scope="module")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSim]:
    with running_sim(
        tmp_path_factory.mktemp("p"), quotas={"HEALTH_CHECKS": 75, "us-east1-d/v6e": 64}
    ) as running:
        yield running


@pytest.fixture
def project(sim: RunningSim) -> Iterator[GoogleProject]:
    yield project_at(sim.endpoint, sim.token)
    sim.world.faults.clear()


def test_services_permissions_and_quotas(project: GoogleProject) -> None:
    assert "tpu.googleapis.com" in project.list_services()
    assert project.granted_permissions(["tpu.nodes.get"]) == {"tpu.nodes.get"}
    found = {quota.metric: quota for quota in project.project_info().quotas}
    assert (found[HEALTH_CHECKS].limit, found[HEALTH_CHECKS].usage, found[HEALTH_CHECKS].region) == (75, 0, "")
    regional = {quota.metric: quota.region for quota in project.region_quotas("us-east1")}
    assert regional[ADDRESSES] == "us-east1"
    v6e = [q for q in project.tpu_quotas(Api.TPU) if q.location == "us-east1-d" and q.generation == "v6e"]
    assert {(quota.preemptible, quota.limit) for quota in v6e} == {(False, 64), (True, 64)}


def test_none_of_the_permissions(sim: RunningSim, project: GoogleProject) -> None:
    sim.fault(preset="no-permission", name="*")
    assert project.granted_permissions(["tpu.nodes.get", "tpu.nodes.list"]) == frozenset()
    with pytest.raises(DeniedError, match=r"compute\.regions\.get"):
        project.region_quotas("us-east1")


def test_an_api_that_is_off_is_a_denial_with_the_command_that_enables_it(
    sim: RunningSim, project: GoogleProject
) -> None:
    sim.fault(preset="api-off", name="cloudquotas.googleapis.com")
    with pytest.raises(DeniedError) as caught:
        project.tpu_quotas(Api.TPU)
    assert caught.value.hint == "gcloud services enable cloudquotas.googleapis.com --project=415104041262"
    assert "http" not in caught.value.message


def test_an_expired_token_is_said_so(sim: RunningSim, project: GoogleProject) -> None:
    sim.fault(preset="expired-token")
    with pytest.raises(DeniedError) as caught:
        project.list_services()
    assert caught.value.details["status"] == 401
    assert "token is refused" in caught.value.message


def test_buckets_have_a_place(project: GoogleProject) -> None:
    assert project.bucket_place("sim-bucket").location
    with pytest.raises(NotFoundError):
        project.bucket_place("no-such-bucket-here")


def test_a_bucket_that_is_made_is_regional_labelled_and_nobody_elses(
    sim: RunningSim, project: GoogleProject
) -> None:
    objects = GoogleObjects("sim-project", sim.endpoint, Credentials(token=sim.token))
    objects.create_bucket(BucketSpec("made-here", "us-central2", {"tpuctl-store": "s1"}))
    place, settings = project.bucket_place("made-here"), project.bucket_settings("made-here")
    assert (place.location, place.kind) == ("US-CENTRAL2", "region")
    assert (settings.soft_delete_s, settings.labels) == (0, {"tpuctl-store": "s1"})
    access = project._bucket("made-here")["iamConfiguration"]
    assert access["uniformBucketLevelAccess"]["enabled"]
    assert access["publicAccessPrevention"] == "enforced"
    with pytest.raises(ConflictError):
        objects.create_bucket(BucketSpec("made-here", "us-central2", {}))


def test_clocks_are_compared_without_credentials(sim: RunningSim) -> None:
    stranger = project_at(sim.endpoint, "nobody")
    assert abs(stranger.clock_ahead()) < 5
    sim.fault(preset="clock-off", seconds=900.0)
    assert stranger.clock_ahead() == pytest.approx(900, abs=5)
    sim.world.faults.clear()


def test_no_server_no_clock() -> None:
    with pytest.raises(TransientError):
        project_at("http://127.0.0.1:1", "x").clock_ahead()


class Recorder(BaseHTTPRequestHandler):
    """Answers from `server.answers` in turn and keeps what was asked."""

    def _serve(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length).decode()
        self.server.asked.append((self.path, dict(self.headers), body))  # type: ignore[attr-defined]
        status, data = self.server.answers.pop(0)  # type: ignore[attr-defined]
        content = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = _serve

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@contextmanager
def recorder(*answers: tuple[int, Any]) -> Iterator[tuple[str, list[Any]]]:
    server = HTTPServer(("127.0.0.1", 0), Recorder)
    server.answers, server.asked = list(answers), []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server.asked  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_quotas_come_in_pages_with_defaults_and_left_out_zeros() -> None:
    info = {"quotaId": "TPUV6EPreemptiblePerProjectPerZoneForTPUAPI"}
    first = {
        "quotaInfos": [{**info, "dimensionsInfos": [{"dimensions": {"zone": "us-east1-d"}, "details": {}}]}],
        "nextPageToken": "more",
    }
    default = {"details": {"value": "64"}, "applicableLocations": ["us-east5-a", "us-east5-b"]}
    second = {"quotaInfos": [{**info, "dimensionsInfos": [default]}, {"quotaId": "ApiRequests"}]}
    with recorder((200, first), (200, second)) as (endpoint, asked):
        found = project_at(endpoint, "t").tpu_quotas(Api.TPU)
    assert [(q.location, q.limit) for q in found] == [("us-east1-d", 0), ("us-east5-a", 64), ("us-east5-b", 64)]
    assert "pageToken=more" in asked[1][0]


def test_chips_of_compute_engine_are_a_pool_of_their_own(sim: RunningSim, project: GoogleProject) -> None:
    sim.world.set_quotas({"TPUS_PER_TPU_FAMILY/us-east5/CT6E": 0, "PREEMPTIBLE_TPU_V6E/us-east5-a": 8})
    found = {
        (quota.location, quota.preemptible): quota
        for quota in project.tpu_quotas(Api.COMPUTE)
        if quota.generation == "v6e"
    }
    family, spot = found["us-east5", False], found["us-east5-a", True]
    assert (family.limit, family.family, spot.limit) == (0, "CT6E", 8)
    assert family.covers("v6e", Tier.ON_DEMAND, Api.COMPUTE)
    assert not family.covers("v6e", Tier.ON_DEMAND, Api.TPU)
    assert found["us-east1", False].limit > 0, "the default of all other regions"


def test_what_compute_engine_does_not_state_is_no_limit() -> None:
    """As users read it: of a family the regions that were granted something, of spot -1 in all zones."""
    family = {"quotaId": "TPUS-PER-TPU-FAMILY-per-project-region"}
    rows = [
        {"dimensions": {"region": "us-south1", "tpu_family": "CT6E"}, "details": {"value": "32"}},
        {"dimensions": {"region": "us-east5", "tpu_family": "CT6E"}, "details": {}},
        {"dimensions": {"tpu_family": "CT6E"}, "details": {}, "applicableLocations": ["us-east1"]},
        {"dimensions": {"region": "us-south1", "tpu_family": "CT3"}, "details": {"value": "8"}},
        {"details": {}, "applicableLocations": ["us-west1"]},
    ]
    zonal = {"details": {"value": "-1"}, "applicableLocations": ["us-east5-a"]}
    regional = {"details": {"value": "1536"}, "applicableLocations": ["us-east5"]}
    answer = {
        "quotaInfos": [
            {**family, "dimensionsInfos": rows},
            {"quotaId": "PREEMPTIBLE-TPU-V6E-per-project-zone", "dimensionsInfos": [zonal]},
            {"quotaId": "PREEMPTIBLE-TPU-V6E-per-project-region", "dimensionsInfos": [regional]},
            {"quotaId": "TPU-LITE-PODSLICE-V5-per-project-region", "dimensionsInfos": [regional]},
        ]
    }
    with recorder((200, answer)) as (endpoint, asked):
        found = project_at(endpoint, "t").tpu_quotas(Api.COMPUTE)
    assert "/services/compute.googleapis.com/quotaInfos" in asked[0][0]
    assert [(q.location, q.limit, q.preemptible) for q in found] == [
        ("us-south1", 32, False),
        ("us-east5", 0, False),
        ("us-east5", 1536, True),
    ]


def test_a_persons_login_names_the_project_that_pays_for_the_call() -> None:
    with recorder((200, {}), (200, {"quotas": [{"metric": "CPUS"}]})) as (endpoint, asked):
        project = project_at(endpoint, "t")
        assert project.list_services() == frozenset()
        assert project.region_quotas("us-east1") == (), "a quota without a limit is not a limit of 0"
    headers = [{key.lower(): value for key, value in sent.items()} for _, sent, _ in asked]
    assert headers[0]["x-goog-user-project"] == "sim-project"
    assert "x-goog-user-project" not in headers[1]


def a_service_account(token_uri: str) -> service_account.Credentials:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    info = {
        "type": "service_account",
        "client_email": "robot@p-roject.iam.gserviceaccount.com",
        "private_key": pem.decode(),
        "token_uri": token_uri,
    }
    return service_account.Credentials.from_service_account_info(info, scopes=["x"])  # type: ignore[no-untyped-call]


def test_a_service_account_is_renewed_and_says_whose_it_is_and_until_when() -> None:
    import time

    with recorder((200, {"access_token": "a", "expires_in": 3600, "token_type": "Bearer"})) as (endpoint, _):
        found = describe_credentials(a_service_account(endpoint), "service_account", "/key.json")
    assert found.account == "robot@p-roject.iam.gserviceaccount.com"
    assert found.renews
    assert found.expires_at == pytest.approx(time.time() + 3600, abs=60)


def test_a_revoked_key_is_a_denial() -> None:
    refusal = {"error": "invalid_grant", "error_description": "Invalid JWT Signature."}
    with recorder((400, refusal)) as (endpoint, _), pytest.raises(DeniedError) as caught:
        describe_credentials(a_service_account(endpoint), "service_account", "/key.json")
    assert "renew the credentials /key.json" in caught.value.message
    assert "Invalid JWT Signature" in caught.value.message


def test_a_bare_token_is_taken_as_it_is(tmp_path: Path) -> None:
    found = describe_credentials(Credentials(token="t"), "token-file", str(tmp_path))
    assert (found.renews, found.expires_at, found.account) == (False, None, "")
