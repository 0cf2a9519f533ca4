"""What is kept of a file after it was read: its findings so far, and what the project asks of it.

A tree of a file takes a hundred times its size; of 10,000 files only these summaries are held.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from tpuctl.lint.checks import CHECKS
from tpuctl.lint.module import LintedModule, parse_module
from tpuctl.lint.rules import LintBackend, LintRule
from tpuctl.lint.scopes import Site

TORCH = frozenset(
    {
        "torch",
        "torchvision",
        "torch_xla",
        "torch_tpu",
        "transformers",
        "diffusers",
        "lightning",
        "accelerate",
        "timm",
    }
)
JAX = frozenset({"jax", "jaxlib", "flax", "optax", "orbax", "equinox", "haiku", "chex", "penzai"})
"""Packages whose import tells what a file is written for."""
_IGNORE = re.compile(r"#\s*tpuctl:\s*ignore(?:\[([^\]]*)\])?")


class CandidateFinding(Struct, frozen=True):
    """A finding, if its rule holds for the file and, with a gate, its function is hot."""

    rule: LintRule
    line: int
    column: int
    end_line: int
    end_column: int
    what: str
    scope: str
    stepping: bool
    snippet: str


class Ignore(Struct, frozen=True):
    """A comment `# tpuctl: ignore[CODE]`. `alone`: it is all of its line, so it is about the next one."""

    line: int
    column: int
    codes: tuple[str, ...]
    alone: bool


class Function(Struct, frozen=True):
    """`steps`: it is one step of the training; `may_step`: if a loop calls it. `calls`: what it calls each time
    that it runs, `loop_calls` in loops."""

    steps: bool
    may_step: bool
    calls: frozenset[str]
    loop_calls: frozenset[str]


class Summary(Struct, frozen=True):
    """One file. `path` as it is called in findings."""

    path: str
    frameworks: frozenset[str]
    imports: tuple[str, ...]
    functions: Mapping[str, Function]
    bases: Mapping[str, Sequence[str]]
    step_calls: Mapping[str, frozenset[str]]
    """What loops that make steps call, by the function they are in."""
    aliases: Mapping[str, str]
    candidates: tuple[CandidateFinding, ...]
    ignores: tuple[Ignore, ...]


def summarize(path: str, content: bytes, rules: Sequence[LintRule]) -> Summary:
    """Reads a file and applies the rules to it. Raises UnreadableError."""
    module = parse_module(path, content)
    looped: dict[str, set[str]] = {}
    for loop in module.loops:
        looped.setdefault(loop.scope.name, set()).update(loop.calls)
    candidates = []
    lines = content.splitlines()
    for rule in could_hold(rules, module.frameworks()):
        silent, seen = rule.silent_under, set()
        for node, context, what in CHECKS[rule.check](rule, module):
            if context.under & silent or (node.lineno, node.col_offset) in seen:
                continue
            seen.add((node.lineno, node.col_offset))
            candidates.append(_candidate(rule, node, Site(node, context), what, lines))
    return Summary(
        path,
        frozenset(module.frameworks()),
        tuple(dict.fromkeys(site.name for site in module.imports)),
        {
            each.name: Function(
                each.steps, each.may_step, frozenset(each.calls), frozenset(looped.get(each.name, ()))
            )
            for each in module.scopes
        },
        module.bases,
        _step_calls(module),
        module.aliases,
        tuple(candidates),
        tuple(_ignores(content)) if b"tpuctl:" in content else (),
    )


def could_hold(rules: Iterable[LintRule], frameworks: Collection[str]) -> Iterator[LintRule]:
    """Rules that may hold for a file with these imports, whatever the rest of the project is."""
    torch, jax = not TORCH.isdisjoint(frameworks), not JAX.isdisjoint(frameworks)
    for rule in rules:
        of_jax = LintBackend.JAX in rule.backends
        of_torch = len(rule.backends) > of_jax
        if (torch and of_torch) or (jax and of_jax) or (not torch and not jax and (rule.anywhere or rule.gate)):
            yield rule


def _candidate(
    rule: LintRule, node: ast.expr | ast.stmt, site: Site, what: str, lines: Sequence[bytes]
) -> CandidateFinding:
    line = node.lineno
    raw = lines[line - 1] if line <= len(lines) else b""
    compound = isinstance(node, ast.For | ast.While | ast.AsyncFor)
    end_line, end = (line, len(raw)) if compound else (node.end_lineno or line, node.end_col_offset or 0)
    snippet = raw.decode("utf-8", errors="replace").strip()[:200]
    place = (line, node.col_offset + 1, end_line, end + 1)
    return CandidateFinding(rule, *place, what, site.scope.name, site.stepping, snippet)


def _step_calls(module: LintedModule) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for loop in module.loops:
        if loop.steps:
            found.setdefault(loop.scope.name, set()).update(loop.calls)
    return {name: frozenset(calls) for name, calls in found.items()}


def _ignores(content: bytes) -> list[Ignore]:
    """Comments only: the same words in a text are none."""
    found = []
    for token in tokenize.tokenize(io.BytesIO(content).readline):
        match = _IGNORE.search(token.string) if token.type == tokenize.COMMENT else None
        if match is not None:
            codes = tuple(word.strip() for word in (match[1] or "").split(",") if word.strip())
            alone = not token.line[: token.start[1]].strip()
            found.append(Ignore(token.start[0], token.start[1] + match.start() + 1, codes, alone))
    return found
