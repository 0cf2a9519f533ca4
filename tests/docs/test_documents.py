"""The documents say what the code does: generated ones are fresh, links lead somewhere, nothing is left out."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path

import pytest

from tests.docs.generate import (
    FIVE_MINUTES,
    README,
    ROOT,
    TRANSCRIPT,
    documents,
    part_of,
    record_session,
    render_picture,
    replace_part,
    stale_documents,
    unhurried,
)
from tests.docs.reference import groups
from tests.docs.site_pages import slug
from tpuctl import __version__
from tpuctl.config.settings import SETTINGS
from tpuctl.errors import EXIT_MEANINGS, all_error_classes
from tpuctl.runs import process_env as launch
from tpuctl.sim.world.faults import load_presets

PATHS = (README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
README_LINES = 250
"""People read it to the end."""
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tasks() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "tasks").glob("*.md"))


def test_generated_documents_are_fresh() -> None:
    assert stale_documents() == [], "run `make docs`"


def test_a_changed_part_is_written_anew() -> None:
    page = read("docs/tasks/notifications.md")
    changed = replace_part(page, "events", "nothing")
    assert changed != page
    assert replace_part(changed, "events", part_of(page, "events")) == page
    assert documents()[ROOT / "docs/tasks/notifications.md"] == page


def test_missing_markers_are_an_error() -> None:
    with pytest.raises(ValueError, match="markers of 'events'"):
        replace_part("<!-- generated: events -->", "events", "x")


def test_the_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= README_LINES


def test_the_readme_has_the_commands_of_most_days() -> None:
    text = README.read_text(encoding="utf-8")
    named = re.findall(r"^\| \[`([a-z-]+)`\]", part_of(text, "commands"), flags=re.MULTILINE)
    assert len(named) == 13
    assert [each for each in ("up", "run", "logs", "down", "why", "doctor") if each not in named] == []


def test_every_command_is_named_in_a_task(tasks: str) -> None:
    missing = [path for path, _, _ in groups() if not re.search(rf"{path}(?![a-z-])", tasks)]
    assert missing == []


def test_every_setting_error_and_command_is_in_the_reference() -> None:
    settings, errors = read("docs/reference/settings.md"), read("docs/reference/errors.md")
    assert [s.name for s in SETTINGS if f"`{s.name}`" not in settings or s.env not in settings] == []
    assert [cls.code for cls in all_error_classes() if f"`{cls.code}`" not in errors] == []
    commands = read("docs/reference/commands.md")
    assert [path for path, _, _ in groups() if f"## `{path}`\n" not in commands] == []


def test_error_codes_are_unique_and_their_exit_status_is_in_the_table() -> None:
    classes = all_error_classes()
    codes = [cls.code for cls in classes]
    assert len(set(codes)) == len(codes)
    assert [cls.code for cls in classes if cls.exit_code not in EXIT_MEANINGS] == []
    assert [code for code in codes if not re.fullmatch(r"[a-z]+(-[a-z]+)*", code)] == []


def test_versions_in_the_documents_match_the_package_metadata() -> None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    low, high = re.findall(r"3\.(\d+)", project["requires-python"])
    assert project["version"] == __version__
    assert f"tpuctl {project['version']}" in read("docs/start/install.md")
    for page in ("README.md", "docs/start/install.md"):
        assert f"Python 3.{low} to 3.{int(high) - 1}" in read(page)


def transcript() -> str:
    return part_of(FIVE_MINUTES.read_text(encoding="utf-8"), TRANSCRIPT)


def test_the_readme_shows_commands_of_the_recorded_session_with_all_that_they_printed() -> None:
    shown = render_picture().splitlines()
    typed = [line.removeprefix("$ ") for line in shown if line.startswith("$ ")]
    assert typed[:2] == ["tpuctl sim up --instant", "export TPUCTL_PROFILE=sim"], "pasted, it must buy nothing"
    assert [line.split()[1] for line in typed[2:]] == ["up", "run", "sim", "up", "down"]
    recorded = transcript().splitlines()
    assert "$ tpuctl why v4-32" in recorded
    assert set(shown) <= set(recorded)
    assert len(shown) < 50


@pytest.mark.slow
def test_the_transcript_is_what_the_session_prints_today() -> None:
    assert unhurried(record_session()) == unhurried(transcript()), (
        "run `python -m tests.docs.generate --transcript`"
    )


def anchors_of(path: Path) -> set[str]:
    """Where links into a page can lead, as GitHub names its headings."""
    text = FENCED.sub("", path.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {slug(title) for title in titles}


def broken_links(path: Path, text: str) -> list[str]:
    """The relative links of a page that lead to no file of the repository, or to no heading of it."""
    broken = []
    for link in LINK.findall(FENCED.sub("", text)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("path", PATHS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(path: Path) -> None:
    assert broken_links(path, path.read_text(encoding="utf-8")) == []


def test_broken_links_are_found() -> None:
    text = "[a](#none) [b](docs/none.md) [c](docs/start/install.md#none) [d](docs/start/install.md#install)"
    assert broken_links(README, text) == ["#none", "docs/none.md", "docs/start/install.md#none"]


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, queue = {README}, [README]
    while queue:
        page = queue.pop()
        for link in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target.exists() and target not in reached:
                reached.add(target)
                queue.append(target)
    assert [str(path.relative_to(ROOT)) for path in PATHS if path not in reached] == []


def test_every_variable_that_a_program_is_given_is_told() -> None:
    told = set(re.findall(r"`([A-Z][A-Z_]+)`", read("docs/tasks/run-training.md")))
    source = inspect.getsource(launch)
    given = set(re.findall(r'"((?:TPUCTL|MEGASCALE|PYTHON|PJRT|JAX)_?[A-Z_]+)"', source)) - set(
        launch.EFFECTIVE
    )
    assert len(given) >= 10
    assert given <= told


def test_every_fault_that_the_documents_plan_is_a_preset(tasks: str) -> None:
    planned = set(re.findall(r"tpuctl sim fault ([a-z][a-z-]+)", tasks))
    assert len(planned) > 20
    assert planned <= set(load_presets())
