"""All files together: for which backend they are, what the step loop reaches, and so what is found. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.lint.rules import UNUSED, LintBackend, LintRule, Severity, load_rules
from tpuctl.lint.summary import JAX, TORCH, CandidateFinding, Ignore, Summary


class LintFinding(Struct, frozen=True):
    """One thing that TPUs punish."""

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    code: str
    name: str
    severity: Severity
    message: str
    snippet: str = ""


class LintTarget(Struct, frozen=True):
    """What the code is for. `given`: the backend that a person or an environment named; imports tell without.
    `porting`: PyTorch without any backend of TPUs is to get one."""

    given: LintBackend | None = None
    porting: bool = False


def guess_backends(summaries: Collection[Summary], target: LintTarget) -> frozenset[LintBackend]:
    """What the whole project runs on."""
    if target.given is not None:
        return frozenset({target.given})
    used = frozenset().union(*(each.frameworks for each in summaries)) if summaries else frozenset()
    found = {each for each in (LintBackend.TORCH_XLA, LintBackend.TORCH_TPU) if each.value in used}
    return frozenset(found | ({LintBackend.JAX} if used & JAX else set()))


def find_all(
    summaries: Mapping[str, Summary],
    rules: Sequence[LintRule],
    target: LintTarget,
    find_module: Callable[[str, str], tuple[str, str] | None],
) -> list[LintFinding]:
    """Every finding, by place. Keys of `summaries` are what `find_module` gives for an imported name and the
    file that imports it: a file, and what is left of the name."""
    backends = guess_backends(summaries.values(), target)
    hot = hot_functions(summaries, find_module)
    found: list[LintFinding] = []
    for key, summary in summaries.items():
        active = [rule for rule in rules if _holds(rule, summary, backends, target)]
        codes = {rule.code for rule in active}
        kept = [
            each
            for each in summary.candidates
            if each.rule.code in codes
            and (each.rule.gate != "hot" or each.stepping or (key, each.scope) in hot)
        ]
        found += _ignored(summary, kept, codes)
    return sorted(found, key=lambda each: (each.path, each.line, each.column, each.code))


def _holds(rule: LintRule, summary: Summary, backends: frozenset[LintBackend], target: LintTarget) -> bool:
    own: set[LintBackend] = set()
    if summary.frameworks & TORCH:
        torch = backends - {LintBackend.JAX}
        own |= torch
        if not torch and target.porting and rule.porting:
            own.add(LintBackend.TORCH_XLA)
    if summary.frameworks & JAX:
        own |= backends & {LintBackend.JAX}
    if not summary.frameworks & (TORCH | JAX) and (rule.anywhere or rule.gate):
        own |= backends
    return bool(own & set(rule.backends))


def hot_functions(
    summaries: Mapping[str, Summary], find_module: Callable[[str, str], tuple[str, str] | None]
) -> set[tuple[str, str]]:
    """Functions that run in each step: those that make one, and what these and the step loops call."""
    waiting: list[tuple[str, str]] = []
    for key, summary in summaries.items():
        for name, function in summary.functions.items():
            if function.steps:
                waiting.append((key, name))
            for call in function.loop_calls:
                places = _called(summaries, key, name, call, find_module)
                waiting += [(at, each) for at, each in places if summaries[at].functions[each].may_step]
        for scope, calls in summary.step_calls.items():
            waiting += [each for call in calls for each in _called(summaries, key, scope, call, find_module)]
    hot: set[tuple[str, str]] = set()
    while waiting:
        at = waiting.pop()
        if at in hot:
            continue
        hot.add(at)
        key, name = at
        for call in summaries[key].functions[name].calls:
            waiting += _called(summaries, key, name, call, find_module)
    return hot


def _called(
    summaries: Mapping[str, Summary],
    key: str,
    scope: str,
    call: str,
    find_module: Callable[[str, str], tuple[str, str] | None],
) -> Iterator[tuple[str, str]]:
    """The function of the project that is called by this name from a function of that file."""
    summary = summaries[key]
    owner, _, method = call.rpartition(".")
    for name in (f"{scope}.{call}", call, *(f"{base}.{method}" for base in summary.bases.get(owner, ()))):
        if name in summary.functions:
            yield key, name
            return
    place = find_module(call, key) if "." in call else None
    if place is not None and place[0] in summaries and place[1] in summaries[place[0]].functions:
        yield place


def _ignored(
    summary: Summary, candidates: Sequence[CandidateFinding], active: set[str]
) -> Iterator[LintFinding]:
    """Findings without those that a comment ignores, and comments that ignore nothing."""
    used: set[tuple[Ignore, str]] = set()
    left = []
    for each in candidates:
        by = [
            (ignore, code) for ignore in summary.ignores for code in ignore.codes if _covers(ignore, code, each)
        ]
        used.update(by)
        if not by:
            left.append(each)
    yield from _once(summary.path, left)
    known = {rule.code for rule in load_rules()}
    for ignore in summary.ignores:
        if not ignore.codes:
            yield _complaint(summary.path, ignore, "it names no rule: `# tpuctl: ignore[CODE] reason`")
        for code in ignore.codes:
            if code not in known:
                yield _complaint(summary.path, ignore, f"there is no rule {code}")
            elif code in active and (ignore, code) not in used:
                yield _complaint(summary.path, ignore, f"nothing here needs `ignore[{code}]`")


def _covers(ignore: Ignore, code: str, candidate: CandidateFinding) -> bool:
    """Whether a comment is on a line of what was found, or alone on the line before."""
    if code != candidate.rule.code:
        return False
    return candidate.line <= ignore.line <= candidate.end_line or (
        ignore.alone and ignore.line == candidate.line - 1
    )


def _once(path: str, candidates: Sequence[CandidateFinding]) -> Iterator[LintFinding]:
    more: dict[str, int] = {}
    first: dict[str, LintFinding] = {}
    for each in sorted(candidates, key=lambda each: (each.line, each.column)):
        rule = each.rule
        text = rule.message.format(what=each.what)
        place = (each.line, each.column, each.end_line, each.end_column)
        finding = LintFinding(path, *place, rule.code, rule.name, rule.severity, text, each.snippet)
        if not rule.once:
            yield finding
        elif rule.code in first:
            more[rule.code] += 1
        else:
            first[rule.code], more[rule.code] = finding, 0
    for code, finding in first.items():
        rest = f"; {more[code]} more in this file" if more[code] else ""
        yield replace(finding, message=f"{finding.message}{rest}")


def _complaint(path: str, ignore: Ignore, text: str) -> LintFinding:
    return LintFinding(
        path, ignore.line, ignore.column, ignore.line, ignore.column, UNUSED, "ignore", Severity.WARNING, text
    )
