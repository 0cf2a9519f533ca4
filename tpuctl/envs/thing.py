"""The pinned environment as a thing of a slice: checked before anything is created, shared by its hosts."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tpuctl.engine.services import Services
from tpuctl.envs.hosts import EnvironmentKind
from tpuctl.envs.install import environment_kind, load_pinned
from tpuctl.model.records import SliceRecord
from tpuctl.model.slice_spec import SliceSpec
from tpuctl.things.of_slice import Asked, Specs, ThingChange, ThingOfSlice


class EnvironmentOfSlice(ThingOfSlice):
    """See `ThingOfSlice`. It has one, or none."""

    def resolve(self, services: Services, asked: Asked, specs: Specs) -> Specs:
        """It was read and checked before: a run may be in it, too."""
        del services
        return tuple(replace(each, env=asked.environment) for each in specs)

    def change(self, known: SliceSpec, wanted: SliceSpec) -> ThingChange | None:
        """Another one, or another content."""
        env = wanted.env
        if env is None or env == known.env:
            return None
        what = "has changed" if known.env is not None and known.env.name == env.name else "is asked for"
        said = f"environment {env.name}"
        return ThingChange("env", "env", env, env.name, said, f"{said} {what}")

    def kinds(self, services: Services, record: SliceRecord, asked_by: str) -> Sequence[EnvironmentKind]:
        """Installed and verified on each host."""
        pinned = load_pinned(services, record.spec.env)
        return () if pinned is None else (environment_kind(services, pinned, record.name, asked_by=asked_by),)


ENVIRONMENT = EnvironmentOfSlice()
