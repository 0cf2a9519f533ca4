"""User units of systemd: files below ~/.config/systemd/user, and `systemctl --user`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tpuctl.errors import TpuctlError
from tpuctl.lib.files import write_private
from tpuctl.lib.programs import call, said


def units_dir(environ: Mapping[str, str], home: Path) -> Path:
    base = environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if base.startswith("/") else home / ".config") / "systemd" / "user"


def check_available() -> None:
    """Raises TpuctlError where no systemd serves this user."""
    done = call(["systemctl", "--user", "show-environment"])
    if done.returncode != 0:
        raise TpuctlError(
            f"systemd does not serve this user: {said(done)}", hint="tpuctl watch install, without --systemd"
        )


def install_timer(folder: Path, name: str, service: str, timer: str) -> bool:
    """Writes and starts `name.timer`; False when it is so already."""
    fresh = {folder / f"{name}.service": service, folder / f"{name}.timer": timer}
    same = all(path.is_file() and path.read_text() == text for path, text in fresh.items())
    if same and call(["systemctl", "--user", "is-active", f"{name}.timer"]).returncode == 0:
        return False
    for path, text in fresh.items():
        write_private(path, text.encode(), mode=0o644)
    _systemctl("daemon-reload")
    _systemctl("enable", f"{name}.timer")
    _systemctl("restart", f"{name}.timer")
    return True


def remove_timer(folder: Path, name: str) -> bool:
    """Stops and removes `name.timer`; False when there is none."""
    paths = [folder / f"{name}.service", folder / f"{name}.timer"]
    if not any(path.exists() for path in paths):
        return False
    _systemctl("disable", "--now", f"{name}.timer")
    for path in paths:
        path.unlink(missing_ok=True)
    _systemctl("daemon-reload")
    return True


def timer_exists(folder: Path, name: str) -> bool:
    return (folder / f"{name}.timer").exists()


def lingers(user: str) -> bool | None:
    """Whether this user's timers outlive the last logout; None without systemd's login manager."""
    state = Path("/var/lib/systemd")
    if not state.is_dir() or os.geteuid() == 0:
        return None
    return (state / "linger" / user).exists()


def _systemctl(*words: str) -> None:
    done = call(["systemctl", "--user", *words])
    if done.returncode != 0:
        raise TpuctlError(f"systemctl --user {' '.join(words)}: {said(done)}", hint="systemctl --user status")
