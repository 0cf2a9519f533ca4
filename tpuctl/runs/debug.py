"""What `run --debug` sets in the processes of a run; pure.

The table is `manifests/tables/debug_profiles.yaml`: by the packages of the run's environment and their
versions. Nobody knows these of a run without a pinned one: it gets what any package
would, for a variable that nothing reads does no harm.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from tpuctl.envs.pinned import PinnedEnvironment
from tpuctl.envs.rules import is_within
from tpuctl.errors import UsageError
from tpuctl.lib.codec import from_data
from tpuctl.lib.text import suggest


class DebugRow(Struct, frozen=True):
    """What one package is told."""

    package: str
    source: str
    versions: str = ""
    set: Mapping[str, str] = field(default_factory=dict)
    append: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class DebugProfile(Struct, frozen=True):
    """A word of `--debug`. `recompile`: a compile cache would leave nothing to see."""

    what: str
    rows: tuple[DebugRow, ...]
    recompile: bool = False


class DebugVariables(Struct, frozen=True):
    """What several words come to: variables, and flags that are added to variables. `{dumps}` in them is a
    folder of the process."""

    set: Mapping[str, str] = field(default_factory=dict)
    append: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    recompile: bool = False


def parse_profiles(table: Mapping[str, Any]) -> Mapping[str, DebugProfile]:
    """The content of the table."""
    return {name: from_data(DebugProfile, each) for name, each in table["profiles"].items()}


def packages_of(environment: PinnedEnvironment | None) -> Mapping[str, str] | None:
    """{package: version} of what a run runs in; None where the hosts alone know."""
    if environment is None or environment.spec.unmanaged is not None:
        return None
    from tpuctl.envs.lock import versions_of

    return versions_of(environment.packages, environment.spec.python[0])


def render_debug(
    profiles: Mapping[str, DebugProfile], asked: Sequence[str], packages: Mapping[str, str] | None
) -> DebugVariables:
    """What the words that were `asked` for come to with these packages. Raises UsageError for an unknown one,
    which a newer tpuctl may have written down."""
    unknown = [name for name in asked if name not in profiles]
    if unknown:
        hint = f"this one has {', '.join(profiles)}: use the tpuctl that started the run, or a newer one"
        raise UsageError.of("debug", f"--debug {unknown[0]!r} is unknown to this tpuctl", hint)
    rows = [row for name in asked for row in _rows_for(profiles[name], packages)]
    append: dict[str, tuple[str, ...]] = {}
    for row in rows:
        for name, flags in row.append.items():
            known = append.get(name, ())
            append[name] = (*known, *(flag for flag in flags if flag not in known))
    values = {name: value for row in rows for name, value in row.set.items()}
    return DebugVariables(values, append, any(profiles[name].recompile for name in asked))


def _rows_for(profile: DebugProfile, packages: Mapping[str, str] | None) -> list[DebugRow]:
    if packages is None:
        return list(profile.rows)
    return [
        row
        for row in profile.rows
        if row.package in packages and (not row.versions or is_within(packages[row.package], row.versions))
    ]


def check_debug(
    profiles: Mapping[str, DebugProfile],
    asked: Sequence[str],
    environment: PinnedEnvironment | None,
    given: Mapping[str, str],
    secrets: Collection[str] = (),
) -> DebugVariables:
    """What the words come to. `given` and `secrets` are what a person set for the run beside its environment.

    Raises UsageError for an unknown word, one that would do nothing, and what contradicts what is set.
    """
    packages = packages_of(environment)
    for name in asked:
        if name not in profiles:
            near = suggest(name, list(profiles))
            hint = f"--debug {near}" if near else f"one of: {', '.join(profiles)}"
            raise UsageError.of("debug", f"--debug {name!r} is unknown", hint)
        if list(asked).count(name) > 1:
            raise UsageError.of("debug", f"--debug {name} is given twice", "give it once")
        if not _rows_for(profiles[name], packages) and environment is not None:
            needs = " or ".join(dict.fromkeys(row.package for row in profiles[name].rows))
            why = f"--debug {name} is for {needs}, and environment {environment.spec.name} has none"
            raise UsageError.of("debug", why, f"leave out --debug {name}")
    found = render_debug(profiles, asked, packages)
    _check_contradictions(found, {**(environment.variables() if environment else {}), **given}, secrets)
    return found


def _check_contradictions(
    found: DebugVariables, variables: Mapping[str, str], secrets: Collection[str]
) -> None:
    for name, value in found.set.items():
        if name in secrets or variables.get(name, value) != value:
            has = "a secret" if name in secrets else f"{variables[name]!r}"
            why = f"--debug sets {name}={value}, and the run has it already, as {has}"
            raise UsageError.of("debug", why, f"leave out {name}, or the --debug that sets it")
    for name, flags in found.append.items():
        if name in secrets:
            why = f"--debug adds {flags[0]} to {name}, which is a secret of the run"
            raise UsageError.of("debug", why, f"give it with --var {name}=…")
        words = {word.partition("=")[0]: word for word in variables.get(name, "").split()}
        for flag in flags:
            own = words.get(flag.partition("=")[0], flag)
            if own != flag:
                why = f"--debug adds {flag.partition('=')[0]} to {name}, and the run has {own} there already"
                raise UsageError.of("debug", why, f"leave out {own}, or the --debug that adds it")
