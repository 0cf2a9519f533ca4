"""Copies to and from real hosts: what arrives is what was sent, and nothing leaves the target."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from pathlib import Path

import pytest

from tests.support.sshd import SshFarm
from tpuctl.core.model import HostTarget
from tpuctl.errors import NotFoundError, TpuctlError, UsageError
from tpuctl.remote.files import TarReceiver, archive
from tpuctl.remote.ssh import SshRemote
from tpuctl.workflows.copy import host_path, pull, push

NAMES = ["plain", "with space", "quo'te", 'dou"ble', "new\nline", "-dash", "日本é", "$HOME", "a;b", "x" * 150]


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
    farm: SshFarm, remote: SshRemote, local: Path, tmp_path: Path
) -> None:
    targets = [farm.add(worker) for worker in range(2)]
    assert all(r.ok for r in push(remote, targets, lambda: archive([local]), ["data"], "in/"))
    for worker in range(2):
        assert tree(farm.folder / f"home-{worker}" / "in" / "data") == tree(local)
    back = tmp_path / "back"
    results = pull(remote, targets, "in/data", lambda target: TarReceiver(back / str(target.worker)))
    assert all(result.ok for result in results)
    for worker in range(2):
        assert tree(back / str(worker) / "data") == tree(local)


@pytest.mark.parametrize("name", NAMES)
def test_nasty_names_survive_both_ways(
    farm: SshFarm, target: HostTarget, remote: SshRemote, tmp_path: Path, name: str
) -> None:
    source = tmp_path / "from" / name
    source.parent.mkdir()
    source.write_text("content")
    [result] = push(remote, [target], lambda: archive([source]), [name], f"there {name}/{name}")
    assert result.ok, result.stderr
    assert (farm.folder / "home-0" / f"there {name}" / name).read_text() == "content"
    [result] = pull(remote, [target], f"there {name}/{name}", lambda _: TarReceiver(tmp_path / "to"))
    assert result.ok, result.stderr
    assert (tmp_path / "to" / name).read_text() == "content"


def test_a_file_becomes_the_named_file_or_goes_into_the_directory(
    farm: SshFarm, target: HostTarget, remote: SshRemote, local: Path
) -> None:
    home = farm.folder / "home-0"
    (home / "there").mkdir()

    def send(destination: str) -> None:
        [result] = push(remote, [target], lambda: archive([local / "tool"]), ["tool"], destination)
        assert result.ok, result.stderr

    for destination in ("new", "there", "made/", "~/deep/er/name", str(home / "absolute")):
        send(destination)
    for path in ("new", "there/tool", "made/tool", "deep/er/name", "absolute"):
        assert (home / path).read_bytes() == (local / "tool").read_bytes()
        assert stat.S_IMODE((home / path).stat().st_mode) == 0o750
    assert not list(home.rglob(".tpuctl-cp.*"))


def test_a_copy_that_breaks_off_leaves_no_half_file(
    farm: SshFarm, target: HostTarget, remote: SshRemote, local: Path
) -> None:
    whole = b"".join(archive([local / "tool"]))
    [result] = push(remote, [target], lambda: [whole[:300_000]], ["tool"], "half")
    assert not result.ok
    assert list((farm.folder / "home-0").iterdir()) == []


def test_a_missing_path_on_the_host_is_told_and_nothing_appears_here(
    target: HostTarget, remote: SshRemote, tmp_path: Path
) -> None:
    [result] = pull(remote, [target], "no such", lambda _: TarReceiver(tmp_path / "to"))
    assert not result.ok
    assert b"no such" in result.stderr
    assert not (tmp_path / "to").exists()


def test_a_pulled_entry_can_be_renamed(
    farm: SshFarm, target: HostTarget, remote: SshRemote, tmp_path: Path
) -> None:
    (farm.folder / "home-0" / "dir").mkdir()
    (farm.folder / "home-0" / "dir" / "f").write_text("x")
    [result] = pull(remote, [target], "dir/", lambda _: TarReceiver(tmp_path / "to", rename="other"))
    assert result.ok
    assert (tmp_path / "to" / "other" / "f").read_text() == "x"


def test_a_missing_local_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such file"):
        list(archive([tmp_path / "none"]))


def member(name: str, **fields: object) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        good = tarfile.TarInfo("innocent")
        tar.addfile(good)
        info = tarfile.TarInfo(name)
        for key, value in fields.items():
            setattr(info, key, value)
        tar.addfile(info)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "stream",
    [
        member("/tmp/evil"),
        member("../evil"),
        member("a/../../evil"),
        member("link", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        member("link", type=tarfile.SYMTYPE, linkname="../up"),
        member("pipe", type=tarfile.FIFOTYPE),
        b"garbage" * 200,
    ],
    ids=["absolute", "parent", "hidden-parent", "link-out", "link-up", "pipe", "garbage"],
)
def test_an_archive_that_leaves_the_target_is_refused_before_anything_is_written(
    tmp_path: Path, stream: bytes
) -> None:
    receiver = TarReceiver(tmp_path / "to")
    receiver.write(stream)
    with pytest.raises(TpuctlError):
        receiver.finish()
    assert list(tmp_path.iterdir()) == []


def test_a_pull_does_not_write_through_links_that_lie_in_the_target(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "sub").symlink_to(tmp_path / "elsewhere")
    receiver = TarReceiver(tmp_path / "to")
    receiver.write(member("sub/evil"))
    with pytest.raises(TpuctlError, match="symbolic link"):
        receiver.finish()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_chain_of_links_that_leads_out_is_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, link in (("a/b/up", "../.."), ("out", "a/b/up/..")):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, link
            tar.addfile(info)
    receiver = TarReceiver(tmp_path / "to")
    receiver.write(buffer.getvalue())
    with pytest.raises(TpuctlError, match="leaves the target"):
        receiver.finish()
    assert not (tmp_path / "to" / "out").is_symlink()


def test_a_hard_link_may_only_mean_a_member_of_the_archive(tmp_path: Path) -> None:
    receiver = TarReceiver(tmp_path / "to")
    receiver.write(member("hard", type=tarfile.LNKTYPE, linkname="/etc/passwd"))
    with pytest.raises(TpuctlError, match="hard link"):
        receiver.finish()
    receiver = TarReceiver(tmp_path / "to")
    receiver.write(member("hard", type=tarfile.LNKTYPE, linkname="innocent"))
    receiver.finish()
    assert (tmp_path / "to" / "hard").read_bytes() == b""


def test_another_users_home_is_not_expanded() -> None:
    with pytest.raises(UsageError, match="~root"):
        host_path("~root/x")
