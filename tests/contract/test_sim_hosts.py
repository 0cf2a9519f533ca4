"""What every tier of simulated hosts must do, through real ssh clients and real processes."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import Request, urlopen

import asyncssh
import paramiko
import pytest

from tpuctl.sim.hosts.interface import HostAddress, HostBackend, HostSpec
from tpuctl.sim.hosts.process import ProcessHosts

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="simulated hosts need Linux's 127.0.0.0/8")

TIERS: dict[str, Callable[[Path], HostBackend]] = {"process": lambda root: ProcessHosts(root, world_id="w1")}
NODE = "p1/us-central2-b/big-1"


def wait_until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("the condition did not come true in time")
        time.sleep(0.01)


@dataclass
class Lab:
    """A backend with one node of two workers and a key that may log in."""

    hosts: HostBackend
    root: Path
    key_file: Path
    public_key: str
    metadata: dict[str, str] = field(default_factory=dict)
    addresses: list[HostAddress] = field(default_factory=list)

    def spec(self, worker: int, node: str = NODE) -> HostSpec:
        return HostSpec(
            node_key=node,
            worker=worker,
            hostname=f"t1v-n-abc-w-{worker}",
            environment=lambda: {"PEERS": ",".join(each.internal_ip for each in self.addresses)},
            metadata=self.metadata.get,
        )

    def client(self, worker: int = 0, user: str = "alice", key: Path | None = None) -> paramiko.SSHClient:
        address = self.addresses[worker]
        client = paramiko.SSHClient()
        kind, blob = address.host_key.split()
        name = address.external_ip if address.ssh_port == 22 else f"[{address.external_ip}]:{address.ssh_port}"
        client.get_host_keys().add(name, kind, paramiko.Ed25519Key(data=base64.b64decode(blob)))
        client.connect(
            address.external_ip,
            port=address.ssh_port,
            username=user,
            key_filename=str(key or self.key_file),
            allow_agent=False,
            look_for_keys=False,
            timeout=10,
        )
        return client

    def run(
        self, command: str, worker: int = 0, stdin: bytes = b"", user: str = "alice"
    ) -> tuple[int, str, str]:
        with self.client(worker, user) as client:
            source, out, err = client.exec_command(command, timeout=20)
            source.write(stdin)
            source.channel.shutdown_write()
            output = out.read().decode(), err.read().decode()
            return out.channel.recv_exit_status(), *output

    def ssh_options(self, worker: int) -> list[str]:
        known = self.root / "known_hosts"
        address = self.addresses[worker]
        known.write_text(f"worker {address.host_key}\n")
        return [
            *("-i", str(self.key_file), "-o", f"UserKnownHostsFile={known}", "-o", "HostKeyAlias=worker"),
            *("-o", "StrictHostKeyChecking=yes", "-o", "IdentitiesOnly=yes", "-o", "LogLevel=ERROR"),
            *("-o", f"Port={address.ssh_port}", "-F", "none"),
        ]

    def real(
        self, program: str, *args: str, worker: int = 0, **kw: object
    ) -> subprocess.CompletedProcess[bytes]:
        if shutil.which(program) is None:
            pytest.skip(f"OpenSSH's {program} is not on PATH")
        command = [program, *self.ssh_options(worker), *args]
        return subprocess.run(command, capture_output=True, timeout=30, **kw)  # type: ignore[call-overload]

    def at(self, worker: int = 0) -> str:
        return f"alice@{self.addresses[worker].external_ip}"


@pytest.fixture(params=TIERS)
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    key = asyncssh.generate_private_key("ssh-ed25519")
    key_file = tmp_path / "id"
    key.write_private_key(key_file)
    key_file.chmod(0o600)
    public = key.export_public_key().decode().strip()
    hosts = TIERS[request.param](tmp_path / "hosts")
    yield Lab(hosts, tmp_path, key_file, public)
    hosts.close()


@pytest.fixture
def lab(empty: Lab) -> Lab:
    empty.addresses = empty.hosts.create([empty.spec(0), empty.spec(1)])
    empty.hosts.set_ssh_keys(NODE, f"alice:{empty.public_key} me@home\nroot:{empty.public_key}")
    return empty


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# Booting


def boots(lab: Lab, worker: int) -> list[str]:
    return lab.run("cat ~/boots 2>/dev/null || true", worker, user="root")[1].splitlines()


def boot_with(lab: Lab, script: str) -> None:
    lab.metadata["attributes/startup-script"] = script
    lab.addresses = lab.hosts.create([lab.spec(0), lab.spec(1)])
    lab.hosts.set_ssh_keys(NODE, f"root:{lab.public_key}")


def test_the_startup_script_runs_at_every_boot_of_every_host_and_only_then(empty):
    boot_with(empty, "echo boot of $(hostname) >> ~/boots\n")
    wait_until(lambda: boots(empty, 0) and boots(empty, 1))
    empty.hosts.create([empty.spec(0), empty.spec(1)])
    assert boots(empty, 1) == ["boot of t1v-n-abc-w-1"]
    empty.hosts.stop(NODE)
    empty.hosts.start(NODE)
    empty.hosts.set_ssh_keys(NODE, f"root:{empty.public_key}")
    wait_until(lambda: len(boots(empty, 0)) == 2)


def test_a_startup_script_names_its_own_interpreter_and_holds_nobody_up(empty):
    boot_with(
        empty,
        "#!/usr/bin/env python3\nimport os, time\n"
        "open(os.path.expanduser('~/boots'), 'w').write('python\\n')\ntime.sleep(600)\n",
    )
    wait_until(lambda: boots(empty, 0) == ["python"])
    empty.hosts.kill(NODE)


# Addresses and logins


def test_workers_answer_on_their_own_addresses_with_their_own_host_keys(lab):
    assert len({each.external_ip for each in lab.addresses}) == 2
    assert len({each.host_key for each in lab.addresses}) == 2
    assert "127.0.0.1" not in {each.external_ip for each in lab.addresses}
    assert lab.run("hostname", 0) == (0, "t1v-n-abc-w-0\n", "")
    assert lab.run("hostname", 1) == (0, "t1v-n-abc-w-1\n", "")


def test_creating_the_same_workers_again_gives_the_same_addresses(lab):
    assert lab.hosts.create([lab.spec(0), lab.spec(1)]) == lab.addresses


def test_nodes_with_the_same_worker_numbers_do_not_mix(lab):
    other = lab.hosts.create([lab.spec(0, "p1/us-central2-b/big-2")])
    assert other[0].external_ip not in {each.external_ip for each in lab.addresses}
    lab.hosts.kill("p1/us-central2-b/big-2")
    assert lab.run("echo ok")[1] == "ok\n"


def test_keys_of_gcloud_and_of_others_log_in_as_their_users(lab, tmp_path):
    rsa = asyncssh.generate_private_key("ssh-rsa", key_size=2048)
    rsa.write_private_key(tmp_path / "rsa")
    line = f"bob:{rsa.export_public_key().decode().strip()} bob"
    lab.hosts.set_ssh_keys(NODE, f"\nnonsense\n# x:y\ncarol:not a key\n{line}\nalice:{lab.public_key}")
    with lab.client(0, "bob", tmp_path / "rsa") as client:
        assert client.exec_command("echo $USER")[1].read() == b"bob\n"
    assert lab.run("echo $USER $HOME", user="alice")[1].split()[0] == "alice"


def test_a_wrong_key_an_unknown_user_and_a_removed_key_are_refused(lab, tmp_path):
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(tmp_path / "wrong")
    with pytest.raises(paramiko.AuthenticationException):
        lab.client(0, "alice", tmp_path / "wrong")
    with pytest.raises(paramiko.AuthenticationException):
        lab.client(0, "mallory")
    lab.hosts.set_ssh_keys(NODE, "")
    with pytest.raises(paramiko.AuthenticationException):
        lab.client(0, "alice")


def test_root_may_log_in_if_listed(lab):
    assert lab.run("echo $LOGNAME", user="root")[1] == "root\n"


# Sessions


@pytest.mark.parametrize(
    ("command", "status"), [("true", 0), ("exit 7", 7), ("no-such-command-x", 127), ("exit 255", 255)]
)
def test_exit_statuses_arrive(lab, command, status):
    assert lab.run(command)[0] == status


def test_a_death_by_signal_is_reported_as_a_signal(lab):
    done = lab.real("ssh", lab.at(), "kill -9 $$")
    assert done.returncode == 255  # OpenSSH's way to say: no exit status but exit-signal
    with lab.client() as client:
        channel = client.get_transport().open_session()
        channel.exec_command("kill -TERM $$")
        assert channel.recv_exit_status() == -1


def test_stdout_and_stderr_stay_apart(lab):
    assert lab.run("echo out; echo err >&2; exit 3") == (3, "out\n", "err\n")


def test_many_quick_commands_lose_no_output(lab):
    with lab.client() as client:
        for number in range(20):
            _, out, _ = client.exec_command(f"echo line {number}")
            assert out.read() == f"line {number}\n".encode()
            assert out.channel.recv_exit_status() == 0


def test_fifty_megabytes_pass_in_both_directions(lab):
    content = os.urandom(1_000_000) * 50
    done = lab.real("ssh", lab.at(), "cat", input=content)
    assert (done.returncode, len(done.stdout)) == (0, len(content))
    assert hashlib.md5(done.stdout).digest() == hashlib.md5(content).digest()


def test_a_command_that_does_not_read_its_input_ends(lab):
    done = lab.real("ssh", lab.at(), "head -c 5; exit 4", input=b"x" * 5_000_000)
    assert (done.returncode, done.stdout) == (4, b"xxxxx")


def test_the_environment_is_clean_and_complete(lab, monkeypatch):
    monkeypatch.setenv("LEAKED_SECRET", "1")
    env = dict(line.split("=", 1) for line in lab.run("env", 1)[1].splitlines())
    assert "LEAKED_SECRET" not in env
    assert env["HOME"].endswith("/home/alice")
    assert (env["USER"], env["LOGNAME"], env["SHELL"]) == ("alice", "alice", "/bin/sh")
    assert (env["LANG"], env["HOSTNAME"]) == ("C.UTF-8", "t1v-n-abc-w-1")
    assert env["TPUCTL_SIM_HOST"] == f"{NODE}/1"
    assert env["TPUCTL_SIM_WORLD"] == "w1"
    assert env["PEERS"] == ",".join(each.internal_ip for each in lab.addresses)
    assert Path(env["TMPDIR"]).is_dir()
    assert env["PWD"] == env["HOME"]


def test_python_on_a_host_is_not_the_servers_virtual_environment(lab):
    code = "import sys; print(sys.version_info[:2] >= (3, 8), sys.prefix == sys.base_prefix, sys.prefix)"
    for name in ("python3", "python"):
        status, out, err = lab.run(f"{name} -c {shlex.quote(code)}")
        assert (status, err) == (0, "")
        assert out.split()[:2] == ["True", "True"]
        assert out.split()[2] != sys.prefix or sys.prefix == sys.base_prefix


def test_descriptors_of_the_server_do_not_reach_a_session(lab):
    with lab.client(), lab.client(1):
        assert lab.run("ls /proc/self/fd")[1].split() == ["0", "1", "2", "3"]


def test_a_terminal_has_a_size_and_control_c(lab):
    with lab.client() as client:
        channel = client.get_transport().open_session()
        channel.settimeout(10)
        channel.get_pty("xterm", width=100, height=30)
        channel.exec_command(
            'stty size; echo $TERM; trap "echo caught; exit 5" INT; echo ready; while :; do sleep 0.01; done'
        )
        seen = b""
        while b"ready" not in seen:
            seen += channel.recv(1000)
        channel.send(b"\x03")
        while chunk := channel.recv(1000):
            seen += chunk
        assert b"30 100\r\nxterm\r\n" in seen
        assert b"caught" in seen
        assert channel.recv_exit_status() == 5


def test_an_interactive_shell_runs_what_is_typed(lab):
    with lab.client() as client:
        channel = client.invoke_shell()
        channel.settimeout(10)
        channel.send(b"echo $((6*7)); exit 3\n")
        seen = b""
        while chunk := channel.recv(1000):
            seen += chunk
        assert b"42" in seen
        assert channel.recv_exit_status() == 3


def test_a_signal_from_the_client_reaches_the_command(lab):
    async def session() -> int | None:
        address = lab.addresses[0]
        async with asyncssh.connect(
            address.external_ip,
            address.ssh_port,
            username="alice",
            client_keys=[lab.key_file],
            known_hosts=None,
        ) as connection:
            process = await connection.create_process(
                "trap 'exit 9' USR1; echo go; while :; do sleep 0.01; done"
            )
            await process.stdout.readline()
            process.send_signal("USR1")
            return (await process.wait()).exit_status

    assert asyncio.run(session()) == 9


def test_a_command_without_terminal_survives_its_client_and_meets_end_of_input(lab):
    client = lab.client()
    command = "echo $$ > pid; cat > /dev/null; echo eof > seen; while :; do sleep 0.02; done"
    client.exec_command(command)
    wait_until(lambda: lab.run("cat pid 2>/dev/null")[1].endswith("\n"))
    pid = int(lab.run("cat pid")[1])
    client.close()
    wait_until(lambda: lab.run("cat seen")[0] == 0)
    assert alive(pid)


def test_a_command_that_writes_to_a_client_that_left_gets_sigpipe(lab):
    client = lab.client()
    client.exec_command("echo $$ > pid; exec yes")
    wait_until(lambda: lab.run("cat pid 2>/dev/null")[1].endswith("\n"))
    pid = int(lab.run("cat pid")[1])
    client.close()
    wait_until(lambda: not alive(pid))


def test_a_background_process_does_not_hold_the_session_if_it_lets_go_of_the_output(lab):
    status, out, _ = lab.run("sleep 300 > /dev/null 2>&1 < /dev/null & echo $!")
    assert status == 0
    assert alive(int(out))


def test_a_port_of_a_host_is_reached_through_ssh(lab):
    with socket.create_server(("127.0.0.1", 0)) as server, lab.client() as client:
        port = server.getsockname()[1]
        channel = client.get_transport().open_channel("direct-tcpip", ("127.0.0.1", port), ("127.0.0.1", 1))
        accepted, _ = server.accept()
        with accepted:
            channel.sendall(b"ping")
            assert accepted.recv(10) == b"ping"
            accepted.sendall(b"pong")
            assert channel.recv(10) == b"pong"


# Files


def test_sftp_starts_in_the_home_directory(lab):
    home = lab.run("pwd")[1].strip()
    with lab.client() as client, client.open_sftp() as sftp:
        assert sftp.normalize(".") == home
        with sftp.open("dir-less.bin", "wb") as stream:
            stream.write(b"abc")
        sftp.mkdir("d")
        sftp.rename("dir-less.bin", "d/new")
        assert sftp.listdir("d") == ["new"]
        assert sftp.stat(f"{home}/d/new").st_size == 3
    assert lab.run("cat d/new")[1] == "abc"


@pytest.mark.parametrize("options", [[], ["-O"]], ids=["sftp-protocol", "scp-protocol"])
def test_the_real_scp_copies_trees_both_ways(lab, tmp_path, options):
    (tmp_path / "tree/sub").mkdir(parents=True)
    (tmp_path / "tree/sub/f f").write_bytes(os.urandom(300_000))
    up = lab.real("scp", *options, "-r", str(tmp_path / "tree"), f"{lab.at()}:")
    assert up.returncode == 0, up.stderr
    down = lab.real("scp", *options, "-r", f"{lab.at()}:tree", str(tmp_path / "back"))
    assert down.returncode == 0, down.stderr
    assert (tmp_path / "back/sub/f f").read_bytes() == (tmp_path / "tree/sub/f f").read_bytes()


def test_the_real_sftp_puts_and_gets(lab, tmp_path):
    (tmp_path / "a").write_bytes(b"content")
    batch = f"put {tmp_path}/a remote-a\nget remote-a {tmp_path}/b\nls\n"
    done = lab.real("sftp", "-b", "-", lab.at(), input=batch.encode())
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "b").read_bytes() == b"content"


def test_an_unknown_subsystem_fails_instead_of_giving_a_shell(lab):
    done = lab.real("ssh", "-s", lab.at(), "netconf", input=b"echo shell\n")
    assert done.returncode != 0
    assert b"shell" not in done.stdout


def test_the_real_ssh_gets_a_terminal(lab):
    done = lab.real("ssh", "-tt", lab.at(), "test -t 0 && echo yes", stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (0, b"yes\r\n")


# Metadata


def metadata_url(lab: Lab, path: str, worker: int = 0) -> str:
    host = lab.run("echo $GCE_METADATA_HOST", worker)[1].strip()
    return f"http://{host}/computeMetadata/v1/instance/{path}"


def ask(url: str, flavor: str | None = "Google") -> tuple[int, str]:
    headers = {"Metadata-Flavor": flavor} if flavor else {}
    try:
        with urlopen(Request(url, headers=headers), timeout=10) as answer:
            assert answer.headers["Metadata-Flavor"] == "Google"
            return answer.status, answer.read().decode()
    except OSError as error:
        return error.code, ""  # type: ignore[attr-defined]


def test_metadata_is_answered_to_those_who_know_the_header(lab):
    lab.metadata["attributes/tpu-env"] = "ACCELERATOR_TYPE: 'v4-16'\n"
    url = metadata_url(lab, "attributes/tpu-env")
    assert ask(url) == (200, "ACCELERATOR_TYPE: 'v4-16'\n")
    assert ask(url, None)[0] == 403
    assert ask(metadata_url(lab, "attributes/none"))[0] == 404
    lab.metadata["attributes/tpu-env"] = "changed"
    assert ask(url) == (200, "changed")


def test_metadata_waits_for_a_change(lab):
    lab.metadata["preempted"] = "FALSE"
    url = metadata_url(lab, "preempted?wait_for_change=true")
    answers: list[tuple[int, str]] = []
    waiting = threading.Thread(target=lambda: answers.append(ask(url)))
    waiting.start()
    assert ask(url + "&timeout_sec=0") == (200, "FALSE")
    assert answers == []
    lab.metadata["preempted"] = "TRUE"
    waiting.join(10)
    assert answers == [(200, "TRUE")]


# Power


DAEMONS = """
nohup setsid sleep 301 > /dev/null 2>&1 < /dev/null & echo $! > p1
(env -i setsid sh -c 'sh -c "echo \\$\\$ > p2; exec sleep 302" > /dev/null 2>&1 < /dev/null &')
(env -i python3 -c '
import os, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.chdir("/")
[os.close(fd) for fd in (0, 1, 2)]
open(HOME + "/p3", "w").write(str(os.getpid()) + chr(10))
time.sleep(303)
')
while ! { test -s p1 && test -s p2 && test -s p3; }; do sleep 0.01; done
cat p1 p2 p3
"""


def start_daemons(lab: Lab, worker: int = 0) -> list[int]:
    home = lab.run("pwd", worker)[1].strip()
    script = DAEMONS.replace("HOME", repr(home).replace("'", '"')).replace(
        "(env -i python3", "(env -i $(command -v python3)"
    )
    status, out, err = lab.run(script, worker)
    assert (status, err) == (0, "")
    pids = [int(line) for line in out.split()]
    assert len(pids) == 3
    assert all(alive(pid) for pid in pids)
    return pids


def refuses(address: HostAddress) -> bool:
    try:
        socket.create_connection((address.external_ip, address.ssh_port), timeout=2).close()
    except OSError:
        return True
    return False


def test_a_preemption_leaves_nothing_of_the_node_and_nothing_of_others_is_touched(lab):
    neighbour = "p1/us-central2-b/other-1"
    mine = lab.addresses
    lab.addresses = lab.hosts.create([lab.spec(0, neighbour)])
    lab.hosts.set_ssh_keys(neighbour, f"alice:{lab.public_key}")
    spared = start_daemons(lab)
    other, lab.addresses = lab.addresses, mine

    pids = start_daemons(lab, 0) + start_daemons(lab, 1)
    home = Path(lab.run("pwd")[1].strip())
    client = lab.client()
    _, out, _ = client.exec_command("sleep 304")
    lab.hosts.kill(NODE)
    assert [pid for pid in pids if alive(pid)] == []
    assert not home.exists()
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
    lab.hosts.stop(NODE)
    lab.hosts.stop(NODE)
    assert [pid for pid in pids if alive(pid)] == []
    assert all(refuses(address) for address in lab.addresses)
    lab.hosts.start(NODE)
    lab.hosts.start(NODE)
    assert lab.run("cat file")[1] == "kept\n"  # the client checks that the host key is still the same
    assert ask(metadata_url(lab, "none"))[0] == 404


def test_destroying_what_does_not_exist_is_fine(empty):
    empty.hosts.destroy("nobody")
    empty.hosts.kill("nobody")
    empty.hosts.stop("nobody")
    empty.hosts.start("nobody")
    empty.hosts.set_ssh_keys("nobody", "alice:ssh-ed25519 AAAA")


def test_storage_that_users_made_read_only_is_wiped_too(lab):
    lab.run("mkdir -p a/b; touch a/b/c; ln -s /etc/passwd a/link; chmod 0 a/b; chmod 500 a")
    home = Path(lab.run("pwd")[1].strip())
    lab.hosts.destroy(NODE)
    assert not home.exists()
    assert Path("/etc/passwd").exists()


def test_close_leaves_no_process_descriptor_thread_or_file(tmp_path):
    before = (set(os.listdir("/proc/self/fd")), threading.active_count())
    key = asyncssh.generate_private_key("ssh-ed25519")
    key.write_private_key(tmp_path / "id")
    public = key.export_public_key().decode().strip()
    hosts = ProcessHosts(tmp_path / "hosts", world_id="w2")
    lab = Lab(hosts, tmp_path, tmp_path / "id", public)
    lab.addresses = hosts.create([lab.spec(0)])
    hosts.set_ssh_keys(NODE, f"alice:{public}")
    pids = start_daemons(lab)
    children = subprocess.run(["pgrep", "-P", str(os.getpid())], capture_output=True, text=True).stdout.split()
    hosts.close()
    hosts.close()
    assert [pid for pid in pids if alive(pid)] == []
    assert [child for child in children if alive(int(child))] == []
    assert os.listdir(tmp_path / "hosts") == []
    wait_until(lambda: threading.active_count() <= before[1])
    assert set(os.listdir("/proc/self/fd")) == before[0]


SERVER = """
import json, sys, time
from pathlib import Path
from tpuctl.sim.hosts.interface import HostSpec
from tpuctl.sim.hosts.process import ProcessHosts
hosts = ProcessHosts(Path(sys.argv[1]), world_id="w3")
made = hosts.create([HostSpec(sys.argv[3], 0, "h", dict, {}.get)])
hosts.set_ssh_keys(sys.argv[3], sys.argv[2])
print(json.dumps(vars(made[0])), flush=True)
time.sleep(600)
"""


def test_hosts_die_with_a_server_that_was_killed(tmp_path):
    key = asyncssh.generate_private_key("ssh-ed25519")
    key.write_private_key(tmp_path / "id")
    public = key.export_public_key().decode().strip()
    arguments = [sys.executable, "-c", SERVER, str(tmp_path / "hosts"), f"alice:{public}", NODE]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as server:
        try:
            address = HostAddress(**json.loads(server.stdout.readline()))
            lab = Lab(None, tmp_path, tmp_path / "id", public, addresses=[address])  # type: ignore[arg-type]
            pids = start_daemons(lab)
        finally:
            server.send_signal(signal.SIGKILL)
    wait_until(lambda: not any(alive(pid) for pid in pids))


def test_sixty_four_hosts_come_up_together(empty):
    made = empty.hosts.create([empty.spec(worker) for worker in range(64)])
    assert len({each.external_ip for each in made}) == 64
    assert not any(refuses(address) for address in made)


def test_two_simulators_share_the_machine_without_sharing_an_address(empty, tmp_path):
    other = ProcessHosts(tmp_path / "other", world_id="w4", ssh_port=empty.hosts.ssh_port)
    try:
        mine = empty.hosts.create([empty.spec(0), empty.spec(1)])
        theirs = other.create([empty.spec(0), empty.spec(1)])
        assert len({each.external_ip for each in (*mine, *theirs)}) == 4
        empty.hosts.stop(NODE)
        more = other.create([empty.spec(2)])
        assert more[0].external_ip not in {each.external_ip for each in mine}
    finally:
        other.close()


def test_an_ssh_port_of_choice_is_used_by_all_workers(tmp_path):
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
