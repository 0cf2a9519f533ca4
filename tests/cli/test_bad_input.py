"""Bad input is refused before anything is created: the word, a hint, exit status 2, and nothing has changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

import pytest

from tests.support.session import ROOT, Session, open_session

RUN = ("run", "ok.py", "--on", "big", "--no-checkpoint")


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as session:
        (session.work / "ok.py").write_text("print('ok')\n")
        (session.work / "letter").write_text("32 spot Cloud TPU v4 chips in zone us-central2-b\n")
        for name, more in (("newer", "generations: [v6e]"), ("untried", "generations: [v4]\nverified: false")):
            write_environment(session, name, more)
        session.type("grant", "import", "letter")
        session.type("up", "v4-16", "big", "--spot")
        yield session


def write_environment(session: Session, name: str, more: str) -> None:
    """The environment `jax-tpu` with its lock under another name, and other terms."""
    folder, shipped = session.work / "envs", ROOT / "manifests" / "env"
    folder.mkdir(exist_ok=True)
    lines = (shipped / "jax-tpu.yaml").read_text().replace("name: jax-tpu", f"name: {name}").splitlines()
    kept = [line for line in lines if not line.startswith(("generations:", "verified:"))]
    (folder / f"{name}.yaml").write_text("\n".join([*kept, more, ""]))
    (folder / f"pylock.{name}.toml").write_text((shipped / "pylock.jax-tpu.toml").read_text())


def everything(session: Session) -> tuple[str, str]:
    """What the simulated cloud was asked to change, and what the store holds."""
    store = session.root / "state" / "sim" / "sim-project" / "store.sqlite"
    return json.dumps(session.sim_journal()), hashlib.sha256(store.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*RUN, "--env", "newer"), "environment newer is for v6e, not for v4"),
        (("env", "apply", "newer", "--on", "big"), "environment newer is for v6e, not for v4"),
        # What else `up` refuses, tests/slices/test_resolve.py knows.
        (("up", "v4-33", "--spot"), "v4-33"),
        (("up", "h100-8", "--spot"), "h100-8"),
        (("up", "tpu7x-8", "--spot"), "tpu7x-8"),
        (("up", "v4-8", "--spot", "--zone", "Nowhere"), "Nowhere"),
        (("up", "v6e-8", "--zone", "us-east1-d"), "tier"),
        (("up", "v4-8", "--spot", "--reserved"), "--reserved"),
        (("up", "v4-8", "--spot", "--direct", "--valid-until", "2099-01-01"), "--valid-until and --direct"),
        (("up", "v4-8", "--spot", "--valid-for", "soon"), "soon"),
        (("up", "v4-8", "--spot", "--label", "nothing"), "nothing"),
        (
            ("up", "v4-8", "--spot", "--description", "x" * 513),
            "--description has 513 characters; the API takes 512",
        ),
        (("up", "v4-8", "--spot", "--boot-disk", "much"), "it should be a whole number"),
        (("up", "v4-8", "--spot", "--queued", "--direct"), "--queued and --direct"),
        (("up", "v4-8", "--spot", "--startup-script", "missing.sh"), "missing.sh"),
        ((*RUN, "--slices", "2"), "--up"),
        (("run", "ok.py", "--up", "v4-8", "--no-checkpoint", "--spot", "--reservation", "r"), "--reserved"),
        (("up", "v4-8", "--on-demand"), "not covered"),
        (("up", "v4-64", "--spot"), "not covered"),
        (("up", "v4-8", "Not_A_Name", "--spot"), "Not_A_Name"),
        (("up", "v4-8", "x" * 60, "--spot"), "x" * 60),
        (("run", "missing.py", "--on", "big", "--no-checkpoint"), "missing.py"),
        ((*RUN, "--var", "NOVALUE"), "NOVALUE"),
        ((*RUN, "--var", "1A=b"), "1A"),
        ((*RUN, "--secret", "TOKEN=plaintext"), "TOKEN"),
        ((*RUN, "--secret", "TOKEN=env:NOT_SET_ANYWHERE"), "NOT_SET_ANYWHERE"),
        ((*RUN, "--worker", "0-7", "--alone"), "7"),
        ((*RUN, "--progress", "step"), "has no group for the step"),
        ((*RUN, "--progress", ""), "--progress '' finds no step"),
        ((*RUN, "--progress", "(?P<loss>x) (?P<loss>y)"), "redefinition of group name"),
        ((*RUN, "--on-nan", "stop", "--progress", r"(\d+)"), "--progress names none"),
        ((*RUN, "--on-nan", "restart"), "--on-nan 'restart' is unknown"),
        (("run", "ok.py", "--on", "big"), "checkpoint"),
        (("run", "ok.py", "--on", "big", "--checkpoint-dir", "/local/path"), "/local/path"),
        ((*RUN, "--all-workers", "--worker", "0"), "--worker"),
        ((*RUN, "--learning-rate", "3"), "--learning-rate"),
        (("exec", "big", "--worker", "9", "--", "true"), "9"),
        (("down", "big"), "--yes"),
        (("cp", "ok.py", "there"), "tpuctl cp ok.py NAME:, or tpuctl cp NAME:out there"),
        (("cp", "big:a", "big:b", "."), "one path"),
    ],
)
def test_what_cannot_be_is_refused_with_a_hint_and_changes_nothing(session, words, said):
    before = everything(session)
    done = session.type(*words, status=2)
    assert said in done.stderr
    assert "hint: " in done.stderr
    assert done.stdout == ""
    assert everything(session) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "ok.py", "--on", "big", "--checkpoint-dir", "gs://not-there/x"), "gs://not-there"),
        ((*RUN, "--env", "no-such-env"), "no-such-env"),
        (("run", "ok.py", "--on", "nobody", "--no-checkpoint"), "nobody"),
    ],
)
def test_what_does_not_exist_is_named_before_anything_runs(session, words, said):
    before = everything(session)
    done = session.type(*words, status=5)
    assert said in done.stderr
    assert "hint: " in done.stderr
    assert everything(session) == before


@pytest.mark.parametrize(
    "words", [(*RUN, "--dry-run", "--env", "untried"), ("env", "plan", "untried", "--on", "big")]
)
def test_an_environment_that_nobody_has_seen_work_is_used_with_a_warning(
    session: Session, words: tuple[str, ...]
):
    assert "environment untried is verified: false: nobody has seen it work" in session.type(*words).stderr
