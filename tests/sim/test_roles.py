"""Policies of buckets: set as the libraries set them, and enforced for the service account of hosts."""

from __future__ import annotations

from typing import Any

import pytest
import requests
from google.api_core.client_options import ClientOptions
from google.cloud import storage
from google.oauth2.credentials import Credentials

from tests.support.sim import RunningSim
from tpuctl.sim.gcs.roles import ROLES, permits
from tpuctl.sim.world.iam import account_token, caller_of
from tpuctl.sim.world.identity import DEFAULT_ACCOUNT

BUCKET = "storage/v1/b/sim-bucket"
HOST = f"serviceAccount:{DEFAULT_ACCOUNT}"


def give(sim: RunningSim, *bindings: tuple[str, str], **more: Any) -> requests.Response:
    shown = [{"role": role, "members": [member]} for role, member in bindings]
    return sim.call("PUT", f"{BUCKET}/iam", json={"bindings": shown, **more})


def put(sim: RunningSim, account: str = "") -> requests.Response:
    return sim.call("POST", f"upload/{BUCKET}/o?uploadType=media&name=a", account=account, data=b"x")


def test_a_policy_is_read_changed_and_read_again_as_the_library_does_it(sim: RunningSim) -> None:
    client = storage.Client(
        project="sim-project",
        credentials=Credentials(token=sim.token),
        client_options=ClientOptions(api_endpoint=sim.endpoint),
    )
    bucket = client.bucket("sim-bucket")
    policy = bucket.get_iam_policy(requested_policy_version=3)
    before = {each["role"] for each in policy.bindings}
    policy.bindings.append({"role": "roles/storage.objectViewer", "members": {"user:a@b.c"}})
    bucket.set_iam_policy(policy)
    after = bucket.get_iam_policy(requested_policy_version=3)
    assert {each["role"] for each in after.bindings} == before | {"roles/storage.objectViewer"}
    assert after.etag != policy.etag
    assert "iamPolicy" not in sim.call("GET", BUCKET).json()


def test_the_account_of_hosts_may_do_everything_until_a_policy_says_otherwise(sim: RunningSim) -> None:
    assert put(sim, DEFAULT_ACCOUNT).status_code == 200
    assert give(sim, ("roles/storage.objectViewer", "user:a@b.c")).status_code == 200
    refused = put(sim, DEFAULT_ACCOUNT)
    assert refused.status_code == 403
    assert refused.json()["error"]["message"] == (
        f"{DEFAULT_ACCOUNT} does not have storage.objects.create access to the Google Cloud Storage object. "
        "Permission 'storage.objects.create' denied on resource (or it may not exist)."
    )
    xml = sim.call("GET", "sim-bucket/a", account=DEFAULT_ACCOUNT)
    assert (xml.status_code, "<Code>AccessDenied</Code>" in xml.text) == (403, True)
    assert put(sim).status_code == 200  # the user, who owns the project


def test_a_role_lets_the_account_do_what_it_holds(sim: RunningSim) -> None:
    put(sim)
    give(sim, ("roles/storage.objectViewer", HOST))
    assert sim.call("GET", f"{BUCKET}/o/a?alt=media", account=DEFAULT_ACCOUNT).content == b"x"
    assert put(sim, DEFAULT_ACCOUNT).status_code == 403
    asked = ["storage.objects.get", "storage.objects.create", "storage.buckets.get"]
    tested = sim.call(
        "GET", f"{BUCKET}/iam/testPermissions", account=DEFAULT_ACCOUNT, params={"permissions": asked}
    )
    assert tested.json()["permissions"] == ["storage.objects.get"]
    assert (
        sim.call("GET", f"{BUCKET}/iam/testPermissions", params={"permissions": asked}).json()["permissions"]
        == asked
    )
    give(sim, ("roles/storage.objectUser", HOST))
    assert put(sim, DEFAULT_ACCOUNT).status_code == 200


def test_everybody_may_ask_what_everybody_may(sim: RunningSim) -> None:
    def everybody() -> list[str]:
        url = f"{sim.endpoint}/{BUCKET}/iam/testPermissions"
        return requests.get(url, params={"permissions": "storage.objects.get"}, timeout=30).json()[
            "permissions"
        ]

    assert everybody() == []
    give(sim, ("roles/storage.objectViewer", "allAuthenticatedUsers"))
    assert everybody() == []
    give(sim, ("roles/storage.objectViewer", "allUsers"))
    assert everybody() == ["storage.objects.get"]
    assert requests.get(f"{sim.endpoint}/{BUCKET}/o/a", timeout=30).status_code == 401


def test_calls_in_a_batch_are_refused_alike(sim: RunningSim) -> None:
    put(sim)
    give(sim, ("roles/storage.objectViewer", HOST))
    part = f"Content-Type: application/http\r\n\r\nDELETE /{BUCKET}/o/a HTTP/1.1\r\n\r\n"
    answer = sim.call(
        "POST",
        "batch/storage/v1",
        account=DEFAULT_ACCOUNT,
        data=f"--b\r\n{part}\r\n--b--\r\n",
        headers={"content-type": "multipart/mixed; boundary=b"},
    )
    assert "does not have storage.objects.delete access" in answer.text
    assert sim.call("GET", f"{BUCKET}/o/a").status_code == 200


