"""Managed instance groups as they are asked for and shown: what is filled in, what follows from their members.

What is filled in is that of a recording (k8s-config-connector, zonalcomputeinstancegroupmanager); what only
groups of TPUs show is that of docs.cloud.google.com/compute/docs/reference/rest/v1/instanceGroupManagers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tpuctl.model.shipped_files import load_accelerators
from tpuctl.sim.compute.bodies import fingerprint, last_part
from tpuctl.sim.compute.catalog import ROOT, TPU_MACHINES
from tpuctl.sim.compute.group_facts import GroupOfInstances, chips_of
from tpuctl.sim.compute.refusals import invalid
from tpuctl.sim.wire.status import PROJECT_NUMBER, ApiError, Json, invalid_argument, unknown_method
from tpuctl.sim.world.paths import ResourcePath

CHANGEABLE = ("description", "instanceLifecyclePolicy", "updatePolicy", "allInstancesConfig")
"""What a patch changes besides the size."""
_BASE_NAME = re.compile(r"[a-z](([-a-z0-9]{0,57})|([-a-z0-9]{0,51}-(#{1,10})(\[([0-9]{1,10})\])?))")
_POLICY = re.compile(r"(?:.*/)?regions/([^/]+)/resourcePolicies/([^/]+)")
_TEMPLATE = re.compile(r"(?:.*/)?(regions/[^/]+|global)/instanceTemplates/([^/]+)")
_ACTIONS = (
    *("abandoning", "creating", "creatingWithoutRetries", "deleting", "none", "recreating", "refreshing"),
    *("restarting", "resuming", "starting", "stopping", "suspending", "verifying"),
)
_STATUSES = (
    *("deprovisioning", "nonExistent", "pending", "pendingStop", "provisioning", "repairing", "running"),
    *("staging", "stopped", "stopping", "suspended", "suspending", "terminated"),
)
MAX_SIZE = 1000


@dataclass
class Member:
    """An instance that a group has or wants. `action` is what the group does with it, `errors` what came of the
    last try."""

    name: str
    action: str = "CREATING"
    errors: list[Json] = field(default_factory=list)


@dataclass
class Group:
    """`data` is what its resource shows whatever its members do; `facts` what these are told."""

    path: ResourcePath
    data: Json
    facts: GroupOfInstances
    members: dict[str, Member] = field(default_factory=dict)
    numbered: int = 0
    """How many members had a number so far."""
    checked: Json | None = None
    """The last progress check, while a group in BULK mode waits until all its members fit."""
    errors: list[Json] = field(default_factory=list)
    """What `listErrors` shows, newest last."""
    tries: bool = False
    """Whether another try is due."""
    deletion: Json | None = None
    """The operation that takes it away."""
    machine_type: str = ""
    model: str = ""
    """The provisioning model of its members."""
    reserved: bool = False
    """Whether its members take their chips from a reservation, each for itself."""

    @property
    def size(self) -> int:
        """How many members it shall have."""
        return sum(each.action != "DELETING" for each in self.members.values())

    @property
    def bulk(self) -> bool:
        return str(self.data["targetSizePolicy"]["mode"]) == "BULK"

    @property
    def repairs(self) -> bool:
        return str(self.data["instanceLifecyclePolicy"]["defaultActionOnFailure"]) == "REPAIR"

    @property
    def resource(self) -> str:
        return f"projects/{self.path.project}/zones/{self.path.zone}/instanceGroupManagers/{self.path.id}"


def check_inputs(body: Json) -> None:
    """Refuses what cannot be."""
    size = body.get("targetSize")
    if size is None:
        raise invalid("resource.targetSize", "", "The target size must be specified.")
    check_size(int(size))
    if (body.get("targetSizePolicy") or {}).get("mode") == "BULK" and int(size) == 1:
        text = "The mode of the target size policy must be INDIVIDUAL for a group of one instance."
        raise invalid("resource.targetSizePolicy.mode", "BULK", text)
    base = str(body.get("baseInstanceName") or "")
    if base and not _BASE_NAME.fullmatch(base):
        raise invalid("resource.baseInstanceName", base, f"Must be a match of regex '{_BASE_NAME.pattern}'")


def check_size(size: int) -> None:
    if not 0 <= size <= MAX_SIZE:
        raise invalid("resource.targetSize", size, f"Values must be between 0 and {MAX_SIZE}.")


def template_of(body: Json) -> tuple[str, str]:
    """Scope and name of the template that a group asks for."""
    versions = body.get("versions") or []
    if len(versions) > 1:
        raise unknown_method("groups of several versions")
    asked = str((versions[0].get("instanceTemplate") if versions else "") or body.get("instanceTemplate") or "")
    found = _TEMPLATE.fullmatch(asked)
    if found is None:
        raise invalid("resource.instanceTemplate", asked, "The URL is malformed.")
    return found[1], found[2]


def policy_of(body: Json) -> tuple[str, str] | None:
    """Region and name of the workload policy that a group asks for."""
    asked = str((body.get("resourcePolicies") or {}).get("workloadPolicy") or "")
    if not asked:
        return None
    found = _POLICY.fullmatch(asked)
    if found is None:
        raise invalid("resource.resourcePolicies.workloadPolicy", asked, "The URL is malformed.")
    return found[1], found[2]


def misfit(topology: str, machine_type: str, size: int) -> ApiError | None:
    """Why a group of so many machines cannot be of a topology: its operation fails with it. The first sentence
    is recorded in GoogleCloudPlatform/magic-modules, pull request 17153."""
    where = "Invalid value for field 'operation': ''. "
    machine = TPU_MACHINES.get(machine_type)
    if machine is None:
        text = f"Machine type {machine_type} does not support accelerator topologies."
        return invalid_argument(where + text)
    if not has_shape(machine.generation, topology):
        text = f"Accelerator topology {topology} is not supported for machine type {machine_type}."
        return invalid_argument(where + text)
    wanted = chips_of(topology) // machine.chips
    if size not in (0, wanted):
        return invalid_argument(
            f"{where}Target size should be {wanted} for given accelerator topology but was {size}."
        )
    return None


def has_shape(generation: str, topology: str) -> bool:
    """Whether chips of a generation can be connected like this."""
    catalog = load_accelerators()
    if any(each.topology == topology for each in catalog.types.values() if each.generation == generation):
        return True
    multiple = catalog.generations[generation].custom_multiple
    sides = [int(each) for each in topology.split("x")]
    if multiple is None or len(sides) != 3:
        return False
    return sides == sorted(sides) and not any(side % multiple for side in sides)


def filled(body: Json, template: str, zone_url: str) -> Json:
    """A new group as its resource shows it, as far as its members play no part."""
    return {
        "baseInstanceName": str(body.get("baseInstanceName") or body["name"]),
        "instanceGroup": f"{zone_url}/instanceGroups/{body['name']}",
        "instanceTemplate": template,
        "listManagedInstancesResults": str(body.get("listManagedInstancesResults") or "PAGELESS"),
        "serviceAccount": f"{PROJECT_NUMBER}@cloudservices.gserviceaccount.com",
        "standbyPolicy": {"mode": "MANUAL", **(body.get("standbyPolicy") or {})},
        "targetSizePolicy": {"mode": "INDIVIDUAL", **(body.get("targetSizePolicy") or {})},
        **({"resourcePolicies": body["resourcePolicies"]} if body.get("resourcePolicies") else {}),
        **changed({"updatePolicy": {}, "instanceLifecyclePolicy": {}, **body}),
    }


def changed(body: Json) -> Json:
    """What a body says of that which a patch may change."""
    found = {key: body[key] for key in CHANGEABLE if body.get(key) is not None}
    if "instanceLifecyclePolicy" in found:
        usual = {"defaultActionOnFailure": "REPAIR", "forceUpdateOnRepair": "NO"}
        usual["onFailedHealthCheck"] = "DEFAULT_ACTION"
        found["instanceLifecyclePolicy"] = usual | found["instanceLifecyclePolicy"]
    if "updatePolicy" in found:
        usual = {"minimalAction": "REPLACE", "replacementMethod": "SUBSTITUTE", "type": "OPPORTUNISTIC"}
        asked = found["updatePolicy"]
        sizes = {key: _fixed(asked.get(key)) for key in ("maxSurge", "maxUnavailable")}
        found["updatePolicy"] = {"minReadySec": 0, **usual, **asked, **sizes}
    return found


def _fixed(asked: Json | None) -> Json:
    count = int((asked or {}).get("fixed", 1))
    return {"fixed": count, "calculated": count}


def new_names(group: Group, count: int, suffixes: Iterator[str]) -> list[str]:
    """Names of `count` more members: numbered where the base name says so, else with a random end."""
    base = str(group.data["baseInstanceName"])
    found = _BASE_NAME.fullmatch(base)
    if found is None or not found[4]:
        return [f"{base}-{next(suffixes)}" for _ in range(count)]
    stem, first = base[: found.start(4)], int(found[6] or 1)
    numbers = range(first + group.numbered, first + group.numbered + count)
    group.numbered += count
    return [f"{stem}{number:0{len(found[4])}d}" for number in numbers]


def status_of(instance: Json | None) -> str:
    """`instanceStatus` of a member; empty where it is not there."""
    return str(instance["status"]) if instance else ""


def shown_group(group: Group, instances: Mapping[str, Json]) -> Json:
    """The resource as the API shows it now; `instances` are the members that are there."""
    actions, size = _actions(group, instances), group.size
    running = [each for each in instances.values() if each["status"] == "RUNNING"]
    stable = actions["none"] == len(group.members) == len(running) and group.deletion is None
    status: Json = {
        "allInstancesConfig": {"effective": True},
        "isStable": stable,
        "stateful": {
            "hasStatefulConfig": False,
            "isStateful": False,
            "perInstanceConfigs": {"allEffective": True},
        },
        "versionTarget": {"isReached": True},
    }
    if group.bulk:
        check = {} if group.checked is None else {"lastProgressCheck": group.checked}
        status["bulkInstanceOperation"] = {"inProgress": actions["creating"] > 0, **check}
    if group.facts.topology is not None:
        status["appliedAcceleratorTopologies"] = [_topology(group, size, len(running))]
    if group.machine_type in TPU_MACHINES:
        status["currentInstanceStatuses"] = _statuses(group, instances)
    version = {"instanceTemplate": group.data["instanceTemplate"], "targetSize": {"calculated": size}}
    return {
        **group.data,
        "currentActions": actions,
        "status": status,
        "targetSize": size,
        "versions": [version],
    }


def _topology(group: Group, size: int, running: int) -> Json:
    state = "ACTIVE" if size and running == size else "INCOMPLETE"
    return {"acceleratorTopology": group.facts.topology, "state": state}


def action_of(member: Member, instance: Json | None) -> str:
    """`currentAction`: a member that is on its way is being created, whatever else was planned."""
    if member.action == "NONE" and status_of(instance) in ("PROVISIONING", "STAGING"):
        return "CREATING"
    return member.action


def _actions(group: Group, instances: Mapping[str, Json]) -> Json:
    found = [action_of(each, instances.get(each.name)).lower() for each in group.members.values()]
    return {action: found.count(action) for action in _ACTIONS}


def _statuses(group: Group, instances: Mapping[str, Json]) -> Json:
    absent = "PENDING" if group.model == "FLEX_START" else "NON_EXISTENT"
    found = [_word(status_of(instances.get(name)) or absent) for name in group.members]
    return {status: found.count(status) for status in _STATUSES}


def _word(status: str) -> str:
    """`PENDING_STOP` → `pendingStop`."""
    head, *rest = status.lower().split("_")
    return head + "".join(each.capitalize() for each in rest)


def shown_members(group: Group, instances: Mapping[str, Json]) -> list[Json]:
    """`managedInstances`, in the order of their names."""
    zone_url = f"{ROOT}/projects/{group.path.project}/zones/{group.path.zone}"
    shown = []
    for name, member in sorted(group.members.items()):
        found, action = instances.get(name), action_of(member, instances.get(name))
        going = action == "DELETING"
        version = {} if going else {"version": {"instanceTemplate": group.data["instanceTemplate"]}}
        shown.append(
            {
                "instance": f"{zone_url}/instances/{name}",
                "name": name,
                "currentAction": action,
                "targetStatus": "DELETED" if going else "RUNNING",
                **({"id": found["id"], "instanceStatus": found["status"]} if found else {}),
                **({"lastAttempt": {"errors": {"errors": member.errors}}} if member.errors else {}),
                **version,
            }
        )
    return shown


def member_body(group: Group, name: str, properties: Json) -> Json:
    """The instance that a template and the configuration of the group make of a member."""
    ours = (group.data.get("allInstancesConfig") or {}).get("properties") or {}
    items = {str(each["key"]): str(each.get("value", "")) for each in properties["metadata"].get("items") or ()}
    items |= {str(key): str(value) for key, value in (ours.get("metadata") or {}).items()}
    template = str(group.data["instanceTemplate"]).partition("/projects/")[2].partition("/")[2]
    # What Compute Engine writes into the metadata of each member, where anybody reads it.
    items |= {
        "instance-template": f"projects/{PROJECT_NUMBER}/{template}",
        "created-by": group.facts.created_by,
    }
    machine = f"zones/{group.path.zone}/machineTypes/{properties['machineType']}"
    labels = {**(properties.get("labels") or {}), **(ours.get("labels") or {})}
    return {
        **properties,
        "name": name,
        "machineType": machine,
        "disks": [_without(each, "kind", "index") for each in properties["disks"]],
        "networkInterfaces": [_without(each, "kind", "name") for each in properties["networkInterfaces"]],
        "metadata": {"items": [{"key": key, "value": value} for key, value in items.items()]},
        **({"labels": labels} if labels else {}),
    }


def _without(data: Json, *fields: str) -> Json:
    return {key: value for key, value in data.items() if key not in fields}


def worker_order(names: Sequence[str]) -> list[str]:
    """Members in the order of their worker numbers: not that of their names, on which nobody may rely."""
    found = sorted(names)
    return [*found[1:], *found[:1]]


def named(body: Json) -> list[str]:
    """The instances that a call names by URLs, each once."""
    return list(dict.fromkeys(last_part(each) for each in body.get("instances") or ()))


def shown_unmanaged(group: Group) -> Json:
    """The instance group that a managed one stands on."""
    data = group.data
    return {
        "kind": "compute#instanceGroup",
        **{key: data[key] for key in ("id", "creationTimestamp", "name", "zone")},
        "description": f"This instance group is controlled by Instance Group Manager '{data['name']}'.",
        "fingerprint": fingerprint({}),
        "network": f"{data['zone'].partition('/zones/')[0]}/global/networks/default",
        "selfLink": data["instanceGroup"],
        "size": len(group.members),
    }
