"""Copies to and from real hosts: what arrives is what was sent, and nothing leaves the target."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.real_lab import RealClock
from tests.support.sshd import SshFarm
from tpuctl.errors import NotFoundError, UsageError
from tpuctl.hosts.agent import HostAgent
from tpuctl.model.cloud import HostTarget
from tpuctl.transfer.tree import Content
from tpuctl.workers.copy_from import Pulled, pull
from tpuctl.workers.copy_to import Pushed, host_path, push, scan
from tpuctl.workers.file_receiver import FileReceiver

NAMES = ["plain", "with space", "quo'te", 'dou"ble', "new\nline", "-dash", "日本é", "$HOME", "a;b", "x" * 150]


def send(agent: HostAgent, targets: list[HostTarget], path: Path, destination: str) -> Pushed:
    return push(
        agent,
        targets,
        scan([path]),
        [path.name],
        destination,
        clock=RealClock(),
        emit=lambda event: None,
    )


def fetch(agent: HostAgent, targets: list[HostTarget], path: str, folder: Path) -> Pulled:
    """Into one place per worker below `folder`, which is named like it."""
    return pull(
        agent,
        targets,
        path,
        lambda target: FileReceiver(folder / target.label),
        clock=RealClock(),
        emit=lambda event: None,
    )


def tree(folder: Path) -> dict[str, tuple[str, object, int]]:
    """Relative path to kind, content and mode."""
    found: dict[str, tuple[str, object, int]] = {}
    for path in sorted(folder.rglob("*")):
        mode = stat.S_IMODE(path.lstat().st_mode)
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = ("link", os.readlink(path), 0)
        elif path.is_dir():
            found[name] = ("dir", None, mode)
        else:
            found[name] = ("file", path.read_bytes(), mode)
    return found


@pytest.fixture
def local(tmp_path: Path) -> Path:
    folder = tmp_path / "local" / "data"
    (folder / "sub" / "empty").mkdir(parents=True)
    for name in NAMES:
        (folder / "sub" / name).write_text(name)
    (folder / "tool").write_bytes(os.urandom(700_000))
    (folder / "tool").chmod(0o750)
    (folder / "secret").write_text("s")
    (folder / "secret").chmod(0o600)
    (folder / "link").symlink_to("sub/plain")
    return folder


def test_a_tree_goes_to_all_workers_and_comes_back_the_same(
    farm: SshFarm, agent: HostAgent, local: Path, tmp_path: Path
) -> None:
    targets = [farm.add(worker) for worker in range(2)]
    assert all(result.ok for result in send(agent, targets, local, "in/").results)
    for worker in range(2):
        copied = farm.folder / f"home-{worker}" / "in" / "data"
        assert tree(copied) == tree(local)
        assert (copied / "tool").stat().st_mtime_ns == (local / "tool").stat().st_mtime_ns
        assert list((farm.folder / f"home-{worker}" / ".tpuctl/incoming").iterdir()) == []
    back = tmp_path / "back"
    pulled = fetch(agent, targets, "in/data", back)
    assert all(result.ok for result in pulled.results)
    for worker in range(2):
        assert tree(back / f"big-{worker}") == tree(local)


def test_a_file_becomes_the_named_file_or_goes_into_the_directory(
    farm: SshFarm, target: HostTarget, agent: HostAgent, local: Path
) -> None:
    home = farm.folder / "home-0"
    (home / "there").mkdir()
    for destination in ("new", "there", "made/", "~/deep/er/name", str(home / "absolute")):
        [result] = send(agent, [target], local / "tool", destination).results
        assert result.ok, result
    for path in ("new", "there/tool", "made/tool", "deep/er/name", "absolute"):
        assert (home / path).read_bytes() == (local / "tool").read_bytes()
        assert stat.S_IMODE((home / path).stat().st_mode) == 0o750
    assert not list(home.rglob(".tpuctl-cp.*"))


def test_a_copy_that_breaks_off_leaves_no_half_file_and_goes_on_where_it_was(
    farm: SshFarm, target: HostTarget, agent: HostAgent, local: Path
) -> None:
    whole, home = scan([local]), farm.folder / "home-0"

    def broken(sha256: str) -> Iterator[bytes]:
        data = b"".join(whole.read(sha256))
        yield data[:300_000]

    def attempt(content: Content) -> Pushed:
        clock = RealClock()
        return push(agent, [target], content, ["data"], "half", clock=clock, emit=lambda event: None)

    first = attempt(Content(whole.tree, broken))
    assert not first.results[0].ok
    assert "became shorter" in first.results[0].detail
    assert not (home / "half").exists()
    second = attempt(whole)
    assert second.results[0].ok
    assert tree(home / "half") == tree(local)
    assert first.sent_bytes + second.sent_bytes < 1_100_000, "small files that had arrived were sent again"


def test_only_what_changed_travels_and_the_same_again_sends_nothing(
    farm: SshFarm, target: HostTarget, agent: HostAgent, local: Path
) -> None:
    home = farm.folder / "home-0"
    sizes = len(scan([local]).tree)
    assert send(agent, [target], local, "in/").sent_bytes > 700_000
    assert send(agent, [target], local, "in/").sent_bytes <= sizes
    (local / "tool").chmod(0o700)
    (local / "secret").write_text("another")
    again = send(agent, [target], local, "in/")
    assert again.results[0].ok
    assert again.sent_bytes <= sizes + 100
    assert tree(home / "in/data") == tree(local)


def test_equal_files_travel_once_and_are_taken_from_where_one_lies(
    farm: SshFarm, target: HostTarget, agent: HostAgent, local: Path
) -> None:
    (local / "twin").write_bytes((local / "tool").read_bytes())
    assert send(agent, [target], local, "in/").sent_bytes < 800_000
    (local / "triplet").write_bytes((local / "tool").read_bytes())
    again = send(agent, [target], local, "in/")
    assert again.results[0].ok, again
    assert again.sent_bytes < 100_000
    assert tree(farm.folder / "home-0/in/data") == tree(local)


def test_what_lies_in_the_way_is_told_and_kept(
    farm: SshFarm, target: HostTarget, agent: HostAgent, local: Path
) -> None:
    home = farm.folder / "home-0"
    (home / "in/data/tool").mkdir(parents=True)
    (home / "elsewhere").mkdir()
    [result] = send(agent, [target], local, "in/").results
    assert "tool is a directory" in result.detail
    (home / "in/data/tool").rmdir()
    (home / "in/data/sub").rename(home / "in/data/gone") if (home / "in/data/sub").exists() else None
    (home / "in/data/sub").symlink_to(home / "elsewhere")
    [result] = send(agent, [target], local, "in/").results
    assert "is a symbolic link" in result.detail
    assert list((home / "elsewhere").iterdir()) == []


def test_a_missing_local_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such file"):
        scan([tmp_path / "none"])


def test_another_users_home_is_not_expanded() -> None:
    with pytest.raises(UsageError, match="~root"):
        host_path("~root/x")
