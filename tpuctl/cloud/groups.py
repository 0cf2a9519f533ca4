"""TPUs of Compute Engine: slices whose hosts are instances.

A slice of several hosts is three objects: a workload policy, an instance template and a managed instance
group, made in this order, deleted in reverse; a slice of one host is an instance. Each create and each delete
is of one object, and whoever asked looks again and repeats it: what a crash leaves half made is met by the next
turn of the loop. Reads are in `group_reads.py`; changes go through google-cloud-compute's typed clients of v1,
which has all fields that this needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from google.auth.credentials import Credentials
from msgspec import Struct
from msgspec.structs import replace

from tpuctl.cloud import nodes, wire
from tpuctl.cloud.compute_errors import API, join_operations, parse_operation
from tpuctl.cloud.errors import translate_change
from tpuctl.cloud.group_nodes import GroupParts
from tpuctl.cloud.group_reads import GROUPS, INSTANCES, POLICIES, TEMPLATES, GroupReads
from tpuctl.cloud.instances import (
    AS_INSTANCES,
    AttachedDisk,
    Instance,
    common,
    is_tpu,
    next_disk,
    replaced_in_host,
    shared_disks,
    shown_metadata,
)
from tpuctl.cloud.rest import Translate, last_part, request_id
from tpuctl.errors import BusyError, ConflictError, InvalidRequestError, NotFoundError, TpuctlError
from tpuctl.lib.names import region_of
from tpuctl.model.cloud import GuestHostKey, Listing, NodeInfo, NodeState, OfferInfo, OperationInfo
from tpuctl.model.disks import DataDisk
from tpuctl.model.resources import KIND_WORDS, CloudResource, marks_text, parse_marks
from tpuctl.model.slice_spec import SliceSpec

if TYPE_CHECKING:
    from tpuctl.cloud.compute_clients import ComputeClients

MADE_ANEW = 8
"""How often in an hour one incarnation may lose the same object before it was seen."""


class ComputeTpus:
    """Implements `cloud_ports.Cloud`: its nodes are groups and instances."""

    def __init__(self, project: str, endpoint: str, credentials: Credentials) -> None:
        self._project = project
        self._endpoint = endpoint
        self._credentials = credentials
        self._reads = GroupReads(project, endpoint, credentials)
        self._shown: dict[tuple[str, str], tuple[DataDisk, ...]] = {}
        """The data disks of slices as they were shown last: what a list of wanted ones is compared with."""

    @cached_property
    def _clients(self) -> ComputeClients:
        from tpuctl.cloud.compute_clients import ComputeClients

        return ComputeClients(self._endpoint, self._credentials)

    # Slices.

    def list_nodes(self, zone: str = "-") -> Listing[NodeInfo]:
        return self._reads.list_slices(zone)

    def find_node(self, zone: str, name: str) -> NodeInfo | None:
        found = self._reads.find_slice(zone, name)
        if found is not None:
            self._shown[zone, name] = found.data_disks
        return found

    def find_end(self, zone: str, uid: str) -> NodeState | None:
        return self._reads.find_end(zone, uid)

    def create_node(self, node_id: str, spec: SliceSpec) -> OperationInfo:
        """Asks for the next object of a slice that is missing; called again until the slice is there.

        The same request again is answered with the operation of the first for an hour, even when what that made
        is gone: then it is made anew. Raises ConflictError where all is there, and for what has the name and
        not the marks of the slice.
        """
        from tpuctl.cloud import group_requests as rendering

        collection = _next_object(self._reads.find_parts(spec.zone, node_id), node_id, spec)
        kind = KINDS[collection]
        made = rendering.RENDER[collection](self._project, node_id, spec)
        key = f"{self._project}/{spec.zone}/{collection}/{node_id}/{marks_text(spec.labels)}"
        place = spec.zone if kind.place == "zone" else region_of(spec.zone)
        asked = partial(
            getattr(self._clients.v1, f"Insert{kind.request}Request"),
            project=self._project,
            **{kind.place: place, kind.resource: made},
        )
        what, refused = f"create {kind.noun} {node_id} in {spec.zone}", partial(_not_created, name=node_id)
        for _ in range(MADE_ANEW):
            begun = self._change(kind.service, "insert", asked(request_id=request_id(key)), what, refused)
            if not begun.done or begun.error is not None:
                return begun
            parts = self._reads.find_parts(spec.zone, node_id)
            if parts is not None and parts.has(collection):
                return begun
            key = f"{key}/{begun.name}"
        return begun

    def delete_node(self, zone: str, name: str, proved: CloudResource | None = None) -> OperationInfo | None:
        """Asks for the deletion of the topmost object of a slice; called again until nothing is left. Where
        `proved` is given, of that alone: what came to have the name or to be on top meanwhile stays."""
        parts = self._reads.find_parts(zone, name)
        top = next((each for each in reversed(list(KINDS)) if parts is not None and parts.has(each)), None)
        if parts is None or top is None:
            return None
        kind = KINDS[top]
        if proved is not None and (KIND_WORDS[proved.kind], proved.uid) != (kind.noun, parts.uid_of(top)):
            return None
        asked = getattr(self._clients.v1, f"Delete{kind.request}Request")(
            project=self._project,
            **{kind.place: zone if kind.place == "zone" else region_of(zone), kind.id: name},
        )
        with suppress(NotFoundError):
            what = f"delete {kind.noun} {name} in {zone}"
            return self._change(kind.service, "delete", asked, what, partial(translate_change, verb="delete"))
        return None

    def update_node(
        self, zone: str, name: str, *, labels: Mapping[str, str], metadata: Mapping[str, str] | None = None
    ) -> OperationInfo:
        """Of those hosts that differ; what hosts have each for itself, and what is the service's, stays."""
        hosts, v1 = self._hosts(zone, name), self._clients.v1
        shown = common(shown_metadata(each.metadata) for each in hosts)
        shared = common(each.labels for each in hosts)
        begun = []
        for each in hosts:
            place = {"project": self._project, "zone": zone, "instance": each.name}
            labelled = replaced_in_host(each.labels, shared, labels)
            if labelled != each.labels:
                body = v1.InstancesSetLabelsRequest(labels=labelled, label_fingerprint=each.label_fingerprint)
                asked = v1.SetLabelsInstanceRequest(instances_set_labels_request_resource=body, **place)
                begun.append(self._change_host("set_labels", asked, f"label {each.name} in {zone}"))
            wanted = each.metadata if metadata is None else replaced_in_host(each.metadata, shown, metadata)
            if wanted != each.metadata:
                items = [v1.Items(key=key, value=value) for key, value in wanted.items()]
                body = v1.Metadata(items=items, fingerprint=each.metadata_fingerprint)
                asked = v1.SetMetadataInstanceRequest(metadata_resource=body, **place)
                begun.append(
                    self._change_host("set_metadata", asked, f"write metadata of {each.name} in {zone}")
                )
        return join_operations(begun)

    # Data disks.

    def set_data_disks(self, zone: str, name: str, disks: Sequence[DataDisk]) -> OperationInfo:
        """One step of each host towards `disks`: what they add to the disks that `find_node` showed last is
        attached, what they lack of these is detached. So what somebody else attached since then stays."""
        hosts, v1 = self._hosts(zone, name), self._clients.v1
        before = self._shown.get((zone, name), shared_disks(hosts))
        begun = []
        for position, host in enumerate(hosts):
            step = next_disk(host, position, before, disks)
            place = {"project": self._project, "zone": zone, "instance": host.name}
            if isinstance(step, AttachedDisk):
                asked = v1.DetachDiskInstanceRequest(device_name=step.device, **place)
                begun.append(
                    self._change_host("detach_disk", asked, f"detach disk {step.name} from {host.name}")
                )
            elif step is not None:
                source = f"projects/{self._project}/zones/{step.zone}/disks/{step.name}"
                disk = v1.AttachedDisk(
                    source=source, mode=str(step.mode), device_name=step.name, auto_delete=False
                )
                asked = v1.AttachDiskInstanceRequest(attached_disk_resource=disk, **place)
                begun.append(self._change_host("attach_disk", asked, f"attach disk {step.name} to {host.name}"))
        return join_operations(begun)

    def list_disk_changes(self, zone: str, name: str) -> Mapping[str, tuple[DataDisk, ...] | None]:
        """Those at work alone: hosts gain and lose disks one by one, so no change undoes another's."""
        hosts = {each.name for each in self._hosts(zone, name)}
        path, what = self._reads.path(zone, "operations"), f"list the operations on {name} in {zone}"
        found = self._reads.rest.listing(path, "operations", what, dict, {"filter": 'status!="DONE"'})
        return {
            parse_operation(each).name: None
            for each in found.items
            if each.get("operationType") in ("attachDisk", "detachDisk")
            and last_part(wire.text(each.get("targetLink"))) in hosts
        }

    # Guest attributes.

    def list_host_keys(self, zone: str, name: str) -> tuple[GuestHostKey, ...]:
        hosts, answer = self._guest_attributes(zone, name, "hostkeys/")
        return tuple(replace(key, hostname=hosts[key.worker].name) for key in nodes.parse_host_keys(answer))

    def list_host_heartbeats(self, zone: str, name: str) -> Mapping[int, str]:
        return nodes.parse_host_heartbeats(self._guest_attributes(zone, name, f"{nodes.BEAT_NAMESPACE}/")[1])

    def _guest_attributes(self, zone: str, name: str, query: str) -> tuple[tuple[Instance, ...], wire.Json]:
        """Those of all hosts, in the form of the TPU API's one answer."""
        hosts = self._hosts(zone, name)
        ending = f"getGuestAttributes?queryPath={quote(query, safe='')}"
        paths = [f"{self._reads.path(zone, INSTANCES, host.name)}/{ending}" for host in hosts]
        found = self._reads.rest.find_each(paths, f"read guest attributes {query} of {name} in {zone}")
        return hosts, {"guestAttributes": [each or {} for each in found]}

    # Operations and machine types.

    def find_operation(self, name: str) -> OperationInfo | None:
        """One operation, or several that began together. One that nobody knows any more is not waited for."""
        paths = [f"{API}{each}" for each in name.split(",") if each]
        found = self._reads.rest.find_each(paths, "read an operation of Compute Engine")
        known = [parse_operation(each) for each in found if each is not None]
        return None if paths and not known else replace(join_operations(known), name=name)

    def list_offers(self, zone: str) -> tuple[OfferInfo, ...]:
        path, what = self._reads.path(zone, "machineTypes"), f"list the machine types of {zone}"
        found = self._reads.rest.listing(path, "machineTypes", what, lambda each: wire.text(each.get("name")))
        offered = (each for each in found.items if is_tpu(each) and each.startswith(AS_INSTANCES))
        return tuple(OfferInfo(each, each.partition("-")[0], "") for each in offered)

    # Below all of these.

    def _hosts(self, zone: str, name: str) -> tuple[Instance, ...]:
        parts = self._reads.find_parts(zone, name)
        if parts is None or not parts.hosts:
            raise NotFoundError(f"there are no hosts of {name} in {zone}", hint="tpuctl ls")
        return parts.hosts

    def _change(self, service: str, method: str, asked: Any, what: str, refused: Translate) -> OperationInfo:
        clients = self._clients
        return parse_operation(
            clients.change(getattr(clients.v1, service), f"{method}_unary", asked, what, translate=refused)
        )

    def _change_host(self, method: str, asked: Any, what: str) -> OperationInfo:
        return self._change("InstancesClient", method, asked, what, partial(translate_change, verb="patch"))


