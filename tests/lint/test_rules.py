"""Every rule, on samples: what it must find, at which lines, and what it must not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.session import ROOT
from tpuctl.lint.checks import CHECKS
from tpuctl.lint.lint import lint_files
from tpuctl.lint.project import LintTarget
from tpuctl.lint.rules import GUARDS, load_rules

DATA = ROOT / "tests" / "data" / "lint"
RULES = {rule.code: rule for rule in load_rules()}
SAMPLES = sorted(path.relative_to(DATA).as_posix() for path in DATA.glob("*/*.py"))


def lines_of(code: str, path: Path) -> list[int]:
    """Where the rule finds something in a sample, with all rules at work."""
    report = lint_files([path], load_rules(), LintTarget(porting=True), DATA)
    assert report.not_read == ()
    return [each.line for each in report.findings if each.code == code]


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_sample_has_what_its_comments_say(sample: str) -> None:
    """`# here` ends each line with a finding; a good sample has none."""
    path = DATA / sample
    marked = [n for n, line in enumerate(path.read_text().splitlines(), 1) if line.endswith("# here")]
    assert bool(marked) == path.name.startswith("bad")
    assert sorted(set(lines_of(path.parent.name, path))) == marked


@pytest.mark.parametrize("code", RULES)
def test_every_rule_has_bad_and_good_samples(code: str) -> None:
    names = {path.name.partition(".")[0].partition("_")[0] for path in (DATA / code).glob("*.py")}
    assert names == {"bad", "good"}


def test_the_table_is_complete() -> None:
    assert {Path(each).parts[0] for each in SAMPLES} == set(RULES)
    assert {rule.check for rule in RULES.values()} == set(CHECKS)
    for rule in RULES.values():
        assert re.fullmatch(r"(TPU|JAX)\d{3}", rule.code)
        assert set(rule.guards) <= set(GUARDS)
        assert rule.message.format(what="x")
        assert all((rule.happens, rule.rewrite, rule.source))


@pytest.mark.parametrize(
    "name",
    [
        "templates/demo_train.py",
        "templates/smoke.py",
        "manifests/examples/train_jax.py",
        "manifests/examples/train_torch.py",
    ],
)
def test_programs_that_tpuctl_ships_have_no_finding(name: str) -> None:
    report = lint_files([ROOT / name], load_rules(), LintTarget(porting=True), ROOT)
    assert (report.findings, report.not_read) == ((), ())
