"""The environment of a slice: checked before anything is created, kept in the store, asked of its hosts.

What reads environments is imported where a slice has one: most have none.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from tpuctl.config.settings import Config
from tpuctl.engine.events import Warn
from tpuctl.engine.services import Services
from tpuctl.errors import NotFoundError, UsageError
from tpuctl.hosts.agent import HostAgent
from tpuctl.hosts.targets import host_targets
from tpuctl.model.records import SliceRecord, SliceState
from tpuctl.model.run_spec import EnvironmentRef, FrozenEnvironment
from tpuctl.model.slice_spec import SliceSpec

if TYPE_CHECKING:
    from tpuctl.envs.share import SharedInstall


NO_ENVIRONMENT = "none"
"""Asks that a slice has no environment any more, where none of another name means that it stays as it is."""
TAKEN_OFF = EnvironmentRef(NO_ENVIRONMENT, "")
"""In what is wanted, never in a record."""


def read_environment(config: Config, name: str | None, directory: Path) -> FrozenEnvironment | None:
    """Environment `name`, looked for from `directory`, with its lock; None for no name and for `none`.

    Raises UsageError where there is none, BadManifestError for a bad one or one without a lock.
    """
    if name in (None, NO_ENVIRONMENT):
        return None
    from tpuctl.envs.load import environment_folder, load_environment

    folder = environment_folder(directory)
    try:
        return FrozenEnvironment(name, load_environment(name, folder, config.wheelhouse), str(folder))
    except NotFoundError as error:
        raise UsageError.of("env", error.message, error.hint) from error


def check_environment(services: Services, environment: FrozenEnvironment | None, accelerator_type: str) -> None:
    """Warns of one that nobody has seen work on TPUs. Raises UsageError for one of another generation."""
    if environment is None:
        return
    from tpuctl.envs.load import check_use
    from tpuctl.envs.pinned import parse_frozen

    notice = check_use(parse_frozen(environment.content).spec, accelerator_type)
    if notice is not None:
        services.emit(Warn("", notice))


def changes_environment(record: SliceRecord, spec: SliceSpec) -> bool:
    """Whether `spec` asks for another environment than the slice has been asked to have."""
    return spec.env is not None and environment_of(spec) != record.spec.env


def environment_of(spec: SliceSpec) -> EnvironmentRef | None:
    """What a slice as wanted has; None where it has none, or none any more."""
    return None if spec.env == TAKEN_OFF else spec.env


def with_environment(record: SliceRecord, spec: SliceSpec) -> SliceRecord:
    """The slice, asked to have the environment of `spec`. While its hosts get that it is not ready."""
    env = environment_of(spec)
    waits = env is not None and record.state is SliceState.READY
    state = SliceState.INITIALIZING if waits else record.state
    return replace(record, spec=replace(record.spec, env=env), state=state)


def store_environment(services: Services, environment: FrozenEnvironment | None) -> None:
    """Brings the environment into the store, and packages to where hosts get them: see `fill_wheelhouse`."""
    if environment is None:
        return
    from tpuctl.envs.pinned import parse_frozen
    from tpuctl.envs.wheelhouse import fill_wheelhouse

    fill_wheelhouse(services, parse_frozen(environment.content), Path(environment.folder))
    services.store.put_blob(environment.content)


def share_environment(
    services: Services, agent: HostAgent, record: SliceRecord, until: float
) -> SharedInstall | None:
    """The environment of the slice, for its hosts; None where it has none."""
    if record.spec.env is None:
        return None
    from tpuctl.envs.install import shared_install
    from tpuctl.envs.pinned import parse_frozen

    pinned = parse_frozen(services.store.get_blob(record.spec.env.spec))
    incarnation = record.incarnation
    owner = f"{record.name}-{incarnation.number if incarnation is not None else 0}"
    targets = host_targets(services, record)
    return shared_install(services, agent, targets, pinned, record.name, owner=owner, retry=True, until=until)
