"""`tpuctl lint`: reads files, also those in wheels, and says what TPUs punish in them. Nothing of a program is
unpacked, imported or run."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.errors import BadManifestError
from tpuctl.lib.input_files import read_file
from tpuctl.lint.files import FILE_LIMIT, MAX_FILES, MAX_REACH, ModuleFinder
from tpuctl.lint.module import UnreadableError
from tpuctl.lint.project import LintFinding, LintTarget, find_all, guess_backends
from tpuctl.lint.rules import LintRule, Severity
from tpuctl.lint.summary import Summary, summarize

FRAMEWORKS = frozenset({"torch", "torch-xla", "torch-tpu", "jax", "jaxlib", "libtpu", "numpy", "torchvision"})
"""Packages that are the backend itself, and bring code for every device."""


class NotRead(Struct, frozen=True):
    """A file that was passed over, and why."""

    path: str
    why: str


class LintReport(Struct, frozen=True):
    """What was found in how many files."""

    files: int
    findings: tuple[LintFinding, ...]
    not_read: tuple[NotRead, ...] = ()
    imports: frozenset[str] = frozenset()
    """First parts of the names that these files import."""
    target: LintTarget = LintTarget()
    """For what the files are: with the backend that they have all been guessed to be for, if there is one."""

    @property
    def errors(self) -> tuple[LintFinding, ...]:
        return tuple(each for each in self.findings if each.severity is Severity.ERROR)


def lint_files(paths: Sequence[Path], rules: Sequence[LintRule], target: LintTarget, top: Path) -> LintReport:
    """Looks at all of these files together. `top`: the folder beyond which nothing of the project is."""
    reader = _Reader(rules)
    with without_collector():
        for path in paths:
            reader.read(path)
    return reader.report(target, top)


def lint_reach(script: Path, top: Path, rules: Sequence[LintRule], target: LintTarget) -> LintReport:
    """Looks at a script and at what it imports of the files below `top`, again and again. Paths are as seen
    from there."""
    reader = _Reader(rules, top)
    finder = ModuleFinder(_key(top), lambda key: Path(key).is_file())
    waiting = [script]
    with without_collector():
        while waiting and len(reader.seen) < MAX_REACH:
            path = waiting.pop()
            if _key(path) in reader.seen:
                continue
            summary = reader.read(path)
            for name in summary.imports if summary is not None else ():
                for each in _with_packages(name):
                    found = finder(each, _key(path))
                    if found is not None:
                        waiting.append(Path(found[0]))
    return reader.report(target, top)


def _with_packages(name: str) -> Iterator[str]:
    """An imported name, and the packages around it, whose `__init__` runs before."""
    yield name
    while "." in name.lstrip("."):
        name = name.rpartition(".")[0]
        yield name


class _Reader:
    """Summaries of the files read so far, by their absolute paths."""

    def __init__(self, rules: Sequence[LintRule], shown_from: Path | None = None) -> None:
        self._rules = rules
        self._shown_from = shown_from
        self.summaries: dict[str, Summary] = {}
        self.not_read: list[NotRead] = []
        self.seen: set[str] = set()

    def read(self, path: Path) -> Summary | None:
        key = _key(path)
        self.seen.add(key)
        shown = path if self._shown_from is None else path.absolute().relative_to(self._shown_from.absolute())
        try:
            summary = summarize(str(shown), read_file(path, FILE_LIMIT), self._rules)
        except (OSError, UnreadableError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            self.not_read.append(NotRead(str(shown), why or str(error)))
            return None
        self.summaries[key] = summary
        return summary

    def report(self, target: LintTarget, top: Path) -> LintReport:
        finder = ModuleFinder(_key(top), self.summaries.__contains__)
        found = find_all(self.summaries, self._rules, target, finder)
        imports = frozenset[str]().union(*(each.frameworks for each in self.summaries.values())) - {""}
        backends = guess_backends(self.summaries.values(), target)
        if len(backends) == 1:
            target = replace(target, given=next(iter(backends)))
        return LintReport(len(self.seen), tuple(found), tuple(self.not_read), imports, target)


def _key(path: Path) -> str:
    return path.absolute().as_posix()


@contextmanager
def without_collector() -> Iterator[None]:
    """Trees have no circles: looking for some takes a fifth of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def lint_wheel(label: str, wheel: Path, rules: Sequence[LintRule], target: LintTarget) -> list[LintFinding]:
    """What is in a package that a program imports: one warning for each rule, with how often and where first.
    Whether the program reaches that is not known.

    Raises BadManifestError for what is no wheel.
    """
    import zipfile  # for what few ask for

    summaries: dict[str, Summary] = {}
    try:
        with zipfile.ZipFile(wheel) as archive, without_collector():
            for item in archive.infolist()[:MAX_FILES]:
                if not item.filename.endswith(".py") or item.file_size > FILE_LIMIT or _of_tests(item.filename):
                    continue
                try:
                    key = f"/{item.filename}"
                    summaries[key] = summarize(f"{label}/{item.filename}", archive.read(item), rules)
                except UnreadableError:
                    continue  # for another Python; what counts is what this one would import
    except zipfile.BadZipFile as error:
        raise BadManifestError(f"{wheel.name} of {label} is no wheel: {error}") from error
    found = find_all(summaries, rules, target, ModuleFinder("", summaries.__contains__))
    return _first_of_each(found)


def _of_tests(name: str) -> bool:
    return any(part in ("tests", "test", "testing") or part.startswith("test_") for part in name.split("/"))


def _first_of_each(findings: Sequence[LintFinding]) -> list[LintFinding]:
    by_code: dict[str, list[LintFinding]] = {}
    for each in findings:
        by_code.setdefault(each.code, []).append(each)
    found = []
    for same in by_code.values():
        rest = f"; {len(same) - 1} more in this package" if len(same) > 1 else ""
        found.append(replace(same[0], severity=Severity.WARNING, message=f"{same[0].message}{rest}"))
    return found
