"""Metadata, power, preemption and the end of hosts, on every tier."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import asyncssh
import pytest

from tests.support.hosts import (
    NODE,
    TIERS,
    Lab,
    alive,
    open_lab,
    populate,
    refuses,
    require_tier,
    start_daemons,
    wait_until,
)
from tests.support.soak import soak
from tpuctl.sim.hosts.backend import HostAddress, HostSpec
from tpuctl.sim.hosts.isolated.requirements import remove_leftovers
from tpuctl.sim.hosts.metadata import etag_of
from tpuctl.sim.hosts.process.backend import ProcessHosts

ROOT = Path(__file__).parents[2]
EVERY_TIER = pytest.mark.parametrize("empty", TIERS, indirect=True)


@pytest.fixture(params=["process", soak("isolated")])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    """Isolated hosts lose their power in test_isolated_hosts.py, too."""
    require_tier(request.param)
    with open_lab(request.param, tmp_path) as made:
        yield made


# Metadata

ASK = """
import sys, urllib.error, urllib.request
url, *flavor = sys.argv[1:]
headers = {"Metadata-Flavor": flavor[0]} if flavor else {}
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
try:
    with opener.open(urllib.request.Request(url, headers=headers), timeout=10) as answer:
        assert answer.headers["Metadata-Flavor"] == "Google"
        print(answer.status, answer.read().decode())
except urllib.error.HTTPError as error:
    print(error.code, "")
