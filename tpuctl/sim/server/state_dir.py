"""The state directory of a simulator: its files, its lock, and who runs in it.

Everything about a running simulator is in `<state_dir>/sim.json`; whoever can read that file may steer it.
Three processes read this module while a user waits for `sim up`: it imports little.
"""

from __future__ import annotations

import json
import shutil
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, fields
from pathlib import Path

from tpuctl.errors import TpuctlError
from tpuctl.lib.files import try_lock, write_private
from tpuctl.sim.server.info import SimInfo
from tpuctl.sim.server.processes import alive, kill_world, start_time

BUCKETS_FOLDER = "buckets"
CREDENTIALS_FILE = "credentials.json"
GCLOUD_SETTINGS = "gcloud/configurations/config_default"
"""Below the state directory, what `gcloud config set` changes."""
GCLOUD_ACCOUNT = "gcloud/credentials.db"
"""Below the state directory, where `gcloud auth login` leaves an account (gcloud 528,
googlecloudsdk/core/credentials/creds.py)."""
INFO_FILE = "sim.json"
PROFILE_FILE = "profile.json"
TOKEN_FILE = "token"  # noqa: S105 - a file name
LOCK_FILE = "guardian.lock"
LOG_FILE = "sim.log"
_WORLD_PREFIX = "w-"


def _load(state_dir: Path) -> SimInfo | None:
    try:
        data = json.loads((state_dir / INFO_FILE).read_text())
        return SimInfo(**{each.name: data[each.name] for each in fields(SimInfo)})
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return None  # written by another version or half erased: as good as none, `up` writes a new one


def save_info(state_dir: Path, info: SimInfo) -> None:
    """Publishes a server that answers: the client's profile first, then the file that says it is there."""
    from tpuctl.config.settings import ENDPOINTS  # only the server itself does this

    profile = {
        "label": "sim",
        "project": info.project,
        **dict.fromkeys(ENDPOINTS, info.http),
        "token_file": info.token_file,
        "ssh_port": info.ssh_port,
        "iap": False,
    }
    for name, data in ((PROFILE_FILE, profile), (INFO_FILE, asdict(info))):
        write_private(state_dir / name, (json.dumps(data, indent=1) + "\n").encode())


def status(state_dir: Path) -> SimInfo | None:
    """The simulator that runs with this state directory, if it does."""
    info = _load(state_dir)
    if info is None or not alive(info.pid) or start_time(info.pid) != info.pid_started:
        return None
    return info


def world_folder(state_dir: Path, world_id: str) -> Path:
    """Where a world keeps its hosts and buckets; short, because socket paths of hosts below it are limited
    to 108 bytes (unix(7))."""
    return state_dir / f"{_WORLD_PREFIX}{world_id}"


def sweep(state_dir: Path) -> None:
    """Kills and removes what simulators left behind here. Only for the guardian, or when no guardian runs."""
    for folder in state_dir.glob(f"{_WORLD_PREFIX}*"):
        from tpuctl.sim.hosts.files import wipe  # there is rarely anything
        from tpuctl.sim.hosts.isolated.requirements import remove_leftovers

        world_id = folder.name.removeprefix(_WORLD_PREFIX)
        kill_world(world_id)
        remove_leftovers(world_id, folder)
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(TpuctlError, OSError):
            wipe(folder)  # with what is immutable
    for name in (INFO_FILE, PROFILE_FILE, TOKEN_FILE, CREDENTIALS_FILE, GCLOUD_SETTINGS, GCLOUD_ACCOUNT):
        (state_dir / name).unlink(missing_ok=True)
    with suppress(OSError):
        (state_dir / GCLOUD_SETTINGS).parent.rmdir()
        (state_dir / GCLOUD_ACCOUNT).parent.rmdir()  # unless gcloud keeps something there


def guardian_lock(state_dir: Path) -> AbstractContextManager[bool]:
    """One guardian per state directory: False when another one holds it; the kernel frees it at any death."""
    return try_lock(state_dir / LOCK_FILE)


def failure(state_dir: Path, what: str) -> TpuctlError:
    """What went wrong, with the last lines of the log."""
    log = state_dir / LOG_FILE
    lines = log.read_text(errors="replace").strip().splitlines()[-5:]
    return TpuctlError(
        f"{what}: " + (" | ".join(lines) or "it wrote nothing"),
        hint=f"the whole log is in {log}",
    )
