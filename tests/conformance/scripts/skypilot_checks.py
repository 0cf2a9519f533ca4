"""SkyPilot's handler of TPU VMs, as its provisioner calls it."""

import os
import time

from checks import check, main, raises, sim
from sky.adaptors import gcp
from sky.provision.gcp.instance_utils import GCPTPUVMInstance

PROJECT, ZONE = os.environ["GOOGLE_CLOUD_PROJECT"], "us-central2-b"
CONFIG = {
    "acceleratorType": "v4-8",
    "runtimeVersion": "tpu-ubuntu2204-base",
    "networkConfig": {"network": f"projects/{PROJECT}/global/networks/default", "enableExternalIps": True},
    "metadata": {
        "ssh-keys": "sky:ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ6u0hZ2eQbVpVYc2YkX0C2Z9aV1mV0kq7Qv0g0Yz0aa sky"
    },
}
tpu = GCPTPUVMInstance
seen = {}


def create(cluster, count=1, **fields):
    config = {**CONFIG, "labels": {}, **fields}
    return tpu.create_instances(cluster, PROJECT, ZONE, config, {}, count, count, True)


def listed(cluster, states=None):
    return tpu.filter(PROJECT, ZONE, {"ray-cluster-name": cluster}, states)


@check
def discovery():
    """the client is built from the discovery document of v2"""
    assert tpu.load_resource()._baseUrl.startswith("https://tpu.googleapis.com/")


@check
def empty():
    """filter of an empty zone"""
    assert listed("one") == {}


@check
def made():
    """create_instances makes a node and waits for it"""
    errors, names = create("one")
    assert errors is None, errors
    (seen["one"],) = listed("one", ["READY"])
    assert seen["one"].endswith(names[0])


@check
def info():
    """get_instance_info has both addresses and the labels"""
    (host,) = tpu.get_instance_info(PROJECT, ZONE, seen["one"])
    assert host.internal_ip
    assert host.external_ip
    assert host.tags["skypilot-cluster-name"] == "one"


@check
def network():
    """get_vpc_name"""
    assert tpu.get_vpc_name(PROJECT, ZONE, seen["one"]) == "default"


@check
def labels():
    """set_labels"""
    tpu.set_labels(PROJECT, ZONE, seen["one"], {"a": "b"})
    node = listed("one")[seen["one"]]
    assert node["labels"]["a"] == "b"
    assert node["labels"]["ray-cluster-name"] == "one"


@check
def tags():
    """add_network_tag_if_not_exist sends the whole node back"""
    for _ in range(2):
        tpu.add_network_tag_if_not_exist(PROJECT, ZONE, seen["one"], "sky")
    end = time.monotonic() + 60
    while listed("one")[seen["one"]].get("tags") != ["sky"]:
        assert time.monotonic() < end
        time.sleep(1)


@check
def stop():
    """stop, and wait for its operation"""
    operation = tpu.stop(PROJECT, ZONE, seen["one"])
    tpu.wait_for_operation(operation, PROJECT, zone=ZONE)
    assert list(listed("one", tpu.STOPPED_STATES)) == [seen["one"]]
    assert listed("one", tpu.NON_STOPPED_STATES) == {}


@check
def start():
    """start_instance"""
    tpu.start_instance(seen["one"], PROJECT, ZONE)
    assert list(listed("one", ["READY"])) == [seen["one"]]


@check
def pod():
    """a pod has an entry for each of its hosts, and cannot be stopped"""
    errors, _ = create("pod", acceleratorType="v4-16")
    assert errors is None, errors
    (name,) = listed("pod")
    hosts = tpu.get_instance_info(PROJECT, ZONE, name)
    assert len({each.external_ip for each in hosts}) == len({each.internal_ip for each in hosts}) == 2
    raises(gcp.http_error_exception(), tpu.stop, PROJECT, ZONE, name)
    tpu.wait_for_operation(tpu.terminate(PROJECT, ZONE, name), PROJECT, zone=ZONE)


@check
def several():
    """create_instances of two nodes at once"""
    errors, names = create("two", 2)
    assert errors is None, errors
    assert len(names) == len(listed("two")) == 2
    for name in listed("two"):
        tpu.wait_for_operation(tpu.terminate(PROJECT, ZONE, name), PROJECT, zone=ZONE)
    assert listed("two") == {}


@check
def queued():
    """a queued resource, whose one node spec is no list"""
    errors, names = create("queued", gcp_queued_resource=True, schedulingConfig={"preemptible": True})
    assert errors is None, errors
    (name,) = listed("queued")
    assert name.endswith(names[0])
    seen["queued"] = name


@check
def preempted():
    """a preempted node stays and cannot be started; one of a queued resource goes"""
    errors, _ = create("spot", schedulingConfig={"preemptible": True})
    assert errors is None, errors
    (spot,) = listed("spot")
    for name in (spot, seen["queued"]):
        sim("preempt", name.rpartition("/")[2])
    end = time.monotonic() + 60
    while listed("queued") or list(listed("spot", ["PREEMPTED"])) != [spot]:
        assert time.monotonic() < end
        time.sleep(1)
    raises(gcp.http_error_exception(), tpu.start_instance, spot, PROJECT, ZONE)


@check
def stockout():
    """no capacity has code 8 and the text that SkyPilot blocks the zone by"""
    sim("fault", "stockout")
    errors, _ = create("none")
    assert [each["code"] for each in errors] == [8], errors
    assert "There is no more capacity in the zone" in errors[0]["message"]


@check
def quota():
    """a quota is a violation with a description"""
    sim("quota", f"{ZONE}/v4=0")
    errors, _ = create("none")
    sim("reset")
    assert errors
    assert all("uota" in each["message"] for each in errors), errors


@check
def wrong_type():
    """an unknown accelerator type"""
    errors, _ = create("wrong", acceleratorType="v4-9")
    assert "v4-9" in str(errors), errors


@check
def wrong_zone():
    """a zone that is none is refused; of one that the project may not use, SkyPilot knows the words"""
    error = raises(gcp.http_error_exception(), tpu.filter, PROJECT, "us-mars1-a", None, None)
    assert error.status_code == 403, error
    text = "Location {zone} is not found or access is unauthorized."
    sim("fault", "location-denied", "--set", "method=nodes.list", "--set", f"message={text}")
    assert tpu.filter(PROJECT, ZONE, None, None) == {}


@check
def terminate():
    """terminate, and then there is nothing"""
    errors, _ = create("last")
    assert errors is None, errors
    (name,) = listed("last")
    tpu.wait_for_operation(tpu.terminate(PROJECT, ZONE, name), PROJECT, zone=ZONE)
    assert listed("last") == {}
    raises(gcp.http_error_exception(), tpu.terminate, PROJECT, ZONE, name)


main()
