"""Host keys that changed: the cloud is asked once more, and only what it says is believed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from tpuctl.engine.events import Warn
from tpuctl.engine.ports import Remote, RemoteCall
from tpuctl.engine.services import Services
from tpuctl.errors import StaleRecordError, TpuctlError
from tpuctl.hosts.deadline import RemoteWrapper
from tpuctl.hosts.targets import host_targets
from tpuctl.model.hosts import FailureKind, HostTarget, RemoteResult
from tpuctl.state.journal import record_decision
from tpuctl.state.repository import find_slice, save

Renew = Callable[[HostTarget], HostTarget | None]


class RepinningRemote(RemoteWrapper):
    """A `Remote` that, where a host shows another key than the pinned one, asks `renew` for a newer pin and
    tries once more. Nothing was sent to that host before."""

    def __init__(self, remote: Remote, renew: Renew) -> None:
        super().__init__(remote)
        self._renew = renew
        self._renewed: dict[HostTarget, HostTarget] = {}

    def run(self, targets: Sequence[HostTarget], call: RemoteCall) -> list[RemoteResult]:
        """See `Remote.run`. The end of a worker with another key is told when it is sure."""
        on_end, timeout_s = call.on_end, call.timeout_s

        def ended(result: RemoteResult) -> None:
            if on_end is not None and result.failure is not FailureKind.HOST_KEY:
                on_end(result)

        call = replace(call, on_end=ended)
        asked = [self._renewed.get(target, target) for target in targets]
        results = self._remote.run(asked, call)
        changed: dict[int, HostTarget] = {}
        for index, result in enumerate(results):
            newer = self._renew(asked[index]) if result.failure is FailureKind.HOST_KEY else None
            if newer is not None:
                changed[index] = self._renewed[targets[index]] = newer
        if changed:
            spent_s = max(result.duration_s for result in results)
            left_s = None if timeout_s is None else _left(timeout_s, spent_s)
            again = self._remote.run(list(changed.values()), replace(call, timeout_s=left_s))
            for index, result in zip(changed, again, strict=True):
                results[index] = result
        for result in results:
            if on_end is not None and result.failure is FailureKind.HOST_KEY:
                on_end(result)
        return results


def _left(timeout_s: float, spent_s: float) -> float:
    """The second try has what the first left, and time enough to be refused."""
    return min(timeout_s, max(1.0, timeout_s - spent_s))


def renewed_pin(services: Services, target: HostTarget) -> HostTarget | None:
    """The target with the key that the cloud publishes now, written down; None when it says nothing new.

    Only for the same node: another one under the name is another incarnation and is found by the loop.
    """
    from tpuctl.slices.observe import find_slice_node  # rarely needed, and every command has this module
    from tpuctl.slices.probing import position_in, published_keys

    stored = find_slice(services, target.slice_name)
    incarnation = stored.record.incarnation if stored is not None else None
    if stored is None or incarnation is None or target.worker >= len(incarnation.workers):
        return None
    try:
        node = find_slice_node(services, stored.record)
        if node is None or node.uid != incarnation.node_uid:
            return None
        position = position_in(node, target.worker, incarnation)
        published = None if position is None else published_keys(services, node).get(position)
    except TpuctlError:
        return None  # the refusal stands: nobody vouched for the new key
    key = target.host_key if published is None else published.public_key
    if key == target.host_key:
        return None
    workers = list(incarnation.workers)
    workers[target.worker] = replace(workers[target.worker], host_key=key)
    record = replace(stored.record, incarnation=replace(incarnation, workers=tuple(workers)))
    why = f"the cloud publishes a new host key of worker {target.worker}"
    try:
        save(services, stored, record)
    except StaleRecordError:
        services.emit(Warn(record.name, f"{why}; another tpuctl wrote first, it is not kept yet"))
    else:
        record_decision(services, record.key, "host-key", why, incarnation=incarnation.cloud_name)
        services.ssh_entries.update(record.name, host_targets(services, record))
    return replace(target, host_key=key)
