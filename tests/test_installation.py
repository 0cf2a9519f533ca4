"""What is installed is the whole tpuctl, in each way and on each Python that the README names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import uv

from tests.support.require import require_index
from tests.support.session import Session

pytestmark = pytest.mark.timeout(1800)

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PACKAGE = {"tpuctl": "tpuctl", "templates": "tpuctl/templates", "manifests": "tpuctl/manifests"}
"""Where a wheel has the folders of a checkout."""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As git has it, without what lies about in ours."""
    source = tmp_path_factory.mktemp("checkout") / "tpuctl"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(source)], check=True)
    return source


@pytest.fixture(scope="module")
def built(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a source distribution, and the wheel that was built of that."""
    folder = tmp_path_factory.mktemp("built")
    subprocess.run([uv.find_uv_bin(), "build", "--quiet", "--out-dir", folder, checkout], check=True)
    return folder


def find_python(version: str) -> str:
    """An interpreter of that version on PATH or of pyenv. Skips by name without one."""
    found = [shutil.which(f"python{version}"), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
    for python in filter(None, found):
        ask = [python, "-c", "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(ask, capture_output=True, text=True)
        if done.stdout.strip() == version:
            return str(python)
    pytest.skip(f"no Python {version} with venv on this machine")


@pytest.fixture
def session() -> Iterator[Session]:
    """Outside of any checkout, and with nothing that leads Python or uv to one."""
    with tempfile.TemporaryDirectory(prefix="tpuctl-installed-") as root:
        made = Session(Path(root))
        for name in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE"):
            made.environ.pop(name, None)
        made.environ["UV_CACHE_DIR"] = str(Path.home() / ".cache" / "uv")
        made.environ["UV_PYTHON_DOWNLOADS"] = "never"
        yield made


def do_real_things(session: Session, *program: str) -> None:
    """A slice, an environment's file, a run, its report and its end, with nothing but what was installed."""

    def type_(*words: str) -> str:
        done = session.finish(session.start(*words, program=program), 300.0)
        assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
        return done.stdout

    assert type_("--version").startswith("tpuctl ")
    type_("sim", "up", "--instant")
    try:
        type_("up", "v4-16", "big", "--spot", "--pay")
        type_("env", "new", "mine", "--like", "jax-tpu", "--no-lock")
        assert (session.work / "envs" / "mine.yaml").exists()
        said = type_(
            "run", "--on", "big", "--no-checkpoint", "--name", "first", "--", "sh", "-c", "echo trained"
        )
        assert "trained" in said  # once, where both workers say it at the same time
        type_("report", "first", "-o", "page.html")
        assert "trained" in (session.work / "page.html").read_text()
        type_("down", "big", "--yes")
        assert type_("ls", "--json").strip() == "[]"
    finally:
        type_("sim", "down")


@pytest.mark.slow
def test_sources_make_the_wheel_of_the_checkout_which_has_all_that_is_needed(
    built: Path, checkout: Path, tmp_path: Path
) -> None:
    (of_sources,) = built.glob("*.whl")
    subprocess.run([uv.find_uv_bin(), "build", "--quiet", "--wheel", "-o", tmp_path, checkout], check=True)
    (of_checkout,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(of_sources) as one, zipfile.ZipFile(of_checkout) as other:
        contents = {each.filename: each.CRC for each in one.infolist()}
        assert contents == {each.filename: each.CRC for each in other.infolist()}
    listed = subprocess.run(
        ["git", "-C", checkout, "ls-files", *PACKAGE], capture_output=True, text=True, check=True
    )
    tracked = [path.partition("/") for path in listed.stdout.splitlines()]
    packed = {name for name in contents if ".dist-info/" not in name}
    assert packed == {f"{PACKAGE[top]}/{below}" for top, _, below in tracked}
    (sources,) = built.glob("*.tar.gz")
    with tarfile.open(sources) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "CHANGELOG.md", "docs/start/install.md"} <= names


@pytest.mark.soak
@pytest.mark.parametrize("version", PYTHONS)
@pytest.mark.parametrize("suffix", ["*.whl", "*.tar.gz"], ids=["wheel", "sources"])
def test_pip_installs_it(version: str, suffix: str, built: Path, session: Session) -> None:
    require_index()
    subprocess.run([find_python(version), "-m", "venv", session.root / "venv"], check=True)
    programs = session.root / "venv" / "bin"
    (package,) = built.glob(suffix)
    install = [programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package]
    subprocess.run(install, check=True, env=session.environ, cwd=session.work)
    do_real_things(session, str(programs / "tpuctl"))


@pytest.mark.soak
def test_uvx_runs_it_of_a_checkout(checkout: Path, session: Session) -> None:
    require_index()
    do_real_things(session, uv.find_uv_bin(), "tool", "run", "--quiet", "--from", str(checkout), "tpuctl")


@pytest.mark.soak
def test_pipx_installs_it_of_a_checkout(checkout: Path, session: Session) -> None:
    require_index()
    homes = {"PIPX_HOME": str(session.root / "pipx"), "PIPX_BIN_DIR": str(session.root / "bin")}
    install = [
        uv.find_uv_bin(),
        "tool",
        "run",
        "--quiet",
        "pipx",
        "install",
        "--quiet",
        "--python",
        sys.executable,
    ]
    environ = {**os.environ, **session.environ, **homes}
    subprocess.run([*install, checkout], check=True, env=environ, cwd=session.work)
    do_real_things(session, str(session.root / "bin" / "tpuctl"))