def test_copies_need_the_source_and_the_target(sim: RunningSim) -> None:
    put(sim)
    sim.call("POST", "storage/v1/b?project=sim-project", json={"name": "other"})
    give(sim, ("roles/storage.objectCreator", HOST))
    copy = "storage/v1/b/sim-bucket/o/a/rewriteTo/b/other/o/b"
    assert "storage.objects.get" in sim.call("POST", copy, account=DEFAULT_ACCOUNT, json={}).text
    give(sim, ("roles/storage.objectViewer", HOST))
    assert sim.call("POST", copy, account=DEFAULT_ACCOUNT, json={}).status_code == 200


@pytest.mark.parametrize(
    ("policy", "status", "says"),
    [
        ({"etag": "old"}, 412, "pre-conditions"),
        (
            {"bindings": [{"role": "roles/tpu.admin", "members": [HOST]}]},
            400,
            "roles/tpu.admin is not supported",
        ),
        ({"bindings": [{"role": "roles/storage.admin", "members": ["me"]}]}, 400, "member me"),
        (
            {
                "bindings": [
                    {"role": "roles/storage.admin", "members": [HOST], "condition": {"expression": "x"}}
                ]
            },
            400,
            "does not implement conditions of roles",
        ),
        ({"bindings": [{"role": "projects/p/roles/r", "members": [HOST]}]}, 400, "does not implement roles of"),
    ],
)
def test_policies_that_cannot_be_are_refused_and_change_nothing(sim, policy, status, says) -> None:
    before = sim.call("GET", f"{BUCKET}/iam").json()
    refused = sim.call("PUT", f"{BUCKET}/iam", json=policy)
    assert (refused.status_code, says in refused.json()["error"]["message"]) == (status, True), refused.text
    assert sim.call("GET", f"{BUCKET}/iam").json() == before


def test_every_role_permits_what_it_is_named_for() -> None:
    for role in ROLES:
        policy = {"bindings": [{"role": role, "members": ["allAuthenticatedUsers"]}]}
        held = {
            each: permits(policy, "a@b.c", f"storage.{each}")
            for each in ("buckets.get", "objects.get", "objects.create", "buckets.setIamPolicy")
        }
        assert any(held.values()) == (role != "roles/storage.folderAdmin"), role
        assert held["buckets.setIamPolicy"] == (
            role in ("roles/storage.admin", "roles/storage.legacyBucketOwner")
        )


def test_credentials_say_whose_they_are() -> None:
    given = account_token("secret", "a@b.c")
    assert caller_of("secret", given) == "a@b.c"
    assert caller_of("secret", "secret") == ""
    assert "secret" not in given
    for wrong in ("", "x", given[:-1], account_token("other", "a@b.c"), "ÿ.x", "===."):
        assert caller_of("secret", wrong) is None, wrong


def project_policy(sim: RunningSim, *bindings: tuple[str, str], **more: Any) -> requests.Response:
    shown = [{"role": role, "members": [member]} for role, member in bindings]
    path = "v1/projects/sim-project:setIamPolicy"
    return sim.call("POST", path, json={"policy": {"bindings": shown, **more}})


def test_roles_in_the_project_are_read_and_given(sim: RunningSim) -> None:
    read = "v1/projects/sim-project:getIamPolicy"
    before = sim.call("POST", read, json={"options": {"requestedPolicyVersion": 3}}).json()
    assert before["bindings"][0]["role"] == "roles/owner"
    given = project_policy(sim, ("roles/storage.objectViewer", HOST), etag=before["etag"])
    assert sim.call("POST", read, json={}).json() == given.json()
    assert project_policy(sim, etag=before["etag"]).status_code == 409
    asked = {"permissions": ["tpu.nodes.get", "bogus.x.y"]}
    assert "is not valid" in sim.call("POST", "v1/projects/sim-project:testIamPermissions", json=asked).text
    put(sim)
    give(sim, ("roles/storage.objectCreator", HOST))
    assert sim.call("GET", f"{BUCKET}/o/a", account=DEFAULT_ACCOUNT).status_code == 200
    assert sim.call("DELETE", f"{BUCKET}/o/a", account=DEFAULT_ACCOUNT).status_code == 403


def test_a_role_that_the_user_gets_mends_a_permission_that_was_missing(sim: RunningSim) -> None:
    nodes = "v2/projects/sim-project/locations/us-central2-b/nodes"
    sim.world.faults.add({"kind": "no-permission", "name": "tpu.nodes.list"})
    me = "user:sim@tpuctl.invalid"
    for role, status in (("roles/owner", 403), ("roles/compute.admin", 403), ("roles/tpu.admin", 200)):
        assert project_policy(sim, (role, me)).status_code == 200
        assert sim.call("GET", nodes).status_code == status, role
