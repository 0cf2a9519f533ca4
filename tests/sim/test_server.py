"""The background simulator: started once, ended completely, however it ends."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.oauth2.credentials import Credentials

from tpuctl.cloud.storage import GoogleObjects
from tpuctl.config.settings import ENDPOINTS
from tpuctl.errors import ConflictError, NotFoundError, TpuctlError, UsageError
from tpuctl.sim.server import control
from tpuctl.sim.server.info import SimInfo
from tpuctl.sim.server.options import SimOptions
from tpuctl.sim.server.processes import alive, members
from tpuctl.sim.server.state_dir import BUCKETS_FOLDER
from tpuctl.sim.server.supervisor import run_foreground

INSTANT = SimOptions(delays="instant")
NODE = {
    "acceleratorType": "v4-16",
    "runtimeVersion": "tpu-ubuntu2204-base",
    "networkConfig": {"enableExternalIps": True},
}
PARENT = "projects/sim-project/locations/us-central2-b"


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "s"
    control.down(tmp_path / "s")


def wait_for(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Polls real processes, which have no event to wait for."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def call(info: SimInfo, verb: str, path: str, body: object = None) -> dict[str, object]:
    import urllib.request

    request = urllib.request.Request(
        f"{info.http}/v2/{PARENT}/{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"authorization": f"Bearer {info.token}"},
        method=verb,
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return dict(json.load(answer))


def running_host(info: SimInfo, home: Path) -> None:
    """A slice whose first host runs a daemon that left its session and cleaned its environment."""
    key = home / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    public = key.with_suffix(".pub").read_text().strip()
    call(info, "POST", "nodes?nodeId=a", {**NODE, "metadata": {"ssh-keys": f"alice:{public}"}})
    wait_for(lambda: call(info, "GET", "nodes/a")["state"] == "READY")
    endpoints = call(info, "GET", "nodes/a")["networkEndpoints"]
    assert isinstance(endpoints, list)
    command = "nohup sleep 7654 >/dev/null 2>&1 & setsid -f env -i sleep 7655 </dev/null >/dev/null 2>&1"
    subprocess.run(
        [
            *("ssh", "-i", key, "-p", str(info.ssh_port), "-o", "StrictHostKeyChecking=no"),
            *("-o", f"UserKnownHostsFile={home}/known", "-o", "IdentitiesOnly=yes", "-F", "none"),
            *(f"alice@{endpoints[0]['ipAddress']}", command),
        ],
        check=True,
        timeout=60,
        capture_output=True,
    )


def below(folder: Path) -> list[int]:
    """Live processes that work below a folder or were started for it."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or not alive(int(entry.name)):
            continue
        try:
            cwd = os.readlink(entry / "cwd")
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if cwd.startswith(str(folder)) or str(folder).encode() in command:
            found.append(int(entry.name))
    return found


def test_up_publishes_private_files_and_down_removes_them(state_dir: Path) -> None:
    info = control.up(state_dir, INSTANT)
    assert control.status(state_dir) == info
    for name in ("sim.json", "profile.json", "token"):
        assert stat.S_IMODE((state_dir / name).stat().st_mode) == 0o600
    assert json.loads((state_dir / "profile.json").read_text()) == {
        "label": "sim",
        "project": "sim-project",
        **dict.fromkeys(ENDPOINTS, info.http),
        "token_file": str(state_dir / "token"),
        "ssh_port": info.ssh_port,
        "iap": False,
    }
    assert control.down(state_dir)
    assert control.status(state_dir) is None
    assert not alive(info.pid)
    assert not alive(info.guardian_pid)
    assert sorted(each.name for each in state_dir.iterdir()) == ["guardian.lock", "sim.log"]
    assert not control.down(state_dir)


@pytest.mark.parametrize("killed", [False, True])
def test_buckets_outlive_the_simulator_until_it_is_reset(state_dir: Path, killed: bool) -> None:
    def objects(info: SimInfo) -> Any:
        return GoogleObjects(info.project, info.http, Credentials(token=info.token))

    info = control.up(state_dir, INSTANT)
    generation = objects(info).write("gs://sim-bucket/fleet/identity", b"kept", if_generation=0)
    if killed:
        os.kill(info.pid, signal.SIGKILL)
        wait_for(lambda: not alive(info.pid) and not alive(info.guardian_pid))
    else:
        control.down(state_dir)
    again = control.up(state_dir, INSTANT)
    assert objects(again).read("gs://sim-bucket/fleet/identity") == (b"kept", generation)
    control.reset(again)
    assert objects(again).list("gs://sim-bucket/") == ()
    control.down(state_dir)
    assert not (state_dir / BUCKETS_FOLDER).exists()


def test_up_twice_keeps_the_one_that_runs(state_dir: Path) -> None:
    first = control.up(state_dir, INSTANT)
    assert control.up(state_dir, INSTANT) == first