class GroupKind(Struct, frozen=True):
    """An object of a slice, and how google-cloud-compute's v1 says it."""

    noun: str
    service: str
    request: str
    place: str
    id: str
    resource: str


KINDS: Mapping[str, GroupKind] = {
    POLICIES: GroupKind(
        "workload policy",
        "ResourcePoliciesClient",
        "ResourcePolicy",
        "region",
        "resource_policy",
        "resource_policy_resource",
    ),
    TEMPLATES: GroupKind(
        "instance template",
        "RegionInstanceTemplatesClient",
        "RegionInstanceTemplate",
        "region",
        "instance_template",
        "instance_template_resource",
    ),
    GROUPS: GroupKind(
        "instance group",
        "InstanceGroupManagersClient",
        "InstanceGroupManager",
        "zone",
        "instance_group_manager",
        "instance_group_manager_resource",
    ),
    INSTANCES: GroupKind("instance", "InstancesClient", "Instance", "zone", "instance", "instance_resource"),
}
"""In the order in which they are made."""


def _next_object(parts: GroupParts | None, name: str, spec: SliceSpec) -> str:
    """The collection of the object that is to be made next. Raises ConflictError."""
    ours = parse_marks(marks_text(spec.labels))
    for collection in KINDS:
        marks = {} if parts is None else parts.marks_of(collection)
        if parts is not None and parts.has(collection) and not ours.items() <= marks.items():
            raise ConflictError(f"there is another {KINDS[collection].noun} called {name} in {spec.zone}")
    whole = INSTANCES if spec.hosts == 1 else GROUPS
    wanted = [INSTANCES] if spec.hosts == 1 else [POLICIES, TEMPLATES, GROUPS]
    missing = [each for each in wanted if parts is None or not parts.has(each)]
    if not missing or (parts is not None and parts.has(whole)):
        raise ConflictError(f"{KINDS[whole].noun} {name} is in {spec.zone} already")
    return missing[0]


def _not_created(error: Exception, what: str, name: str) -> TpuctlError:
    """A create that names what is not there is in vain, unless that was made moments ago for the same slice."""
    ours = translate_change(error, what, "create")
    if not isinstance(ours, NotFoundError):
        return ours
    if any(f"{each}/{name}'" in str(error) for each in (TEMPLATES, POLICIES)):
        return BusyError(ours.message, hint="wait a minute and try again", details=ours.details)
    return InvalidRequestError(ours.message, hint="tpuctl types", details=ours.details)
