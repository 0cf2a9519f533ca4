"""Ways to simulated hosts: other host keys, proxies, forwarded ports, and the real ssh."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from msgspec.structs import replace

from tests.support.jobs import bring_up
from tests.support.services import SimServices
from tpuctl.config.proxy import proxy_words
from tpuctl.engine.events import Warn
from tpuctl.engine.ports import RemoteCall
from tpuctl.hosts.targets import host_targets
from tpuctl.model.cloud import FailureKind, GuestHostKey, HostTarget
from tpuctl.model.records import SliceRecord, SliceState
from tpuctl.slices.reconcile import advance_slice, wait_for_slice
from tpuctl.ssh.keys import ensure_keypair
from tpuctl.ssh.proxy import open_proxy
from tpuctl.ssh.remote import SshRemote
from tpuctl.state.repository import get_slice, save
from tpuctl.workers.exec import execute
from tpuctl.workers.forward import forward_port


def another_key() -> str:
    return asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()


class Publishing:
    """The cloud, except for the host keys that it publishes."""

    def __init__(
        self, cloud: Any, keys: Callable[[tuple[GuestHostKey, ...]], tuple[GuestHostKey, ...]]
    ) -> None:
        self._cloud = cloud
        self._keys = keys

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cloud, name)

    def list_host_keys(self, zone: str, name: str) -> tuple[GuestHostKey, ...]:
        return self._keys(self._cloud.list_host_keys(zone, name))


def pin(services: SimServices, worker: int, key: str) -> SliceRecord:
    """Writes another pin into the record."""
    stored = get_slice(services, "big")
    incarnation = stored.record.incarnation
    workers = list(incarnation.workers)
    workers[worker] = replace(workers[worker], host_key=key)
    return save(
        services,
        stored,
        replace(stored.record, incarnation=replace(incarnation, workers=tuple(workers))),
    ).record


def test_a_changed_host_key_is_accepted_when_the_cloud_says_so_and_is_pinned(services):
    right = bring_up(services, "big").incarnation.workers[1].host_key
    record = pin(services, 1, another_key())
    results = execute(services, record, ["hostname"])
    assert [result.exit_status for result in results] == [0, 0]
    assert get_slice(services, "big").record.incarnation.workers[1].host_key == right
    results = execute(services, record, ["hostname"])
    assert [result.exit_status for result in results] == [0, 0]


def test_a_changed_host_key_that_the_cloud_does_not_know_is_refused(services):
    bring_up(services, "big")
    wrong = another_key()
    record = pin(services, 1, wrong)
    services.cloud = Publishing(services.cloud, lambda keys: (keys[0], replace(keys[1], public_key=wrong)))
    results = execute(services, record, ["hostname"])
    assert results[0].ok
    assert results[1].failure is FailureKind.HOST_KEY
    assert get_slice(services, "big").record.incarnation.workers[1].host_key == wrong


def test_a_changed_host_key_of_another_node_is_refused(services):
    bring_up(services, "big")
    record = pin(services, 1, another_key())
    stored = get_slice(services, "big")
    other = replace(stored.record, incarnation=replace(stored.record.incarnation, node_uid="4711"))
    save(services, stored, other)
    assert execute(services, record, ["hostname"])[1].failure is FailureKind.HOST_KEY


def test_unpublished_host_keys_are_believed_only_when_asked_for_and_strictly_after(services):
    services.cloud = Publishing(services.cloud, lambda keys: ())
    with pytest.raises(Exception, match="host keys of 2 workers"):
        bring_up(services, "big")
    assert get_slice(services, "big").record.state is SliceState.BOOTING
    services.trust_first_use = True
    record = wait_for_slice(services, "big", deadline=services.clock.now() + 3600)
    assert record.state is SliceState.READY
    [warning] = [event for event in services.events if isinstance(event, Warn)]
    assert "unproven" in warning.text
    record = pin(services, 0, another_key())
    results = execute(services, record, ["hostname"])
    assert [result.failure for result in results] == [FailureKind.HOST_KEY, None]


def test_internal_addresses_are_used_when_asked_for(services):
    record = bring_up(services, "big")
    worker = record.incarnation.workers[0]
    assert host_targets(services, record)[0].address == worker.endpoint.address
    inside = replace(worker, endpoint=replace(worker.endpoint, internal_ip="10.9.8.7"))
    moved = replace(record, incarnation=replace(record.incarnation, workers=(inside,)))
    services.internal_ip = True
    assert host_targets(services, moved)[0].address == "10.9.8.7"


# ------------------------------------------------------------ forward

SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(sys.argv[2].encode() + b"x" * 300000)
    def log_message(self, *words):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


class HostServer:
    """An HTTP server on a host, until it is stopped."""

    def __init__(self, services: SimServices, target: HostTarget, port: int, text: str) -> None:
        self.port = 0
        self._up, self._over = threading.Event(), threading.Event()
        command = f"exec python3 -c '{SERVER}' {port} {text}"

        def serve() -> None:
            services.remote.run(
                [target], RemoteCall(command, sink=self._heard, timeout_s=None, should_stop=self._over.is_set)
            )

        self._thread = threading.Thread(target=serve)
        self._thread.start()
        assert self._up.wait(20)

    def _heard(self, worker: int, name: str, data: bytes) -> None:
        self.port = int(data)
        self._up.set()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


def get(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=20) as answer:
        return answer.read().decode().rstrip("x")


def test_a_forwarded_port_leads_to_the_worker_and_follows_the_slice(sim, services):
    record = bring_up(services, "big")
    first = HostServer(services, host_targets(services, record)[1], 0, "first")
    forwarding = forward_port(services, "big", 1, first.port)
    second = None
    try:
        assert get(forwarding.local_port) == "first"
        threads = [threading.Thread(target=get, args=(forwarding.local_port,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sim.preempt("big-1")
        first.stop()
        with pytest.raises((urllib.error.URLError, ConnectionError, OSError)):
            get(forwarding.local_port)
        record = wait_for_slice_again(services)
        second = HostServer(services, host_targets(services, record)[1], first.port, "second")
        assert get(forwarding.local_port) == "second"
    finally:
        forwarding.close()
        first.stop()
        if second is not None:
            second.stop()
    assert any(isinstance(event, Warn) and "refused" in event.text for event in services.events)
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        get(forwarding.local_port)


def wait_for_slice_again(services: SimServices) -> SliceRecord:
    end = time.monotonic() + 60
    while True:
        advance_slice(services, "big")
        record = get_slice(services, "big").record
        if record.state is SliceState.READY and record.incarnation.number == 2:
            return record
        assert time.monotonic() < end, record.state
        services.clock.sleep(1.0)


# ------------------------------------------------------------ the real ssh, and through it

needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="the OpenSSH client is not on PATH")


def written(services: SimServices) -> Path:
    record = get_slice(services, "big").record
    return services.ssh_entries.write("big", host_targets(services, record))


def call(*argv: object) -> subprocess.CompletedProcess[bytes]:
    words = [str(word) for word in argv]
    return subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False)


def test_entries_that_nobody_asked_for_are_not_written(services):
    bring_up(services, "big")
    assert not services.ssh_entries.path("big").exists()


@needs_ssh
def test_hosts_are_reached_through_another_host_with_their_own_keys_pinned(services, tmp_path, monkeypatch):
    record = bring_up(services, "big")
    conf = written(services)
    target = host_targets(services, record)[1]
    key = ensure_keypair(tmp_path / "state").private_path
    # The user's own ssh, as its configuration in ~/.ssh would make it.
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    (bin_dir / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {conf} "$@"\n')
    (bin_dir / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(bin_dir), prepend=":")
    for words in (proxy_words(None, "big-0"), proxy_words(f"ssh -F '{conf}' -W [%h]:%p big-0", None)):
        remote = SshRemote(key, proxy=words)
        try:
            [good] = remote.run([target], RemoteCall("echo ${HOSTNAME##*-}"))
            assert (good.exit_status, good.stdout) == (0, b"1\n"), good.detail
            [bad] = remote.run([replace(target, host_key=another_key())], RemoteCall("true"))
            assert bad.failure is FailureKind.HOST_KEY
            [lost] = remote.run([replace(target, port=1)], RemoteCall("true"))
            assert lost.failure is FailureKind.CONNECT
            assert remote.read_host_keys([target]) == [target.host_key]
        finally:
            remote.close()


def test_a_proxy_command_runs_without_a_shell_and_ends_with_its_connection(services, tmp_path):
    record = bring_up(services, "big")
    target = host_targets(services, record)[0]
    relay = tmp_path / "relay.py"
    relay.write_text(
        "import os, select, socket, sys\n"
        "s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "while True:\n"
        "    for ready in select.select([0, s], [], [])[0]:\n"
        "        data = os.read(0, 65536) if ready == 0 else s.recv(65536)\n"
        "        if not data: sys.exit()\n"
        "        s.sendall(data) if ready == 0 else os.write(1, data)\n"
    )
    key = ensure_keypair(tmp_path / "state").private_path
    remote = SshRemote(key, proxy=("python3", str(relay), "%h", "%p", "; touch evil"))
    try:
        [result] = remote.run([target], RemoteCall("echo hello"))
        assert (result.exit_status, result.stdout) == (0, b"hello\n"), result.detail
    finally:
        remote.close()
    sock = open_proxy(("python3", str(relay), "%h", "%p"), target)
    process = sock.process
    sock.close()
    assert process.returncode is not None
    for words, told in ((("/no/such/program",), "/no/such/program"), (("nc", "%i"), "published no `hostname`")):
        remote = SshRemote(key, proxy=words)
        try:
            [result] = remote.run([replace(target, instance="")], RemoteCall("true"))
        finally:
            remote.close()
        assert result.failure is FailureKind.CONNECT
        assert told in result.detail