def test_two_at_once_start_one(state_dir: Path) -> None:
    found: list[SimInfo] = []
    threads = [threading.Thread(target=lambda: found.append(control.up(state_dir, INSTANT))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert found[0] == found[1]
    wait_for(lambda: len([pid for pid in below(state_dir) if pid != os.getpid()]) == 2)


@pytest.mark.parametrize("victims", ["server", "guardian", "both"])
def test_kill_9_leaves_no_process_of_a_host(state_dir: Path, tmp_path: Path, victims: str) -> None:
    info = control.up(state_dir, INSTANT)
    running_host(info, tmp_path)
    assert members(info.world_id)
    for name, pid in (("guardian", info.guardian_pid), ("server", info.pid)):
        if victims in (name, "both"):
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not alive(info.pid) and not members(info.world_id) and not below(state_dir))
    assert control.status(state_dir) is None
    again = control.up(state_dir, INSTANT)
    assert again.world_id != info.world_id
    assert [each.name for each in state_dir.glob("w-*")] == [f"w-{again.world_id}"]


def test_the_admin_calls_reach_the_running_server(state_dir: Path) -> None:
    info = control.up(state_dir, INSTANT)
    call(info, "POST", "nodes?nodeId=a", NODE)
    wait_for(lambda: call(info, "GET", "nodes/a")["state"] == "READY")
    assert control.act(info, "preempt", "a") == [f"{PARENT}/nodes/a"]
    assert [each["state"] for each in control.state(info)["nodes"]] == ["PREEMPTED"]
    with pytest.raises(NotFoundError, match="a is PREEMPTED"):
        control.act(info, "preempt", "a")
    assert control.fault(info, {"preset": "stockout"})["code"] == 8
    assert len(control.faults(info)) == 1
    with pytest.raises(UsageError, match="stockot"):
        control.fault(info, {"preset": "stockot"})
    assert [each["method"] for each in control.journal(info)] == ["nodes.create", "sim.preempt"]
    control.reset(info)
    assert (control.state(info)["nodes"], control.faults(info), control.journal(info)) == ([], [], [])
    control.down(state_dir)
    with pytest.raises((TpuctlError, OSError)):
        control.faults(info)


def test_a_stale_state_file_of_another_process_is_not_a_running_simulator(state_dir: Path) -> None:
    info = control.up(state_dir, INSTANT)
    text = (state_dir / "sim.json").read_text()
    control.down(state_dir)
    stale = json.loads(text) | {"pid": os.getpid()}
    (state_dir / "sim.json").write_text(json.dumps(stale))
    assert control.status(state_dir) is None
    (state_dir / "sim.json").write_text('{"pid": ')
    assert control.status(state_dir) is None
    assert control.up(state_dir, INSTANT).world_id != info.world_id


def test_options_that_make_no_sense_start_nothing(state_dir: Path) -> None:
    for options in (SimOptions(delays="fast"), SimOptions(hosts="vm"), SimOptions(speed=0)):
        with pytest.raises(UsageError):
            control.up(state_dir, options)
    assert not state_dir.exists()


def test_a_port_that_is_taken_is_reported_from_the_log(state_dir: Path) -> None:
    info = control.up(state_dir, INSTANT)
    port = int(info.http.rsplit(":", 1)[1])
    other = state_dir.parent / "other"
    with pytest.raises(TpuctlError, match="Address already in use"):
        control.up(other, SimOptions(delays="instant", port=port))
    assert not below(other)


FOREGROUND = (
    "from tpuctl.sim.server.supervisor import run_foreground; run_foreground(Path(sys.argv[1]), INSTANT)"
)
BOUND = (
    "import time; from tpuctl.sim.server import control; control.up(Path(sys.argv[1]), INSTANT, bound=True); "
    "time.sleep(600)"
)


@pytest.mark.parametrize("code", [FOREGROUND, BOUND], ids=["foreground", "bound"])
def test_a_simulator_of_a_process_ends_when_that_is_killed(state_dir: Path, code: str) -> None:
    options = (
        "import sys; from pathlib import Path; "
        "from tpuctl.sim.server.options import SimOptions; "
        "INSTANT = SimOptions(delays='instant'); "
    )
    process = subprocess.Popen([sys.executable, "-c", options + code, str(state_dir)])
    try:
        wait_for(lambda: control.status(state_dir) is not None)
        info = control.status(state_dir)
        assert info is not None
        call(info, "POST", "nodes?nodeId=a", NODE)
        wait_for(lambda: call(info, "GET", "nodes/a")["state"] == "READY")
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: not below(state_dir) and not members(info.world_id))
    assert not (state_dir / "profile.json").exists()


def test_the_foreground_server_refuses_a_second_one_and_ends_on_a_signal(state_dir: Path) -> None:
    code = (
        "import sys; from pathlib import Path; "
        "from tpuctl.sim.server.options import SimOptions; "
        "from tpuctl.sim.server.supervisor import run_foreground; "
        "run_foreground(Path(sys.argv[1]), SimOptions())"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(state_dir)])
    try:
        wait_for(lambda: control.status(state_dir) is not None)
        with pytest.raises(ConflictError, match="runs already"):
            run_foreground(state_dir, INSTANT)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
    assert control.status(state_dir) is None
    assert list(state_dir.glob("w-*")) == []


@pytest.mark.parametrize(
    ("module", "late"),
    [
        ("tpuctl.sim.server.control", ("asyncio", "http.client", "asyncssh", "google.cloud.tpu_v2")),
        ("tpuctl.sim.server.supervisor", ("asyncio", "http.client", "asyncssh", "google.cloud.tpu_v2")),
        ("tpuctl.sim.server.process", ("asyncssh", "google.cloud.tpu_v2")),
        ("tpuctl.sim.server.simulator", ("asyncssh", "google.cloud.tpu_v2")),
    ],
)
def test_whoever_starts_the_simulator_does_not_wait_for_what_hosts_and_grpc_load(
    module: str, late: tuple[str, ...]
) -> None:
    """The three processes of `sim up` start one after the other, so that each import counts."""
    script = f"import sys, {module}; print(*(name for name in {late!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
