"""Secret Manager, Resource Manager, Cloud Quotas and Service Usage, by the default transport there."""

import os
import time

from checks import check, main, raises
from google.api_core import exceptions
from google.cloud import cloudquotas_v1, resourcemanager_v3, secretmanager_v1, service_usage_v1

PROJECT = f"projects/{os.environ['GOOGLE_CLOUD_PROJECT']}"
TPU = "tpu.googleapis.com"
secrets, projects = secretmanager_v1.SecretManagerServiceClient(), resourcemanager_v3.ProjectsClient()
quotas, services = cloudquotas_v1.CloudQuotasClient(), service_usage_v1.ServiceUsageClient()


def make(name, **fields):
    secret = {"replication": {"automatic": {}}, **fields}
    return secrets.create_secret(parent=PROJECT, secret_id=name, secret=secret)


@check
def by_grpc():
    """they speak gRPC"""
    kinds = {client.transport.kind for client in (secrets, projects, quotas, services)}
    assert kinds == {"grpc"}, kinds


@check
def secret():
    """a secret with labels, two versions, the latest read"""
    made = make("one", labels={"team": "a"})
    assert made.labels == {"team": "a"}
    for content in (b"first", b"second"):
        secrets.add_secret_version(parent=made.name, payload={"data": content})
    found = secrets.access_secret_version(name=f"{PROJECT}/secrets/one/versions/latest")
    assert found.payload.data == b"second"
    assert found.name.endswith("/versions/2")
    assert secrets.access_secret_version(name=f"{made.name}/versions/1").payload.data == b"first"


@check
def lists():
    """secrets and versions are listed, in pages too"""
    for name in ("p1", "p2", "p3"):
        make(name)
    listed = [
        each.name.rpartition("/")[2]
        for each in secrets.list_secrets(request={"parent": PROJECT, "page_size": 2})
    ]
    assert {"p1", "p2", "p3"} <= set(listed), listed
    versions = list(secrets.list_secret_versions(parent=f"{PROJECT}/secrets/one"))
    assert [each.name.rpartition("/")[2] for each in versions] == ["2", "1"]
    assert versions[0].state.name == "ENABLED"


@check
def secret_refusals():
    """a secret that is there, one that is not, a version that is not, a deleted one"""
    raises(exceptions.AlreadyExists, make, "p1")
    raises(exceptions.NotFound, secrets.get_secret, name=f"{PROJECT}/secrets/none")
    raises(exceptions.NotFound, secrets.access_secret_version, name=f"{PROJECT}/secrets/p1/versions/9")
    secrets.delete_secret(name=f"{PROJECT}/secrets/p1")
    raises(exceptions.NotFound, secrets.get_secret, name=f"{PROJECT}/secrets/p1")


@check
def project():
    """the project, by id and by number"""
    found = projects.get_project(name=PROJECT)
    assert found.project_id == os.environ["GOOGLE_CLOUD_PROJECT"]
    assert projects.get_project(name=found.name) == found
    assert found.state.name == "ACTIVE"


@check
def search():
    """projects are searched"""
    assert [each.project_id for each in projects.search_projects()] == [os.environ["GOOGLE_CLOUD_PROJECT"]]
    assert list(projects.search_projects(query="id:none")) == []


@check
def no_project():
    """another project is denied"""
    raises(exceptions.PermissionDenied, projects.get_project, name="projects/not-mine-1")


@check
def policy():
    """permissions are tested and the policy is read"""
    granted = projects.test_iam_permissions(resource=PROJECT, permissions=["tpu.nodes.get"])
    assert list(granted.permissions) == ["tpu.nodes.get"]
    assert "roles/owner" in [each.role for each in projects.get_iam_policy(resource=PROJECT).bindings]


@check
def quota():
    """quotas of the TPU API are listed, and one is read"""
    parent = f"{PROJECT}/locations/global/services/{TPU}"
    found = list(quotas.list_quota_infos(parent=parent))
    assert found
    one = quotas.get_quota_info(name=found[0].name)
    assert (one.quota_id, one.service) == (found[0].quota_id, TPU)


@check
def quota_preference():
    """more quota is asked for, once, and granted"""
    parent, limit = f"{PROJECT}/locations/global", "TPUV6EPerProjectPerZoneForTPUAPI"
    where = {"zone": "us-east5-b"}
    wanted = cloudquotas_v1.QuotaPreference(
        service=TPU, quota_id=limit, quota_config={"preferred_value": 200_000}, dimensions=where
    )
    call = quotas.create_quota_preference
    made = call(parent=parent, quota_preference=wanted, quota_preference_id="more")
    assert (made.reconciling, made.quota_config.granted_value) == (True, 0)
    deadline = time.monotonic() + 30
    while quotas.get_quota_preference(name=made.name).reconciling:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    [shown] = quotas.list_quota_preferences(parent=parent)
    assert shown.quota_config.granted_value == 200_000
    raises(exceptions.AlreadyExists, call, parent=parent, quota_preference=wanted)
    info = quotas.get_quota_info(name=f"{parent}/services/{TPU}/quotaInfos/{limit}")
    [told] = [each for each in info.dimensions_infos if dict(each.dimensions) == where]
    assert told.details.value == 200_000


@check
def service():
    """a service is disabled and enabled"""
    name = f"{PROJECT}/services/{TPU}"
    assert services.get_service(request={"name": name}).state.name == "ENABLED"
    disabled = services.disable_service(request={"name": name}).result(timeout=30)
    assert disabled.service.state.name == "DISABLED"
    enabled = services.enable_service(request={"name": name}).result(timeout=30)
    assert enabled.service.state.name == "ENABLED"


@check
def service_lists():
    """services are listed with a filter, and read several at once"""
    on = [
        each.config.name
        for each in services.list_services(request={"parent": PROJECT, "filter": "state:ENABLED"})
    ]
    assert TPU in on
    names = [f"{PROJECT}/services/{TPU}", f"{PROJECT}/services/compute.googleapis.com"]
    found = services.batch_get_services(request={"parent": PROJECT, "names": names}).services
    assert [each.config.name for each in found] == [TPU, "compute.googleapis.com"]


@check
def no_service():
    """a service that there is not is refused"""
    raises(exceptions.GoogleAPICallError, services.get_service, request={"name": f"{PROJECT}/services/none.x"})


main()
