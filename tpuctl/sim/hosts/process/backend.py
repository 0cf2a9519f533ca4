"""The process tier of simulated hosts: a pure-Python SSH server per host on a loopback address of its own.

Any Linux, no root, nothing to install. Each host has its own HOME, TMPDIR and process tree, but shares the
machine's file system, uid and network: this is no security boundary. Where the simulator is root, programs of
hosts are nobody, so that a script which cleans up as root does it to nothing of the machine's.
"""

from __future__ import annotations

import asyncio
import importlib
import shutil
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from tpuctl.sim.hosts import init as hostinit
from tpuctl.sim.hosts.backend import HostAddress, HostBackend, HostSpec
from tpuctl.sim.hosts.files import MEMORY, memory_of, wipe
from tpuctl.sim.hosts.process.addresses import AddressPool
from tpuctl.sim.hosts.process.children import Nursery, base_interpreter
from tpuctl.sim.hosts.process.keys import AcceptedKeys
from tpuctl.sim.wire.splice import LoopThread, Streams

if TYPE_CHECKING:
    from tpuctl.sim.hosts.process.host import Worker

T = TypeVar("T")

NO_ROOT = """\
echo 'sudo: no root on a simulated host of the process tier; `tpuctl sim up --hosts isolated` has it' >&2
exit 1"""
HOST_MODULE = "tpuctl.sim.hosts.process.host"
"""Imported with the first host: asyncssh takes longer to load than all that answers before one is there."""
CALLBACK_THREADS = 16
"""Metadata and environment of a host are asked in threads: the one who answers may hold a lock while it
waits for us."""


