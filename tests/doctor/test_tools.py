"""Programs and libraries of this machine, and the key file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpuctl.doctor.run import inspect_key, list_tools


def test_what_is_not_installed_has_no_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    tools = {tool.name: tool for tool in list_tools(needs_ssh=True)}
    assert (tools["ssh"].version, tools["ssh"].needed) == (None, True)
    assert (tools["gcloud"].version, tools["gcloud"].needed) == (None, False)
    assert tools["google-cloud-tpu"].version is not None


@pytest.mark.parametrize(
    ("script", "version"),
    [
        ("echo OpenSSH_9.2p1 Debian-2 >&2", "9.2p1"),
        ("echo Google Cloud SDK 528.0.0; echo bq 2.1.18", "528.0.0"),
        ("exit 3", "of unknown version"),
    ],
)
def test_versions_are_found_in_what_programs_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, version: str
) -> None:
    program = tmp_path / "ssh"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = {tool.name: tool.version for tool in list_tools(needs_ssh=False)}
    assert found["ssh"] == version


def test_a_key_file_is_described_by_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "key"
    assert inspect_key(path).mode is None
    path.write_text("x")
    path.chmod(0o640)
    assert inspect_key(path).mode == 0o640
    assert inspect_key(path / "below").error
