"""`tpuctl env new|lock|ls|diff|derive`: files that work, made by hand and from the package index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.require import require_index
from tests.support.session import Session
from tpuctl.envs.load import environment_names, read_environment
from tpuctl.envs.lock import parse_lock, render_lock, versions_of, wheels_for
from tpuctl.envs.resolve import resolve_environment
from tpuctl.errors import UnreachableError


@pytest.fixture
def session(tmp_path: Path) -> Session:
    made = Session(tmp_path)
    made.environ["TPUCTL_PROFILE"] = "default"
    return made


def test_a_list_shows_what_comes_with_tpuctl_and_what_is_bad(session: Session) -> None:
    folder = session.work / "envs"
    folder.mkdir()
    (folder / "broken.yaml").write_text("name: broken\n")
    listed = session.type("env", "ls")
    assert "broken" in listed.stdout
    assert "lacks the key 'python'" in listed.stderr
    rows = {row["name"]: row for row in session.json("env", "ls")}
    assert (rows["jax-tpu"]["lock"], rows["jax-tpu"]["verified"]) == ("yes", True)
    assert (rows["torch-xla"]["lock"], rows["torch-xla"]["verified"]) == ("none", False)


def test_a_new_file_is_written_once_and_says_what_to_do_next(session: Session) -> None:
    said = session.type("env", "new", "mine", "--backend", "torch_xla", "--no-lock").stderr
    assert "`tpuctl env lock mine` makes its lock" in said
    assert read_environment("mine", session.work / "envs").spec.name == "mine"
    again = session.type("env", "new", "mine", "--backend", "torch_xla", status=2).stderr
    assert "there is an environment mine already" in again


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("new", "mine"), "--backend jax, or --like NAME"),
        (("new", "mine", "--backend", "cuda"), "no backend called cuda"),
        (("new", "Mine", "--backend", "jax"), "'Mine' is not usable"),
        (("new", "mine", "--backend", "jax", "--require", "jax==0.4.32"), "jax 0.4.32 is known to be bad"),
        (("new", "mine", "--backend", "jax", "--require", "jax>=1"), "'jax>=1' is not an exact version"),
        (("new", "mine", "--backend", "jax", "--python", "3.11"), "jax 0.12.0.1 needs Python >=3.12"),
        (("derive", "jax-tpu", "mine"), "it says nothing that is different"),
        (("derive", "jax-tpu", "mine", "--file", "lib/a.so"), "is not DEST=SRC"),
        (("derive", "jax-tpu", "mine", "--file", "/etc/a=setup.py"), "cannot copy setup.py"),
        (("derive", "jax-tpu", "mine", "--file", "lib/a=gs://b/c"), "gs://b/c has no sha256"),
    ],
)
def test_what_makes_no_sense_is_refused_and_no_file_is_written(
    session: Session, words: tuple[str, ...], said: str
) -> None:
    assert said in session.type("env", *words, status=2).stderr
    assert not (session.work / "envs" / "mine.yaml").exists()


def test_a_file_beside_the_environment_is_copied_with_its_digest(session: Session) -> None:
    (session.work / "fix.so").write_bytes(b"patched")
    words = ("env", "derive", "cpu", "mine", "--file", "lib/fix.so=fix.so", "--no-lock")
    session.type(*words)
    (item,) = read_environment("mine", session.work / "envs").spec.files
    assert (session.work / "envs" / item.source).read_bytes() == b"patched"
    rows = session.json("env", "diff", "cpu", "mine")
    assert [row["item"] for row in rows if row["item"].startswith("file ")] == ["file lib/fix.so"]


@pytest.mark.slow
def test_a_new_environment_is_locked_from_the_package_index(session: Session) -> None:
    require_index()
    words = ("--backend", "cpu", "--require", "idna==3.10", "--python", "3.11")
    done = session.type("env", "new", "mine", *words)
    assert "pylock.mine.toml" in done.stderr
    found = read_environment("mine", session.work / "envs")
    assert found.lock
    assert versions_of(found.packages, "3.11")["idna"] == "3.10"
    assert not found.stale
    (folder := session.work / "envs").joinpath("mine.yaml").write_text(
        found.text.replace("idna==3.10", "idna==3.9")
    )
    assert {row["name"]: row["lock"] for row in session.json("env", "ls")}["mine"] == "old"
    session.type("env", "lock", "mine")
    assert versions_of(read_environment("mine", folder).packages, "3.11")["idna"] == "3.9"


def one_of_each() -> list[Any]:
    """The shipped environments, one for each list of requirements. MaxText has 236 packages."""
    names = reversed(environment_names(Path("/nowhere")))
    named = {read_environment(name, Path("/nowhere")).spec.requirements: name for name in names}
    marks = {name: [pytest.mark.long] if name.startswith("maxtext") else [] for name in named.values()}
    return [pytest.param(name, marks=marks[name]) for name in marks]


@pytest.mark.slow
def test_requirements_that_do_not_go_together_are_refused_in_the_words_of_uv(session: Session) -> None:
    require_index()
    words = ("--backend", "cpu", "--require", "jaxlib==0.9.0")
    assert "jaxlib" in session.type("env", "new", "mine", *words, status=1).stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", one_of_each())
def test_a_shipped_environment_resolves_for_its_python_to_what_is_in_its_lock(name: str) -> None:
    """The lock that was written is what the index gives: nothing of it was withdrawn."""
    require_index()
    found = read_environment(name, Path("/nowhere"))
    try:
        fresh = resolve_environment(found.spec)
    except UnreachableError as error:
        if "download.pytorch.org" not in error.message:
            raise
        pytest.skip(f"{name} needs download.pytorch.org, which does not answer here")
    assert parse_lock(render_lock(fresh), name) == fresh
    for minor in found.spec.python:
        assert wheels_for(fresh, minor)
        if found.lock:
            for requirement in found.spec.requirements:
                package = requirement.partition("==")[0]
                assert versions_of(fresh, minor)[package] == versions_of(found.packages, minor)[package]
