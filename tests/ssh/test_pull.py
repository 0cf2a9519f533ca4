"""Copies from hosts that break off, go on, change under way, or come from a host that cannot be trusted."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ssh.conftest import AGENT
from tests.ssh.test_copy import fetch
from tests.ssh.test_distribute import Hurried
from tests.support.real_lab import RealClock
from tests.support.require import require_tool
from tests.support.sshd import SshFarm
from tpuctl.engine.events import Transfer
from tpuctl.errors import TpuctlError
from tpuctl.hosts.agent import HostAgent
from tpuctl.hosts.protocol import MalformedReplyError
from tpuctl.hosts.requests import SurveyRequest
from tpuctl.model.cloud import HostTarget
from tpuctl.transfer.frames import Begin, End, Frame, FrameReader, Piece, render_note
from tpuctl.transfer.tree import Entry
from tpuctl.workers.copy_from import Pulled, pull
from tpuctl.workers.file_list import FileSurvey, ListLimits, SurveyReader
from tpuctl.workers.file_receiver import KEPT_FREE, LOOK_EVERY, FileReceiver, Room, judge_room

OPENING = b'{"frames": 1}\n'
SIZE = 24_000_000
"""More than all that is on its way at once."""


def listed(*rows: list[object], limits: ListLimits = ListLimits(100, 1 << 20)) -> tuple[Entry, ...]:
    """What a worker's list comes to."""
    return surveyed(*rows, limits=limits).entries


def surveyed(*rows: list[object], limits: ListLimits = ListLimits(100, 1 << 20)) -> FileSurvey:
    reader = SurveyReader(limits)
    end = {"surveyed": len(rows), "left_out": 0, "unread": [], "unread_count": 0}
    reader.feed(OPENING + render_note({"entries": rows}) + render_note(end))
    return reader.survey()


class Struck(FileReceiver):
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


def fetch_struck(agent: HostAgent, target: HostTarget, place: Path, strike: Callable[[], None]) -> Pulled:
    return pull(
        agent,
        [target],
        "data.bin",
        lambda _: Struck(place, 3_000_000, strike),
        clock=RealClock(),
        emit=lambda event: None,
    )


def break_off(farm: SshFarm, agent: HostAgent, target: HostTarget, place: Path) -> int:
    """A copy whose connection is cut when some of the file has come; how much that was."""
    pulled = fetch_struck(agent, target, place, farm.drop_connections)
    assert not pulled.results[0].ok
    assert not place.exists()
    assert 3_000_000 <= pulled.received_bytes < SIZE
    return pulled.received_bytes


def test_a_copy_that_was_cut_goes_on_where_it_was(
    farm: SshFarm, target: HostTarget, agent: HostAgent, source: Path, tmp_path: Path
) -> None:
    place = tmp_path / "to" / "big-0"
    had = break_off(farm, agent, target, place)
    again = fetch(agent, [target], "data.bin", tmp_path / "to")
    assert again.results[0].ok, again.results
    assert again.received_bytes == SIZE - had
    assert place.read_bytes() == source.read_bytes()
    assert [path.name for path in place.parent.iterdir()] == ["big-0"]


def test_a_file_that_changed_since_the_cut_comes_whole_and_unmixed(
    farm: SshFarm, target: HostTarget, agent: HostAgent, source: Path, tmp_path: Path
) -> None:
    before = source.stat()
    break_off(farm, agent, target, tmp_path / "to" / "big-0")
    with source.open("r+b") as file:
        file.write(b"another beginning")
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))  # size and time tell nothing
    again = fetch(agent, [target], "data.bin", tmp_path / "to")
    assert again.results[0].ok, again.results
    assert again.received_bytes == SIZE
    assert (tmp_path / "to" / "big-0").read_bytes() == source.read_bytes()


def test_a_file_that_is_rewritten_while_it_comes_is_asked_for_again(
    target: HostTarget, agent: HostAgent, source: Path, tmp_path: Path
) -> None:
    def rewrite() -> None:
        with source.open("r+b") as file:
            file.write(b"another beginning")

    pulled = fetch_struck(agent, target, tmp_path / "copy", rewrite)
    assert pulled.results[0].ok, pulled.results
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()
    assert pulled.received_bytes > SIZE


