"""Slices that go by themselves, through passes over a simulated cloud."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.jobs import bring_up, limit, submit
from tests.support.services import SimServices
from tpuctl.errors import ConflictError
from tpuctl.slices.lifetime import HostActivity
from tpuctl.state.repository import get_run, get_slice, save
from tpuctl.watch.lifetime import apply_lifetime, read_activity

AGENT = Path(__file__).resolve().parents[2] / "tpuctl" / "agent"


def quiet(_services, record) -> list[HostActivity | None]:
    return [HostActivity(worker, 0, 0, False, 0.0) for worker in range(record.spec.hosts)]


def passes(services: SimServices, minutes: int, ask) -> list[str]:
    """What was done in one call per minute."""
    said = []
    for _ in range(minutes):
        record = get_slice(services, "big").record
        said.append(apply_lifetime(services, record, ask=ask))
        services.clock.skip(60.0)
    return [words for words in said if words]


def test_a_run_keeps_an_idle_slice_but_not_one_whose_time_is_over(services):
    bring_up(services, "big")
    run = submit(services, "big", "import time; time.sleep(600)")
    limit(services, "big", idle_s=600.0)
    assert passes(services, 30, quiet) == []
    limit(services, "big", ttl_s=1800.0)
    said = passes(services, 32, quiet)
    assert said[0].startswith("warned")
    assert said[1].startswith(f"stopping run {run.id}")
    assert get_run(services, run.id).record.stop_asked


def test_what_was_made_by_hand_has_no_end_of_its_own(services):
    bring_up(services, "big")
    limit(services, "big", ttl_s=1.0, idle_s=60.0)
    stored = get_slice(services, "big")
    assert stored.record.incarnation is not None
    by_hand = replace(stored.record.incarnation, by_hand=True)
    save(services, stored, replace(stored.record, incarnation=by_hand))
    assert passes(services, 30, quiet) == []
    with pytest.raises(ConflictError, match="made by hand"):
        limit(services, "big", ttl_s=60.0)


def test_hosts_answer_what_uses_them(services):
    record = bring_up(services, "big")
    found = read_activity(services, record)
    assert [each.worker for each in found if each is not None] == [0, 1]
    assert all(each is not None and each.load_per_cpu >= 0.0 for each in found)


def in_agent(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(AGENT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return done.stdout.strip()


def test_a_process_with_a_chip_open_is_found_and_gone_when_it_closes(tmp_path):
    (tmp_path / "accel0").touch()
    prefix = str(tmp_path / "accel")
    program = f"import activity; print(activity.chip_users(({prefix!r},)))"
    assert in_agent(program) == "(0, False)"
    with (tmp_path / "accel0").open():
        assert in_agent(program) == "(1, False)"
    assert (
        in_agent(f"import activity; print(activity.chip_users(({str(tmp_path / 'none')!r},)))") == "(0, False)"
    )


def test_a_file_open_for_writing_is_found_and_one_that_is_read_is_not():
    program = (
        "from mount_spaces import read_mounts; import disk_users; "
        "mounts = {{each['id'] for each in read_mounts() if each['device'] == {device!r}}}; "
        "print(disk_users.writes({pid}, mounts))"
    )
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        number = os.fstat(file.fileno()).st_dev
        device = f"{os.major(number)}:{os.minor(number)}"
        with subprocess.Popen(["tail", "-f", file.name], stdout=subprocess.DEVNULL) as reader:
            try:
                assert in_agent(program.format(pid=os.getpid(), device=device)) == "True"
                assert in_agent(program.format(pid=os.getpid(), device="9:9")) == "False"
                assert in_agent(program.format(pid=reader.pid, device=device)) == "False"
            finally:
                reader.kill()


@pytest.mark.parametrize(
    ("title", "counts"),
    [
        (b"sshd: ada@pts/0", True),
        (b"sshd: ada@notty", True),
        (b"sshd: ada", True),
        (b"sshd-session: ada@pts/1", True),
        (b"sshd: ada [priv]", False),
        (b"sshd: /usr/sbin/sshd -D [listener] 0 of 10-100 startups", False),
        (b"/usr/sbin/sshd", False),
    ],
)
def test_titles_of_sessions_are_told_from_those_of_the_server(title, counts):
    assert in_agent(f"import activity; print(activity.is_session({title!r}))") == str(counts)
