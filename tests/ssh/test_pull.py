"""Copies from hosts that break off, go on, change under way, or come from a host that cannot be trusted."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ssh.test_copy import SystemClock, fetch
from tests.ssh.test_distribute import Hurried
from tests.support.sshd import SshFarm
from tpuctl.core.arrival import Begin, Done, End, Frame, FrameReader, Piece, parse_survey
from tpuctl.core.host_protocol import MalformedReplyError
from tpuctl.core.model import HostTarget
from tpuctl.errors import TpuctlError
from tpuctl.remote.landing import Landing
from tpuctl.workflows.events import Transfer
from tpuctl.workflows.host_helper import HostHelper
from tpuctl.workflows.pull import Pulled, pull

SIZE = 24_000_000
"""More than all that is on its way at once."""


class Struck(Landing):
    """Lets something happen when this many bytes have arrived."""

    def __init__(self, place: Path, after: int, strike: Callable[[], None]) -> None:
        super().__init__(place)
        self._left: int | None = after
        self._strike = strike

    def take(self, frame: Frame) -> None:
        super().take(frame)
        if isinstance(frame, Piece) and self._left is not None:
            self._left -= len(frame.data)
            if self._left <= 0:
                self._left = None
                self._strike()


@pytest.fixture
def source(farm: SshFarm, target: HostTarget) -> Path:
    path = farm.folder / "home-0" / "data.bin"
    path.write_bytes(os.urandom(SIZE))
    return path


def fetch_struck(helper: HostHelper, target: HostTarget, place: Path, strike: Callable[[], None]) -> Pulled:
    return pull(
        helper,
        [target],
        "data.bin",
        lambda _: Struck(place, 3_000_000, strike),
        clock=SystemClock(),
        emit=lambda event: None,
    )


def break_off(farm: SshFarm, helper: HostHelper, target: HostTarget, place: Path) -> int:
    """A copy whose connection is cut when some of the file has come; how much that was."""
    pulled = fetch_struck(helper, target, place, farm.drop_connections)
    assert not pulled.results[0].ok
    assert not place.exists()
    assert 3_000_000 <= pulled.received_bytes < SIZE
    return pulled.received_bytes


def test_a_copy_that_was_cut_goes_on_where_it_was(
    farm: SshFarm, target: HostTarget, helper: HostHelper, source: Path, tmp_path: Path
) -> None:
    place = tmp_path / "to" / "big-0"
    had = break_off(farm, helper, target, place)
    again = fetch(helper, [target], "data.bin", tmp_path / "to")
    assert again.results[0].ok, again.results
    assert again.received_bytes == SIZE - had
    assert place.read_bytes() == source.read_bytes()
    assert [path.name for path in place.parent.iterdir()] == ["big-0"]


def test_a_file_that_changed_since_the_cut_comes_whole_and_unmixed(
    farm: SshFarm, target: HostTarget, helper: HostHelper, source: Path, tmp_path: Path
) -> None:
    before = source.stat()
    break_off(farm, helper, target, tmp_path / "to" / "big-0")
    with source.open("r+b") as file:
        file.write(b"another beginning")
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))  # size and time tell nothing
    again = fetch(helper, [target], "data.bin", tmp_path / "to")
    assert again.results[0].ok, again.results
    assert again.received_bytes == SIZE
    assert (tmp_path / "to" / "big-0").read_bytes() == source.read_bytes()


def test_a_file_that_is_rewritten_while_it_comes_is_asked_for_again(
    target: HostTarget, helper: HostHelper, source: Path, tmp_path: Path
) -> None:
    def rewrite() -> None:
        with source.open("r+b") as file:
            file.write(b"another beginning")

    pulled = fetch_struck(helper, target, tmp_path / "copy", rewrite)
    assert pulled.results[0].ok, pulled.results
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()
    assert pulled.received_bytes > SIZE


def test_a_file_that_only_grows_comes_as_it_was(
    target: HostTarget, helper: HostHelper, source: Path, tmp_path: Path
) -> None:
    def grow() -> None:
        with source.open("ab") as file:
            file.write(b"one more line")

    was = source.read_bytes()
    pulled = fetch_struck(helper, target, tmp_path / "copy", grow)
    assert pulled.results[0].ok, pulled.results
    assert (tmp_path / "copy").read_bytes() == was
    assert pulled.received_bytes == SIZE


def test_equal_files_do_not_travel_again_and_get_their_modes(
    farm: SshFarm, helper: HostHelper, tmp_path: Path
) -> None:
    targets = [farm.add(worker) for worker in range(2)]
    for worker in range(2):
        folder = farm.folder / f"home-{worker}" / "out"
        (folder / "empty").mkdir(parents=True)
        (folder / "a").write_bytes(os.urandom(300_000))
        (folder / "b").write_text("small")
        (folder / "link").symlink_to("b")
    first = fetch(helper, targets, "out", tmp_path / "to")
    assert (first.files, first.size_bytes, first.received_bytes) == (4, 600_010, 600_010)
    (farm.folder / "home-1" / "out" / "b").chmod(0o751)
    again = fetch(helper, targets, "out", tmp_path / "to")
    assert all(result.ok for result in again.results)
    assert (again.files, again.received_bytes) == (4, 0)
    assert stat.S_IMODE((tmp_path / "to/big-1/b").stat().st_mode) == 0o751
    (tmp_path / "to/big-0/a").write_bytes(b"x" * 300_000)
    mended = fetch(helper, targets, "out", tmp_path / "to")
    assert mended.received_bytes == 300_000
    assert (tmp_path / "to/big-0/a").read_bytes() == (farm.folder / "home-0/out/a").read_bytes()


def test_a_link_that_is_asked_for_is_followed_and_pipes_are_left_out(
    farm: SshFarm, target: HostTarget, helper: HostHelper, tmp_path: Path
) -> None:
    home = farm.folder / "home-0"
    (home / "step-100").mkdir()
    (home / "step-100" / "w").write_text("weights")
    os.mkfifo(home / "step-100" / "pipe")
    (home / "latest").symlink_to("step-100")
    pulled = fetch(helper, [target], "latest", tmp_path / "to")
    assert pulled.results[0].ok, pulled.results
    assert (pulled.files, pulled.left_out) == (1, 1)
    assert (tmp_path / "to/big-0/w").read_text() == "weights"


def test_a_missing_path_is_told_and_nothing_appears_here(
    target: HostTarget, helper: HostHelper, tmp_path: Path
) -> None:
    [result] = fetch(helper, [target], "no such", tmp_path / "to").results
    assert (result.ok, "no such file or directory" in result.detail) == (False, True)
    assert not (tmp_path / "to").exists()


def test_one_worker_without_the_path_does_not_stop_the_other(
    farm: SshFarm, helper: HostHelper, tmp_path: Path
) -> None:
    targets = [farm.add(worker) for worker in range(2)]
    (farm.folder / "home-1" / "only").write_text("here")
    pulled = fetch(helper, targets, "only", tmp_path / "to")
    assert [result.ok for result in pulled.results] == [False, True]
    assert (pulled.files, (tmp_path / "to/big-1").read_text()) == (1, "here")


def test_two_copies_to_one_place_do_not_write_into_each_other(
    target: HostTarget, helper: HostHelper, source: Path, tmp_path: Path
) -> None:
    refused: list[Pulled] = []

    def meanwhile() -> None:
        other = Landing(tmp_path / "copy")
        try:
            with pytest.raises(TpuctlError, match="another tpuctl copies"):
                other.plan(parse_survey({"entries": [["f", "", 0o644, SIZE, 0]]}))
        finally:
            other.close()

    refused.append(fetch_struck(helper, target, tmp_path / "copy", meanwhile))
    assert refused[0].results[0].ok
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()


def test_progress_tells_bytes_rate_and_workers(
    target: HostTarget, helper: HostHelper, source: Path, tmp_path: Path
) -> None:
    told: list[object] = []
    pull(helper, [target], "data.bin", lambda _: Landing(tmp_path / "x"), clock=Hurried(), emit=told.append)
    transfers = [event for event in told if isinstance(event, Transfer)]
    assert all(event.back and event.total_bytes == SIZE for event in transfers)
    sent = [event.sent_bytes for event in transfers]
    assert sent == sorted(sent)
    assert (sent[-1], transfers[-1].hosts_done, transfers[-1].hosts) == (SIZE, 1, 1)
    assert all(event.bytes_per_s > 0 for event in transfers)


# What a host may say that is not to be trusted.


@pytest.mark.parametrize(
    "entries",
    [
        [["f", "/tmp/evil", 0o644, 1, 0]],
        [["f", "../evil", 0o644, 1, 0]],
        [["d", "", 0o755], ["f", "a/../../evil", 0o644, 1, 0]],
        [["d", "", 0o755], ["f", "a//b", 0o644, 1, 0]],
        [["d", "", 0o755], ["l", "link", "/etc/passwd"]],
        [["d", "", 0o755], ["l", "link", "../up"]],
        [["l", "", "anywhere"]],
        [["d", "", 0o755], ["l", "sub", "empty"], ["d", "empty", 0o755], ["f", "sub/evil", 0o644, 1, 0]],
        [["d", "", 0o755], ["f", "twice", 0o644, 1, 0], ["f", "twice", 0o644, 1, 0]],
        [["f", "", 0o644, 1, 0], ["f", "below", 0o644, 1, 0]],
    ],
    ids=[
        "absolute",
        "parent",
        "hidden",
        "empty",
        "link-out",
        "link-up",
        "top-link",
        "behind",
        "twice",
        "below",
    ],
)
def test_a_list_that_leaves_the_target_is_refused(entries: list[object]) -> None:
    with pytest.raises(TpuctlError, match="refused"):
        parse_survey({"entries": entries})


def plan(place: Path, *entries: list[object]) -> Landing:
    landing = Landing(place)
    landing.plan(parse_survey({"entries": list(entries)}))
    landing.wants()
    return landing


FILE = ["f", "", 0o644, 4, 0]
BEGIN = Begin(0, 0, 4, 0o644, 0)


@pytest.mark.parametrize(
    "frames",
    [
        [Piece(b"data")],
        [Begin(7, 0, 4, 0o644, 0)],
        [Begin(0, 3, 4, 0o644, 0)],
        [BEGIN, Piece(b"more than four")],
        [BEGIN, BEGIN],
        [End(0, "0" * 64)],
        [BEGIN, Piece(b"data"), End(0, "0" * 64)],
        [BEGIN, Piece(b"da"), End(0, "0" * 64)],
    ],
    ids=["unbegun", "unasked", "skipped", "longer", "nested", "unended", "damaged", "shorter"],
)
def test_frames_that_do_not_fit_are_refused_and_leave_no_file(tmp_path: Path, frames: list[Frame]) -> None:
    landing = plan(tmp_path / "x", FILE)
    *fine, bad = frames
    for frame in fine:
        landing.take(frame)
    with pytest.raises(TpuctlError):
        landing.take(bad)
    landing.close()
    assert not (tmp_path / "x").exists()


def test_a_file_that_the_host_never_sent_is_missed(tmp_path: Path) -> None:
    landing = plan(tmp_path / "x", FILE)
    landing.take(Done())
    with pytest.raises(TpuctlError, match="not sent"):
        landing.finish()
    landing.close()


def test_nothing_is_written_through_links_that_lie_in_the_target(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "sub").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TpuctlError, match="symbolic link"):
        plan(tmp_path / "to", ["d", "", 0o755], ["d", "sub", 0o755], ["f", "sub/evil", 0o644, 0, 0])
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_link_that_comes_into_the_way_while_files_come_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    landing = plan(tmp_path / "to", ["d", "", 0o755], ["d", "sub", 0o755], ["f", "sub/evil", 0o644, 0, 0])
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "sub").symlink_to(tmp_path / "elsewhere")
    landing.take(Begin(0, 0, 0, 0o644, 0))
    with pytest.raises(TpuctlError, match="symbolic link"):
        landing.take(End(0, hashlib.sha256().hexdigest()))
    landing.close()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_the_host_learns_and_changes_nothing_of_files_behind_links_here(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    secret = tmp_path / "elsewhere" / "known"
    secret.write_bytes(b"data")
    secret.chmod(0o600)
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "sub").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TpuctlError, match="symbolic link"):
        plan(tmp_path / "to", ["d", "", 0o755], ["d", "sub", 0o755], ["f", "sub/known", 0o777, 4, 0])
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def begin_anew(landing: Landing) -> None:
    landing.plan(parse_survey({"entries": [FILE]}))
    landing.wants()
    landing.take(BEGIN)


@pytest.mark.parametrize("hidden", ["folder", "lock", "part"])
def test_what_is_kept_of_a_copy_is_not_written_through_links(tmp_path: Path, hidden: str) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    first = plan(tmp_path / "x", FILE)
    first.take(BEGIN)
    first.take(Piece(b"da"))
    first.close()
    [parts] = tmp_path.glob(".tpuctl-part.*")
    if hidden == "folder":
        parts.rename(tmp_path / "moved")
        parts.symlink_to(tmp_path / "moved")
    else:
        name = next(each for each in parts.iterdir() if (each.name == "lock") == (hidden == "lock"))
        name.unlink()
        name.symlink_to(victim)
    again = Landing(tmp_path / "x")
    with pytest.raises(TpuctlError):
        begin_anew(again)
    again.close()
    assert victim.read_bytes() == b"mine"


@pytest.mark.parametrize(
    "entry",
    [
        ["f", "\ud800", 0o644, 1, 0],
        ["f", "n\0l", 0o644, 1, 0],
        ["l", "link", "a\0b"],
        ["l", "link", "\ud800"],
        ["f", "big", 0o644, 1 << 70, 0],
        ["f", "endless", 0o644, float("inf"), 0],
    ],
    ids=["no-bytes", "nul", "nul-in-link", "no-bytes-in-link", "size", "infinite"],
)
def test_a_list_that_no_file_system_takes_is_malformed(entry: list[object]) -> None:
    with pytest.raises(MalformedReplyError):
        parse_survey({"entries": [["d", "", 0o755], entry]})


def test_a_name_that_is_too_long_for_this_machine_is_an_error_of_that_worker(tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    with pytest.raises(TpuctlError, match="too long"):
        plan(tmp_path / "to", ["d", "", 0o755], ["f", "n" * 300, 0o644, 1, 0])


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 60_000,
        b'{"data": Infinity}',
        b'{"file": 0, "from": 0, "size": 1e999, "mode": 0, "mtime_ns": 0}',
        b'{"file": 0, "from": -1, "size": 4, "mode": 0, "mtime_ns": 0}',
    ],
    ids=["deep", "infinite", "too-big", "negative"],
)
def test_lines_between_files_that_make_no_sense_are_malformed(line: bytes) -> None:
    reader = FrameReader()
    assert list(reader.feed(b'{"sending": 1}\n')) == []
    with pytest.raises(MalformedReplyError):
        list(reader.feed(line + b"\n"))


def test_a_time_that_no_file_can_have_is_made_one(tmp_path: Path) -> None:
    reader = FrameReader()
    line = b'{"file": 0, "from": 0, "size": 0, "mode": 420, "mtime_ns": 1%s}\n' % (b"0" * 40)
    [begin] = reader.feed(b'{"sending": 1}\n' + line)
    landing = plan(tmp_path / "x", ["f", "", 0o644, 0, 0])
    landing.take(begin)
    landing.take(End(0, hashlib.sha256().hexdigest()))
    landing.finish()
    assert (tmp_path / "x").read_bytes() == b""


def test_a_chain_of_links_that_leads_out_is_refused(tmp_path: Path) -> None:
    entries = (["d", "", 0o755], ["d", "a", 0o755], ["d", "a/b", 0o755])
    landing = plan(
        tmp_path / "to",
        *entries,
        ["l", "a/b/up", "../.."],
        ["l", "out", "a/b/up/.."],
        ["l", "out2", "a/b/up/.."],
    )
    with pytest.raises(TpuctlError, match="leaves the target"):
        landing.finish()
    landing.close()
    assert not (tmp_path / "to" / "out").is_symlink()
    assert not (tmp_path / "to" / "out2").is_symlink()


def test_a_file_does_not_take_the_place_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(TpuctlError, match="is a directory"):
        Landing(tmp_path / "x").plan(parse_survey({"entries": [FILE]}))
