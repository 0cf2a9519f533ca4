"""The page with five faults: each is put into the demo's program, and the commands print what it shows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.generate import ROOT
from tests.support.jax_python import tpu_jax
from tests.support.session import Session, open_session
from tests.support.soak import soak

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PAGE = ROOT / "docs" / "tasks" / "before-it-costs-chips.md"
NEEDS_JAX = ("tpuctl fits", "tpuctl check weights")


def sections() -> dict[str, str]:
    parts = re.split(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {title: text for title, text in zip(parts[1::2], parts[2::2], strict=True) if "```console" in text}


def blocks(text: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def program_of(text: str) -> str:
    """The demo's program, with the lines of a section in it."""
    program = (ROOT / "templates" / "demo_train.py").read_text(encoding="utf-8")
    for block in blocks(text, "diff"):
        old, new = (
            "".join(f"{line[1:]}\n" for line in block.splitlines() if line[0] in f" {sign}") for sign in "-+"
        )
        assert program.count(old) == 1, old
        program = program.replace(old, new)
    return program


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as opened:
        opened.environ["COLUMNS"] = "120"
        yield opened


def link_environments(session: Session) -> None:
    """The environment as the tests have it: to install it again takes a minute."""
    place = session.root / "state" / "preflight"
    if not place.is_symlink():
        place.symlink_to(Path(tpu_jax()).parents[2])


@pytest.mark.parametrize(
    "title",
    [
        soak(title, id=title) if any(each in text for each in NEEDS_JAX) else pytest.param(title, id=title)
        for title, text in sections().items()
    ],
)
def test_the_commands_of_the_page_print_what_it_shows(session: Session, title: str) -> None:
    text = sections()[title]
    (session.work / "train.py").write_text(program_of(text), encoding="utf-8")
    for block in blocks(text, "console"):
        for typed in re.split(r"^\$ tpuctl ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = typed.partition("\n")
            if any(f"tpuctl {command}".startswith(each) for each in NEEDS_JAX):
                link_environments(session)
            done = session.type(*shlex.split(command), status=None, within_s=600)
            assert done.stderr + done.stdout == shown, command


def test_nothing_was_made(session: Session) -> None:
    made = [
        row["call"] for row in session.sim_journal() if "nodes" in str(row) or "queuedResources" in str(row)
    ]
    assert made == []


def test_five_faults_are_shown() -> None:
    assert sum("```diff" in text for text in sections().values()) == 5
