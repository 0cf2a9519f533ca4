"""spotax's provider of TPUs and of storage, and how it would log in."""

import asyncio
import os

from checks import check, main, raises, sim
from google.api_core import exceptions
from spotax.infra import gcp
from spotax.infra.storage import StorageProvider
from spotax.orchestrator import Orchestrator
from spotax.setup import SetupChecker

PROJECT, ZONE = os.environ["GOOGLE_CLOUD_PROJECT"], "us-central2-b"
provider = gcp.TPUProvider(PROJECT, ZONE)


def do(coroutine):
    return asyncio.run(coroutine)


def create(name, **options):
    return do(provider.create_tpu(name, options.pop("type", "v4-8"), **options))


def ready(name):
    return do(provider.wait_for_ready(name, timeout=120, poll_interval=1))


@check
def prerequisites():
    """the prerequisites: default credentials"""
    assert SetupChecker().check_application_default_credentials().passed


@check
def made():
    """create_tpu asks for a spot queued resource of a preemptible node"""
    assert create("pod", type="v4-16").endswith("/queuedResources/pod")


@check
def active():
    """wait_for_ready sees it ACTIVE"""
    assert ready("pod")


@check
def addresses():
    """internal and external addresses of both hosts"""
    inside, outside = do(provider.get_node_internal_ips("pod")), do(provider.get_node_external_ips("pod"))
    assert len(set(inside)) == len(set(outside)) == 2


@check
def different():
    """internal addresses are not the external ones"""
    inside, outside = do(provider.get_node_internal_ips("pod")), do(provider.get_node_external_ips("pod"))
    assert set(inside).isdisjoint(outside)


@check
def again():
    """create_tpu of the same name reuses it"""
    assert create("pod", type="v4-16").endswith("/queuedResources/pod")


@check
def on_demand():
    """create_tpu without spot"""
    create("steady", spot=False)
    assert ready("steady")


@check
def wrong_type():
    """an unknown accelerator type is refused"""
    raises(gcp.TPUCreationError, create, "wrong", type="v4-9")


@check
def wrong_zone():
    """an unknown zone is refused"""
    elsewhere = gcp.TPUProvider(PROJECT, "us-mars1-a")
    raises(gcp.TPUCreationError, lambda: do(elsewhere.create_tpu("wrong", "v4-8")))


@check
def absent():
    """what does not exist is not found"""
    raises(gcp.TPUNotFoundError, ready, "none")
    raises(gcp.TPUNotFoundError, lambda: do(provider.get_node_external_ips("none")))
    do(provider.delete_tpu("none"))


@check
def preempted():
    """a preempted TPU is gone, and its queued resource is suspended"""
    sim("preempt", "pod")
    request = {"name": f"projects/{PROJECT}/locations/{ZONE}/queuedResources/pod"}

    async def suspended():
        while provider.tpu_client.get_queued_resource(request).state.state.name != "SUSPENDED":
            await asyncio.sleep(1)

    do(asyncio.wait_for(suspended(), 60))
    raises(gcp.TPUNotFoundError, lambda: do(provider.get_node_internal_ips("pod")))


@check
def failed():
    """a queued resource that fails ends the wait"""
    sim("fault", "queued-internal")
    create("unlucky")
    raises(gcp.TPUCreationError, ready, "unlucky")


@check
def delete():
    """delete_tpu takes the node and then its queued resource"""
    for name in ("pod", "steady", "unlucky"):
        do(provider.delete_tpu(name))
        raises(gcp.TPUNotFoundError, ready, name)
        raises(gcp.TPUNotFoundError, lambda name=name: do(provider.get_node_internal_ips(name)))


@check
def bucket():
    """ensure_bucket makes a bucket once"""
    storage = StorageProvider(PROJECT)
    assert not do(storage.bucket_exists("spotax-runs"))
    do(storage.ensure_bucket("spotax-runs", "us-central2"))
    assert do(storage.bucket_exists("spotax-runs"))
    assert not do(storage.create_bucket("spotax-runs", "us-central2"))
    raises(exceptions.BadRequest, lambda: do(storage.create_bucket("A", "us-central2")))


@check
def login():
    """the name to log in with, from OS Login"""
    assert do(Orchestrator._get_os_login_username(None))


main()
