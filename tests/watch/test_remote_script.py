"""What another machine is told, and when it cannot be a watchdog."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from tpuctl.config.settings import Layer, resolve
from tpuctl.errors import BadConfigError, UsageError
from tpuctl.model.shipped_files import read_template
from tpuctl.watch.install.remote import build_wheel
from tpuctl.watch.install.script import check_login, remote_settings, render_remote

LOCAL = resolve([Layer("flag", {"project": "my-project"})], Path("/state"))


@pytest.mark.parametrize("login", ["ada@watch", "watch", "a.b-c@10.0.0.1", "watch.example.com"])
def test_logins(login: str) -> None:
    assert check_login(login) == login


@pytest.mark.parametrize(
    "login", ["", "-oProxyCommand=x", "ada@-x", "a b", "ada@watch;reboot", "$(id)", "a@b@c"]
)
def test_no_login_is_an_option_or_a_command(login: str) -> None:
    with pytest.raises(UsageError):
        check_login(login)


def test_a_local_store_and_the_simulator_cannot_be_watched_from_elsewhere() -> None:
    with pytest.raises(BadConfigError, match="store is on this machine") as caught:
        remote_settings(LOCAL, {})
    assert "config init --store gs://" in str(caught.value.hint)
    with pytest.raises(BadConfigError, match="simulator"):
        remote_settings(replace(LOCAL, profile="sim"), {})


def test_scripts_quote_what_they_are_told() -> None:
    environ = {"TPUCTL_PROJECT": "p", "TPUCTL_PING_URL": "https://x/?a='b'&c=$(id)"}
    for name in ("watch_remote.sh", "watch_remote_remove.sh"):
        text = render_remote(read_template(name).decode(), subject="project p", environ=environ, wheel="w.whl")
        exports = "\n".join(line for line in text.splitlines() if line.startswith("export "))
        shown = subprocess.run(
            ["sh", "-c", f'{exports}\nprintf %s "$TPUCTL_PING_URL"'], capture_output=True, text=True, check=True
        )
        assert shown.stdout == environ["TPUCTL_PING_URL"]
        subprocess.run(["sh", "-n"], input=text, text=True, check=True)


@pytest.mark.slow
def test_the_wheel_is_this_tpuctl_and_always_the_same_bytes(tmp_path: Path) -> None:
    name, content = build_wheel()
    assert build_wheel() == (name, content)
    packed = zipfile.ZipFile(io.BytesIO(content))
    names = set(packed.namelist())
    assert {
        "tpuctl/cli/main.py",
        "tpuctl/templates/watch_pass.sh",
        "tpuctl/agent/__main__.py",
    } <= names
    assert "tpuctl/manifests/tables/accelerators.yaml" in names
    assert not any(path.endswith(".pyc") for path in names)
    (tmp_path / name).write_bytes(content)
    target = tmp_path / "there"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([*command, str(tmp_path / name)], check=True)
    shown = subprocess.run(
        [sys.executable, "-m", "tpuctl", "types", "v4", "--json"],
        env={"PYTHONPATH": str(target), "HOME": str(tmp_path)},
        cwd=target,
        capture_output=True,
        text=True,
        check=True,
    )
    assert '"v4-8"' in shown.stdout
