"""How to reach the workers of a slice."""

from __future__ import annotations

from tpuctl.engine.services import Services
from tpuctl.errors import TpuctlError
from tpuctl.model.hosts import HostTarget
from tpuctl.model.records import SliceRecord


def host_targets(services: Services, record: SliceRecord) -> list[HostTarget]:
    """How to reach every worker of the current incarnation, in worker order."""
    incarnation = record.incarnation
    if incarnation is None or not incarnation.workers:
        raise TpuctlError(
            f"slice {record.name} has no reachable workers ({record.state})",
            hint=f"tpuctl status {record.name}",
        )
    external = record.spec.external_ips and not services.internal_ip
    return [
        HostTarget(
            slice_name=record.name,
            worker=index,
            address=worker.endpoint.address if external else worker.endpoint.internal_ip,
            port=services.ssh_port,
            user=record.spec.login_user,
            host_key=worker.host_key,
            internal_ip=worker.endpoint.internal_ip,
            instance=worker.hostname.partition(".")[0],
            zone=record.spec.zone,
        )
        for index, worker in enumerate(incarnation.workers)
    ]
