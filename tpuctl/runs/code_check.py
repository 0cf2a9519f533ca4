"""What is certain of a run's code and flags before it costs chips.

Code is read by `tpuctl lint`; flags are asked of the libtpu of the environment. What reads either is imported
where a run has it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from tpuctl.engine.events import Warn
from tpuctl.engine.services import Services
from tpuctl.envs.pinned import PinnedEnvironment
from tpuctl.errors import BadManifestError, UsageError
from tpuctl.model.run_spec import RunRequest

if TYPE_CHECKING:
    from tpuctl.lint.project import LintFinding

SHOWN = 20
"""Errors that are printed: who has more reads them with `tpuctl lint`."""
FLAGS = ("LIBTPU_INIT_ARGS", "XLA_FLAGS")


def check_code(
    services: Services, request: RunRequest, directory: Path, environment: PinnedEnvironment | None
) -> None:
    """Warns of each error in the script of a run and in what it imports, and refuses what cannot work.

    Raises UsageError: with `--lint strict` for such errors, always for flags that libtpu does not take and
    for a `--debug` that cannot be.
    """
    given = {name: request.var[name] for name in FLAGS if name in request.var}
    if given:
        _check_flags(services, given, environment)
    if request.debug:
        _check_debug(services, request, environment)
    script = entry_of(request, directory)
    if request.lint == "off" or script is None:
        return
    errors = _errors(script, directory, environment)
    if errors and request.lint == "strict":
        from tpuctl.lib.text import counted
        from tpuctl.lint.report import in_one_line

        listed = "\n  ".join(in_one_line(each) for each in errors[:SHOWN])
        raise UsageError.of(
            "lint",
            f"--lint strict: {counted(len(errors), 'error')} in the code of the run:\n  {listed}",
            _hint(errors),
        )
    for each in errors[:SHOWN]:
        services.emit(Warn("", f"{each.path}:{each.line}: {each.code} {each.message}"))
    if errors:
        services.emit(Warn("", f"{_hint(errors)} says more; --lint strict does not start such a run"))


def entry_of(request: RunRequest, directory: Path) -> Path | None:
    """The file of Python with which a run begins; None where a command is something else."""
    if request.module is not None:
        place = directory.joinpath(*request.module.split("."))
        names: tuple[Path, ...] = (place.with_name(f"{place.name}.py"), place / "__main__.py")
    else:
        words = (request.script,) if request.script is not None else request.command
        names = tuple(directory / word for word in words if word.endswith(".py") and "\0" not in word)
    return next((each for each in names if each.is_file()), None)


def _errors(script: Path, directory: Path, environment: PinnedEnvironment | None) -> list[LintFinding]:
    from tpuctl.lint.lint import lint_reach
    from tpuctl.lint.options import find_options, is_excluded
    from tpuctl.lint.project import LintTarget
    from tpuctl.lint.rules import LintBackend, choose_rules, for_versions

    options, folder = find_options(directory)
    versions: Mapping[str, str] = {}
    if environment is not None:
        from tpuctl.envs.lock import versions_of

        versions = versions_of(environment.packages, environment.spec.python[0])
        named = environment.spec.backend.value
        options = options.for_environment(
            LintBackend(named) if named in LintBackend.__members__.values() else None
        )
    rules = for_versions(choose_rules(options.select, options.ignore), versions)
    report = lint_reach(script, directory, rules, LintTarget(options.backend, options.port))
    return [each for each in report.errors if not is_excluded(Path(each.path), folder, options.exclude)]


def _hint(errors: list[LintFinding]) -> str:
    return f"tpuctl lint --explain {errors[0].code}"


def _check_debug(services: Services, request: RunRequest, environment: PinnedEnvironment | None) -> None:
    """Raises UsageError for a `--debug` that cannot be, or whose flags libtpu of the environment refuses."""
    from tpuctl.model.shipped_files import load_debug_profiles
    from tpuctl.runs.debug import check_debug, parse_profiles

    profiles = parse_profiles(load_debug_profiles())
    found = check_debug(profiles, request.debug, environment, request.var, request.secret)
    flags = found.append.get("LIBTPU_INIT_ARGS", ())
    if not flags:
        return
    if environment is None or environment.spec.unmanaged is not None:
        words = [n for n in request.debug if any("LIBTPU_INIT_ARGS" in r.append for r in profiles[n].rows)]
        said = "without a pinned environment its flags go to the libtpu of the hosts unchecked, and one that"
        services.emit(Warn("", f"--debug {', '.join(words)}: {said} does not take them ends the program"))
        return
    own = {**environment.variables(), **request.var}.get("LIBTPU_INIT_ARGS", "")
    _ask_libtpu(services, {"LIBTPU_INIT_ARGS": f"{own} {' '.join(flags)}".strip()}, environment, "debug")


def _check_flags(services: Services, given: Mapping[str, str], environment: PinnedEnvironment | None) -> None:
    """Raises UsageError for flags of `--var` that end the program when it begins to use the chips."""
    from tpuctl.lint.rules import load_rules

    [rule] = [each for each in load_rules() if each.check == "tpu_flags"]
    bad = next((word for word in given.get("XLA_FLAGS", "").split() if word.startswith(rule.prefixes)), None)
    if bad is not None:
        message = rule.message.format(what=bad.partition("=")[0])
        raise UsageError.of("var", f"--var: {message}", f"--var 'LIBTPU_INIT_ARGS={bad}'")
    if environment is not None:
        _ask_libtpu(services, given, environment, "var")


def _ask_libtpu(
    services: Services, given: Mapping[str, str], environment: PinnedEnvironment, field: str
) -> None:
    """Raises UsageError, about this field of a run, where the libtpu of its environment refuses flags."""
    from tpuctl.envs.wheelhouse import check_flags_of

    pinned = environment.spec
    spec = replace(
        pinned,
        variables={**pinned.variables, **given},
        libtpu_flags=() if "LIBTPU_INIT_ARGS" in given else pinned.libtpu_flags,
        xla_flags=() if "XLA_FLAGS" in given else pinned.xla_flags,
    )
    try:
        check_flags_of(services, dataclasses.replace(environment, spec=spec))
    except BadManifestError as error:
        raise UsageError.of(
            field, f"--{field}: {error.message}", "leave it out, or pin a libtpu that has it"
        ) from error