class ProcessHosts(HostBackend):
    """Hosts below `root`, which must exist and belongs to this object until `close`.

    `ssh_port` None means 22 where that may be bound, else one high port for all hosts.
    """

    def __init__(self, root: Path, *, world_id: str, ssh_port: int | None = None) -> None:
        self._root = root.resolve()
        self._world_id = world_id
        self._addresses = AddressPool(ssh_port)
        self.ssh_port = self._addresses.ssh_port
        self._bin = self._root / ".bin"
        self._make_bin()
        self._memory = memory_of(world_id) if MEMORY.is_dir() else self._root / ".run"
        hostinit.give_to_hosts(self._root)
        self._nodes: dict[str, list[Worker]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._closed = False
        self._callbacks = ThreadPoolExecutor(CALLBACK_THREADS, thread_name_prefix="sim-host-callback")
        self._nursery = Nursery()
        # What servers of hosts do for clients (SFTP, homes, terminals) they do as the programs do.
        self._loop = LoopThread("sim-hosts", hostinit.drop_rights_of_thread)

    def publish_port(self, port: int) -> str:  # noqa: ARG002 - hosts share the machine's network
        return "127.0.0.1"

    def show(self, folder: Path) -> None:
        """Nothing to do: hosts share the machine's files."""

    def create(self, specs: list[HostSpec]) -> list[HostAddress]:
        """TpuctlError when no address is free or the machine refuses to listen; then nothing is left."""
        importlib.import_module(HOST_MODULE)  # in this thread: that of the hosts has dropped its rights
        return self._call(self._create(specs))

    def set_ssh_keys(self, node_key: str, ssh_keys: str) -> None:
        """Unknown nodes are fine; lines that hold no public key are skipped, as Google's guest agent does."""
        self._call(self._set_ssh_keys(node_key, ssh_keys))

    def kill(self, node_key: str) -> None:
        self._call(self._remove(node_key))

    def cut(self, node_key: str) -> None:
        self._call(self._cut(node_key))

    def shutdown(self, node_key: str, window_s: float, workers: Collection[int] | None = None) -> None:
        self._call(self._each(node_key, workers, lambda worker: worker.shutdown(window_s)))

    def stop(self, node_key: str, workers: Collection[int] | None = None) -> None:
        self._call(self._each(node_key, workers, lambda worker: worker.stop()))

    def start(self, node_key: str) -> None:
        self._call(self._each(node_key, None, lambda worker: worker.start()))

    def serve(self, node_key: str, worker: int, ports: Mapping[int, Streams]) -> None:
        self._call(self._each(node_key, (worker,), lambda host: host.serve(ports)))

    def destroy(self, node_key: str) -> None:
        self._call(self._remove(node_key))

    def close(self) -> None:
        if self._closed:
            return
        self._call(self._remove_all())
        self._closed = True
        self._loop.close()
        self._nursery.close()
        self._callbacks.shutdown(wait=False, cancel_futures=True)
        shutil.rmtree(self._bin)
        shutil.rmtree(self._memory, ignore_errors=True)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if self._closed:
            work.close()
            raise RuntimeError("these hosts are closed")
        return self._loop.call(work)

    def _make_bin(self) -> None:
        self._bin.mkdir(parents=True, exist_ok=True)
        for name in ("python3", "python"):
            link = self._bin / name
            link.unlink(missing_ok=True)
            link.symlink_to(base_interpreter())
        for name, text in {"hostname": 'echo "$HOSTNAME"', "sudo": NO_ROOT}.items():
            script = self._bin / name
            script.write_text(f"#!/bin/sh\n{text}\n")
            script.chmod(0o755)

    def _lock(self, node_key: str) -> asyncio.Lock:
        return self._locks.setdefault(node_key, asyncio.Lock())

    async def _create(self, specs: list[HostSpec]) -> list[HostAddress]:
        made: list[Worker] = []
        try:
            for spec in specs:
                async with self._lock(spec.node_key):
                    made.append(await self._worker(spec))
        except BaseException:
            for worker in made:
                await self._discard(worker)
            raise
        return [worker.address for worker in made]

    async def _worker(self, spec: HostSpec) -> Worker:
        known = self._nodes.setdefault(spec.node_key, [])
        for worker in known:
            if worker.spec.worker == spec.worker:
                return worker
        worker = self._new_worker(spec)
        await worker.open()
        known.append(worker)
        return worker

    def _new_worker(self, spec: HostSpec) -> Worker:
        from tpuctl.sim.hosts.process.host import Worker, WorkerPlace

        name = f"{quote(spec.node_key, safe='')}/{spec.worker}"
        place = WorkerPlace(self._root / name, self._bin, self._memory / name, self._world_id)
        return Worker(spec, place, self._addresses, self._nursery, self._callbacks)

    async def _set_ssh_keys(self, node_key: str, ssh_keys: str) -> None:
        accepted = AcceptedKeys.parse(ssh_keys)
        for worker in self._nodes.get(node_key, []):
            worker.accepted = accepted

    async def _cut(self, node_key: str) -> None:
        for worker in self._nodes.get(node_key, []):
            worker.cut()

    async def _each(
        self, node_key: str, workers: Collection[int] | None, work: Callable[[Worker], Awaitable[None]]
    ) -> None:
        """Of all workers, or of some, at the same time."""
        async with self._lock(node_key):
            known = self._nodes.get(node_key, [])
            chosen = [each for each in known if workers is None or each.spec.worker in workers]
            await asyncio.gather(*map(work, chosen))

    async def _remove(self, node_key: str) -> None:
        async with self._lock(node_key):
            workers = self._nodes.pop(node_key, [])
            await asyncio.gather(*(self._discard(worker) for worker in workers))
            folder = self._root / quote(node_key, safe="")
            await asyncio.to_thread(wipe, folder)

    async def _discard(self, worker: Worker) -> None:
        siblings = self._nodes.get(worker.spec.node_key, [])
        if worker in siblings:
            siblings.remove(worker)
        await worker.close()
        await asyncio.to_thread(wipe, worker.place.folder)

    async def _remove_all(self) -> None:
        await asyncio.gather(*(self._remove(key) for key in list(self._nodes)))
