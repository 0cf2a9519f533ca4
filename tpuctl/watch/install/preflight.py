"""Checks this machine for what matters to an unattended watchdog: a cron daemon, a battery, credentials."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tpuctl.lib.codec import parse_json
from tpuctl.lib.input_files import read_text
from tpuctl.watch.install.script import Credentials, Preflight

CRON_DAEMONS = frozenset({"cron", "crond", "fcron", "dcron"})


def run_preflight(environ: Mapping[str, str], home: Path, user: str, token_file: str | None) -> Preflight:
    return Preflight(
        cron_runs=cron_runs(),
        battery=has_battery(),
        lingers=lingers(user),
        credentials=find_credentials(environ, home, token_file),
    )


def cron_runs(proc: Path = Path("/proc")) -> bool | None:
    """Whether a cron daemon is among the processes; None where they cannot be listed (macOS)."""
    if not (proc / "self").exists():
        return None
    for comm in proc.glob("[0-9]*/comm"):
        try:
            if comm.read_text().strip() in CRON_DAEMONS:
                return True
        except OSError:
            continue  # ended while we looked
    return False


def has_battery(supplies: Path = Path("/sys/class/power_supply")) -> bool:
    """Whether the machine runs on one; those of mice and keyboards have the scope Device."""
    for supply in sorted(supplies.glob("*")):
        if _word(supply / "type") == "Battery" and _word(supply / "scope") != "Device":
            return True
    return False


def find_credentials(environ: Mapping[str, str], home: Path, token_file: str | None) -> Credentials:
    """The file that the Google libraries would take, in their order
    (https://cloud.google.com/docs/authentication/application-default-credentials)."""
    if token_file is not None:
        return Credentials("token-file", token_file)
    named = environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    root = Path(environ.get("CLOUDSDK_CONFIG") or home / ".config" / "gcloud")
    path = Path(named) if named else root / "application_default_credentials.json"
    if not named and not path.exists():
        return Credentials("none")
    try:
        return Credentials(str(parse_json(read_text(path))["type"]), str(path))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return Credentials("unreadable", str(path))


def lingers(user: str) -> bool | None:
    """Whether this user's timers outlive the last logout; None without systemd's login manager."""
    state = Path("/var/lib/systemd")
    if not state.is_dir() or os.geteuid() == 0:
        return None
    return (state / "linger" / user).exists()


def _word(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
