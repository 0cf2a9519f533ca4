"""paramiko without what it does not need, and with the version that it has."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest

from tpuctl.ssh.paramiko_tuning import knowing_version


def printed_by(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_paramiko_knows_its_version_and_comes_without_parsers_of_metadata() -> None:
    code = (
        "import sys\nfrom tpuctl.ssh.paramiko_tuning import paramiko\n"
        "print(paramiko.__version__, 'email.parser' in sys.modules, 'invoke' in sys.modules)"
    )
    assert printed_by(code) == f"{metadata.version('paramiko')} False False"


def test_metadata_is_the_real_one_again_afterwards() -> None:
    code = (
        "import tpuctl.ssh.paramiko_tuning\nfrom importlib import metadata\n"
        "print(metadata.version('typer'), metadata.__spec__.name)"
    )
    assert printed_by(code) == f"{metadata.version('typer')} importlib.metadata"


def test_what_else_is_asked_meanwhile_is_answered_by_the_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "importlib.metadata")
    with knowing_version("paramiko"):
        stand_in = sys.modules["importlib.metadata"]
        assert stand_in.version("paramiko") == metadata.version("paramiko")
        assert stand_in.version("typer") == metadata.version("typer")
        with pytest.raises(stand_in.PackageNotFoundError):
            stand_in.version("no-such-project")
    assert sys.modules["importlib.metadata"] is not stand_in


def test_a_package_without_metadata_is_left_to_the_real_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "importlib.metadata")
    with knowing_version("email"):
        assert "importlib.metadata" not in sys.modules
