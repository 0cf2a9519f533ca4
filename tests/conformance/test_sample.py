"""Those clients of the conformance table that need nothing but what the development tools bring anyway."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.conformance.__main__ import NOT_SET_UP, find_row, outdated, render, row_of, run, unexplained
from tests.conformance.client import Check, Client
from tests.conformance.harness import Result, discover, find_result, pinned_version, run_here, version_here
from tests.conformance.reasons import REASONS
from tests.support.session import ROOT


@pytest.mark.slow
@pytest.mark.parametrize("client", discover(), ids=lambda client: client.name)
def test_a_client_of_others_finds_what_the_real_api_would_answer(client: Client) -> None:
    if version_here(client) is None:
        pytest.skip(f"`make conformance` installs {', '.join(client.requirements)}")
    result = run_here(client)
    assert result.checks
    assert [*unexplained([result]), *outdated([result])] == []


def test_what_a_client_saw_is_kept_for_the_version_that_it_was(tmp_path: Path) -> None:
    client = Client("a tool", ("tool==1",), lambda _env, _work: [])
    seen = Result(client, "1.0", (Check("reads", True), Check("writes", False, "403")))
    seen.save(tmp_path)
    assert find_result(client, tmp_path) == seen
    assert find_result(replace(client, requirements=("tool==2",)), tmp_path) is None
    assert find_result(replace(client, name="other"), tmp_path) is None


def test_the_page_counts_and_names_what_is_not_as_it_should_be() -> None:
    client = Client("tool", ("tool==1",), lambda _env, _work: [])
    seen = Result(client, "1.0", (Check("reads", True), Check("writes", False, "403")), "", "2026-11-22", "abc")
    absent = Result(Client("other", ("bin:other",), client.run), "", missing="needs other")
    page = render([row_of(seen), row_of(absent)])
    assert "| tool | 1.0 | 2026-11-22 at abc | 2 | 1 | 1 |" in page
    assert "| 2026-11-22 | 2 |" in row_of(replace(seen, revision="")).cells
    assert "| other | not run: needs other | | | | |" in page
    assert "- tool, writes: no reason is known" in page
    assert unexplained([Result(client, "1.0", (Check("writes", False, "403"),))]) == ["tool: writes: 403"]


def test_of_a_client_that_is_not_run_the_page_keeps_what_it_says() -> None:
    client = Client("tool", ("tool==1.0",), lambda _env, _work: [])
    row = row_of(Result(client, "1.0", (Check("reads", True), Check("writes", False, "403"))))
    page = render([row, row_of(Result(Client("tool-2", ("npm:@a/tool@2", "bin:node"), client.run), "2"))])
    assert find_row(client, page) == row
    assert find_row(replace(client, requirements=("tool==1.1",)), page) is None
    assert find_row(replace(client, name="none"), page) is None
    assert [pinned_version(replace(client, requirements=(each,))) for each in ("npm:@a/tool@2", "bin:x")] == [
        "2",
        None,
    ]


def test_the_page_is_as_it_would_be_written() -> None:
    page = (ROOT / "docs" / "develop" / "conformance.md").read_text()
    rows = [find_row(client, page) for client in discover()]
    assert [client.name for client, row in zip(discover(), rows, strict=True) if row is None] == []
    assert render([row for row in rows if row is not None]) == page


def test_reasons_are_for_clients_that_there_are() -> None:
    assert {name for name, _ in REASONS} <= {client.name for client in discover()}


def test_a_reason_that_nothing_needs_any_more_is_named() -> None:
    (name, check), *_ = REASONS
    client = Client(name, ("tool==1",), lambda _env, _work: [])
    mended = Result(client, "1.0", (Check(check, True),))
    assert any(check in line and "as the real API" in line for line in outdated([mended]))
    assert any(check in line and "no such check" in line for line in outdated([Result(client, "1.0", ())]))
    assert not any(f": {check}:" in line for line in outdated([Result(client, "1.0", (Check(check, False),))]))
    assert outdated([Result(client, "", missing="needs a tool")]) == []


def test_a_client_that_cannot_be_installed_keeps_no_other_from_being_run(
    capfd: pytest.CaptureFixture[str],
) -> None:
    nothing = Client("nothing", (f"nothing @ file://{ROOT}/there/is/none",), lambda _env, _work: [])
    assert run(nothing).missing.startswith(NOT_SET_UP)
