"""Requests by hand, as people type them with curl: forms, refusals and what proxies and browsers do."""

import gzip
import os
import uuid

import requests
from checks import check, main

CLOUD = os.environ["CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"].rstrip("/")
PROJECT, ZONE = os.environ["GOOGLE_CLOUD_PROJECT"], "us-central2-b"
PARENT = f"v2/projects/{PROJECT}/locations/{ZONE}"
DISKS = f"compute/v1/projects/{PROJECT}/zones/{ZONE}/disks"
BUCKET = "storage/v1/b/sim-bucket"
NODE = {"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base"}
session = requests.Session()
session.headers["authorization"] = f"Bearer {os.environ['GOOGLE_BEARER_TOKEN']}"


def ask(verb, path, status=200, **more):
    answer = session.request(verb, f"{CLOUD}/{path}", timeout=30, **more)
    assert answer.status_code == status, f"{verb} {path}: {answer.status_code} {answer.text[:300]}"
    return answer


def refused(verb, path, text, status=400, **more):
    message = ask(verb, path, status, **more).json()["error"]["message"]
    assert text in message, message


def upload(name, content=b"x", **query):
    where = f"upload/{BUCKET}/o"
    return ask("POST", where, params={"uploadType": "media", "name": name, **query}, data=content).json()


@check
def credentials():
    """TPU, Compute and Storage without credentials are 401"""
    for path in (f"{PARENT}/nodes", DISKS, BUCKET):
        assert requests.get(f"{CLOUD}/{path}", timeout=30).status_code == 401


@check
def node():
    """a node is made, read in parts and by the project's number, and deleted"""
    operation = ask("POST", f"{PARENT}/nodes?nodeId=n", json=NODE).json()
    ask("GET", f"v2/{operation['name']}")
    assert set(ask("GET", f"{PARENT}/nodes/n?fields=name,state").json()) == {"name", "state"}
    number = ask("GET", f"v3/projects/{PROJECT}").json()["name"]
    ask("GET", f"v2/{number}/locations/{ZONE}/nodes/n")
    ask("DELETE", f"{PARENT}/nodes/n")


@check
def tpu_refusals():
    """TPU: unknown fields, parameters, parts and forms, wrong types, networks that are not there"""
    where = f"{PARENT}/nodes?nodeId=x"
    refused("POST", where, 'Unknown name "bogus"', json={**NODE, "bogus": 1})
    refused("POST", f"{where}&bogus=1", "Cannot bind query parameter", json=NODE)
    refused("GET", f"{PARENT}/nodes?fields=bogus", "invalid argument")
    refused("GET", f"{PARENT}/nodes?alt=bogus", "bogus")
    refused("POST", where, "labels", json={**NODE, "labels": ["x"]})
    refused(
        "POST", where, "networks/nonet' was not found", json={**NODE, "networkConfig": {"network": "nonet"}}
    )
    refused("GET", f"{PARENT}/nodes/none", "was not found", status=404)


@check
def compute_refusals():
    """Compute: types of disks, ids of requests, two sources, parts that are not there"""
    disk = {"name": "a", "sizeGb": "10"}
    refused("POST", DISKS, "The URL is malformed.", json={**disk, "type": "pd-balanced"})
    refused("POST", DISKS, "zone", json={**disk, "type": "zones/europe-west4-b/diskTypes/pd-ssd"})
    refused("POST", f"{DISKS}?requestId=abc", "requestId", json=disk)
    ask("POST", f"{DISKS}?requestId={uuid.uuid4()}", json=disk)
    sources = {"sourceDisk": f"zones/{ZONE}/disks/a", "sourceSnapshot": "global/snapshots/none"}
    refused("POST", DISKS, "one source", json={"name": "b", **sources})
    refused("GET", f"{DISKS}/a?fields=bogus", "Invalid field selection bogus")
    ask("DELETE", f"{DISKS}/a")


@check
def override():
    """POST with X-HTTP-Method-Override"""
    for path in (PARENT, f"compute/v1/projects/{PROJECT}", BUCKET):
        ask("POST", path, headers={"x-http-method-override": "GET"})


@check
def times():
    """Compute tells times with its own offset"""
    ask("POST", DISKS, json={"name": "t", "sizeGb": "10"})
    assert ask("GET", f"{DISKS}/t").json()["creationTimestamp"][-6:] in ("-07:00", "-08:00")


