"""What this machine must have for isolated hosts, where their files may lie, and removing what they left."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tpuctl.errors import UsageError
from tpuctl.sim.hosts.files import SYSTEM_PATH, memory_of
from tpuctl.sim.hosts.isolated.firewall import find_nft
from tpuctl.sim.hosts.isolated.loop_devices import detach_loops
from tpuctl.sim.hosts.isolated.network import remove_network

PROGRAMS = ("ip", "unshare", "setpriv", "nsenter", "mount", "pivot_root", "sudo", "losetup")
PACKAGES = "openssh-server sudo iproute2 util-linux fuse3"


def check_possible() -> None:
    """Raises UsageError with the reason when this machine cannot have isolated hosts."""
    if not sys.platform.startswith("linux"):
        raise UsageError("isolated hosts need Linux", hint="--hosts process")
    if os.geteuid() != 0:
        raise UsageError("isolated hosts need root", hint="--hosts process, or run the simulator as root")
    missing = [name for name in PROGRAMS if shutil.which(name, path=SYSTEM_PATH) is None]
    if find_sshd() is None:
        missing.append("sshd")
    if missing:
        raise UsageError(
            f"isolated hosts need {', '.join(missing)}",
            hint=f"apt-get install {PACKAGES}; or --hosts process",
        )
    trial = _run_in_namespaces("true")
    if trial:
        raise UsageError(
            f"isolated hosts are not possible here: {trial}",
            hint="--hosts process, or a machine or container with CAP_SYS_ADMIN",
        )


def check_firewall() -> None:
    """Raises UsageError where hosts cannot have a firewall."""
    if find_nft() is None:
        raise UsageError("a firewall of isolated hosts needs nft", hint="apt-get install nftables")
    trial = _run_in_namespaces("nft add table inet tpuctl")
    if trial:
        raise UsageError(f"this machine's kernel has no nftables: {trial}", hint="--firewall open")


def find_sshd() -> str | None:
    """Where sshd is; it must be started by its full path."""
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")


def storage_for(folder: Path, world_id: str) -> Path:
    """`folder`, or a directory in memory where its file system cannot be the upper layer of an overlay, as in
    many containers, whose own root is an overlay already."""
    probe = Path(tempfile.mkdtemp(dir=folder))
    try:
        for name in ("u", "w", "m"):
            (probe / name).mkdir()
        options = f"lowerdir=/,upperdir={probe}/u,workdir={probe}/w"
        if not _run_in_namespaces(f"mount -t overlay overlay -o '{options}' '{probe}/m'"):
            return folder
    finally:
        shutil.rmtree(probe, ignore_errors=True)
    memory = memory_of(world_id)
    memory.mkdir(mode=0o711, exist_ok=True)
    return memory


def remove_leftovers(world_id: str, folder: Path) -> None:
    """Loop devices, links, routes and memory of a world whose processes are dead; its files lay in `folder`."""
    if os.geteuid() == 0:
        detach_loops(folder)
        detach_loops(memory_of(world_id))
    shutil.rmtree(memory_of(world_id), ignore_errors=True)
    if os.geteuid() == 0 and shutil.which("ip", path=SYSTEM_PATH) is not None:
        remove_network(world_id)


def _run_in_namespaces(command: str) -> str:
    """Runs a shell command in namespaces as a host has them; what went wrong, or an empty string."""
    script = f"mount --make-rprivate / && {command}"
    done = subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "/bin/sh", "-c", script],
        capture_output=True,
        text=True,
        env={"PATH": SYSTEM_PATH},
    )
    if done.returncode == 0:
        return ""
    return (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
