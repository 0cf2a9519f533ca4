"""google-cloud-tpu, constructed as its documentation says, by gRPC and by REST, and its asyncio client."""

import asyncio
import os
import time

from checks import check, main, raises
from google.api_core import exceptions
from google.cloud import tpu_v2, tpu_v2alpha1
from google.protobuf.field_mask_pb2 import FieldMask

PROJECT = os.environ["GOOGLE_CLOUD_PROJECT"]
PARENT = f"projects/{PROJECT}/locations/us-central2-b"
VERSION = "tpu-ubuntu2204-base"
WAIT_S = 120


def node(**fields):
    return tpu_v2.Node(accelerator_type="v4-8", runtime_version=VERSION, **fields)


def settled(look):
    """Waits until `look` returns something true: nobody waits for an operation that cannot be parsed."""
    end = time.monotonic() + WAIT_S
    while not (found := look()):
        assert time.monotonic() < end, "it never settled"
        time.sleep(0.1)
    return found


def gone(client, name):
    """Whether a node is NotFound."""
    try:
        client.get_node(name=name)
    except exceptions.NotFound:
        return True
    return False


def over(transport):
    """The checks of one transport of the synchronous client."""
    client = tpu_v2.TpuClient(transport=transport)
    name = f"{PARENT}/nodes/n-{transport}"

    def named(text):
        def decorate(function):
            function.__doc__ = f"{transport}: {text}"
            return check(function)

        return decorate

    @named("locations are listed")
    def locations():
        found = client.list_locations({"name": f"projects/{PROJECT}"}).locations
        assert "us-central2-b" in [each.location_id for each in found]

    @named("accelerator types are listed and read")
    def types():
        listed = [each.type_ for each in client.list_accelerator_types(parent=PARENT)]
        assert "v4-8" in listed, listed
        assert client.get_accelerator_type(name=f"{PARENT}/acceleratorTypes/v4-8").type_ == "v4-8"

    @named("runtime versions are listed and read")
    def versions():
        assert VERSION in [each.version for each in client.list_runtime_versions(parent=PARENT)]
        assert client.get_runtime_version(name=f"{PARENT}/runtimeVersions/{VERSION}").version == VERSION

    @named("a node that does not exist is NotFound")
    def absent():
        raises(exceptions.NotFound, client.get_node, name=name)

    @named("a zone that does not exist is denied, and the error says why")
    def wrong_zone():
        error = raises(
            exceptions.Forbidden, client.get_node, name=f"projects/{PROJECT}/locations/mars-1/nodes/n"
        )
        assert (error.reason, error.domain) == ("LOCATION_POLICY_VIOLATED", "googleapis.com"), error.details

    @named("lists come in pages")
    def paged():
        everything = [each.type_ for each in client.list_accelerator_types(parent=PARENT)]
        pages = list(client.list_accelerator_types(request={"parent": PARENT, "page_size": 3}).pages)
        assert [each.type_ for page in pages for each in page.accelerator_types] == everything
        assert {len(page.accelerator_types) for page in pages[:-1]} == {3}

    @named("an unknown accelerator type is refused")
    def wrong_type():
        wrong = tpu_v2.Node(accelerator_type="v99-8", runtime_version=VERSION)
        raises(exceptions.ClientError, client.create_node, parent=PARENT, node=wrong, node_id="wrong")

    @named("a node is created, and the operation's result is the node")
    def create():
        if transport == "rest":
            raises("OperationMetadata", client.create_node, parent=PARENT, node=node(), node_id="n-rest")
            settled(lambda: client.get_node(name=name).state == tpu_v2.Node.State.READY)
            return "the library cannot parse the operation, as with the real service; the call took effect"
        made = client.create_node(parent=PARENT, node=node(labels={"a": "b"}), node_id="n-grpc").result(WAIT_S)
        assert made.state == tpu_v2.Node.State.READY
        return None

    @named("the node is read with its addresses")
    def get():
        found = client.get_node(name=name)
        assert found.accelerator_type == "v4-8"
        assert len(found.network_endpoints) == 1
        assert found.network_endpoints[0].ip_address

    @named("the node is listed, in its zone and in all")
    def listed():
        assert name in [each.name for each in client.list_nodes(parent=PARENT)]
        everywhere = client.list_nodes(parent=f"projects/{PROJECT}/locations/-")
        assert [each for each in everywhere if each.name.endswith(f"/n-{transport}")]

    @named("the same name again is refused")
    def again():
        raises(exceptions.Conflict, client.create_node, parent=PARENT, node=node(), node_id=f"n-{transport}")

    @named("guest attributes hold the host keys")
    def attributes():
        found = client.get_guest_attributes(request={"name": name, "query_path": "", "worker_ids": [""]})
        keys = [item.key for each in found.guest_attributes for item in each.query_value.items]
        assert "ssh-ed25519" in keys, keys

    @named("labels are updated")
    def update():
        changed = tpu_v2.Node(name=name, labels={"c": "d"})
        call = {"node": changed, "update_mask": FieldMask(paths=["labels"])}
        if transport == "rest":
            raises("OperationMetadata", client.update_node, **call)
        else:
            client.update_node(**call).result(WAIT_S)
        settled(lambda: dict(client.get_node(name=name).labels) == {"c": "d"})

    @named("the node is stopped and started, and refuses to be stopped twice")
    def power():
        def change(call):
            if transport == "rest":
                raises("OperationMetadata", call, request={"name": name})
            else:
                call(request={"name": name}).result(WAIT_S)

        change(client.stop_node)
        settled(lambda: client.get_node(name=name).state == tpu_v2.Node.State.STOPPED)
        raises(exceptions.GoogleAPICallError, client.stop_node, request={"name": name})
        change(client.start_node)
        settled(lambda: client.get_node(name=name).state == tpu_v2.Node.State.READY)

    @named("operations are listed")
    def operations():
        if transport == "rest":
            raises("OperationMetadata", client.list_operations, {"name": PARENT})
            return "the library cannot parse them, as with the real service"
        assert client.list_operations({"name": PARENT}).operations
        return None

    @named("the node is deleted")
    def delete():
        if transport == "rest":
            raises("OperationMetadata", client.delete_node, name=name)
        else:
            client.delete_node(name=name).result(WAIT_S)
        settled(lambda: gone(client, name))


