"""Logins, sessions and files on hosts of every tier, through real ssh clients and real processes."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shlex
import socket
import subprocess
import sys

import asyncssh
import paramiko
import pytest

from tests.support.hosts import NODE, TIERS, alive, open_lab, populate, require_tier, wait_until

SHELLS = {"process": "/bin/sh", "isolated": "/bin/bash"}


@pytest.fixture(scope="module", params=TIERS)
def lab(request, tmp_path_factory):
    """Two hosts for all tests here. Who changes keys takes `empty` and hosts of its own."""
    require_tier(request.param)
    with open_lab(request.param, tmp_path_factory.mktemp("lab")) as opened:
        yield populate(opened)


# Addresses and logins


def test_workers_answer_on_their_own_addresses_with_their_own_host_keys(lab):
    assert len({each.external_ip for each in lab.addresses}) == 2
    assert len({each.host_key for each in lab.addresses}) == 2
    assert "127.0.0.1" not in {each.external_ip for each in lab.addresses}
    assert lab.run("hostname", 0) == (0, "t1v-n-abc-w-0\n", "")
    assert lab.run("hostname", 1) == (0, "t1v-n-abc-w-1\n", "")


def test_a_worker_answers_at_its_own_address_and_at_the_one_that_the_world_knows(lab):
    told = [address for each in lab.addresses for address in (each.internal_ip, each.external_ip)]
    assert len(set(told)) == 4
    for address in lab.addresses:
        for host in (address.internal_ip, address.external_ip):
            with socket.create_connection((host, address.ssh_port), timeout=5) as reached:
                assert reached.recv(4) == b"SSH-"


def test_creating_the_same_workers_again_gives_the_same_addresses(lab):
    assert lab.hosts.create([lab.spec(0), lab.spec(1)]) == lab.addresses


def test_nodes_with_the_same_worker_numbers_do_not_mix(lab):
    other = lab.hosts.create([lab.spec(0, "p1/us-central2-b/big-2")])
    assert other[0].external_ip not in {each.external_ip for each in lab.addresses}
    lab.hosts.kill("p1/us-central2-b/big-2")
    assert lab.run("echo ok")[1] == "ok\n"


def test_keys_of_gcloud_and_of_others_log_in_as_their_users(empty, tmp_path):
    lab = populate(empty, 1)
    rsa = asyncssh.generate_private_key("ssh-rsa", key_size=2048)
    rsa.write_private_key(tmp_path / "rsa")
    line = f"bob:{rsa.export_public_key().decode().strip()} bob"
    lab.hosts.set_ssh_keys(NODE, f"\nnonsense\n# x:y\ncarol:not a key\n{line}\nalice:{lab.public_key}")
    with lab.client(0, "bob", tmp_path / "rsa") as client:
        assert client.exec_command("echo $USER")[1].read() == b"bob\n"
    assert lab.run("echo $USER $HOME", user="alice")[1].split()[0] == "alice"


def test_a_wrong_key_an_unknown_user_and_a_removed_key_are_refused(empty, tmp_path):
    lab = populate(empty, 1)
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


def test_the_environment_is_clean_and_complete(lab, monkeypatch):
    monkeypatch.setenv("LEAKED_SECRET", "1")
    env = dict(line.split("=", 1) for line in lab.run("env", 1)[1].splitlines())
    assert "LEAKED_SECRET" not in env
    assert env["HOME"].endswith("/home/alice")
    assert (env["USER"], env["LOGNAME"], env["SHELL"]) == ("alice", "alice", SHELLS[lab.tier])
    assert (env["LANG"], env["HOSTNAME"]) == ("C.UTF-8", "t1v-n-abc-w-1")
    assert env["TPUCTL_SIM_HOST"] == f"{NODE}/1"
    assert env["TPUCTL_SIM_WORLD"] == lab.world_id
    assert env["PEERS"] == ",".join(each.internal_ip for each in lab.addresses)
    assert lab.run("test -d $TMPDIR && echo yes > $TMPDIR/file")[0] == 0
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
    assert alive(lab.pids([pid])[0])
    lab.run(f"kill {pid}")


def test_a_command_that_writes_to_a_client_that_left_gets_sigpipe(lab):
    client = lab.client()
    client.exec_command("echo $$ > writer; exec yes")
    wait_until(lambda: lab.run("cat writer 2>/dev/null")[1].endswith("\n"))
    (pid,) = lab.pids([int(lab.run("cat writer")[1])])
    client.close()
    wait_until(lambda: not alive(pid))


def test_a_background_process_does_not_hold_the_session_if_it_lets_go_of_the_output(lab):
    status, out, _ = lab.run("sleep 300 > /dev/null 2>&1 < /dev/null & echo $!")
    assert status == 0
    assert alive(lab.pids([int(out)])[0])


ECHO_SERVER = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
accepted, _ = server.accept()
accepted.sendall(b"pong to " + accepted.recv(10))
"""


def test_a_port_of_a_host_is_reached_through_ssh(lab):
    with lab.client() as client:
        _, out, _ = client.exec_command(f"exec python3 -c {shlex.quote(ECHO_SERVER)}", timeout=20)
        port = int(out.readline())
        channel = client.get_transport().open_channel("direct-tcpip", ("127.0.0.1", port), ("127.0.0.1", 1))
        channel.sendall(b"ping")
        assert channel.recv(20) == b"pong to ping"


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