"""


def ask(lab: Lab, path: str, flavor: str = "Google") -> tuple[int, str]:
    """What a program on worker 0 gets from its metadata server."""
    url = '"http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance/' + path + '"'
    status, out, err = lab.run(f"python3 -c {shlex.quote(ASK)} {url} {flavor}")
    assert (status, err) == (0, "")
    code, _, text = out.partition(" ")
    return int(code), text.removesuffix("\n")


def test_metadata_is_answered_to_those_who_know_the_header(lab):
    lab.metadata["attributes/tpu-env"] = "ACCELERATOR_TYPE: 'v4-16'\n"
    assert ask(lab, "attributes/tpu-env") == (200, "ACCELERATOR_TYPE: 'v4-16'\n")
    assert ask(lab, "attributes/tpu-env", "")[0] == 403
    assert ask(lab, "attributes/none")[0] == 404
    lab.metadata["attributes/tpu-env"] = "changed"
    assert ask(lab, "attributes/tpu-env") == (200, "changed")


def test_guest_attributes_are_written_and_removed_by_programs_on_the_host(lab):
    path = "guest-attributes/tpuctl/heartbeat"

    def change(*options: str) -> str:
        url = f'"http://${{GCE_METADATA_HOST:-metadata.google.internal}}/computeMetadata/v1/instance/{path}"'
        head = "-H 'Metadata-Flavor: Google'"
        return lab.run(f"curl -s -o /dev/null -w '%{{http_code}}' {' '.join(options)} {head} {url}")[1]

    assert change("-X PUT", "-d 7") == "200"
    assert lab.metadata[path] == "7"
    assert change() == "200"
    assert change("-X DELETE") == "200"
    assert change() == "404"
    lab.metadata["off"] = ""
    assert change("-X PUT", "-d 7") == "403"
    del lab.metadata["off"]


def test_metadata_waits_for_a_change(lab):
    lab.metadata["preempted"] = "FALSE"
    waiting_url = f"preempted?wait_for_change=true&last_etag={etag_of('FALSE')}"
    answers: list[tuple[int, str]] = []
    waiting = threading.Thread(target=lambda: answers.append(ask(lab, waiting_url)))
    waiting.start()
    assert ask(lab, waiting_url + "&timeout_sec=0") == (200, "FALSE")
    assert answers == []
    lab.metadata["preempted"] = "TRUE"
    waiting.join(10)
    assert answers == [(200, "TRUE")]


# Booting


def test_the_startup_script_runs_at_every_boot_of_every_host_and_only_then(empty):
    script = "echo boot of $(hostname) in $HOME >> $HOME/trace\n"
    empty.metadata["attributes/startup-script"] = script
    empty.addresses = empty.hosts.create([empty.spec(0), empty.spec(1)])
    traces = [empty.home("root", worker) / "trace" for worker in (0, 1)]

    def boots() -> list[str]:
        return [line for trace in traces if trace.exists() for line in trace.read_text().split("\n")[:-1]]

    wait_until(lambda: len(boots()) == 2)
    assert [line.split()[2] for line in boots()] == ["t1v-n-abc-w-0", "t1v-n-abc-w-1"]
    assert all(line.endswith("root") for line in boots())
    empty.hosts.create([empty.spec(0), empty.spec(1)])
    empty.hosts.stop(NODE)
    empty.hosts.start(NODE)
    wait_until(lambda: len(boots()) == 4)
    assert len(boots()) == 4


def test_a_startup_script_with_its_own_interpreter_dies_with_its_host(empty):
    empty.metadata["attributes/startup-script"] = (
        "#!/usr/bin/env python3\nimport os, time\n"
        "with open(os.path.expanduser('~/pid'), 'w') as file:\n    print(os.getpid(), file=file)\n"
        "time.sleep(600)\n"
    )
    populate(empty, 1)
    pid_file = empty.home("root") / "pid"
    wait_until(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"))
    (pid,) = empty.pids([int(pid_file.read_text())])
    assert alive(pid)
    empty.hosts.kill(NODE)
    wait_until(lambda: not alive(pid))


# Power


@EVERY_TIER
def test_a_preemption_leaves_nothing_of_the_node_and_nothing_of_others_is_touched(lab):
    neighbour = "p1/us-central2-b/other-1"
    mine = lab.addresses
    lab.addresses = lab.hosts.create([lab.spec(0, neighbour)])
    lab.hosts.set_ssh_keys(neighbour, f"alice:{lab.public_key}")
    spared = start_daemons(lab)
    other, lab.addresses = lab.addresses, mine

    pids = start_daemons(lab, 0) + start_daemons(lab, 1)
    home = lab.home()
    assert home.is_dir()
    client = lab.client()
    _, out, _ = client.exec_command("sleep 304")
    lab.hosts.kill(NODE)
    assert [pid for pid in pids if alive(pid)] == []
    assert not home.exists()
    if lab.tier == "process":  # whereas the clients of a vanished VM hear nothing at all
        assert out.read() == b""
        wait_until(lambda: not client.get_transport().is_active())
    client.close()
    assert all(refuses(address) for address in mine)
    lab.hosts.start(NODE)
    assert all(refuses(address) for address in mine)
    lab.addresses = other
    assert all(alive(pid) for pid in spared)
    assert lab.run("echo ok")[1] == "ok\n"


def test_stop_ends_processes_and_keeps_files_and_start_brings_the_same_host_back(lab):
    pids = start_daemons(lab)
    lab.run("echo kept > file")
    memory = "${XDG_RUNTIME_DIR:-/dev/shm}/lost"
    assert lab.run(f"echo lost > {memory}; cat {memory}")[1] == "lost\n"
    lab.hosts.stop(NODE)
    lab.hosts.stop(NODE)
    assert [pid for pid in pids if alive(pid)] == []
    assert all(refuses(address) for address in lab.addresses)
    lab.hosts.start(NODE)
    lab.hosts.start(NODE)
    assert lab.run("cat file")[1] == "kept\n"  # the client checks that the host key is still the same
    assert lab.run(f"test -e {memory}")[0] == 1
    assert ask(lab, "none")[0] == 404


BOOT_ID = "${TPUCTL_BOOT_ID:-$(cat /proc/sys/kernel/random/boot_id)}"
POLITE = "trap 'sleep 0.3; echo saved > end; exit' TERM; echo $$ > up; while :; do sleep 0.05; done"


def background(lab: Lab, script: str, worker: int = 0) -> int:
    """Starts a script that outlives its connection and writes its number to `up`; the number on this
    machine."""
    lab.run(f"nohup setsid sh -c {shlex.quote(script)} > /dev/null 2>&1 < /dev/null &", worker)
    up = lab.home(worker=worker) / "up"
    wait_until(lambda: up.exists() and up.read_text().endswith("\n"))
    return lab.pids([int(up.read_text())], worker)[0]


def test_an_orderly_shutdown_gives_programs_their_time_and_no_more_than_they_need(lab):
    pid = background(lab, POLITE)
    other = background(lab, POLITE, 1)
    began = time.monotonic()
    lab.hosts.shutdown(NODE, 30.0, [0])
    assert time.monotonic() - began < 25.0
    assert not alive(pid)
    assert alive(other)
    assert (lab.home() / "end").read_text() == "saved\n"
    lab.hosts.stop(NODE, [0])
    assert [refuses(address) for address in lab.addresses] == [True, False]
    assert alive(other)


def test_the_shutdown_script_runs_to_its_end_while_programs_are_told_to_end(empty):
    empty.metadata["attributes/shutdown-script"] = (
        "trap 'echo told >> ~/trace' TERM\nsleep 0.5\necho end of $(hostname) in $HOME >> ~/trace\n"
    )
    populate(empty, 2)
    traces = [empty.home("root", worker) / "trace" for worker in (0, 1)]
    for _ in range(2):  # each time that the host goes down
        (empty.home() / "up").unlink(missing_ok=True)
        pid = background(empty, POLITE)
        empty.hosts.shutdown(NODE, 30.0, [0])
        assert not alive(pid)
        empty.hosts.stop(NODE, [0])
        empty.hosts.shutdown(NODE, 30.0, [0])  # what is off runs nothing
        empty.hosts.start(NODE)
    lines = traces[0].read_text().splitlines()
    assert [line.split("/")[0] for line in lines] == ["end of t1v-n-abc-w-0 in "] * 2
    assert not traces[1].exists()


def test_a_shutdown_script_that_takes_too_long_is_cut_with_the_power(empty):
    empty.metadata["attributes/shutdown-script"] = "echo $$ > ~/pid; sleep 600; echo late > ~/late"
    populate(empty, 1)
    began = time.monotonic()
    empty.hosts.shutdown(NODE, 0.8)
    assert 0.7 < time.monotonic() - began < 60.0
    said = empty.home("root") / "pid"
    wait_until(lambda: said.exists() and said.read_text() != "")  # a busy machine comes to it after the window
    (pid,) = empty.pids([int(said.read_text())])
    assert alive(pid)
    empty.hosts.stop(NODE)
    assert not alive(pid)
    assert not (empty.home("root") / "late").exists()


def test_who_ignores_a_shutdown_is_left_until_the_power_is_cut(lab):
    pid = background(lab, "trap '' TERM; echo $$ > up; while :; do sleep 0.05; done")
    lab.hosts.shutdown(NODE, 0.2)
    assert alive(pid)
    lab.hosts.stop(NODE)
    assert not alive(pid)


def test_every_boot_has_an_id_of_its_own(lab):
    def ids() -> list[str]:
        return [lab.run(f"echo {BOOT_ID}", worker)[1].strip() for worker in (0, 1)]

    first = ids()
    assert first == ids()
    assert len(set(first)) == 2
    lab.hosts.stop(NODE, [1])
    lab.hosts.start(NODE)
    again = ids()
    assert (again[0] == first[0], again[1] in first) == (True, False)


def test_destroying_what_does_not_exist_is_fine(empty):
    empty.hosts.destroy("nobody")
    empty.hosts.kill("nobody")
    empty.hosts.shutdown("nobody", 1.0)
    empty.hosts.stop("nobody")
    empty.hosts.start("nobody")
    empty.hosts.set_ssh_keys("nobody", "alice:ssh-ed25519 AAAA")


def test_storage_that_users_made_read_only_is_wiped_too(lab):
    lab.run("mkdir -p a/b; touch a/b/c; ln -s /etc/passwd a/link; chmod 0 a/b; chmod 500 a")
    home = lab.home()
    assert home.is_dir()
    lab.hosts.destroy(NODE)
    assert not home.exists()
    assert Path("/etc/passwd").exists()


def children() -> set[int]:
    """Processes that this one has started."""
    found = subprocess.run(["pgrep", "-P", str(os.getpid())], capture_output=True, text=True, check=False)
    return set(map(int, found.stdout.split()))


@pytest.mark.parametrize("tier", TIERS)
def test_close_leaves_no_process_descriptor_thread_or_file(tmp_path, tier):
    require_tier(tier)
    before = (set(os.listdir("/proc/self/fd")), threading.active_count())
    strangers = children()
    with open_lab(tier, tmp_path) as lab:
        populate(lab, 1)
        pids = start_daemons(lab)
        ours = children() - strangers
        lab.hosts.close()
        lab.hosts.close()
    assert [pid for pid in pids if alive(pid)] == []
    assert {child for child in ours if alive(child)} == set()
    assert os.listdir(tmp_path / "hosts") == []
    wait_until(lambda: threading.active_count() <= before[1])
    assert set(os.listdir("/proc/self/fd")) == before[0]


SERVER = """
import json, sys, time
from pathlib import Path
from tests.support.hosts import TIERS
from tpuctl.sim.hosts.backend import HostSpec
tier, root, world_id, keys, node = sys.argv[1:]
hosts = TIERS[tier](Path(root), world_id)
made = hosts.create([HostSpec(node, 0, "h", dict, dict)])
hosts.set_ssh_keys(node, keys)
print(json.dumps(vars(made[0])), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("tier", TIERS)
def test_hosts_die_with_a_server_that_was_killed(tmp_path, tier):
    require_tier(tier)
    with open_lab(tier, tmp_path) as lab:
        world_id = f"{lab.world_id}-killed"
        (tmp_path / "theirs").mkdir()
        words = [tier, str(tmp_path / "theirs"), world_id, f"alice:{lab.public_key}", NODE]
        command = [sys.executable, "-c", SERVER, *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:
            try:
                lab.addresses = [HostAddress(**json.loads(server.stdout.readline()))]
                pids = start_daemons(lab)
            finally:
                server.send_signal(signal.SIGKILL)
        try:
            wait_until(lambda: not any(alive(pid) for pid in pids))
        finally:
            remove_leftovers(world_id, tmp_path / "theirs")  # otherwise the guardian's part


@pytest.mark.parametrize("hosts", [16, soak(64)])
def test_many_hosts_come_up_together(empty, hosts):
    made = empty.hosts.create([empty.spec(worker) for worker in range(hosts)])
    assert len({each.external_ip for each in made}) == hosts
    assert not any(refuses(address) for address in made)


@EVERY_TIER
def test_two_simulators_share_the_machine_without_sharing_an_address(empty, tmp_path):
    other_root = tmp_path / "second"
    other_root.mkdir()
    with open_lab(empty.tier, other_root) as other:
        mine = empty.hosts.create([empty.spec(0), empty.spec(1)])
        theirs = other.hosts.create([empty.spec(0), empty.spec(1)])
        assert len({each.external_ip for each in (*mine, *theirs)}) == 4
        empty.hosts.stop(NODE)
        more = other.hosts.create([empty.spec(2)])
        assert more[0].external_ip not in {each.external_ip for each in mine}


def test_an_ssh_port_of_choice_is_used_by_all_workers_of_the_process_tier(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.77.255.253", 0))
        port = probe.getsockname()[1]
    hosts = ProcessHosts(tmp_path / "hosts", world_id="w5", ssh_port=port)
    try:
        lab = Lab(hosts, tmp_path, tmp_path / "id", "")
        made = hosts.create([lab.spec(0), lab.spec(1)])
        assert {each.ssh_port for each in made} == {port} == {hosts.ssh_port}
        assert not any(refuses(address) for address in made)
    finally:
        hosts.close()


def test_thirty_two_hosts_answer_their_first_commands_at_a_small_price(tmp_path: Path) -> None:
    """In CPU seconds, which other programs at work do not change, of the server and a client together: 3 s of
    wall-clock time from a node that is ready to the answers of all are kept with a margin."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    options = asyncssh.SSHClientConnectionOptions(
        username="alice", client_keys=[key], known_hosts=None, config=None, agent_path=None
    )

    async def ask(address: HostAddress) -> str:
        async with asyncssh.connect(address.external_ip, address.ssh_port, options=options) as there:
            return str((await there.run("echo $HOSTNAME", check=True)).stdout)

    async def ask_all(addresses: list[HostAddress]) -> list[str]:
        return await asyncio.gather(*map(ask, addresses))

    specs = [HostSpec("big", worker, f"w-{worker}", dict, dict) for worker in range(32)]
    with closing(ProcessHosts(tmp_path, world_id="w32")) as hosts:
        before = time.process_time()
        made = hosts.create(specs)
        hosts.set_ssh_keys("big", f"alice:{key.export_public_key().decode().strip()}")
        said = asyncio.run(ask_all(made))
        used = time.process_time() - before
    assert said == [f"w-{worker}\n" for worker in range(32)]
    assert used < 2.0
