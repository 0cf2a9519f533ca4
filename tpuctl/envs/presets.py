"""Presets: what the keys of an environment file set for every run in it. Pure.

A flag profile is a named set of flags of libtpu, of the table `manifests/tables/flag_profiles.yaml`. It is
expanded when the file is read, so that what a run or slice keeps does not change with the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.envs.compile_cache import cache_variable
from tpuctl.envs.rules import Complaint
from tpuctl.envs.spec import EnvironmentSpec
from tpuctl.lib.codec import from_data
from tpuctl.lib.text import suggest
from tpuctl.model.run_spec import RunSettings

OWN_DIRECTORY = "a directory for each environment key, accelerator type and set of flags"


class FlagProfile(Struct, frozen=True):
    """A row of the table. `generations`: those of TPUs on which its source uses it; none means any."""

    what: str
    flags: tuple[str, ...]
    source: str
    generations: tuple[str, ...] = ()


class PresetRow(Struct, frozen=True):
    """A key of an environment, what it came to in a run, and which of the two had the last word: `environment`
    or the option of `run`, such as `--per`."""

    key: str
    value: str
    sets: str
    by: str

    @property
    def said(self) -> str:
        """For a person, in one line."""
        return f"{self.key} {self.value}: {self.sets} (by {self.by})"


def parse_flag_profiles(table: Mapping[str, Any]) -> Mapping[str, FlagProfile]:
    """The content of the table."""
    return {name: from_data(FlagProfile, each) for name, each in table["profiles"].items()}


def expand_profiles(profiles: Mapping[str, FlagProfile], spec: EnvironmentSpec) -> EnvironmentSpec:
    """The environment with the flags of its profiles before its own, which win. Again it is the same."""
    own = {_name(flag) for flag in spec.libtpu_flags}
    known = [profiles[name] for name in spec.flag_profiles if name in profiles]
    added = dict.fromkeys(flag for each in known for flag in each.flags if _name(flag) not in own)
    return replace(spec, libtpu_flags=(*added, *spec.libtpu_flags))


def profile_complaints(profiles: Mapping[str, FlagProfile], spec: EnvironmentSpec) -> list[Complaint]:
    """Profiles that do not exist, are not for the environment's generations, or contradict each other."""
    found: list[Complaint] = []
    for name in spec.flag_profiles:
        if name not in profiles:
            near = suggest(name, list(profiles))
            guess = f"; did you mean {near!r}?" if near else ""
            hint = f"one of: {', '.join(profiles)}"
            found.append(_complaint(f"{name!r} is no flag profile{guess}", hint))
        elif spec.flag_profiles.count(name) > 1:
            found.append(_complaint(f"flag profile {name} is named twice", "name it once"))
        else:
            found += _generations(name, profiles[name], spec.generations)
    return [*dict.fromkeys(found), *_conflicts(profiles, spec)]


def _complaint(message: str, hint: str) -> Complaint:
    return Complaint("flag_profiles", message, hint)


def _generations(name: str, profile: FlagProfile, wanted: Sequence[str]) -> list[Complaint]:
    others = [each for each in wanted or ("any",) if each not in profile.generations]
    if not profile.generations or not others:
        return []
    listed = ", ".join(profile.generations)
    text = f"flag profile {name} is for {listed}, and the environment is for {', '.join(others)}"
    return [_complaint(text, f"generations: [{listed}], or without {name}")]


def _conflicts(profiles: Mapping[str, FlagProfile], spec: EnvironmentSpec) -> list[Complaint]:
    """Pairs of profiles that give one flag two values, unless the file itself has that flag."""
    taken: dict[str, tuple[str, str]] = {}
    found: dict[tuple[str, str], Complaint] = {}
    own = {_name(flag) for flag in spec.libtpu_flags}
    for name in spec.flag_profiles:
        for flag in profiles[name].flags if name in profiles else ():
            first, had = taken.setdefault(_name(flag), (name, flag))
            if had != flag and _name(flag) not in own and (first, name) not in found:
                text = f"flag profiles {first} and {name} exclude each other: {had} and {flag}"
                found[first, name] = _complaint(text, f"keep {first} or {name}")
    return list(found.values())


def _name(flag: str) -> str:
    return flag.partition("=")[0]


def preset_rows(spec: EnvironmentSpec, run: RunSettings, given: Mapping[str, str]) -> list[PresetRow]:
    """What the keys of an environment came to in a run, for which a person set the variables `given`."""
    found = []
    if spec.per:
        found.append(PresetRow("per", spec.per, f"--per {run.per}", _by(run.per == spec.per, "--per")))
    if spec.flag_profiles:
        flags = given.get("LIBTPU_INIT_ARGS", " ".join(spec.libtpu_flags))
        by = _by("LIBTPU_INIT_ARGS" not in given, "--var")
        found.append(PresetRow("flag_profiles", ", ".join(spec.flag_profiles), f"LIBTPU_INIT_ARGS={flags}", by))
    if spec.compile_cache != "off":
        variable = cache_variable(spec)
        value = given.get(variable, OWN_DIRECTORY)
        by = _by(variable not in given, "--var")
        found.append(PresetRow("compile_cache", spec.compile_cache, f"{variable}={value}", by))
    if spec.progress:
        by = _by(run.progress == spec.progress, "--progress")
        found.append(PresetRow("progress", spec.progress, f"--progress '{run.progress or ''}'", by))
    return found


def _by(environment: bool, option: str) -> str:
    return "environment" if environment else option


def describe_preset(spec: EnvironmentSpec) -> list[str]:
    """What an environment sets beside packages and variables, in a few words."""
    return [
        *([f"per {spec.per}"] if spec.per else []),
        *spec.flag_profiles,
        *([f"cache {spec.compile_cache}"] if spec.compile_cache != "off" else []),
        *(["progress"] if spec.progress else []),
    ]
