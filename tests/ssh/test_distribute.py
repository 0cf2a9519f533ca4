"""Contents to many hosts: over our uplink once, from there host to host, and around whoever fails."""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ssh.conftest import AGENT
from tests.ssh.test_copy import send
from tests.support.hosts import wait_until
from tests.support.real_lab import RealClock
from tests.support.soak import soak
from tests.support.sshd import SshFarm
from tpuctl.engine.events import Note, Transfer
from tpuctl.engine.ports import Clock
from tpuctl.hosts.agent import HostAgent
from tpuctl.hosts.requests import CopyRequest, HelloRequest, LacksRequest, PrepareRequest, StopRequest
from tpuctl.model.cloud import HostTarget
from tpuctl.model.shipped_files import read_agent
from tpuctl.transfer import host_copies
from tpuctl.transfer import lacking as module
from tpuctl.transfer.bundle import freeze
from tpuctl.transfer.distribute import Distributed, distribute
from tpuctl.transfer.frames import render_contents, render_note
from tpuctl.transfer.host_copies import CopyJob
from tpuctl.transfer.tree import Content, list_blobs, make_tree, parse_tree

pytestmark = pytest.mark.slow


def spread(
    agent: HostAgent,
    targets: list[HostTarget],
    content: Content,
    events: list[object] | None = None,
    clock: Clock | None = None,
) -> Distributed:
    seen: list[object] = [] if events is None else events
    return distribute(agent, targets, content, clock=clock or RealClock(), emit=seen.append)


def blobs(farm: SshFarm, worker: int) -> Path:
    return farm.folder / f"home-{worker}" / ".tpuctl/blobs"


def project(folder: Path, files: int, size: int) -> Path:
    folder.mkdir()
    for number in range(files):
        (folder / f"part{number}.bin").write_bytes(os.urandom(size))
    return folder


@pytest.mark.parametrize("hosts", [8, soak(32)])
def test_twenty_megabytes_to_many_hosts_leave_this_machine_once(
    farm: SshFarm, agent: HostAgent, tmp_path: Path, hosts: int
) -> None:
    data = tmp_path / "big.bin"
    data.write_bytes(os.urandom(20 << 20))
    targets = [farm.add(worker) for worker in range(hosts)]
    first = send(agent, targets, data, "in/")
    assert all(result.ok for result in first.results), first.results
    assert first.relayed
    assert first.sent_bytes <= 1.1 * (20 << 20)
    digest = hashlib.sha256(data.read_bytes()).hexdigest()
    for worker in range(hosts):
        copied = farm.folder / f"home-{worker}/in/big.bin"
        assert hashlib.sha256(copied.read_bytes()).hexdigest() == digest
    again = send(agent, targets, data, "in/")
    assert all(result.ok for result in again.results)
    assert again.sent_bytes < hosts * 1000, "content travelled again"
    no_agent_is_left(farm, agent)


def no_agent_is_left(farm: SshFarm, agent: HostAgent) -> None:
    agent.remote.rest()  # those that wait for the next request
    wait_until(lambda: not [line for line in farm.processes().values() if "agent-" in line])


def test_when_a_command_is_interrupted_its_hosts_stop_copying(farm: SshFarm, agent: HostAgent) -> None:
    targets = [farm.add(worker) for worker in range(6)]
    agent.ask(targets, HelloRequest())

    class Interrupted(RealClock):
        def sleep(self, seconds: float) -> None:
            raise KeyboardInterrupt  # while hosts copy from each other

    with pytest.raises(KeyboardInterrupt):
        spread(agent, targets, make_tree({"f": os.urandom(20 << 20)}), clock=Interrupted())
    no_agent_is_left(farm, agent)


def test_what_hosts_copy_for_a_command_that_was_killed_the_same_command_finds(
    farm: SshFarm, agent: HostAgent
) -> None:
    class Killed(HostAgent):
        def ask(self, targets: Any, request: Any, **more: Any) -> Any:
            if isinstance(request, StopRequest):
                raise SystemExit  # before anything is put in order
            return super().ask(targets, request, **more)

    class Impatient(RealClock):
        def sleep(self, seconds: float) -> None:
            raise SystemExit

    targets = [farm.add(worker) for worker in range(6)]
    agent.ask(targets, HelloRequest())
    content = make_tree({"f": os.urandom(20 << 20)})
    with pytest.raises(SystemExit):
        spread(Killed(agent.remote, read_agent()), targets, content, clock=Impatient())
    again = spread(agent, targets, content)
    assert (again.failed, again.unfinished) == ({}, frozenset())
    assert again.sent_bytes < 100_000


