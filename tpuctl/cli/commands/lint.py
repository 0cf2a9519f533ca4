"""`tpuctl lint`: what a program does that TPUs punish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from tpuctl.cli.console import Console
from tpuctl.model.requests import LintRequest

if TYPE_CHECKING:
    from tpuctl.cli.context import AppContext
    from tpuctl.lint.lint import LintReport
    from tpuctl.lint.report import Format
    from tpuctl.lint.rules import LintRule

Kind = TypeVar("Kind", bound=StrEnum)


def lint(context: AppContext, console: Console, request: LintRequest) -> None:
    """Find what a program does that TPUs punish.

    Reads the code, and runs nothing of it. Errors are certain where they stand; warnings are about code that
    the step loop reaches. Ends with 1 when there is an error; warnings alone end with 0. Rules are chosen
    here or in [tool.tpuctl.lint] of pyproject.toml; `# tpuctl: ignore[CODE] reason` ignores one on its line.
    """
    from tpuctl.errors import TpuctlError, UsageError
    from tpuctl.lint.report import Format
    from tpuctl.lint.rules import choose_rules

    if request.explain is not None:
        _explain(console, choose_rules((request.explain,), (), "--explain"))
        return
    shape = _member(Format, "--output-format", request.output_format)
    if request.deps and request.env is None:
        raise UsageError("--deps needs an environment", hint="tpuctl lint --env NAME --deps")
    report, rules = _look(request)
    if request.deps and request.env is not None:
        report = _with_packages(context, report, request.env, rules)
    _print(console, report, shape)
    if report.errors:
        raise typer.Exit(TpuctlError.exit_code)


def _look(request: LintRequest) -> tuple[LintReport, Sequence[LintRule]]:
    """What was found in the files, and the rules that were looked for."""
    from tpuctl.lint.files import list_files, top_of
    from tpuctl.lint.lint import lint_files
    from tpuctl.lint.options import LintOptions, find_options, is_excluded, split_codes
    from tpuctl.lint.project import LintTarget
    from tpuctl.lint.rules import LintBackend, choose_rules, for_versions

    codes = split_codes(request.select), split_codes(request.ignore)
    backend = None if request.backend is None else _member(LintBackend, "--backend", request.backend)
    asked = LintOptions(backend, request.port, *codes)
    given = [Path(each) for each in request.paths or ["."]]
    first = given[0].absolute()
    file, top = find_options(first if first.is_dir() else first.parent)
    options = asked.over(file)
    versions: Mapping[str, str] = {}
    if request.env is not None:
        own, versions = _of_environment(request.env)
        options = options.for_environment(None if own is None else _member(LintBackend, "--backend", own))
    rules = for_versions(choose_rules(options.select, options.ignore), versions)
    found = list_files(given, lambda path: is_excluded(path, top, options.exclude))
    return lint_files(found, rules, LintTarget(options.backend, options.port), top_of(given, top)), rules


def _member(kind: type[Kind], flag: str, name: str) -> Kind:
    """The one of these that is called so. Raises UsageError."""
    from tpuctl.errors import UsageError

    if name in kind.__members__.values():
        return kind(name)
    raise UsageError(f"{flag} {name!r} is unknown", hint=f"one of: {', '.join(kind)}")


def _of_environment(name: str) -> tuple[str | None, Mapping[str, str]]:
    """The backend of an environment, None for the CPU, and its versions."""
    from tpuctl.envs.load import environment_folder, known_versions, read_environment
    from tpuctl.envs.spec import Backend

    found = read_environment(name, environment_folder())
    backend = found.spec.backend
    return None if backend is Backend.CPU else str(backend), known_versions(found)


def _with_packages(context: AppContext, report: LintReport, env: str, rules: Sequence[LintRule]) -> LintReport:
    """The report with what is in packages of the environment that the code imports."""
    from msgspec.structs import replace

    from tpuctl.envs.load import environment_folder, pin, read_environment
    from tpuctl.envs.wheelhouse import imported_wheels
    from tpuctl.lint.lint import FRAMEWORKS, lint_wheel

    pinned = pin(read_environment(env, environment_folder()))
    wheels = imported_wheels(context, pinned, report.imports - FRAMEWORKS)
    found = [each for label, wheel in wheels.items() for each in lint_wheel(label, wheel, rules, report.target)]
    return replace(report, findings=(*report.findings, *found))


def _print(console: Console, report: LintReport, shape: Format) -> None:
    from tpuctl import __version__
    from tpuctl.lint.report import Format, as_github, as_json, as_sarif, as_text, in_words

    if shape is Format.SARIF:
        console.data(as_sarif(report, __version__))
    elif console.json_mode or shape is Format.JSON:
        console.data(as_json(report))
    else:
        for line in as_github(report) if shape is Format.GITHUB else as_text(report):
            console.line(line)
    for each in report.not_read:
        console.caveat(f"{each.path} was not read: {each.why}")
    if shape is Format.TEXT:
        console.say(in_words(report))


def _explain(console: Console, rules: Sequence[LintRule]) -> None:
    from tpuctl.lib.codec import to_data
    from tpuctl.lint.report import explain

    if console.json_mode:
        console.data([to_data(rule) for rule in rules])
        return
    for rule in rules:
        for text in explain(rule):
            console.sentence(text)
        console.line()