def test_a_file_that_only_grows_comes_as_it_was(
    target: HostTarget, agent: HostAgent, source: Path, tmp_path: Path
) -> None:
    def grow() -> None:
        with source.open("ab") as file:
            file.write(b"one more line")

    was = source.read_bytes()
    pulled = fetch_struck(agent, target, tmp_path / "copy", grow)
    assert pulled.results[0].ok, pulled.results
    assert (tmp_path / "copy").read_bytes() == was
    assert pulled.received_bytes == SIZE


def test_equal_files_do_not_travel_again_and_get_their_modes(
    farm: SshFarm, agent: HostAgent, tmp_path: Path
) -> None:
    targets = [farm.add(worker) for worker in range(2)]
    for worker in range(2):
        folder = farm.folder / f"home-{worker}" / "out"
        (folder / "empty").mkdir(parents=True)
        (folder / "a").write_bytes(os.urandom(300_000))
        (folder / "b").write_text("small")
        (folder / "link").symlink_to("b")
    first = fetch(agent, targets, "out", tmp_path / "to")
    assert (first.files, first.size_bytes, first.received_bytes) == (4, 600_010, 600_010)
    (farm.folder / "home-1" / "out" / "b").chmod(0o751)
    again = fetch(agent, targets, "out", tmp_path / "to")
    assert all(result.ok for result in again.results)
    assert (again.files, again.received_bytes) == (4, 0)
    assert stat.S_IMODE((tmp_path / "to/big-1/b").stat().st_mode) == 0o751
    (tmp_path / "to/big-0/a").write_bytes(b"x" * 300_000)
    mended = fetch(agent, targets, "out", tmp_path / "to")
    assert mended.received_bytes == 300_000
    assert (tmp_path / "to/big-0/a").read_bytes() == (farm.folder / "home-0/out/a").read_bytes()


def test_a_link_that_is_asked_for_is_followed_and_pipes_are_left_out(
    farm: SshFarm, target: HostTarget, agent: HostAgent, tmp_path: Path
) -> None:
    home = farm.folder / "home-0"
    (home / "step-100").mkdir()
    (home / "step-100" / "w").write_text("weights")
    os.mkfifo(home / "step-100" / "pipe")
    (home / "latest").symlink_to("step-100")
    pulled = fetch(agent, [target], "latest", tmp_path / "to")
    assert pulled.results[0].ok, pulled.results
    assert (pulled.files, pulled.left_out) == (1, 1)
    assert (tmp_path / "to/big-0/w").read_text() == "weights"


def test_a_missing_path_is_told_and_nothing_appears_here(
    target: HostTarget, agent: HostAgent, tmp_path: Path
) -> None:
    [result] = fetch(agent, [target], "no such", tmp_path / "to").results
    assert (result.ok, "no such file or directory" in result.detail) == (False, True)
    assert not (tmp_path / "to").exists()


def test_one_worker_without_the_path_does_not_stop_the_other(
    farm: SshFarm, agent: HostAgent, tmp_path: Path
) -> None:
    targets = [farm.add(worker) for worker in range(2)]
    (farm.folder / "home-1" / "only").write_text("here")
    pulled = fetch(agent, targets, "only", tmp_path / "to")
    assert [result.ok for result in pulled.results] == [False, True]
    assert (pulled.files, (tmp_path / "to/big-1").read_text()) == (1, "here")


def test_two_copies_to_one_place_do_not_write_into_each_other(
    target: HostTarget, agent: HostAgent, source: Path, tmp_path: Path
) -> None:
    refused: list[Pulled] = []

    def meanwhile() -> None:
        other = FileReceiver(tmp_path / "copy")
        try:
            with pytest.raises(TpuctlError, match="another tpuctl copies"):
                other.plan(listed(["f", "", 0o644, "", SIZE, 0]))
        finally:
            other.close()

    refused.append(fetch_struck(agent, target, tmp_path / "copy", meanwhile))
    assert refused[0].results[0].ok
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()


