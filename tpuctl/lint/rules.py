"""The rules: what each of them looks for, for which backends, and what is said. Data: `lint_rules.yaml`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cache

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tpuctl.errors import UsageError
from tpuctl.lib.text import suggest
from tpuctl.lint.conditions import Under
from tpuctl.model.shipped_files import load_lint_rules


class Severity(StrEnum):
    """How sure a finding is."""

    ERROR = "error"
    WARNING = "warning"


class LintBackend(StrEnum):
    """What brings a program onto TPUs."""

    TORCH_XLA = "torch_xla"
    TORCH_TPU = "torch_tpu"
    JAX = "jax"


GUARDS: Mapping[str, int] = {
    "device": Under.DEVICE,
    "sometimes": Under.SOMETIMES,
    "later": Under.LATER,
    "tried": Under.TRIED,
    "version": Under.VERSION,
}


class Removal(Struct, frozen=True, rename={"since": "in"}):
    """A name that a package has no more."""

    since: str
    now: str
    why: str = ""


class LintRule(Struct, frozen=True, forbid_unknown_fields=True):
    """One row; the head of `lint_rules.yaml` says what the keys mean."""

    code: str
    name: str
    severity: Severity
    backends: tuple[LintBackend, ...]
    check: str
    message: str
    happens: str
    rewrite: str
    source: str
    porting: bool = False
    gate: str = ""
    anywhere: bool = False
    once: bool = False
    guards: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    launches: tuple[str, ...] = ()
    package: str = ""
    removed: Mapping[str, Removal] = {}

    @property
    def silent_under(self) -> int:
        """Conditions under which it says nothing."""
        found = 0
        for each in self.guards:
            found |= GUARDS[each]
        return found


UNUSED = "TPU001"
"""The code of an ignore that nothing needs."""


@cache
def load_rules() -> tuple[LintRule, ...]:
    """All rules, by code."""
    return tuple(
        sorted(msgspec.convert(load_lint_rules()["rules"], list[LintRule]), key=lambda rule: rule.code)
    )


def choose_rules(
    select: Sequence[str], ignore: Sequence[str] = (), flag: str = "--select"
) -> tuple[LintRule, ...]:
    """The rules whose codes begin with one of `select`, if there is any, and with none of `ignore`.

    Raises UsageError for a beginning of no code.
    """
    rules = load_rules()
    for word in select:
        check_code(word, flag)
    for word in ignore:
        check_code(word, "--ignore")
    return tuple(
        rule
        for rule in rules
        if (not select or rule.code.startswith(tuple(select)))
        and not (ignore and rule.code.startswith(tuple(ignore)))
    )


def check_code(word: str, flag: str) -> None:
    """Raises UsageError for what is neither a code nor the beginning of one."""
    codes = [UNUSED, *(rule.code for rule in load_rules())]
    if not word or not any(code.startswith(word) for code in codes):
        near = suggest(word, codes)
        raise UsageError(
            f"{flag}: no rule has the code {word!r}{f'; did you mean {near}?' if near else ''}",
            hint="tpuctl lint --explain TPU; tpuctl lint --explain JAX",
        )


def for_versions(rules: Sequence[LintRule], versions: Mapping[str, str]) -> tuple[LintRule, ...]:
    """The rules without what a package still has, as far as its version is known; else the newest is meant."""
    return tuple(
        replace(
            rule, removed={name: row for name, row in rule.removed.items() if _is_since(version, row.since)}
        )
        if rule.removed and (version := versions.get(rule.package)) is not None
        else rule
        for rule in rules
    )


def _is_since(version: str, since: str) -> bool:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version.partition("+")[0]) >= Version(since)
    except InvalidVersion:
        return True
