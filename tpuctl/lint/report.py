"""A report as text, JSON, SARIF or as GitHub's commands. Pure."""

from __future__ import annotations

import hashlib
from enum import StrEnum
from pathlib import PurePath
from typing import Any

from tpuctl.lib.text import counted
from tpuctl.lint.lint import LintReport
from tpuctl.lint.project import LintFinding
from tpuctl.lint.rules import LintRule, Severity, load_rules


class Format(StrEnum):
    """How findings are printed."""

    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"
    GITHUB = "github"


def as_text(report: LintReport) -> list[str]:
    """One line for each finding, as editors and other linters have them."""
    return [in_one_line(each) for each in report.findings]


def in_one_line(finding: LintFinding) -> str:
    place = f"{finding.path}:{finding.line}:{finding.column}"
    return f"{place}: {finding.severity} {finding.code} {finding.message}"


def in_words(report: LintReport) -> str:
    """What it comes to."""
    if not report.findings:
        return f"nothing found in {counted(report.files, 'file')}"
    warnings = len(report.findings) - len(report.errors)
    found = f"{counted(len(report.errors), 'error')} and {counted(warnings, 'warning')}"
    codes = " ".join(sorted({each.code for each in report.findings}))
    return f"{found} in {counted(report.files, 'file')}; `tpuctl lint --explain CODE` says more, of: {codes}"


def as_json(report: LintReport) -> dict[str, Any]:
    """Stable keys; lines and columns count from 1."""
    return {
        "files": report.files,
        "errors": len(report.errors),
        "warnings": len(report.findings) - len(report.errors),
        "findings": [
            {
                "code": each.code,
                "name": each.name,
                "severity": str(each.severity),
                "message": each.message,
                "path": each.path,
                "line": each.line,
                "column": each.column,
                "end_line": each.end_line,
                "end_column": each.end_column,
                "fingerprint": mark,
            }
            for each, mark in with_fingerprints(report)
        ],
        "not_read": [{"path": each.path, "why": each.why} for each in report.not_read],
    }


def as_github(report: LintReport) -> list[str]:
    """Workflow commands, which GitHub shows beside the lines of a change."""
    found = []
    for each in report.findings:
        level = "error" if each.severity is Severity.ERROR else "warning"
        place = f"file={_property(each.path)},line={each.line},col={each.column}"
        end = f"endLine={each.end_line},endColumn={each.end_column}"
        found.append(f"::{level} title=tpuctl ({each.code}),{place},{end}::{_data(each.message)}")
    return found


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def as_sarif(report: LintReport, version: str) -> dict[str, Any]:
    """SARIF 2.1.0, with paths relative to here, as GitHub wants them."""
    used = {each.code for each in report.findings}
    rules = [_sarif_rule(rule) for rule in load_rules() if rule.code in used]
    tool = {"name": "tpuctl", "version": version, "rules": rules}
    notes = [
        {
            "level": "warning",
            "message": {"text": f"not read: {each.why}"},
            "locations": [{"physicalLocation": {"artifactLocation": {"uri": _uri(each.path)}}}],
        }
        for each in report.not_read
    ]
    run = {
        "tool": {"driver": tool},
        "columnKind": "utf16CodeUnits",
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": notes}],
        "results": [_sarif_result(each, mark) for each, mark in with_fingerprints(report)],
    }
    return {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}


def _sarif_rule(rule: LintRule) -> dict[str, Any]:
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": rule.happens},
        "help": {"text": f"{rule.happens}\n\n{rule.rewrite}"},
        "defaultConfiguration": {"level": str(rule.severity)},
        "properties": {"precision": "very-high" if rule.severity is Severity.ERROR else "medium"},
    }


def _sarif_result(finding: LintFinding, mark: str) -> dict[str, Any]:
    region = {
        "startLine": finding.line,
        "startColumn": finding.column,
        "endLine": finding.end_line,
        "endColumn": finding.end_column,
    }
    location = {"artifactLocation": {"uri": _uri(finding.path)}, "region": region}
    return {
        "ruleId": finding.code,
        "level": str(finding.severity),
        "message": {"text": finding.message},
        "locations": [{"physicalLocation": location}],
        "partialFingerprints": {"tpuctl/v1": mark},
    }


def _uri(path: str) -> str:
    from urllib.parse import quote

    pure = PurePath(path)
    return f"file://{quote(path)}" if pure.is_absolute() else quote(pure.as_posix())


def with_fingerprints(report: LintReport) -> list[tuple[LintFinding, str]]:
    """What stays the same of a finding when lines move: its rule, file, text, and the how manieth that is."""
    seen: dict[tuple[str, str, str], int] = {}
    found = []
    for each in report.findings:
        key = (each.code, each.path, each.snippet)
        seen[key] = seen.get(key, 0) + 1
        text = "\0".join((*key, str(seen[key])))
        found.append((each, hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]))
    return found


def explain(rule: LintRule) -> list[str]:
    """Paragraphs about a rule, for people."""
    backends = ", ".join(rule.backends) + (", and PyTorch with --port" if rule.porting else "")
    return [
        f"{rule.code} {rule.name} ({rule.severity}; {backends})",
        rule.happens,
        f"rewrite: {rule.rewrite}",
        f"source: {rule.source}",
    ]
