"""Buckets with a hierarchical namespace: folders by the JSON API; tests/e2e/test_mounts.py has gRPC."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
import requests

from tests.support.gcs import upload

TREE = {
    "name": "tree",
    "hierarchicalNamespace": {"enabled": True},
    "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}},
}


@pytest.fixture
def url(endpoint: str) -> str:
    assert requests.post(f"{endpoint}/storage/v1/b?project=p", json=TREE, timeout=5).status_code == 200
    return f"{endpoint}/storage/v1/b"


def write(url: str, name: str, bucket: str = "tree") -> Any:
    answer = upload(url.removesuffix("/storage/v1/b"), name, bucket=bucket)
    assert answer.status_code == 200, answer.text
    return answer.json()


def names(url: str, kind: str = "folders", **query: str) -> list[str]:
    """Folders, or what a list of objects shows."""
    found = requests.get(f"{url}/tree/{kind}", params=query, timeout=5).json()
    return [*(each["name"] for each in found.get("items", [])), *found.get("prefixes", [])]


def make(url: str, name: str, **query: str) -> int:
    return requests.post(f"{url}/tree/folders", params=query, json={"name": name}, timeout=5).status_code


def rename(url: str, name: str, target: str) -> requests.Response:
    where = f"{url}/tree/folders/{quote(name, safe='')}/renameTo/folders/{quote(target, safe='')}"
    return requests.post(where, timeout=5)


def test_what_is_written_has_its_folders(url: str) -> None:
    write(url, "a/b/c")
    assert names(url) == ["a/", "a/b/"]
    assert names(url, delimiter="/") == ["a/"]
    assert names(url, prefix="a/", delimiter="/") == ["a/", "a/b/"]
    assert names(url, pageSize="1") == ["a/"]
    assert requests.get(f"{url}/tree/storageLayout", timeout=5).json()["hierarchicalNamespace"] == {
        "enabled": True
    }


def test_lists_of_objects_show_empty_folders_where_that_is_asked(url: str) -> None:
    write(url, "a/x")
    write(url, "z")
    assert make(url, "a/empty/") == 200
    assert make(url, "lone") == 200
    shown = {"delimiter": "/", "includeFoldersAsPrefixes": "true"}
    assert names(url, "o", **shown) == ["z", "a/", "lone/"]
    assert names(url, "o", prefix="a/", **shown) == ["a/x", "a/empty/"]
    assert names(url, "o", prefix="lone/", **shown) == []
    assert names(url, "o", delimiter="/") == ["z", "a/"]
    pages, token = [], ""
    while token is not None:
        query = {**shown, "maxResults": "1", "pageToken": token}
        found = requests.get(f"{url}/tree/o", params=query, timeout=5).json()
        pages += [*(each["name"] for each in found.get("items", [])), *found.get("prefixes", [])]
        token = found.get("nextPageToken")
    assert pages == ["a/", "lone/", "z"]


def test_a_folder_is_renamed_with_all_below_it(url: str) -> None:
    before = write(url, "old/b/c")
    write(url, "older")
    assert rename(url, "old/", "new/").json()["done"] is True
    assert names(url) == ["new/", "new/b/"]
    assert names(url, "o") == ["new/b/c", "older"]
    after = requests.get(f"{url}/tree/o/new%2Fb%2Fc", timeout=5).json()
    assert (after["generation"], after["id"]) == (before["generation"], before["id"].replace("old/", "new/"))
    assert requests.get(f"{url}/tree/o/new%2Fb%2Fc?alt=media", timeout=5).content == b"x"
    write(url, "more/x")
    refused = [rename(url, "new/", to).status_code for to in ("more/", "none/below/", "new/b/d/")]
    assert refused == [409, 404, 400]
    assert rename(url, "none/", "other/").status_code == 404


def test_folders_are_made_and_removed_one_by_one(url: str) -> None:
    assert [make(url, "a/b/"), make(url, "a/b/", recursive="true"), make(url, "a/b/")] == [404, 200, 409]
    assert [make(url, "a//b"), make(url, "/a")] == [400, 400]

    def remove(name: str, **query: str) -> int:
        return requests.delete(
            f"{url}/tree/folders/{quote(name, safe='')}", params=query, timeout=5
        ).status_code

    assert remove("a/") == 409
    assert remove("a/b/", ifMetagenerationMatch="7") == 412
    assert [remove("a/b/"), remove("a/b/"), remove("a/")] == [204, 404, 204]
    write(url, "f/x")
    assert remove("f/") == 409
    requests.delete(f"{url}/tree/o/f%2Fx", timeout=5)
    assert (remove("f/"), names(url)) == (204, [])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"iamConfiguration": {}}, "uniform bucket-level access"),
        ({"versioning": {"enabled": True}}, "versioning is not supported"),
    ],
)
def test_such_a_bucket_has_rules_of_its_own(url: str, change: dict[str, Any], said: str) -> None:
    refused = requests.post(f"{url}?project=p", json={**TREE, "name": "other", **change}, timeout=5)
    assert (refused.status_code, said in refused.text) == (400, True)


def test_a_bucket_stays_as_it_was_made(url: str) -> None:
    assert requests.post(f"{url}?project=p", json={"name": "flat"}, timeout=5).status_code == 200
    change = {"hierarchicalNamespace": {"enabled": True}}
    assert requests.patch(f"{url}/flat", json=change, timeout=5).status_code == 400
    assert requests.post(f"{url}/flat/folders", json={"name": "a/"}, timeout=5).status_code == 409
    write(url, "a/b", "flat")
    assert requests.get(f"{url}/flat/folders", timeout=5).status_code == 409


def test_managed_folders_are_made_listed_and_removed_without_what_is_below(url: str) -> None:
    flat = {"name": "flat", "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}}}
    assert requests.post(f"{url}?project=p", json=flat, timeout=5).status_code == 200
    managed = f"{url}/flat/managedFolders"

    def make_managed(name: str) -> int:
        return requests.post(managed, json={"name": name}, timeout=5).status_code

    def remove(name: str, **query: str) -> int:
        return requests.delete(f"{managed}/{quote(name, safe='')}", params=query, timeout=5).status_code

    assert [make_managed(name) for name in ("a/", "a/b/", "c/", "c/", "/no/")] == [200, 200, 200, 409, 400]
    listed = requests.get(managed, params={"pageSize": "2"}, timeout=5).json()
    assert [each["name"] for each in listed["items"]] == ["a/", "a/b/"]
    rest = requests.get(managed, params={"pageToken": listed["nextPageToken"]}, timeout=5).json()
    assert [each["name"] for each in rest["items"]] == ["c/"]
    assert "nextPageToken" not in rest
    write(url, "a/x", "flat")
    shown = {"delimiter": "/", "includeFoldersAsPrefixes": "true"}
    assert requests.get(f"{url}/flat/o", params=shown, timeout=5).json()["prefixes"] == ["a/", "c/"]
    found = requests.get(f"{managed}/c%2F", timeout=5).json()
    assert (found["kind"], found["metageneration"]) == ("storage#managedFolder", "1")
    assert "bindings" not in requests.get(f"{managed}/c%2F/iam", timeout=5).json()
    removed = [remove("a/"), remove("a/", allowNonEmpty="true"), remove("a/"), remove("c/")]
    assert removed == [409, 204, 404, 204]
    assert requests.get(f"{url}/flat/o", timeout=5).json()["items"][0]["name"] == "a/x"


def test_managed_folders_want_uniform_access_and_are_folders_of_a_tree(url: str) -> None:
    assert requests.post(f"{url}?project=p", json={"name": "lists"}, timeout=5).status_code == 200
    assert requests.post(f"{url}/lists/managedFolders", json={"name": "a/"}, timeout=5).status_code == 400
    assert requests.post(f"{url}/tree/managedFolders", json={"name": "m/n/"}, timeout=5).status_code == 200
    assert names(url) == ["m/", "m/n/"]
    refused = rename(url, "m/", "o/")
    assert (refused.status_code, "managed" in refused.text) == (400, True)