def test_progress_tells_bytes_rate_and_workers(
    target: HostTarget, agent: HostAgent, source: Path, tmp_path: Path
) -> None:
    told: list[object] = []
    pull(agent, [target], "data.bin", lambda _: FileReceiver(tmp_path / "x"), clock=Hurried(), emit=told.append)
    transfers = [event for event in told if isinstance(event, Transfer)]
    assert all(event.back and event.total_bytes == SIZE for event in transfers)
    sent = [event.sent_bytes for event in transfers]
    assert sent == sorted(sent)
    assert (sent[-1], transfers[-1].hosts_done, transfers[-1].hosts) == (SIZE, 1, 1)
    assert all(event.bytes_per_s > 0 for event in transfers)


def leave_out_of_reach(folder: Path) -> str:
    """A file whose path is longer than any system call takes; the name of what cannot be looked at."""
    os.mkdir(folder)
    handle, name, path = os.open(folder, os.O_RDONLY), "", str(folder)
    while len(path) <= 4096:
        part = "d" * 250
        os.mkdir(part, dir_fd=handle)
        deeper = os.open(part, os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle, name, path = deeper, f"{name}/{part}".strip("/"), f"{path}/{part}"
    os.close(handle)
    return name


def test_what_a_worker_cannot_read_is_named_and_the_rest_is_copied(
    farm: SshFarm, target: HostTarget, agent: HostAgent
) -> None:
    out = farm.folder / "home-0" / "out"
    name = leave_out_of_reach(out)
    (out / "fine").write_text("fine")
    (out / "z").mkdir(mode=0o750)
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        pulled = fetch(agent, [target], "out", Path(short))
        [result] = pulled.results
        assert (result.ok, result.exit_status) == (False, 1)
        assert f"{name[-60:]}' (File name too long); everything else is there" in result.detail
        assert (pulled.files, pulled.workers) == (1, 1)
        assert (Path(short) / "big-0" / "fine").read_text() == "fine"
        assert stat.S_IMODE((Path(short) / "big-0" / "z").stat().st_mode) == 0o750


def test_a_directory_that_is_closed_to_the_login_user_hides_nothing_else() -> None:
    python = require_tool("python3", path="/usr/bin")  # our own may lie where nobody else may go
    with tempfile.TemporaryDirectory(dir="/tmp") as home:
        survey = survey_as_nobody(python, Path(home))
    assert sorted(entry.path for entry in survey.entries) == ["", "closed", "open"]
    assert [(each.name, each.why) for each in survey.unread] == [("closed", "Permission denied")]


def survey_as_nobody(python: str, home: Path) -> FileSurvey:
    """What the agent tells to a user who is not root of a directory below `home` with a closed one in it."""
    home.chmod(0o755)
    (home / "agent.py").write_bytes(AGENT.read_bytes())
    out = home / "out"
    (out / "closed").mkdir(parents=True)
    (out / "open").write_text("read me")
    (out / "closed").chmod(0)
    request = json.dumps({"path": str(out), "limit": 10}).encode() + b"\n"
    someone = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    reader = SurveyReader(ListLimits(10, 1 << 20))
    with subprocess.Popen(
        [python, "-I", str(home / "agent.py"), "survey"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
        **someone,  # type: ignore[call-overload]
    ) as host:
        host.stdin.write(request)
        host.stdin.flush()  # and held open: it ends with its client
        reader.feed(host.stdout.read())
    (out / "closed").chmod(0o755)
    return reader.survey()


def test_more_than_fits_here_is_refused_before_it_begins(
    farm: SshFarm, target: HostTarget, agent: HostAgent, tmp_path: Path
) -> None:
    out = farm.folder / "home-0" / "out"
    out.mkdir()
    (out / "small").write_text("small")
    with (out / "vast").open("wb") as file:
        file.truncate(shutil.disk_usage(tmp_path).free + 1)
    with pytest.raises(TpuctlError, match=r"no room in .*big-0: .* are to come, and .* are free") as caught:
        fetch(agent, [target], "out", tmp_path / "to")
    assert caught.value.hint is not None
    assert "--worker" in caught.value.hint
    assert not (tmp_path / "to").exists()


def test_what_comes_from_all_workers_must_fit_together() -> None:
    def rooms(*needs: int) -> dict[str, Room]:
        return {f"big-{worker}": Room("/data", 7, need, 100 << 20) for worker, need in enumerate(needs)}

    judge_room(rooms(42 << 20, 42 << 20))
    judge_room({**rooms(84 << 20), "far": Room("/other", 8, 84 << 20, 100 << 20)})
    with pytest.raises(TpuctlError, match=r"90\.0 MiB are to come, 48\.0 MiB of it from big-1, and 100\.0 MiB"):
        judge_room(rooms(42 << 20, 48 << 20))


def test_the_worker_refuses_a_path_with_too_many_files(
    farm: SshFarm, target: HostTarget, agent: HostAgent
) -> None:
    out = farm.folder / "home-0" / "out"
    out.mkdir()
    for number in range(5):
        (out / str(number)).touch()
    said = b""

    def take(_worker: int, stream: str, data: bytes) -> None:
        nonlocal said
        said += data if stream == "stdout" else b""

    agent.stream([target], SurveyRequest("out", 3), take)
    with pytest.raises(TpuctlError, match="too many files there"):
        SurveyReader(ListLimits(3, 1 << 20)).feed(said)
    assert said.count(b'["f"') == 3  # with the directory itself, one more than asked for; and no further


# What a host may say that is not to be trusted.


@pytest.mark.parametrize(
    "entries",
    [
        [["f", "/tmp/evil", 0o644, "", 1, 0]],
        [["f", "../evil", 0o644, "", 1, 0]],
        [["d", "", 0o755], ["f", "a/../../evil", 0o644, "", 1, 0]],
        [["d", "", 0o755], ["f", "a//b", 0o644, "", 1, 0]],
        [["d", "", 0o755], ["l", "sub", "empty"], ["d", "empty", 0o755], ["f", "sub/evil", 0o644, "", 1, 0]],
        [["d", "", 0o755], ["f", "twice", 0o644, "", 1, 0], ["f", "twice", 0o644, "", 1, 0]],
        [["f", "", 0o644, "", 1, 0], ["f", "below", 0o644, "", 1, 0]],
    ],
    ids=[
        "absolute",
        "parent",
        "hidden",
        "empty",
        "behind",
        "twice",
        "below",
    ],
)
def test_a_list_that_leaves_the_target_is_refused(entries: list[list[object]]) -> None:
    with pytest.raises(TpuctlError, match="refused"):
        listed(*entries)


@pytest.mark.parametrize("target", ["/etc/passwd", "../up", "sub/../../up"])
def test_a_link_that_leads_out_is_left_out_by_name_and_the_rest_is_taken(target: str) -> None:
    found = surveyed(
        ["d", "", 0o755], ["f", "file", 0o644, "", 1, 0], ["l", "link", target], ["l", "fine", "file"]
    )
    assert [entry.path for entry in found.entries] == ["", "file", "fine"]
    assert [(each.name, target in each.why) for each in found.unread] == [("link", True)]
    assert found.unread_count == 1
    assert listed(["l", "", "anywhere"]) == ()


def plan(place: Path, *entries: list[object]) -> FileReceiver:
    receiver = FileReceiver(place)
    receiver.plan(listed(*entries))
    receiver.wants()
    return receiver


FILE = ["f", "", 0o644, "", 4, 0]
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
    receiver = plan(tmp_path / "x", FILE)
    *fine, bad = frames
    for frame in fine:
        receiver.take(frame)
    with pytest.raises(TpuctlError):
        receiver.take(bad)
    receiver.close()
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("notes", "why"),
    [
        ([{"entries": [["d", "", 0o755], ["d", "a", 0o755], ["d", "b", 0o755]]}], "too many files there"),
        ([{"entries": [["l", "", "x" * 2000]]}], "too many files there"),
        ([{"surveyed": 1, "left_out": 0, "unread": [], "unread_count": 0}], "entries are missing"),
        ([{"entries": [["f", "n" * 900 + "/" * 900, 0o644, "", 0, 0]]}, {"entries": 7}], "not a list of files"),
        ([{"entries": []}], "did not send its whole list"),
    ],
    ids=["entries", "bytes", "fewer", "nonsense", "no-end"],
)
def test_a_list_that_is_too_long_or_no_list_is_given_up(notes: list[dict[str, object]], why: str) -> None:
    reader = SurveyReader(ListLimits(2, 2000))
    said = OPENING + b"".join(map(render_note, notes))

    def read() -> None:
        reader.feed(said)
        reader.survey()

    with pytest.raises((TpuctlError, MalformedReplyError), match=why):
        read()


def test_a_name_longer_than_any_path_is_malformed() -> None:
    with pytest.raises(MalformedReplyError, match="longer than any path"):
        listed(["d", "", 0o755], ["f", "a/" * 3000 + "b", 0o644, "", 0, 0])


def test_a_file_that_is_larger_than_the_list_said_does_not_fill_the_disk(tmp_path: Path) -> None:
    receiver = plan(tmp_path / "x", FILE)
    with pytest.raises(TpuctlError, match="no room in"):
        receiver.take(Begin(0, 0, 1 << 60, 0o644, 0))
    receiver.close()
    assert list(tmp_path.iterdir()) == []


def test_a_copy_stops_when_others_fill_the_disk_meanwhile_and_goes_on_later(tmp_path: Path) -> None:
    size = LOOK_EVERY + 10
    free = size + KEPT_FREE
    receiver = FileReceiver(tmp_path / "x", free=lambda _: free)
    receiver.plan(listed(["f", "", 0o644, "", size, 0]))
    receiver.wants()
    receiver.take(Begin(0, 0, size, 0o644, 0))
    free = KEPT_FREE - 1
    with pytest.raises(TpuctlError, match="the same command again goes on"):
        receiver.take(Piece(bytes(LOOK_EVERY)))
    receiver.close()
    again = FileReceiver(tmp_path / "x")
    again.plan(listed(["f", "", 0o644, "", size, 0]))
    assert [want.have for want in again.wants()] == [LOOK_EVERY]
    again.close()


def test_a_file_that_the_host_never_sent_is_missed(tmp_path: Path) -> None:
    receiver = plan(tmp_path / "x", FILE)
    assert [(each.name, each.why) for each in receiver.finish()] == [("", "it was not sent")]


def test_nothing_is_written_through_links_that_lie_in_the_target(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "sub").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TpuctlError, match="symbolic link"):
        plan(tmp_path / "to", ["d", "", 0o755], ["d", "sub", 0o755], ["f", "sub/evil", 0o644, "", 0, 0])
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_link_that_comes_into_the_way_while_files_come_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    receiver = plan(tmp_path / "to", ["d", "", 0o755], ["d", "sub", 0o755], ["f", "sub/evil", 0o644, "", 0, 0])
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "sub").symlink_to(tmp_path / "elsewhere")
    receiver.take(Begin(0, 0, 0, 0o644, 0))
    with pytest.raises(TpuctlError, match="symbolic link"):
        receiver.take(End(0, hashlib.sha256().hexdigest()))
    receiver.close()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_the_host_learns_and_changes_nothing_of_files_behind_links_here(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    secret = tmp_path / "elsewhere" / "known"
    secret.write_bytes(b"data")
    secret.chmod(0o600)
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "sub").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TpuctlError, match="symbolic link"):
        plan(tmp_path / "to", ["d", "", 0o755], ["d", "sub", 0o755], ["f", "sub/known", 0o777, "", 4, 0])
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def begin_anew(receiver: FileReceiver) -> None:
    receiver.plan(listed(FILE))
    receiver.wants()
    receiver.take(BEGIN)


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
    again = FileReceiver(tmp_path / "x")
    with pytest.raises(TpuctlError):
        begin_anew(again)
    again.close()
    assert victim.read_bytes() == b"mine"


