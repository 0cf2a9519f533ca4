"""Who a simulated host is, as its metadata server says it: project, place, machine, network, service account.

Paths and forms are those of the Compute Engine documentation, "Predefined metadata keys". That the metadata
server's token is accepted by the simulator's APIs is what makes programs on a host that use the credentials of
the machine work, and those that forget them fail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tpuctl.lib.names import region_of
from tpuctl.sim.hosts.metadata import GUEST_ATTRIBUTES, Value
from tpuctl.sim.world.data_disks import disk_metadata
from tpuctl.sim.world.iam import PROJECT_NUMBER, account_token
from tpuctl.sim.world.state import Kernel, Machine, Node

TOKEN_LIFE_S = 3599
MAINTENANCE = "TERMINATE_ON_HOST_MAINTENANCE"
"""What the metadata server calls it: TPU VMs cannot be moved while they run."""
SCOPES = tuple(
    f"https://www.googleapis.com/auth/{name}"
    for name in (
        *("devstorage.read_write", "logging.write", "service.management", "servicecontrol"),
        *("cloud-platform", "pubsub"),
    )
)
"""What a TPU VM gets where nobody says otherwise: k8s-config-connector, mockgcp/mocktpu/testdata/node/crud."""
DEFAULT_ACCOUNT = f"{PROJECT_NUMBER}-compute@developer.gserviceaccount.com"

_MACHINE_TYPES = {
    "v3": "ct3-hightpu-{}t",
    "v4": "ct4p-hightpu-{}t",
    "v5e": "ct5lp-hightpu-{}t",
    "v5p": "ct5p-hightpu-{}t",
    "v6e": "ct6e-standard-{}t",
}
"""By generation and chips of a host: the machine types of Compute Engine and GKE, "Plan TPUs in GKE". That TPU
VMs of the TPU API have the same is taken from gcsfuse, which chooses its defaults by them."""


def project_values(kernel: Kernel) -> dict[str, Value]:
    """What every machine of the project is told."""
    own = {f"project/attributes/{key}": value for key, value in dict(kernel.project_metadata).items()}
    return {
        "project/project-id": kernel.project,
        "project/numeric-project-id": int(PROJECT_NUMBER),
        "universe/universe-domain": "googleapis.com",
        **own,
    }


@dataclass(frozen=True)
class Told:
    """What the metadata server of a machine says besides what all are told alike."""

    name: str
    description: str
    tags: Sequence[str]
    machine_type: str
    """Empty where it is not known."""
    preemptible: bool
    attributes: Mapping[str, str]


def machine_values(kernel: Kernel, machine: Machine, worker: int, told: Told) -> dict[str, Value]:
    """What one worker is told of itself, by its path below `/computeMetadata/v1/`; devices, network and account
    apart."""
    zone, guest = machine.path.zone, dict(machine.guest.get(worker, {}))
    kind = f"projects/{PROJECT_NUMBER}/machineTypes/{told.machine_type}"
    return {
        **project_values(kernel),
        "instance/description": told.description,
        "instance/hostname": f"{told.name}.{zone}.c.{machine.path.project}.internal",
        "instance/id": int(machine.data["id"]),
        "instance/name": told.name,
        "instance/tags": list(told.tags),
        "instance/zone": f"projects/{PROJECT_NUMBER}/zones/{zone}",
        **({"instance/machine-type": kind} if told.machine_type else {}),
        **{f"instance/attributes/{key}": value for key, value in told.attributes.items()},
        **{f"{GUEST_ATTRIBUTES}{path}": value for path, value in guest.items()},
        "instance/preempted": "TRUE" if machine.preempted else "FALSE",
        "instance/scheduling/preemptible": str(told.preemptible).upper(),
        "instance/maintenance-event": MAINTENANCE if worker in machine.maintenance else "NONE",
    }


def node_values(kernel: Kernel, node: Node, worker: int, attributes: Mapping[str, str]) -> dict[str, Value]:
    """Everything that a worker of a node is told."""
    machine_type = _MACHINE_TYPES.get(node.offer.generation, "").format(node.offer.chips_per_host)
    tags, scheduling = node.data.get("tags", ()), node.data.get("schedulingConfig", {})
    preemptible = bool(scheduling.get("spot") or scheduling.get("preemptible"))
    told = Told(node.hostname(worker), "", tags, machine_type, preemptible, attributes)
    config, account = node.data.get("networkConfig", {}), node.data.get("serviceAccount") or {}
    network = str(config.get("network") or "default").rsplit("/", 1)[-1]
    subnetwork = str(config.get("subnetwork") or "default").rsplit("/", 1)[-1]
    address = node.address(worker)
    place = Network(network, subnetwork, region_of(node.path.zone))
    external = address.external_ip if address and config.get("enableExternalIps") else ""
    own = {} if address is None else network_values(0, place, address.internal_ip, external)
    email, scopes = str(account.get("email") or DEFAULT_ACCOUNT), tuple(account.get("scope") or SCOPES)
    return {
        **machine_values(kernel, node, worker, told),
        **disk_metadata(node),
        **own,
        **account_values(kernel, email, scopes),
    }


@dataclass(frozen=True)
class Network:
    """In which a machine is, by names."""

    network: str
    subnetwork: str
    region: str


def network_values(index: int, place: Network, internal: str, external: str) -> dict[str, Value]:
    """One interface of a machine; `external` is empty where it has no such address."""
    folder = f"instance/network-interfaces/{index}/"
    subnetworks = f"projects/{PROJECT_NUMBER}/regions/{place.region}/subnetworks"
    return {
        f"{folder}access-configs/0/external-ip": external,
        f"{folder}access-configs/0/type": "ONE_TO_ONE_NAT",
        f"{folder}ip": internal,
        f"{folder}mtu": 1460,
        f"{folder}network": f"projects/{PROJECT_NUMBER}/networks/{place.network}",
        f"{folder}subnetwork": f"{subnetworks}/{place.subnetwork}",
    }


def account_values(kernel: Kernel, email: str, scopes: tuple[str, ...]) -> dict[str, Value]:
    """The service account of a machine, with a token that the simulator's APIs take."""
    told: dict[str, Value] = {
        "aliases": ("default",),
        "email": email,
        "identity": "",
        "scopes": scopes,
        "token": {
            "access_token": account_token(kernel.token, email),
            "expires_in": TOKEN_LIFE_S,
            "token_type": "Bearer",
        },
    }
    return {
        f"instance/service-accounts/{name}/{key}": value
        for name in ("default", email)
        for key, value in told.items()
    }
