"""What the shell offers: commands and names, at once and without a call to the cloud."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.session import Session, open_session

BIN = Path(sys.executable).parent
ASK = """
source <(tpuctl --show-completion bash)
COMP_WORDS=({line}); COMP_CWORD={at}
_tpuctl_completion tpuctl
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """Slices and a run are recorded, and then there is no cloud any more."""
    with open_session() as session:
        for name in ("big", "bigger", "past"):
            session.type("up", "v4-8", name, "--spot", "--pay")
        session.type("run", "--on", "big", "--name", "first", "--no-checkpoint", "--", "true")
        session.type("down", "past", "--yes")
        profile = session.root / "state" / "sim" / "profile.json"
        kept = profile.read_bytes()
        profile.write_bytes(kept.replace(b"http://127.0.0.1:", b"http://127.0.0.1:1"))
        yield session
        profile.write_bytes(kept)


def offered(session: Session, *words: str) -> list[str]:
    """What bash offers for the last of `words`, by the script that is installed."""
    environ = {**session.environ, "PATH": f"{BIN}:{session.environ['PATH']}", "SHELL": "/bin/bash"}
    line = " ".join(f"'{word}'" for word in ("tpuctl", *words))
    done = subprocess.run(
        ["bash", "-c", ASK.format(line=line, at=len(words))],
        env=environ,
        cwd=session.work,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("down", "b"), ["big", "bigger"]),
        (("status", ""), ["big", "bigger"]),
        (("run", "--on", "bigg"), ["bigger"]),
        (("cp", "big"), ["big:", "bigger:"]),
        (("--profile", "sim", "ssh", "bigg"), ["bigger"]),
        (("attach", ""), ["first"]),
        (("sim", "pree"), ["preempt"]),
        (("up", "--spo"), ["--spot"]),
    ],
)
def test_names_and_words_are_offered(session: Session, words: tuple[str, ...], names: list[str]) -> None:
    assert offered(session, *words) == names


def test_zsh_is_offered_the_same(session: Session) -> None:
    environ = session.environ
    session.environ = {**environ, "_TPUCTL_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "tpuctl down b"}
    try:
        shown = session.type(status=None).stdout
    finally:
        session.environ = environ
    assert '"big"' in shown
    assert '"bigger"' in shown
    assert "past" not in shown


def test_completion_is_installed_for_the_shell_it_is_typed_in(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "PATH": f"{BIN}:/usr/bin:/bin"}
    line = "tpuctl --install-completion; exit $?"
    done = subprocess.run(["bash", "-c", line], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "tpuctl" in (tmp_path / ".bashrc").read_text()
    script = next(path for path in tmp_path.rglob("tpuctl*") if path.is_file())
    assert "_TPUCTL_COMPLETE" in script.read_text()


def test_the_script_for_zsh_asks_the_same_program(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "_TPUCTL_COMPLETE": "source_zsh"}
    done = subprocess.run([BIN / "tpuctl"], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.strip().startswith("#compdef tpuctl")
    assert "_TPUCTL_COMPLETE=complete_zsh" in done.stdout


def test_without_a_store_nothing_is_offered_said_or_made(tmp_path: Path) -> None:
    environ = {
        "HOME": str(tmp_path),
        "PATH": "/usr/bin:/bin",
        "TPUCTL_STATE_DIR": str(tmp_path / "state"),
        "TPUCTL_PROJECT": "my-project",
        "_TPUCTL_COMPLETE": "complete_bash",
        "COMP_WORDS": "tpuctl down ",
        "COMP_CWORD": "2",
    }
    done = subprocess.run(
        [BIN / "tpuctl"], env=environ, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (done.stdout.strip(), done.stderr) == ("", "")
    assert not (tmp_path / "state").exists()
