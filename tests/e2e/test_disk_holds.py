"""Masters stay mounted while they are copied, on isolated hosts: no program loses a file, nothing is left over,
and a copy that began too late is made again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.test_disk_journey import ZONE
from tests.support.hosts import wait_until
from tests.support.require import require_isolated_hosts
from tests.support.session import Session, open_session

WRITER = (
    "n=0; while test ! -e /tmp/stop; do n=$((n + 1)); "
    "echo $n > /mnt/data/all/$n && echo $n >> /tmp/written || echo $n >> /tmp/refused; sleep 0.1; done"
)
"""It opens a file for each thing, and closes it: most of the time nothing is open. Root's, or it would end with
the command that began it."""
HOLDER = "freeze.hold_o[n]"
pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    require_isolated_hosts()
    with open_session("--instant", "--hosts", "isolated") as made:
        made.type("up", "v4-8", "dev", "--spot", "--pay", "--zone", ZONE)
        made.type("up", "v4-8", "big", "--spot", "--pay", "--zone", ZONE)
        made.type("disk", "create", "data", "--size", "10", "--zone", ZONE)
        made.type("disk", "attach", "data", "--to", "dev")
        made.on("dev", "mkdir /mnt/data/all")
        started = f"setsid -f sh -c '{WRITER}' </dev/null >/dev/null 2>&1"
        made.type("exec", "dev", "--", "sudo", "sh", "-c", started)
        made.on("dev", "while test ! -e /mnt/data/all/3; do sleep 0.1; done")
        yield made


def is_held(session: Session) -> bool:
    return bool(session.on("dev", f"pgrep -f {HOLDER} || true")[0].strip())


def test_a_program_that_opens_and_closes_files_loses_none_of_them(session: Session) -> None:
    done = session.type("disk", "clone", "data", "--to", "big")
    assert "data: held still on dev: frozen" in done.stderr
    held = [
        (row["subject"], row["incarnation"]) for row in session.json("why", "dev") if row["action"] == "hold"
    ]
    assert held == [("data", "dev-1")]
    session.on("dev", "touch /tmp/stop; sleep 0.5; test ! -e /tmp/refused")
    check = "sort /tmp/written > /tmp/a; ls /mnt/data/all | sort > /tmp/b; diff /tmp/a /tmp/b"
    session.on("dev", check)
    session.on("big", "test -s /mnt/data/all/3")
    (session.work / "train.py").write_text("print('ran')\n")
    session.type("run", "--on", "dev", "--no-checkpoint", "--name", "after", "train.py")
    assert "ran" in session.type("logs", "after").stdout


def test_who_asks_for_it_gets_the_master_unmounted_and_mounted_again(session: Session) -> None:
    session.on("dev", "sudo mount -o remount,noatime /mnt/data")
    opened = "setsid -f sh -c 'exec 9> /mnt/data/open; exec sleep 600' </dev/null >/dev/null 2>&1"
    session.type("exec", "dev", "--", "sudo", "sh", "-c", opened)
    session.on("dev", "while test ! -e /mnt/data/open; do sleep 0.1; done")
    refused = session.type("disk", "snapshot", "data", "--unmount", status=3)
    assert "/mnt/data cannot be unmounted: a program uses it" in " ".join(refused.stderr.split())
    session.on("dev", "sudo pkill -x -f 'sleep 600'; while pgrep -x -f 'sleep 600'; do sleep 0.1; done")
    wait_until(lambda: not is_held(session), what="it is held")
    done = session.type("disk", "snapshot", "data", "--unmount")
    assert "held still on dev: unmounted" in done.stderr
    session.on("dev", "grep -q ' /mnt/data ext4 rw,.*noatime' /proc/mounts && touch /mnt/data/goes-on")


def test_a_copy_that_began_after_its_hold_had_ended_is_made_again(session: Session) -> None:
    """The host ends the hold while the cloud takes its time."""
    words = ("disk", "clone", "data", "--to", "big", "--path", "/mnt/late")
    session.type("sim", "delay", "copy_begins=20")
    first = session.start(*words)
    try:
        wait_until(lambda: is_held(session), what="it is never held")
        session.on("dev", f"sudo pkill -f {HOLDER}")
        wait_until(lambda: not is_held(session), what="the hold does not end")
        session.on("dev", "echo later > /mnt/data/later && sync")
        session.type("sim", "delay", "copy_begins=0")
        done = session.finish(first, 300.0)
    finally:
        first.kill()
        session.type("sim", "delay", "copy_begins=0")
    assert done.returncode == 0, done.stderr
    assert "began after data had gone on" in " ".join(done.stderr.split())
    assert session.on("big", "cat /mnt/late/later") == ["later\n"]
    session.on("dev", "touch /mnt/data/goes-on")
    assert not is_held(session)


def test_a_disk_that_somebody_mounted_by_hand_is_held_wherever_that_is(session: Session) -> None:
    """Others made its file system and gave it no label; it is at a path that nobody told."""
    session.type("disk", "create", "raw", "--size", "10", "--zone", ZONE)
    before = session.on("dev", "ls /dev/sd?")[0].split()
    session.type("disk", "attach", "raw", "--to", "dev", "--no-mount")
    [device] = set(session.on("dev", "ls /dev/sd?")[0].split()) - set(before)
    made = f"sudo mkfs.ext4 -q {device} && sudo mkdir /srv/own && sudo mount {device} /srv/own"
    session.on("dev", f"{made} && sudo chmod 777 /srv/own")
    assert "raw: held still on dev: frozen" in session.type("disk", "snapshot", "raw").stderr
    session.on("dev", "touch /srv/own/goes-on && cat /srv/own/.tpuctl-disk")
    assert not is_held(session)