@pytest.mark.parametrize(
    "entry",
    [
        ["f", "\ud800", 0o644, "", 1, 0],
        ["f", "n\0l", 0o644, "", 1, 0],
        ["l", "link", "a\0b"],
        ["l", "link", "\ud800"],
        ["f", "big", 0o644, "", 1 << 70, 0],
        ["f", "endless", 0o644, "", float("inf"), 0],
    ],
    ids=["no-bytes", "nul", "nul-in-link", "no-bytes-in-link", "size", "infinite"],
)
def test_a_list_that_no_file_system_takes_is_malformed(entry: list[object]) -> None:
    with pytest.raises(MalformedReplyError):
        listed(["d", "", 0o755], entry)


def test_a_name_that_is_too_long_for_this_machine_is_an_error_of_that_worker(tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    with pytest.raises(TpuctlError, match="too long"):
        plan(tmp_path / "to", ["d", "", 0o755], ["f", "n" * 300, 0o644, "", 1, 0])


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 60_000,
        b"",
        b'{"data": 7}',
        b'{"file": 0, "from": 0, "size": 1e999, "mode": 0, "mtime_ns": 0}',
        b'{"file": 0, "from": -1, "size": 4, "mode": 0, "mtime_ns": 0}',
        b'{"file": -5, "from": 0, "size": 1, "mode": 0, "mtime_ns": 0}',
        b'{"file": "x", "from": 0, "size": 1, "mode": 0, "mtime_ns": 0}',
        b'{"file": [], "from": 0, "size": 1, "mode": 0, "mtime_ns": 0}',
    ],
    ids=["deep", "empty", "unknown", "too-big", "before-it", "negative", "word", "list"],
)
def test_notes_between_files_that_make_no_sense_are_malformed(content: bytes) -> None:
    reader = FrameReader()
    assert list(reader.feed(OPENING)) == []
    with pytest.raises(MalformedReplyError):
        list(reader.feed((-len(content)).to_bytes(8, "big", signed=True) + content))


