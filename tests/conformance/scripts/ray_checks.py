"""Ray's autoscaler on TPU VMs: the node types of its Google Cloud provider."""

import os
import time

from checks import check, main, raises, sim
from googleapiclient.errors import HttpError
from ray.autoscaler._private.gcp.config import construct_clients_from_provider_config, get_node_type
from ray.autoscaler._private.gcp.node import GCPTPU

PROJECT, ZONE = os.environ["GOOGLE_CLOUD_PROJECT"], "us-central2-b"
_, _, _, resource = construct_clients_from_provider_config({"_has_tpus": True})
tpu = GCPTPU(resource, PROJECT, ZONE, "cluster-1")
CONFIG = {"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base"}
LABELS = {"ray-node-name": "ray-worker", "ray-node-type": "worker"}
seen = {}


@check
def empty():
    """list_instances of an empty zone"""
    assert tpu.list_instances() == []


@check
def kinds():
    """get_node_type tells a TPU node"""
    assert get_node_type(CONFIG).name == "TPU"


@check
def create():
    """create_instance waits for the operation and gets the node"""
    result, name = tpu.create_instance(CONFIG, LABELS)
    seen["name"] = f"projects/{PROJECT}/locations/{ZONE}/nodes/{name}"
    assert result["response"]["name"] == seen["name"], result
    assert result["response"]["state"] == "READY"


@check
def get():
    """get_instance has the state, the labels and both addresses"""
    node = tpu.get_instance(seen["name"])
    assert node.is_running()
    assert not node.is_terminated()
    assert node.num_workers == 1
    assert node.get_labels()["ray-cluster-name"] == "cluster-1"
    assert node.get_internal_ip()
    assert node.get_external_ip()


@check
def filters():
    """list_instances by label"""
    assert [each["name"] for each in tpu.list_instances({"ray-node-type": "worker"})] == [seen["name"]]
    assert tpu.list_instances({"ray-node-type": "head"}) == []
    assert GCPTPU(resource, PROJECT, ZONE, "other").list_instances() == []


@check
def labels():
    """set_labels"""
    tpu.set_labels(tpu.get_instance(seen["name"]), {"ray-file-mounts-contents": "abc"})
    assert tpu.get_instance(seen["name"]).get_labels() == {
        **LABELS,
        "ray-cluster-name": "cluster-1",
        "ray-file-mounts-contents": "abc",
    }


@check
def stop_and_start():
    """stop_instance and start_instance"""
    tpu.stop_instance(seen["name"])
    assert tpu.get_instance(seen["name"]).is_terminated()
    assert tpu.list_instances() == []
    tpu.start_instance(seen["name"])
    assert tpu.get_instance(seen["name"]).is_running()


@check
def pod():
    """create_instances: two pods of two hosts, by acceleratorConfig"""
    config = {"acceleratorConfig": {"type": "V4", "topology": "2x2x2"}, "runtimeVersion": "tpu-ubuntu2204-base"}
    assert get_node_type(config).name == "TPU"
    made = tpu.create_instances(config, {**LABELS, "ray-node-type": "pod"}, 2)
    nodes = tpu.list_instances({"ray-node-type": "pod"})
    assert len(made) == len(nodes) == 2
    for node in nodes:
        assert node.num_workers == 2
        assert node["acceleratorType"] == "v4-16"
        assert len({node.get_external_ip(0), node.get_external_ip(1)}) == 2
        raises(HttpError, tpu.stop_instance, node["name"])
        tpu.delete_instance(node["name"])


@check
def preempted():
    """a preempted node is terminated and no longer listed"""
    spot = {**CONFIG, "schedulingConfig": {"preemptible": True}}
    _, name = tpu.create_instance(spot, {**LABELS, "ray-node-type": "spot"})
    full = f"projects/{PROJECT}/locations/{ZONE}/nodes/{name}"
    sim("preempt", name)
    end = time.monotonic() + 60
    while tpu.get_instance(full).is_running():
        assert time.monotonic() < end
        time.sleep(1)
    assert tpu.get_instance(full)["state"] == "PREEMPTED"
    assert tpu.list_instances({"ray-node-type": "spot"}) == []
    tpu.delete_instance(full)


@check
def wrong_type():
    """an unknown accelerator type is refused"""
    error = raises(HttpError, tpu.create_instance, {**CONFIG, "acceleratorType": "v4-9"}, LABELS)
    assert error.status_code in (400, 404), error
    assert "v4-9" in str(error)


@check
def wrong_field():
    """an unknown field is refused"""
    error = raises(HttpError, tpu.create_instance, {**CONFIG, "machineType": "n1"}, LABELS)
    assert error.status_code == 400
    assert "machineType" in str(error)


@check
def wrong_zone():
    """an unknown zone is refused"""
    error = raises(HttpError, GCPTPU(resource, PROJECT, "mars-1", "c").list_instances)
    assert error.status_code in (400, 403, 404), error


@check
def stockout():
    """no capacity is the error of the operation"""
    sim("fault", "stockout")
    error = raises("There is no more capacity in the zone", tpu.create_instance, CONFIG, LABELS)
    assert error.args[0]["code"] == 8, error


@check
def delete():
    """delete_instance, and then there is nothing"""
    tpu.delete_instance(seen["name"])
    assert raises(HttpError, tpu.get_instance, seen["name"]).status_code == 404
    assert raises(HttpError, tpu.delete_instance, seen["name"]).status_code == 404


main()