@check
def multipart():
    """an upload whose parts have no headers"""
    parts = ['Content-Type: application/json\r\n\r\n{"name":"m"}', "\r\nfirst\r\n\r\nsecond"]
    body = "".join(f"--B\r\n{part}\r\n" for part in parts) + "--B--\r\n"
    headers = {"content-type": "multipart/related; boundary=B"}
    made = ask("POST", f"upload/{BUCKET}/o?uploadType=multipart", data=body, headers=headers).json()
    assert made["size"] == str(len("first\r\n\r\nsecond")), made


@check
def resumable():
    """a resumable upload whose end is not known"""
    begun = ask("POST", f"upload/{BUCKET}/o?uploadType=resumable&name=r").headers["location"]
    done = session.put(begun, data=b"hello", headers={"content-range": "bytes 0-*/*"}, timeout=30)
    assert (done.status_code, done.json()["size"]) == (200, "5"), done.text


@check
def etags():
    """If-Match and If-None-Match of objects and buckets"""
    mine = upload("e")["etag"]
    for path in (f"{BUCKET}/o/e", f"{BUCKET}/o/e?alt=media"):
        assert ask("GET", path, headers={"if-match": mine}).headers["etag"] == mine
        ask("GET", path, 412, headers={"if-match": '"zz"'})
        ask("GET", path, 304, headers={"if-none-match": mine})


@check
def transcoding():
    """what is stored compressed is plain for who takes no gzip, whole whatever range is asked"""
    upload("z", gzip.compress(b"plain text"), contentEncoding="gzip")
    for headers in ({}, {"range": "bytes=0-1"}):
        answer = ask("GET", f"{BUCKET}/o/z?alt=media", headers={"accept-encoding": "identity", **headers})
        assert (answer.content, "content-encoding" in answer.headers) == (b"plain text", False)
    assert ask("GET", f"{BUCKET}/o/z?alt=media").headers["content-encoding"] == "gzip"


@check
def buckets():
    """names, places and labels of buckets that cannot be"""
    where = f"storage/v1/b?project={PROJECT}"
    for name in ("goog-x", "mygoogle1", "192.168.5.4", "UPPER"):
        refused("POST", where, "Invalid bucket name", json={"name": name})
    refused("POST", where, "location constraint is not valid", json={"name": "ccc", "location": "mars"})
    refused("POST", where, "label", json={"name": "ccc", "labels": {"K": "v"}})


@check
def objects():
    """objects that cannot be, uploads by the wrong address, no name at all"""
    refused("POST", f"upload/{BUCKET}/o?name=x", "uploadType", data=b"x")
    refused("POST", f"{BUCKET}/o?uploadType=media&name=x", "/upload/", data=b"x")
    ask("GET", f"{BUCKET}/o/", 404)


@check
def unknown_parameters():
    """Storage ignores parameters that it does not know"""
    upload("u")
    ask("DELETE", f"{BUCKET}/o/u?versions=true&force=true", 204)


@check
def permissions():
    """permissions that there are not are refused"""
    asked = {"permissions": ["tpu.nodes.get", "bogus.x.y"]}
    refused("POST", f"v1/projects/{PROJECT}:testIamPermissions", "is not valid", json=asked)


@check
def policies():
    """policies of the bucket and of the project are read, set and checked by etag"""
    policy = ask("GET", f"{BUCKET}/iam").json()
    policy["bindings"].append({"role": "roles/storage.objectViewer", "members": ["user:a@b.c"]})
    ask("PUT", f"{BUCKET}/iam", json=policy)
    ask("PUT", f"{BUCKET}/iam", 412, json=policy)
    here = f"v1/projects/{PROJECT}"
    known = ask("POST", f"{here}:getIamPolicy", json={}).json()
    ask("POST", f"{here}:setIamPolicy", json={"policy": known})
    ask("POST", f"{here}:setIamPolicy", 409, json={"policy": known})


@check
def not_simulated():
    """what is not simulated is refused and says so"""
    machines = f"compute/v1/projects/{PROJECT}/zones/{ZONE}/instances"
    refused("POST", f"{machines}/vm/setTags", "does not implement", json={"items": ["a"]})
    metadata = f"compute/v1/projects/{PROJECT}/setCommonInstanceMetadata"
    refused("POST", metadata, "does not implement", json={"items": []})
    refused("GET", f"{BUCKET}/acl", "does not implement")
    refused("GET", f"{BUCKET}/notificationConfigs", "does not implement")
    refused("GET", f"{PARENT}/nodes?alt=proto", "does not implement")


main()
