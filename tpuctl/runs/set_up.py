"""Whether the project is set up for a run: its hosts reach each other, and their account may use its buckets.

Both are asked of hosts, because nobody else knows: firewall rules may be those of an organisation, and what
another account may do cannot be asked for. What no host says clearly keeps no run from starting.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.engine.services import Services
from tpuctl.errors import TpuctlError
from tpuctl.hosts.agent import HostAgent
from tpuctl.hosts.protocol import AccessReply
from tpuctl.hosts.requests import BucketAccessRequest, BucketUse, ReachRequest
from tpuctl.lib.names import region_of
from tpuctl.lib.text import fold_workers
from tpuctl.model import timeouts
from tpuctl.model.cloud import HostTarget
from tpuctl.model.firewall import Firewall, Reach, internal_rule, judge_reach
from tpuctl.model.records import RunRecord, SliceRecord
from tpuctl.mounts.hosts import bucket_role

CALL_S = 5.0
"""For a call beside what the host does in it."""
DEFAULT_NETWORK = "default"


class NotSetUp(Struct, frozen=True):
    """What the project lacks, and the command that mends it."""

    why: str
    hint: str
    may_pass: bool = False
    """Some get through, so that it is no matter of what the project lacks."""

    @property
    def told(self) -> str:
        return f"{self.why}; mend it: {self.hint}"


def check_reach(
    services: Services,
    agent: HostAgent,
    targets: Sequence[HostTarget],
    slice_: SliceRecord,
    coordinator: str,
    note: str = "",
) -> NotSetUp | None:
    """Whether every worker gets to the port on the first one at which they are to meet. `note` is why that is
    no port that Google opens."""
    address, _, port = coordinator.rpartition(":")
    request = ReachRequest(address, int(port), timeouts.REACH_S)
    replies = agent.ask(targets[1:], request, timeout_s=timeouts.REACH_S + CALL_S)
    closed = {reply.worker: reply.value.why for reply in replies if reply.value and not reply.value.reached}
    if not closed:
        return None
    workers, first = fold_workers(sorted(closed)), targets[0].worker
    said = "; ".join(filter(None, [closed[min(closed)], note]))
    why = f"worker {workers} cannot reach worker {first} at {coordinator} ({said})"
    through = any(reply.value.reached for reply in replies if reply.value)
    if through and slice_.spec.slices == 1:
        # Rules do not tell the hosts of one slice apart.
        return replace(_unexplained(why, slice_), may_pass=True)
    return blame_network(why, slice_, services.project, int(port), _read_firewall(services, slice_))


def _read_firewall(services: Services, slice_: SliceRecord) -> Firewall | None:
    """None where the rules cannot be read, such as those of another project."""
    try:
        return services.project_api.firewall(slice_.spec.network or DEFAULT_NETWORK)
    except TpuctlError:
        return None


def blame_network(
    why: str, slice_: SliceRecord, project: str, port: int, firewall: Firewall | None
) -> NotSetUp:
    """What to type where hosts do not reach each other: another rule helps only where rules are the reason."""
    network = slice_.spec.network or DEFAULT_NETWORK
    name = network.rpartition("/")[2]
    ranges = firewall.ranges.get(region_of(slice_.spec.zone), ()) if firewall is not None else ()
    rules = firewall.rules if firewall is not None else ()
    judged = {judge_reach(each, rules, port) for each in ranges}
    if Reach.NO in judged:
        why = f"{why}: no firewall rule of network {name} lets hosts reach each other"
        return NotSetUp(why, internal_rule(network, ranges, project))
    if judged == {Reach.YES}:
        why = f"{why}, although the rules of network {name} allow it"
        return NotSetUp(why, "ask who manages the firewall policies of its folder or organisation")
    return _unexplained(why, slice_)


def _unexplained(why: str, slice_: SliceRecord) -> NotSetUp:
    name = (slice_.spec.network or DEFAULT_NETWORK).rpartition("/")[2]
    return NotSetUp(f"{why}; why is not known", f"look what `tpuctl doctor` says of network {name}")


def used_buckets(run: RunRecord, slice_: SliceRecord, wheelhouse: str) -> tuple[BucketUse, ...]:
    """Those of its checkpoints, of mounts that it may write to, and of its environment's packages."""
    written = [run.checkpoint_place or "", *(each.source for each in slice_.spec.mounts if not each.read_only)]
    places = [*((each, True) for each in written), (wheelhouse, False)]
    return tuple(dict.fromkeys(_use(place, write) for place, write in places if place.startswith("gs://")))


def _use(place: str, write: bool) -> BucketUse:
    bucket, _, prefix = place.removeprefix("gs://").partition("/")
    return BucketUse(bucket, f"{prefix.rstrip('/')}/" if prefix.strip("/") else "", write)


def check_buckets(
    agent: HostAgent, target: HostTarget, uses: Sequence[BucketUse], zone: str
) -> NotSetUp | None:
    """Whether the account of a host may use what its program will; all hosts of a slice have the same one."""
    request = BucketAccessRequest(tuple(uses), timeouts.BUCKET_ACCESS_S)
    [reply] = agent.ask([target], request, timeout_s=timeouts.BUCKET_ACCESS_S + CALL_S)
    return blame_access(reply.value or AccessReply(), uses, zone)


def blame_access(said: AccessReply, uses: Sequence[BucketUse], zone: str) -> NotSetUp | None:
    """What is refused, and what to type."""
    for found in said.buckets:
        if found.absent:
            make = f"gcloud storage buckets create gs://{found.bucket} --location={region_of(zone)}"
            return NotSetUp(f"there is no bucket gs://{found.bucket}", make)
        if found.lacks:
            write = any(use.write for use in uses if use.bucket == found.bucket)
            why = f"the hosts' account {said.account} has no {', '.join(found.lacks)} on gs://{found.bucket}"
            return NotSetUp(why, bucket_role(found.bucket, write=write, account=said.account))
    return None