@pytest.mark.parametrize("before", [b"", OPENING], ids=["at-once", "between-frames"])
def test_an_error_of_the_agent_is_told_instead_of_frames(before: bytes) -> None:
    said = before + b'{"error": "host-error", "message": "OSError: no memory"}\n'
    for reader in (FrameReader().feed, SurveyReader(ListLimits(2, 2000)).feed):
        with pytest.raises(TpuctlError, match="no memory"):
            list(reader(said) or ())


def test_a_note_without_an_end_is_not_waited_for() -> None:
    with pytest.raises(MalformedReplyError, match="without an end"):
        list(FrameReader().feed(OPENING + (-1 << 40).to_bytes(8, "big", signed=True)))


def test_frames_are_read_whatever_pieces_they_come_in() -> None:
    sent = (
        b"hello from a login script\n"
        + OPENING
        + b"".join(
            [
                render_note({"file": 0, "from": 0, "size": 5, "mode": 0o644, "mtime_ns": 7}),
                (5).to_bytes(8, "big") + b"12345",
                render_note({"end": 0, "sha256": "ab"}),
            ]
        )
    )
    for size in range(1, len(sent)):
        reader = FrameReader()
        frames = [f for at in range(0, len(sent), size) for f in reader.feed(sent[at : at + size])]
        assert b"".join(frame.data for frame in frames if isinstance(frame, Piece)) == b"12345"
        assert (frames[0], frames[-1]) == (Begin(0, 0, 5, 0o644, 7), End(0, "ab"))


