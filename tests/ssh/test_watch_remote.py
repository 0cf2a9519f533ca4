"""`watch install --on`: the scripts that make another machine a watchdog, through the real ssh and sshd."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.far import Far, open_far
from tpuctl.errors import TpuctlError, UnreachableError
from tpuctl.model.shipped_files import read_template
from tpuctl.watch.install.remote import build_wheel, run_script, send_file
from tpuctl.watch.install.script import render_remote


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Far]:
    with open_far(tmp_path) as made:
        monkeypatch.setenv("PATH", f"{made.bin}:{os.environ['PATH']}")
        yield made


def script(template: str, wheel: str = "", digest: str = "") -> str:
    return render_remote(
        read_template(template).decode(),
        subject="project my-project",
        environ={"TPUCTL_PROJECT": "my-project"},
        wheel=wheel,
        digest=digest,
        every_min=4,
    )


@pytest.mark.slow
def test_a_machine_becomes_a_watchdog_and_is_one_no_longer(far: Far) -> None:
    foreign = "0 3 * * * backup\n"
    far.spool.table.write_text(foreign)
    name, wheel = build_wheel()
    install = script("watch_remote.sh", name, "0123456789abcdef")
    for _ in range(2):
        said: list[str] = []
        send_file("far", name, wheel)
        run_script("far", install, said.append)
    assert any("4 min" in line for line in said)
    backup, ours = far.spool.lines()
    assert backup == foreign.strip()
    assert ours.startswith("*/4 * * * * ")
    assert f"{far.home}/state/default/my-project" in ours
    share = far.home / ".local" / "share" / "tpuctl"
    assert [path.name for path in share.iterdir()] == ["watch-0123456789ab"]
    pass_script = far.home / "state/default/my-project/watch/pass.sh"
    assert str(share / "watch-0123456789ab/bin/python") in pass_script.read_text()
    log = pass_script.with_name("watch.log").read_text()
    assert len(log.splitlines()) == 2
    for _ in range(2):
        run_script("far", script("watch_remote_remove.sh"), said.append)
    assert far.spool.table.read_text() == foreign
    assert list(share.iterdir()) == []


def test_what_goes_wrong_there_is_told_with_its_words(far: Far) -> None:
    said: list[str] = []
    with pytest.raises(TpuctlError, match="far said: no room") as caught:
        run_script("far", "echo no room >&2; exit 3", said.append)
    assert (said, caught.value.details["status"]) == (["no room"], 3)
    with pytest.raises(UnreachableError, match="Connection refused"):
        run_script("nowhere", "true", said.append)


def test_a_file_arrives_whole_and_private(far: Far) -> None:
    send_file("far", "a 'b'.whl", b"\0content")
    path = far.home / ".local/share/tpuctl/a 'b'.whl"
    assert path.read_bytes() == b"\0content"
    assert path.stat().st_mode & 0o077 == 0


def test_a_machine_that_lacks_something_is_told_what_to_install(far: Far) -> None:
    (far.spool.bin / "crontab").write_text("#!/bin/sh\nexit 9\n")
    for candidate in ("python3.14", "python3.13", "python3.12", "python3.11", "python3"):
        fake = far.spool.bin / candidate
        fake.write_text("#!/bin/sh\nexit 1\n")
        fake.chmod(0o755)
    said: list[str] = []
    with pytest.raises(TpuctlError):
        run_script("far", script("watch_remote.sh", "x.whl", "0" * 12), said.append)
    assert said[0] == "error: no Python 3.11 to 3.14 here"
    assert "apt-get install" in said[1]
