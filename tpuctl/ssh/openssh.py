"""Arguments and known_hosts for the real `ssh`, with the same pinned host keys as our own connections."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from tpuctl.config.proxy import render_proxy_option
from tpuctl.model.hosts import HostTarget


def host_alias(target: HostTarget) -> str:
    """The name under which a worker's key is pinned; addresses are reused, this is not."""
    return f"tpuctl-{target.label}"


def write_known_hosts(path: Path, targets: Iterable[HostTarget]) -> None:
    """Replaces the file at once, so that a reader never sees a half."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, temp = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    with os.fdopen(handle, "w") as file:
        file.write(render_known_hosts(targets))
    Path(temp).replace(path)


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
        "IdentitiesOnly": "yes",
        "HostKeyAlias": host_alias(target),
        "UserKnownHostsFile": quoted_path(known_hosts_path),
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "HostKeyAlgorithms": "ssh-ed25519",
        "UpdateHostKeys": "no",
        "CheckHostIP": "no",
        "ConnectTimeout": "5",
        "ServerAliveInterval": "5",
        "ServerAliveCountMax": "3",
    }
    if proxy:
        options["ProxyCommand"] = render_proxy_option(proxy, target)
    argv = ["ssh", "-p", str(target.port), "-i", str(key_path), "-l", target.user]
    for name, value in options.items():
        argv += ["-o", f"{name}={value}"]
    return [*argv, target.address, *extra]


def quoted_path(path: Path) -> str:
    """A file in a value of ssh_config(5): blanks separate files there, % starts a token."""
    text = str(path).replace("%", "%%")
    return f'"{text}"' if any(character.isspace() for character in text) else text