def test_a_time_that_no_file_can_have_is_made_one(tmp_path: Path) -> None:
    note = render_note({"file": 0, "from": 0, "size": 0, "mode": 0o644, "mtime_ns": 10**40})
    [begin] = FrameReader().feed(OPENING + note)
    receiver = plan(tmp_path / "x", ["f", "", 0o644, "", 0, 0])
    receiver.take(begin)
    receiver.take(End(0, hashlib.sha256().hexdigest()))
    receiver.finish()
    assert (tmp_path / "x").read_bytes() == b""


def test_a_chain_of_links_that_leads_out_is_refused(tmp_path: Path) -> None:
    entries = (["d", "", 0o755], ["d", "a", 0o755], ["d", "a/b", 0o755])
    receiver = plan(
        tmp_path / "to",
        *entries,
        ["l", "a/b/up", "../.."],
        ["l", "out", "a/b/up/.."],
        ["l", "out2", "a/b/up/.."],
    )
    with pytest.raises(TpuctlError, match="leaves the target"):
        receiver.finish()
    receiver.close()
    assert not (tmp_path / "to" / "out").is_symlink()
    assert not (tmp_path / "to" / "out2").is_symlink()


def test_a_file_does_not_take_the_place_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(TpuctlError, match="is a directory"):
        FileReceiver(tmp_path / "x").plan(listed(FILE))