over("grpc")
over("rest")
QUEUED = f"{PARENT}/queuedResources/q"


@check
def queued_resource():
    """grpc: a queued resource becomes ACTIVE, holds its node, and is deleted by force only"""
    client = tpu_v2.TpuClient()
    spec = tpu_v2.QueuedResource.Tpu.NodeSpec(parent=PARENT, node_id="q-node", node=node())
    wanted = tpu_v2.QueuedResource(tpu={"node_spec": [spec]}, spot={})
    client.create_queued_resource(parent=PARENT, queued_resource=wanted, queued_resource_id="q").result(WAIT_S)
    settled(lambda: client.get_queued_resource(name=QUEUED).state.state.name == "ACTIVE")
    assert client.get_node(name=f"{PARENT}/nodes/q-node").queued_resource.endswith("/queuedResources/q")
    raises(exceptions.GoogleAPICallError, client.delete_queued_resource, name=QUEUED)
    client.delete_queued_resource(request={"name": QUEUED, "force": True}).result(WAIT_S)
    raises(exceptions.NotFound, client.get_queued_resource, name=QUEUED)


@check
def asyncio_client():
    """asyncio: a node is created, listed and deleted"""

    async def story():
        client = tpu_v2.TpuAsyncClient()
        making = await client.create_node(parent=PARENT, node=node(), node_id="n-async")
        await making.result(timeout=WAIT_S)
        names = [each.name async for each in await client.list_nodes(parent=PARENT)]
        assert f"{PARENT}/nodes/n-async" in names
        await (await client.delete_node(name=f"{PARENT}/nodes/n-async")).result(timeout=WAIT_S)

    asyncio.run(story())


@check
def alpha():
    """v2alpha1 by gRPC: a node is created, shows a version that v2alpha1 has, and is deleted"""
    client = tpu_v2alpha1.TpuClient()
    wanted = tpu_v2alpha1.Node(accelerator_type="v4-8", runtime_version=VERSION)
    client.create_node(parent=PARENT, node=wanted, node_id="n-alpha").result(WAIT_S)
    found = client.get_node(name=f"{PARENT}/nodes/n-alpha")
    assert found.api_version.name in {"V2_ALPHA1", "API_VERSION_UNSPECIFIED"}, found.api_version
    client.delete_node(name=f"{PARENT}/nodes/n-alpha").result(WAIT_S)


main()