class Obstructed(HostAgent):
    """The host that serves stands still when the others begin to fetch; at their polls `polled` is called."""

    def __init__(self, agent: HostAgent, farm: SshFarm, polled: Callable[[Obstructed], None]) -> None:
        super().__init__(agent.remote, read_agent())
        self.farm = farm
        self.serving: list[int] = []
        self.polled = polled

    def ask(self, targets: Any, request: Any, **more: Any) -> Any:
        one = request(targets[0]) if callable(request) and targets else request
        if isinstance(one, CopyRequest) and one.does == "fetch":
            self.serving = serving_on(self.farm)
            self.signal(signal.SIGSTOP)
        if isinstance(one, LacksRequest) and one.patience_s:
            threading.Timer(0.5, self.polled, [self]).start()
        return super().ask(targets, request, **more)

    def signal(self, number: signal.Signals) -> None:
        for pid in self.serving:
            os.kill(pid, number)


def serving_on(farm: SshFarm) -> list[int]:
    return [pid for pid, line in farm.processes().items() if "carry serve" in line]


def test_a_lost_connection_ends_no_copy(farm: SshFarm, agent: HostAgent) -> None:
    dropped: list[bool] = []

    def drop_once(obstructed: Obstructed) -> None:
        if not dropped:
            dropped.append(True)
            farm.drop_connections()
            obstructed.signal(signal.SIGCONT)

    targets = [farm.add(worker) for worker in range(6)]
    agent.ask(targets, HelloRequest())
    sent = spread(Obstructed(agent, farm, drop_once), targets, make_tree({"f": os.urandom(20 << 20)}))
    assert dropped
    assert (sent.failed, sent.unfinished) == ({}, frozenset())
    assert sent.sent_bytes < 1.1 * (20 << 20)


def test_hosts_that_do_not_answer_while_they_copy_are_sent_to_directly(farm: SshFarm, agent: HostAgent) -> None:
    events: list[object] = []
    targets = [farm.add(worker) for worker in range(6)]
    agent.ask(targets, HelloRequest())
    silent = Obstructed(agent, farm, lambda _: farm.drop_connections())
    sent = spread(silent, targets, make_tree({"f": os.urandom(2 << 20)}), events, Hurried())
    assert (sent.failed, sent.unfinished) == ({}, frozenset())
    assert sent.sent_bytes > 6 * (2 << 20)
    told = [event.text for event in events if isinstance(event, Note)]
    assert [text for text in told if "it has not answered for 60 s" in text]


def test_a_command_interrupted_before_hosts_answer_leaves_no_copy(farm: SshFarm, agent: HostAgent) -> None:
    class Interrupted(HostAgent):
        def ask(self, targets: Any, request: Any, **more: Any) -> Any:
            answers = super().ask(targets, request, **more)
            if callable(request) and isinstance(request(targets[0]), CopyRequest):
                raise KeyboardInterrupt  # before anybody has seen the answers
            return answers

    targets = [farm.add(worker) for worker in range(6)]
    agent.ask(targets, HelloRequest())
    with pytest.raises(KeyboardInterrupt):
        spread(Interrupted(agent.remote, read_agent()), targets, make_tree({"f": os.urandom(2 << 20)}))
    no_agent_is_left(farm, agent)
    assert list(farm.folder.glob("home-*/.tpuctl/runs/copy-command/*-serve/stop.json"))


