"""Who may log in to an isolated host: its sshd, and accounts as Google's guest agent keeps them."""

from __future__ import annotations

import base64
import os
import struct
from collections.abc import Mapping
from pathlib import Path

from tpuctl.sim.hosts.process.keys import AcceptedKeys

FIRST_UID = 2000

_SSHD_CONFIG = """\
Port {port}
ListenAddress 0.0.0.0
HostKey /run/tpuctl-sim/host_key
AuthorizedKeysFile /run/tpuctl-sim/users/%u
AuthenticationMethods publickey
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
UseDNS no
PrintMotd no
PidFile none
MaxStartups 1000
MaxSessions 1000
PermitUserEnvironment yes
SetEnv {mark}
Subsystem sftp internal-sftp
"""


def sshd_config(port: int, mark: str) -> str:
    """`mark`: a variable that every session has."""
    return _SSHD_CONFIG.format(port=port, mark=mark)


class Accounts:
    """Of the host whose files are in `folder`. They outlive a reboot."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._users: dict[str, int] = {}

    def set_keys(self, accepted: AcceptedKeys, variables: Mapping[str, str], etc: Path) -> None:
        """Who may log in from now on, and what their programs see. `etc` is that of the running host."""
        users = self._folder / "keys" / "users"
        for stale in users.iterdir():
            if stale.name not in accepted.by_user:
                stale.unlink()
        lines = "".join(f"{key}={value}\n" for key, value in variables.items() if "\n" not in value)
        for user, blobs in accepted.by_user.items():
            uid = 0 if user == "root" else self._account(user, etc)
            home = self._folder / "own" / ("root" if user == "root" else f"home/{user}")
            _write_owned(home / ".ssh" / "environment", lines, uid)
            keys = "".join(f"{_key_line(blob)}\n" for blob in sorted(blobs))
            (users / user).write_text(keys)

    def _account(self, user: str, etc: Path) -> int:
        """The uid of `user`, with an account and a home of its own on the host."""
        if user in self._users:
            return self._users[user]
        uid = FIRST_UID + len(self._users)
        _append(etc / "passwd", f"{user}:x:{uid}:{uid}::/home/{user}:/bin/bash")
        _append(etc / "group", f"{user}:x:{uid}:")
        _append(etc / "shadow", f"{user}:*:19000:0:99999:7:::")
        _join(etc / "group", "google-sudoers", user)
        home = self._folder / "own" / "home" / user
        home.mkdir(parents=True, exist_ok=True)
        os.chown(home, uid, uid)
        self._users[user] = uid
        return uid


def _key_line(blob: bytes) -> str:
    (length,) = struct.unpack(">I", blob[:4])
    return f"{blob[4 : 4 + length].decode()} {base64.b64encode(blob).decode()}"


def _write_owned(path: Path, text: str, uid: int) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text(text)
    os.chown(path.parent, uid, uid)
    os.chown(path, uid, uid)


def _append(path: Path, line: str) -> None:
    name = line.split(":", 1)[0]
    text = path.read_text()
    if not any(each.startswith(f"{name}:") for each in text.splitlines()):
        path.write_text(text if text.endswith("\n") or not text else text + "\n")
        with path.open("a") as file:
            file.write(line + "\n")


def _join(path: Path, group: str, user: str) -> None:
    lines = []
    for line in path.read_text().splitlines():
        if line.startswith(f"{group}:"):
            head, _, members = line.rpartition(":")
            line = f"{head}:{','.join([*(each for each in members.split(',') if each), user])}"
        lines.append(line)
    path.write_text("\n".join(lines) + "\n")
