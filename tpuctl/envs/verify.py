"""Asks hosts what they have of an environment: to verify it, before a run starts, for a comparison."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tpuctl.engine.services import Services
from tpuctl.envs.compare import fold_properties, pick_environment, properties_of_machine, properties_on_host
from tpuctl.envs.drift import LOOKED_AT, DriftedColumn, HostReading, compare_hosts, skew_of
from tpuctl.envs.hosts import EnvironmentKind
from tpuctl.envs.load import pin
from tpuctl.envs.pinned import PinnedEnvironment, environment_keys, parse_frozen
from tpuctl.errors import PartialError, UnreachableError, UsageError
from tpuctl.hosts.agent import HostAgent
from tpuctl.hosts.facts import Section
from tpuctl.hosts.requests import FactsRequest
from tpuctl.hosts.targets import host_targets
from tpuctl.lib.text import counted
from tpuctl.model.hosts import HostTarget
from tpuctl.model.records import SliceRecord
from tpuctl.model.shipped_files import read_template


def verify_environment(
    services: Services, record: SliceRecord, pinned: PinnedEnvironment
) -> tuple[int, list[DriftedColumn]]:
    """How many hosts were asked, each once, and in what they differ."""
    kind = EnvironmentKind(pinned, record.name, read_template("env_install.py"))
    agent = HostAgent(services.remote, services.agent_source)
    keys = environment_keys(pinned)
    seen = observe_hosts(services, agent, host_targets(services, record), keys=keys)
    return len(seen), compare_hosts(pinned, record.name, seen, kind=kind)


def observe_hosts(
    services: Services,
    agent: HostAgent,
    targets: Sequence[HostTarget],
    sections: Collection[Section] = LOOKED_AT,
    keys: Sequence[str] = (),
) -> list[HostReading]:
    """Some facts of hosts; those that `compare_hosts` wants. With `keys` of these environments alone."""
    began = services.clock.now()
    answers = agent.ask(targets, FactsRequest(tuple(sorted(sections)), envs=tuple(keys)))
    ended = services.clock.now()
    seen = []
    for answer in answers:
        if answer.value is None:
            seen.append(HostReading(answer.worker, None, why=answer.message or str(answer.error)))
            continue
        seen.append(HostReading(answer.worker, answer.value, skew_of(answer.value, began, ended)))
    return seen


def properties_of_slice(
    services: Services, record: SliceRecord, wanted: PinnedEnvironment | None = None
) -> Mapping[str, str]:
    """What the hosts of a slice have: of the environment that `wanted` became there, else of the slice's own,
    else of the only one; without `wanted`, of the hosts themselves, too. Asks each host once.

    Raises UnreachableError where a host does not answer, UsageError where it has several and none is meant.
    """
    own = record.spec.env
    pinned = [] if wanted is None else [pin(wanted)]
    pinned += [] if own is None else [parse_frozen(services.store.get_blob(own.spec))]
    keys = [key for each in pinned for key in environment_keys(each)]
    name = wanted.spec.name if wanted is not None else None
    hosts: dict[int, Mapping[str, str]] = {}
    agent = HostAgent(services.remote, services.agent_source)
    of_machine = LOOKED_AT | {Section.HOST}
    for each in observe_hosts(services, agent, host_targets(services, record), of_machine):
        if each.facts is None:
            raise UnreachableError(
                f"worker {each.worker} of {record.name} did not answer: {each.why}",
                hint=f"tpuctl status {record.name}",
            )
        found = pick_environment(each.facts, keys, name)
        if found is None and wanted is None and any(env.mark for env in each.facts.envs or ()):
            raise UsageError(
                f"worker {each.worker} of {record.name} has several environments, and none is the slice's",
                hint=f"tpuctl env diff NAME --on {record.name}",
            )
        things = {"environment": "none"} if found is None else properties_on_host(found)
        hosts[each.worker] = things if wanted is not None else {**things, **properties_of_machine(each.facts)}
    return fold_properties(hosts)


def describe_drift(slice_name: str, found: Sequence[DriftedColumn], joint: str) -> str:
    """Which hosts differ, and in what, each behind a `joint`."""
    count = len({worker for each in found for worker in each.workers})
    differ = "differs" if count == 1 else "differ"
    return joint.join([f"{counted(count, 'host')} of {slice_name} {differ}:", *(each.said for each in found)])


def drift_error(slice_name: str, found: Sequence[DriftedColumn]) -> PartialError:
    """Hosts differ: which, in what, and the commands after which they do not."""
    hints = list(dict.fromkeys(each.hint for each in found))
    workers = sorted({worker for each in found for worker in each.workers})
    return PartialError(
        describe_drift(slice_name, found, "\n  "),
        hint="\n      ".join(hints),
        details={
            "workers": workers,
            "columns": [each.column for each in found],
            "differences": [
                {
                    "column": each.column,
                    "expected": each.expected,
                    "found": {value: list(workers) for value, workers in each.found.items()},
                    "hint": each.hint,
                }
                for each in found
            ],
        },
    )
