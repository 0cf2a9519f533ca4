"""Two machines, each with a home of its own, that share a store in a bucket: whose key opens the hosts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.session import Session, another_machine, open_session

URI = "gs://sim-bucket/fleet"


@pytest.fixture
def laptop() -> Iterator[Session]:
    with open_session() as opened:
        opened.type("config", "init", "--store", URI)
        opened.type("up", "v4-8", "big", "--spot", "--pay")
        yield opened


@pytest.fixture
def office(laptop: Session) -> Session:
    """A machine that joins after the slice came up."""
    other = another_machine(laptop)
    other.type("config", "init", "--store", URI, "--join")
    return other


def machines(session: Session) -> dict[str, bool]:
    return {str(row["machine"]): bool(row["enrolled"]) for row in session.json("store", "machines")}


def name_of(session: Session) -> str:
    (name,) = [str(row["machine"]) for row in session.json("store", "machines") if row["this"]]
    return name


def says_hello(session: Session) -> bool:
    done = session.finish(session.start("exec", "big", "--", "echo", "hello"))
    return done.returncode == 0 and "hello" in done.stdout


def patches(session: Session) -> int:
    return sum(entry["method"] == "nodes.patch" for entry in session.sim_journal())


@pytest.mark.slow
def test_a_machine_that_joins_later_is_let_in_by_a_pass_and_shut_out_for_good(laptop, office):
    office.type("watch", "once")
    assert says_hello(office)
    assert says_hello(laptop)
    assert patches(laptop) == 1
    assert machines(laptop) == {name_of(laptop): True, name_of(office): True}
    table = laptop.type("store", "machines").stdout
    assert all(name in table for name in machines(laptop))

    gone = name_of(office)
    assert laptop.type("store", "machines", "--remove", gone, status=2).stderr.count("--yes")
    laptop.type("store", "machines", "--remove", gone, "--yes")
    laptop.type("watch", "once")
    assert not says_hello(office)
    office.start("watch", "once").communicate(timeout=60)
    assert not says_hello(office)
    assert machines(laptop) == machines(office) == {name_of(laptop): True, gone: False}

    office.type("up", "big", "--pay")
    assert says_hello(office)
    assert machines(laptop) == {name_of(laptop): True, gone: True}


@pytest.mark.slow
def test_a_command_that_hosts_refuse_sends_the_key_and_says_so(laptop, office):
    refused = office.type("exec", "big", "--", "true", status=1)
    assert "the same command again in a minute" in " ".join(refused.stderr.split())
    assert says_hello(office)


@pytest.mark.slow
def test_a_run_from_a_machine_that_joins_later_charges_nothing(laptop, office):
    (office.work / "main.py").write_text("print('it ran')\n")
    done = office.type("run", "main.py", "--on", "big", "--no-checkpoint")
    assert "it ran" in done.stdout
    (row,) = office.json("runs")
    assert (row["state"], row["attempts"], row["failures"], row["preemptions"]) == ("succeeded", 1, 0, 0)


@pytest.mark.slow
def test_a_machine_with_a_new_key_takes_its_old_one_from_live_hosts(laptop):
    (key,) = Path(laptop.environ["TPUCTL_STATE_DIR"]).rglob("ssh_ed25519")
    key.unlink()
    assert not says_hello(laptop)
    assert says_hello(laptop)
    assert patches(laptop) == 1
    (row,) = laptop.json("store", "machines")
    assert row["enrolled"]
    laptop.type("watch", "once")
    assert patches(laptop) == 1


@pytest.mark.slow
def test_what_a_pass_collected_is_there_for_every_machine_after_a_preemption(laptop, office):
    program = "n=0; while :; do n=$((n+1)); echo tick $n; sleep 0.1; done"
    laptop.type("run", "-d", "--on", "big", "--name", "ticks", "--no-checkpoint", "--", "sh", "-c", program)
    laptop.watch_until(lambda: "tick 10" in laptop.type("logs", "ticks", status=None).stdout)
    collected = laptop.type("logs", "ticks").stdout.splitlines()
    laptop.type("sim", "preempt", "big-1")
    shown = office.json("logs", "ticks", "--attempt", "1")
    assert [f"big-0 │ {line['text']}" for line in shown] == collected
    assert [line["text"] for line in shown] == [f"tick {number + 1}" for number in range(len(shown))]
    times = [line["time"] for line in shown]
    assert times == sorted(times)
    assert len(set(times)) > 2
    office.type("stop", "ticks", "--yes")
