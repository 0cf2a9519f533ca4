"""What the simulated project says about itself and enforces: APIs, permissions, quotas, metadata, its clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.sim import RunningSim
from tpuctl.errors import UsageError
from tpuctl.sim.world.iam import PROJECT_NUMBER, SERVICES
from tpuctl.sim.world.world import WorldOptions

ZONE = "us-central2-b"
PARENT = f"projects/sim-project/locations/{ZONE}"


def ask(sim: RunningSim, path: str, verb: str = "GET", body: Any = None) -> tuple[int, Any, Any]:
    """Status, decoded body and headers."""
    answer = sim.call(verb, path, json=body)
    return answer.status_code, answer.json(), answer.headers


def reasons(body: Any) -> list[str]:
    return [each["reason"] for each in body["error"]["details"] if "reason" in each]


def create(sim: RunningSim, id: str, type: str = "v4-16", *, external: bool = True) -> tuple[int, Any]:
    node = {
        "acceleratorType": type,
        "runtimeVersion": "tpu-ubuntu2204-base",
        "networkConfig": {"enableExternalIps": external},
    }
    status, body, _ = ask(sim, f"/v2/{PARENT}/nodes?nodeId={id}", "POST", node)
    assert sim.world.settle()
    return status, body


def compute_quota(sim: RunningSim, place: str, metric: str) -> tuple[float, float]:
    """Limit and usage."""
    _, body, _ = ask(sim, f"/compute/v1/projects/sim-project{place}")
    found = next(each for each in body["quotas"] if each["metric"] == metric)
    return found["limit"], found["usage"]


def test_services_are_listed_with_their_state(sim: RunningSim) -> None:
    sim.fault(preset="api-off", name="compute.googleapis.com")
    _, enabled, _ = ask(sim, "/v1/projects/sim-project/services?filter=state:ENABLED")
    names = {each["config"]["name"] for each in enabled["services"]}
    assert names == set(SERVICES) - {"compute.googleapis.com"}
    asked = "names=projects/sim-project/services/"
    _, batch, _ = ask(
        sim,
        f"/v1/projects/sim-project/services:batchGet?{asked}tpu.googleapis.com&{asked}compute.googleapis.com",
    )
    assert [each["state"] for each in batch["services"]] == ["ENABLED", "DISABLED"]


def test_an_api_that_is_off_refuses_as_google_does_until_it_is_enabled(sim: RunningSim) -> None:
    sim.fault(preset="api-off")
    status, body, _ = ask(sim, f"/v2/{PARENT}/nodes")
    assert (status, body["error"]["status"], reasons(body)) == (403, "PERMISSION_DENIED", ["SERVICE_DISABLED"])
    assert "Cloud TPU API has not been used in project" in body["error"]["message"]
    enable = "/v1/projects/sim-project/services/tpu.googleapis.com:enable"
    assert ask(sim, enable, "POST", {})[0] == 200
    assert ask(sim, f"/v2/{PARENT}/nodes")[0] == 200


@pytest.mark.parametrize(
    ("verb", "path", "permission"),
    [
        ("POST", f"/v2/{PARENT}/nodes?nodeId=a", "tpu.nodes.create"),
        ("POST", f"/v2/{PARENT}/queuedResources?queuedResourceId=a", "tpu.nodes.create"),
        ("GET", f"/v2/{PARENT}/queuedResources", "tpu.nodes.list"),
        ("GET", f"/v2/{PARENT}/acceleratorTypes", "tpu.acceleratortypes.list"),
        ("GET", "/compute/v1/projects/sim-project", "compute.projects.get"),
        ("GET", "/compute/v1/projects/sim-project/regions/us-central2", "compute.regions.get"),
        ("GET", "/v1/projects/sim-project/services", "serviceusage.services.list"),
        (
            "GET",
            "/v1/projects/sim-project/locations/global/services/tpu.googleapis.com/quotaInfos",
            "cloudquotas.quotas.get",
        ),
    ],
)
def test_a_missing_permission_is_named(sim: RunningSim, verb: str, path: str, permission: str) -> None:
    sim.fault(preset="no-permission", name=permission)
    status, body, _ = ask(sim, path, verb, {} if verb == "POST" else None)
    assert (status, reasons(body)) == (403, ["IAM_PERMISSION_DENIED"])
    assert f"'{permission}'" in body["error"]["message"]


def test_the_address_of_a_resumable_upload_lets_its_bearer_in(sim: RunningSim) -> None:
    begin = f"{sim.endpoint}/upload/storage/v1/b/sim-bucket/o?uploadType=resumable&name=a"
    assert requests.post(begin, timeout=20).status_code == 401
    begun = requests.post(begin, headers={"authorization": f"Bearer {sim.token}"}, timeout=20)
    session = begun.headers["location"]
    assert requests.put(f"{session}x", data=b"1", timeout=20).status_code == 404
    assert requests.put(session, data=b"1", timeout=20).json()["size"] == "1"
    assert (
        requests.get(f"{sim.endpoint}/storage/v1/b/sim-bucket/o/a?upload_id=x", timeout=20).status_code == 401
    )


def test_addresses_count_workers_and_are_enforced(sim: RunningSim) -> None:
    assert ask(sim, "/_sim/quotas", "POST", {"IN_USE_ADDRESSES/us-central2": 3})[0] == 200
    assert create(sim, "one")[0] == 200
    assert compute_quota(sim, "/regions/us-central2", "IN_USE_ADDRESSES") == (3.0, 2.0)
    assert compute_quota(sim, "/regions/us-central1", "IN_USE_ADDRESSES")[1] == 0.0
    status, body = create(sim, "two")
    assert status == 429
    assert "Quota 'IN_USE_ADDRESSES' exceeded" in body["error"]["message"]
    assert create(sim, "two", external=False)[0] == 200
    assert compute_quota(sim, "/regions/us-central2", "INSTANCES")[1] == 4.0


def test_health_checks_are_counted_per_node(sim: RunningSim) -> None:
    ask(sim, "/_sim/quotas", "POST", {"HEALTH_CHECKS": 3})
    assert create(sim, "one")[0] == 200
    assert compute_quota(sim, "", "HEALTH_CHECKS") == (3.0, 2.0)
    status, body = create(sim, "two")
    assert (status, body["error"]["message"]) == (429, "You have reached HEALTH_CHECKS limit")


def test_a_queued_resource_without_room_on_the_side_fails(sim: RunningSim) -> None:
    ask(sim, "/_sim/quotas", "POST", {"INSTANCES": 1})
    spec = {"acceleratorType": "v4-16", "runtimeVersion": "tpu-ubuntu2204-base"}
    queued = {"tpu": {"nodeSpec": [{"parent": PARENT, "nodeId": "q", "node": spec}]}, "spot": {}}
    assert ask(sim, f"/v2/{PARENT}/queuedResources?queuedResourceId=q", "POST", queued)[0] == 200
    assert sim.world.settle()
    _, body, _ = ask(sim, f"/v2/{PARENT}/queuedResources/q")
    assert body["state"]["state"] == "FAILED"
    assert "INSTANCES" in body["state"]["failedData"]["error"]["message"]


def test_tpu_quotas_are_shown_by_zone_in_their_own_unit(sim: RunningSim) -> None:
    ask(sim, "/_sim/quotas", "POST", {f"{ZONE}/v4": 8, "us-east1-d/v6e": 64})
    path = "/v1/projects/sim-project/locations/global/services/tpu.googleapis.com/quotaInfos"
    _, body, _ = ask(sim, path)
    infos = {each["quotaId"]: each["dimensionsInfos"] for each in body["quotaInfos"]}
    v4 = infos["TPUV4sPreemptiblePodPerProjectPerZoneForTPUAPI"]
    assert v4[0] == {
        "dimensions": {"zone": ZONE},
        "details": {"value": "16"},
        "applicableLocations": [ZONE],
    }, "8 chips of v4 are 16 TensorCores"
    v6e = infos["TPUV6EPreemptiblePerProjectPerZoneForTPUAPI"]
    assert v6e[0]["details"] == {"value": "64"}
    assert "us-east1-d" not in v6e[-1]["applicableLocations"]
    _, one, _ = ask(sim, f"{path}/TPUV6EPerProjectPerZoneForTPUAPI")
    assert one["quotaId"] == "TPUV6EPerProjectPerZoneForTPUAPI"


def test_quotas_of_compute_engines_own_chips_are_shown_by_family_and_by_zone(sim: RunningSim) -> None:
    limits = {"TPUS_PER_TPU_FAMILY/us-east5/CT6E": 0, "PREEMPTIBLE_TPU_V6E/us-east5-a": 8}
    ask(sim, "/_sim/quotas", "POST", limits)
    path = "/v1/projects/sim-project/locations/global/services/compute.googleapis.com/quotaInfos"
    _, body, _ = ask(sim, path)
    infos = {each["quotaId"]: each["dimensionsInfos"] for each in body["quotaInfos"]}
    families = infos["TPUS-PER-TPU-FAMILY-per-project-region"]
    dimensions = {"region": "us-east5", "tpu_family": "CT6E"}
    assert {"dimensions": dimensions, "details": {}, "applicableLocations": ["us-east5"]} in families
    rest = {each["dimensions"]["tpu_family"]: each for each in families if "region" not in each["dimensions"]}
    assert set(rest) == {"CT5P", "CT6E", "TPU7X"}
    assert "us-east5" not in rest["CT6E"]["applicableLocations"]
    spot = infos["PREEMPTIBLE-TPU-V6E-per-project-zone"]
    assert spot[0]["dimensions"] == {"zone": "us-east5-a"}
    assert spot[0]["details"] == {"value": "8"}


def test_a_quota_refusal_names_every_limit_that_is_in_the_way(sim: RunningSim) -> None:
    ask(sim, "/_sim/quotas", "POST", {f"{ZONE}/v4": 4, "us-central2/v4": 4})
    status, body = create(sim, "big")
    assert status == 429
    region, zone = (f"TPUV4sPodPerProjectPer{kind}ForTPUAPI" for kind in ("Region", "Zone"))
    assert body["error"]["message"].startswith(
        f"Quota limit '{region},{zone}' has been exceeded. Limit: 8,8 in "
    )
    [failure] = [each for each in body["error"]["details"] if "violations" in each]
    assert [each["description"] for each in failure["violations"]] == [
        f"Quota '{region}' exhausted. Limit 8 in region us-central2",
        f"Quota '{zone}' exhausted. Limit 8 in zone {ZONE}",
    ], "4 chips of v4 are 8 TensorCores, as the Cloud Quotas API counts them"


def test_googles_own_accounts_and_quotas_go_by_the_projects_number(sim: RunningSim) -> None:
    _, body, _ = ask(sim, f"/v2/{PARENT}:generateServiceIdentity", "POST", {})
    assert body["identity"]["email"] == f"service-{PROJECT_NUMBER}@cloud-tpu.iam.gserviceaccount.com"
    path = "/v1/projects/sim-project/locations/global/services/tpu.googleapis.com/quotaInfos"
    assert ask(sim, path)[1]["quotaInfos"][0]["name"].startswith(f"projects/{PROJECT_NUMBER}/locations/global/")
    _, body, _ = ask(sim, "/storage/v1/projects/sim-project/serviceAccount")
    assert body["email_address"] == f"service-{PROJECT_NUMBER}@gs-project-accounts.iam.gserviceaccount.com"
    _, policy, _ = ask(sim, "/storage/v1/b/sim-bucket/iam")
    assert "roles/storage.legacyBucketOwner" in [each["role"] for each in policy["bindings"]]


def test_reset_gives_quotas_and_metadata_back(sim: RunningSim) -> None:
    ask(sim, "/_sim/quotas", "POST", {"HEALTH_CHECKS": 0})
    ask(sim, "/_sim/metadata", "POST", {"enable-oslogin": "TRUE"})
    _, project, _ = ask(sim, "/compute/v1/projects/sim-project")
    assert project["commonInstanceMetadata"]["items"] == [{"key": "enable-oslogin", "value": "TRUE"}]
    ask(sim, "/_sim/reset", "POST", {})
    _, project, _ = ask(sim, "/compute/v1/projects/sim-project")
    assert "items" not in project["commonInstanceMetadata"]
    assert compute_quota(sim, "", "HEALTH_CHECKS")[0] > 0


@pytest.mark.parametrize(
    "quotas", [{"us-nowhere1-a": 4}, {"CPUS": 4}, {"HEALTH_CHECKS/us-east1": 4}, {ZONE: -1}]
)
def test_a_quota_that_limits_nothing_is_refused(
    sim: RunningSim, tmp_path: Path, quotas: dict[str, int]
) -> None:
    status, body, _ = ask(sim, "/_sim/quotas", "POST", quotas)
    assert (status, body["error"]["status"]) == (400, "INVALID_ARGUMENT")
    with pytest.raises(UsageError):
        type(sim.world)(sim.simulator.hosts, WorldOptions(quotas=quotas))


@pytest.mark.parametrize("version", ["v1", "beta", "alpha"])
def test_every_version_of_compute_shows_the_project(sim: RunningSim, version: str) -> None:
    url = f"{sim.endpoint}/compute/{version}/projects/sim-project"
    answer = requests.get(url, headers={"Authorization": f"Bearer {sim.token}"}, timeout=10)
    assert answer.json()["name"] == "sim-project"


PREFERENCES = "/v1beta/projects/sim-project/locations/global/quotaPreferences"
V5E = "TPUV5sPreemptibleLitepodPerProjectPerZoneForTPUAPI"


def more_quota(
    sim: RunningSim, value: int, id: str = V5E, *, service: str = "tpu.googleapis.com", **dimensions: str
) -> tuple[int, Any]:
    wanted = {"service": service, "quotaId": id, "quotaConfig": {"preferredValue": str(value)}}
    status, body, _ = ask(sim, PREFERENCES, "POST", {**wanted, "dimensions": dimensions})
    assert sim.world.settle()
    return status, body


def test_more_quota_is_asked_for_and_granted(sim: RunningSim) -> None:
    sim.world.set_quotas({"us-west4-a/v5e": 0, "us-west4-a": 8, "us-west4-a/v5e:serving": 4})
    status, asked = more_quota(sim, 16, zone="us-west4-a")
    assert (status, asked["reconciling"], asked["quotaConfig"]["grantedValue"]) == (200, True, "0")
    _, made, _ = ask(sim, f"/v1/{asked['name']}")
    assert "reconciling" not in made
    assert made["quotaConfig"]["stateDetail"] == "Quota request approved to 16"
    _, listed, _ = ask(sim, PREFERENCES)
    assert listed["quotaPreferences"] == [made]
    assert sim.world.set_quotas({}) == {"us-west4-a/v5e": 16, "us-west4-a": 16, "us-west4-a/v5e:serving": 4}


def test_there_is_one_request_for_a_quota_in_a_place_which_can_be_changed(sim: RunningSim) -> None:
    sim.world.set_quotas({"us-west4-a/v5e": 0})
    _, made = more_quota(sim, 16, zone="us-west4-a")
    status, refused = more_quota(sim, 32, zone="us-west4-a")
    assert (status, refused["error"]["status"]) == (409, "ALREADY_EXISTS")
    wanted = {"quotaConfig": {"preferredValue": 32}, "service": "tpu.googleapis.com", "quotaId": V5E}
    status, _, _ = ask(sim, f"/v1/{made['name']}", "PATCH", wanted)
    assert sim.world.settle()
    assert (status, sim.world.set_quotas({})) == (200, {"us-west4-a/v5e": 32})


def test_quota_is_asked_for_in_its_own_unit_and_for_all_places_where_none_is_named(sim: RunningSim) -> None:
    sim.world.set_quotas({"us-central2-b/v4": 0})
    status, _ = more_quota(sim, 64, "TPUV4sPodPerProjectPerZoneForTPUAPI")
    assert (status, sim.world.set_quotas({})["us-central2-b/v4"]) == (200, 32)


def test_less_quota_must_be_meant(sim: RunningSim) -> None:
    sim.world.set_quotas({"us-west4-a/v5e": 64})
    status, refused = more_quota(sim, 16, zone="us-west4-a")
    assert (status, refused["error"]["status"]) == (400, "FAILED_PRECONDITION")
    assert "decreases effective quota unsafely" in refused["error"]["message"]
    wanted = {"service": "tpu.googleapis.com", "quotaId": V5E, "quotaConfig": {"preferredValue": 16}}
    path = f"{PREFERENCES}?quotaPreferenceId=less&ignoreSafetyChecks=QUOTA_DECREASE_PERCENTAGE_TOO_HIGH"
    status, _, _ = ask(sim, path, "POST", {**wanted, "dimensions": {"zone": "us-west4-a"}})
    assert sim.world.settle()
    assert (status, sim.world.set_quotas({})) == (200, {"us-west4-a/v5e": 16})


def test_more_addresses_are_asked_for_at_compute_engine(sim: RunningSim) -> None:
    sim.world.set_quotas({"IN_USE_ADDRESSES/us-central2": 0})
    id = "IN-USE-ADDRESSES-per-project-region"
    status, _ = more_quota(sim, 8, id, service="compute.googleapis.com", region="us-central2")
    assert (status, sim.world.set_quotas({})) == (200, {"IN_USE_ADDRESSES/us-central2": 8})


def test_more_chips_of_compute_engine_are_asked_for_by_family_and_by_zone(sim: RunningSim) -> None:
    family, spot = "TPUS-PER-TPU-FAMILY-per-project-region", "PREEMPTIBLE-TPU-V6E-per-project-zone"
    sim.world.set_quotas({"TPUS_PER_TPU_FAMILY/us-east5/CT6E": 0, "PREEMPTIBLE_TPU_V6E/us-east5-a": 4})
    compute = "compute.googleapis.com"
    asked = [
        more_quota(sim, 32, family, service=compute, region="us-east5", tpu_family="CT6E"),
        more_quota(sim, 8, spot, service=compute, zone="us-east5-a"),
        more_quota(sim, 8, spot, service=compute, zone="us-central2-b"),
        more_quota(sim, 8, family, service=compute, region="us-east5"),
        more_quota(sim, 8, family, service=compute, zone="us-east5-a", tpu_family="CT6E"),
    ]
    assert [status for status, _ in asked] == [200, 200, 400, 400, 400]
    limits = sim.world.set_quotas({})
    assert limits == {"TPUS_PER_TPU_FAMILY/us-east5/CT6E": 32, "PREEMPTIBLE_TPU_V6E/us-east5-a": 8}


def test_quota_that_there_is_not_cannot_be_asked_for(sim: RunningSim) -> None:
    assert more_quota(sim, 16, "NONE")[0] == 404
    assert more_quota(sim, 16, zone="mars")[0] == 400
    assert more_quota(sim, 16, region="us-west4")[0] == 400
    assert more_quota(sim, -1, zone="us-west4-a")[0] == 400
    assert ask(sim, f"{PREFERENCES}/none")[0] == 404
    sim.fault(preset="no-permission", name="cloudquotas.quotas.update")
    assert more_quota(sim, 16, zone="us-west4-a")[0] == 403


def test_apis_are_enabled_together_and_a_service_has_an_account(sim: RunningSim) -> None:
    sim.fault(preset="api-off", name="compute.googleapis.com")
    services = "/v1/projects/sim-project/services"
    body = {"serviceIds": ["tpu.googleapis.com", "compute.googleapis.com"]}
    status, done, _ = ask(sim, f"{services}:batchEnable", "POST", body)
    assert (status, [each["state"] for each in done["response"]["services"]]) == (200, ["ENABLED"] * 2)
    assert ask(sim, f"{services}:batchEnable", "POST", {"serviceIds": ["none.googleapis.com"]})[0] == 404
    path = "/v1beta1/projects/sim-project/services/tpu.googleapis.com:generateServiceIdentity"
    _, made, _ = ask(sim, path, "POST", {})
    assert made["response"]["email"] == f"service-{PROJECT_NUMBER}@cloud-tpu.iam.gserviceaccount.com"
