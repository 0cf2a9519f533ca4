"""Arguments and known_hosts for the real `ssh`, with the same pinned host keys as our own connections."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tpuctl.config.proxy import render_proxy_option
from tpuctl.lib.files import write_private
from tpuctl.model.hosts import HostTarget


def host_alias(target: HostTarget) -> str:
    """The name under which a worker's key is pinned; addresses are reused, this is not."""
    return f"tpuctl-{target.label}"


def write_known_hosts(path: Path, targets: Iterable[HostTarget]) -> None:
    """Replaces the file at once, so that a reader never sees a half."""
    write_private(path, render_known_hosts(targets).encode())


def render_known_hosts(targets: Iterable[HostTarget]) -> str:
    """A line per worker for known_hosts(5)."""
    return "".join(f"{host_alias(target)} {target.host_key}\n" for target in targets)


def ssh_argv(
    target: HostTarget,
    key_path: Path,
    known_hosts_path: Path,
    extra: Sequence[str] = (),
    proxy: tuple[str, ...] = (),
) -> list[str]:
    """The argument list for `ssh`; `extra` are options and a remote command of the user, passed as they are."""
    options = {
        **pinned_options(target, known_hosts_path, proxy),
        "ConnectTimeout": "5",
        "ServerAliveInterval": "5",
        "ServerAliveCountMax": "3",
    }
    argv = ["ssh", "-p", str(target.port), "-i", str(key_path), "-l", target.user]
    for name, value in options.items():
        argv += ["-o", f"{name}={value}"]
    return [*argv, target.address, *extra]


def pinned_options(target: HostTarget, known_hosts_path: Path, proxy: tuple[str, ...]) -> dict[str, str]:
    """Options of ssh_config(5) that reach a worker with its pinned key, and nobody else."""
    options = {
        "IdentitiesOnly": "yes",
        "HostKeyAlias": host_alias(target),
        "HostKeyAlgorithms": "ssh-ed25519",
        "UserKnownHostsFile": quoted_path(known_hosts_path),
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "UpdateHostKeys": "no",
        "CheckHostIP": "no",
    }
    return {**options, "ProxyCommand": render_proxy_option(proxy, target)} if proxy else options


def quoted_path(path: Path) -> str:
    """A file in a value of ssh_config(5): blanks separate files there, % starts a token."""
    text = str(path).replace("%", "%%")
    return f'"{text}"' if any(character.isspace() for character in text) else text