def test_of_a_large_project_only_the_changed_file_travels(
    farm: SshFarm, agent: HostAgent, tmp_path: Path
) -> None:
    folder = project(tmp_path / "project", 20, 1 << 20)
    targets = [farm.add(worker) for worker in range(2)]
    whole = freeze(folder, limit_bytes=200 << 20).content
    assert not spread(agent, targets, whole).failed
    (folder / "part7.bin").write_bytes(b"changed" * 1000)
    changed = freeze(folder, limit_bytes=200 << 20).content
    sent = spread(agent, targets, changed)
    assert not sent.failed
    assert sent.sent_bytes <= 2 * (7000 + len(changed.tree))
    answers = agent.ask(targets, PrepareRequest(run="r", attempt="1", fence=1, bundle=changed.sha256))
    assert all(answer.value and answer.value.prepared for answer in answers)
    work = farm.folder / "home-1/.tpuctl/runs/r/1/work"
    assert (work / "part7.bin").read_bytes() == b"changed" * 1000
    assert spread(agent, targets, changed).sent_bytes == 0


def test_a_long_list_of_files_leaves_this_machine_once_too(
    farm: SshFarm, agent: HostAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SMALL_BYTES", 10_000)
    names = {f"pkg/module{number}.py": str(number).encode() for number in range(300)}
    content = make_tree(names)
    assert len(content.tree) > module.INLINE_TREE
    targets = [farm.add(worker) for worker in range(6)]
    sent = spread(agent, targets, content)
    assert (sent.failed, sent.relayed) == ({}, True)
    assert sent.sent_bytes <= len(content.tree) + sum(map(len, names.values()))
    answers = agent.ask(targets, PrepareRequest(run="r", attempt="1", fence=1, bundle=content.sha256))
    assert all(answer.value and answer.value.prepared for answer in answers)


def test_workers_with_different_gaps_all_get_whole(farm: SshFarm, agent: HostAgent) -> None:
    files = {f"f{number}": os.urandom(1 << 20) for number in range(4)}
    content = make_tree(files)
    targets = [farm.add(worker) for worker in range(7)]
    for worker in (0, 3):
        assert not spread(agent, [targets[worker]], make_tree({"f1": files["f1"]})).failed
    sent = spread(agent, targets, content)
    assert (sent.failed, sent.relayed) == ({}, True)
    assert sent.sent_bytes < 4.1 * (1 << 20)
    for worker in range(7):
        assert {path.read_bytes() for path in blobs(farm, worker).iterdir()} >= set(files.values())


def test_hosts_that_ended_serving_meanwhile_serve_again(
    farm: SshFarm, agent: HostAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Idle(HostAgent):
        """Hosts end serving as soon as nobody fetches."""

        ended = 0

        def ask(self, targets: Any, request: Any, **more: Any) -> Any:
            answers = super().ask(targets, request, **more)
            polled = isinstance(request, LacksRequest) and request.patience_s
            if polled and not any(each.value.copy.going for each in answers if each.value):
                for pid in serving_on(farm):
                    self.ended += 1
                    os.kill(pid, signal.SIGKILL)
                wait_until(lambda: not serving_on(farm))
            return answers

    monkeypatch.setattr(host_copies, "FLAT_WORKERS", 4)
    monkeypatch.setattr(host_copies, "FAN_OUT", 4)
    events: list[object] = []
    targets = [farm.add(worker) for worker in range(8)]
    idle = Idle(agent.remote, read_agent())
    sent = spread(idle, targets, make_tree({"f": os.urandom(3 << 20)}), events)
    assert (sent.failed, sent.unfinished) == ({}, frozenset())
    assert idle.ended
    assert not [event for event in events if isinstance(event, Note)]
    assert sent.sent_bytes < 1.1 * (3 << 20)


def test_nobody_fetches_from_a_host_what_lies_in_its_place_alone(
    farm: SshFarm, agent: HostAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_copies, "FLAT_WORKERS", 1)
    monkeypatch.setattr(host_copies, "FAN_OUT", 1)
    old, new = os.urandom(2 << 20), os.urandom(2 << 20)
    targets = [farm.add(worker) for worker in range(6)]
    for worker in (0, 1):
        (farm.folder / f"home-{worker}/in/d").mkdir(parents=True)
        (farm.folder / f"home-{worker}/in/d/old").write_bytes(old)
    events: list[object] = []
    content = make_tree({"d/old": old, "d/new": new})
    where = module.Where("incoming", "in/", ("d",))
    sent = distribute(agent, targets, content, clock=RealClock(), emit=events.append, where=where)
    assert (sent.failed, sent.unfinished) == ({}, frozenset())
    assert not [event for event in events if isinstance(event, Note)]
    assert sent.sent_bytes < 1.1 * (4 << 20)


def test_a_dead_worker_does_not_keep_the_others_from_it_and_another_one_serves(
    farm: SshFarm, agent: HostAgent
) -> None:
    content = make_tree({"f": os.urandom(2 << 20)})
    dead = HostTarget("big", 0, "127.0.0.1", 1, "tester", "ssh-ed25519 AAAA")
    targets = [dead, *(farm.add(worker) for worker in range(1, 7))]
    (farm.folder / "home-1/.tpuctl").mkdir()
    (farm.folder / "home-1/.tpuctl/blobs").write_text("no directory: nothing can be stored on this one")
    sent = spread(agent, targets, content)
    assert {worker: reply.error for worker, reply in sent.failed.items()} == {0: "connect", 1: "host-error"}
    assert sent.relayed
    for worker in range(2, 7):
        assert len(list(blobs(farm, worker).iterdir())) == 2


def test_workers_that_cannot_fetch_are_sent_to_directly(farm: SshFarm, agent: HostAgent) -> None:
    from msgspec.structs import replace

    content = make_tree({"f": os.urandom(2 << 20)})
    # Addresses that no host has: nobody can listen there, as behind a wall of fire.
    targets = [replace(farm.add(worker), internal_ip="192.0.2.1") for worker in range(6)]
    sent = spread(agent, targets, content)
    assert not sent.failed
    for worker in range(6):
        assert len(list(blobs(farm, worker).iterdir())) == 2
    assert sent.sent_bytes > 6 * (2 << 20)


class Hurried(RealClock):
    """Every look is a second later, so that nothing is too soon to be told."""

    def __init__(self) -> None:
        self._at = itertools.count(1.0)

    def now(self) -> float:
        return next(self._at)


def test_progress_tells_bytes_rate_and_hosts(farm: SshFarm, agent: HostAgent) -> None:
    events: list[object] = []
    targets = [farm.add(worker) for worker in range(2)]
    spread(agent, targets, make_tree({"f": os.urandom(1 << 20)}), events, Hurried())
    last = [event for event in events if isinstance(event, Transfer)][-1]
    assert last.sent_bytes > 2 << 20
    assert (last.hosts_done, last.hosts) == (2, 2)
    assert last.bytes_per_s > 0
    assert not [event for event in events if isinstance(event, Note)]


@pytest.mark.parametrize("hosts", [2, 6], ids=["to each", "from host to host"])
def test_what_the_time_did_not_suffice_for_is_gone_on_with(farm: SshFarm, agent: HostAgent, hosts: int) -> None:
    content = make_tree({"f": os.urandom(6 << 20)})
    targets = [farm.add(worker) for worker in range(hosts)]
    agent.ask(targets, HelloRequest())
    rounds: list[Distributed] = []
    while not rounds or rounds[-1].unfinished:
        assert len(rounds) < 20
        sent = distribute(
            agent, targets, content, clock=Hurried(), emit=lambda _: None, until=40.0, job=CopyJob("r1-1", 1)
        )
        assert not sent.failed
        rounds.append(sent)
        time.sleep(0.05 if sent.copying else 0.0)
    assert len(rounds) > 1
    copies = hosts if hosts <= 4 else 1
    assert sum(each.sent_bytes for each in rounds) < 1.2 * copies * (6 << 20)
    answers = agent.ask(targets, PrepareRequest(run="r1", attempt="1", fence=1, bundle=content.sha256))
    assert all(answer.value is not None and answer.value.prepared for answer in answers)


def test_a_host_that_still_writes_what_an_earlier_step_sent_is_asked_again(
    farm: SshFarm, agent: HostAgent
) -> None:
    file = os.urandom(1 << 20)
    content, targets = make_tree({"f": file}), [farm.add(0)]
    part = blobs(farm, 0) / f"{hashlib.sha256(file).hexdigest()}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(file[:1000])

    def step() -> Distributed:
        job, clock = CopyJob("r1-1", 1), RealClock()
        return distribute(
            agent, targets, content, clock=clock, emit=lambda _: None, until=clock.now() + 60, job=job
        )

    with part.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_SH)  # as a writer, but its length may be read
        first = step()
    assert (first.failed, first.unfinished) == ({}, {0})
    second = step()
    assert (second.failed, second.unfinished) == ({}, frozenset())
    assert second.sent_bytes < (1 << 20)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The host side of a relay, as a process of its own."""
    folder = tmp_path / "serving/.tpuctl/incoming"
    folder.mkdir(parents=True)
    digest = hashlib.sha256(b"content").hexdigest()
    (folder / digest).write_bytes(b"content")
    (tmp_path / "serving/secret").write_text("secret")
    request = {"area": "incoming", "address": "127.0.0.1", "deadline_s": 60, "idle_s": 60}
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", AGENT, "carry", "serve"],
        stdout=subprocess.PIPE,
        env={"HOME": str(tmp_path / "serving"), "TPUCTL_COPY": json.dumps(request)},
    )
    assert process.stdout
    told = json.loads(process.stdout.readline())
    token = bytes.fromhex(told["token"])
    yield {"port": told["port"], "token": token, "digest": digest}
    process.kill()
    process.wait()
    process.stdout.close()


def converse(port: int, token: bytes, lines: bytes) -> bytes:
    """What a client that knows `token` gets for `lines`."""
    import hmac

    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        theirs = connection.recv(32, socket.MSG_WAITALL)
        ours = os.urandom(32)
        connection.sendall(ours + hmac.new(token, b"fetch" + theirs + ours, "sha256").digest())
        received = b""
        try:
            connection.sendall(lines)
            connection.shutdown(socket.SHUT_WR)
            while chunk := connection.recv(65536):
                received += chunk
        except OSError:
            return received  # the server hung up on us
        return received


def test_contents_are_served_to_those_who_know_the_token_and_nothing_but_contents(
    server: dict[str, Any],
) -> None:
    good = converse(server["port"], server["token"], server["digest"].encode() + b"\n" + b"0" * 64 + b"\n")
    begun = render_note({"file": server["digest"], "size": 7, "from": 0}) + struct.pack(">q", 7)
    gone = render_note({"failed": "0" * 64, "code": "missing-blob", "message": "it is not here"})
    assert good[32:] == begun + b"content" + gone
    assert converse(server["port"], os.urandom(32), server["digest"].encode() + b"\n") == b""
    for path in (b"../../secret", b"/etc/passwd", b"\xff" * 64, b"x" * 500):
        assert len(converse(server["port"], server["token"], path + b"\n")) == 32


def test_a_neighbour_that_sends_other_content_is_not_believed(tmp_path: Path) -> None:
    import hmac
    import threading

    token = os.urandom(32)
    content = make_tree({"f": b"true"})
    [blob] = list_blobs(parse_tree(content.tree))
    listener = socket.create_server(("127.0.0.1", 0))

    def lie() -> None:
        connection, _ = listener.accept()
        with connection:
            ours = os.urandom(32)
            connection.sendall(ours)
            theirs = connection.recv(64, socket.MSG_WAITALL)
            connection.sendall(hmac.new(token, b"serve" + theirs[:32] + ours, "sha256").digest())
            connection.recv(65)
            connection.sendall(b"".join(render_contents([(blob, 0, [b"lies"])])))

    thread = threading.Thread(target=lie)
    thread.start()
    home = tmp_path / "home"
    (home / ".tpuctl/blobs").mkdir(parents=True)
    (home / ".tpuctl/blobs" / content.sha256).write_bytes(content.tree)
    request = {
        "area": "blobs",
        "tree": content.sha256,
        "address": "127.0.0.1",
        "port": listener.getsockname()[1],
        "token": token.hex(),
        "deadline_s": 60,
        "destination": None,
    }
    done = subprocess.run(
        [sys.executable, "-I", "-S", AGENT, "carry", "fetch"],
        env={"HOME": str(home), "TPUCTL_COPY": json.dumps(request)},
        capture_output=True,
        check=False,
    )
    thread.join()
    listener.close()
    assert json.loads(done.stdout)["error"] == "bad-payload"
    assert [path.name for path in (home / ".tpuctl/blobs").iterdir()] == [content.sha256]
