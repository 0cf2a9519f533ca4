"""The README says what the code does: generated parts are fresh, nothing that a user can type is missing."""

from __future__ import annotations

import inspect
import re
import tomllib

import pytest

from tests.docs.generate import (
    README,
    ROOT,
    TRANSCRIPT,
    groups,
    record_session,
    render_contents,
    render_readme,
    replace_part,
    unhurried,
)
from tpuctl import __version__
from tpuctl.core import launch
from tpuctl.core.settings import SETTINGS
from tpuctl.errors import EXIT_MEANINGS, all_error_classes
from tpuctl.sim.faults import PRESETS


@pytest.fixture(scope="module")
def text() -> str:
    return README.read_text(encoding="utf-8")


def test_generated_parts_are_fresh(text: str) -> None:
    assert render_readme(text) == text, "run `make docs`"


def test_a_changed_generated_part_is_found_stale(text: str) -> None:
    changed = replace_part(text, "errors", "nothing")
    assert render_readme(changed) != changed


def test_missing_markers_are_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="markers of 'errors'"):
        replace_part(text.replace("<!-- end: errors -->", ""), "errors", "x")


def test_every_command_has_its_help_in_the_readme(text: str) -> None:
    missing = [path for path, command, _ in groups() if f"{path}" not in text and command is not None]
    assert missing == []


def test_every_setting_and_variable_is_in_the_readme(text: str) -> None:
    assert [s.name for s in SETTINGS if f"`{s.name}`" not in text or s.env not in text] == []


def test_every_error_code_is_in_the_readme(text: str) -> None:
    assert [cls.code for cls in all_error_classes() if f"`{cls.code}`" not in text] == []


def test_error_codes_are_unique_and_their_exit_status_is_in_the_table() -> None:
    classes = all_error_classes()
    codes = [cls.code for cls in classes]
    assert len(set(codes)) == len(codes)
    assert [cls.code for cls in classes if cls.exit_code not in EXIT_MEANINGS] == []
    assert [code for code in codes if not re.fullmatch(r"[a-z]+(-[a-z]+)*", code)] == []


def test_versions_stated_in_the_readme_match_the_package_metadata(text: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == __version__
    assert f"tpuctl {project['version']}" in text
    low, high = re.findall(r"3\.(\d+)", project["requires-python"])
    assert f"Python 3.{low} to 3.{int(high) - 1}" in text


def transcript(text: str) -> str:
    return text.split(f"<!-- generated: {TRANSCRIPT} -->")[1].split(f"<!-- end: {TRANSCRIPT} -->")[0].strip()


def test_the_transcript_is_recorded(text: str) -> None:
    assert "$ tpuctl up" in transcript(text)
    assert "[sim]" in transcript(text)


@pytest.mark.slow
def test_the_transcript_is_what_the_session_prints_today(text: str) -> None:
    assert unhurried(record_session()) == unhurried(transcript(text)), (
        "run `python -m tests.docs.generate --transcript`"
    )


def test_the_contents_lead_to_every_chapter_and_section_but_the_helps(text: str) -> None:
    links = render_contents(text)
    assert "(#install)" in links
    assert "[Keep it up while you sleep](#keep-it-up-while-you-sleep)" in links
    assert "tpuctl up" not in links


def test_every_link_within_the_readme_leads_somewhere(text: str) -> None:
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles}
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= anchors


def test_every_command_in_the_transcript_and_the_prose_exists(text: str) -> None:
    known = {path for path, _, _ in groups()}
    typed = re.findall(r"(?:^\$ |`)(tpuctl [a-z]+(?: [a-z]+)?)", text, flags=re.MULTILINE)
    unknown = [words for words in typed if words not in known and " ".join(words.split()[:2]) not in known]
    assert unknown == []
    assert len(typed) > 20


def test_every_variable_that_a_program_is_given_is_told(text: str) -> None:
    told = set(re.findall(r"`([A-Z][A-Z_]+)`", text))
    source = inspect.getsource(launch)
    given = set(re.findall(r'"((?:TPUCTL|MEGASCALE|PYTHON|PJRT|JAX)_?[A-Z_]+)"', source))
    assert len(given) >= 10
    assert given <= told


def test_every_fault_that_the_readme_plans_is_a_preset(text: str) -> None:
    planned = set(re.findall(r"tpuctl sim fault ([a-z][a-z-]+)", text))
    assert len(planned) > 20
    assert planned <= set(PRESETS)
